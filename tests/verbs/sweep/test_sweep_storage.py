"""The study that processes share: lost, damaged, of other settings, and used by several processes."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from commands import one_line
from patience import HANGS
from sweeps import RATES, found, results

from lambert.commands import parse
from lambert.core import settings
from lambert.core.errors import DataError, MachineError
from lambert.engine.signals import StopRequest
from lambert.runs.config import RunConfig
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.sweep import processes, search, storage
from lambert.verbs.sweep.space import dimensions

Lambert = Callable[..., Any]


@pytest.mark.parametrize("kind", ["journal", pytest.param("sqlite", marks=pytest.mark.slow)])
def test_a_storage_that_is_lost_is_restored(
    kind: str, write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    pretend(lambda config: config.optim.lr)
    path = tmp_path / "the.study"
    own = f"storage = '{'sqlite:///' * (kind == 'sqlite')}{path}'\n"
    assert lambert("sweep", write(f"trials = 2\n{own}")).code == 0
    before = results(tmp_path / "sweep")
    path.unlink()
    done = lambert("sweep", write(f"trials = 3\n{own}"))
    assert (done.code, "2 trials are restored" in done.out) == (0, True)
    assert results(tmp_path / "sweep")[:2] == before
    assert len(results(tmp_path / "sweep")) == 3


@pytest.mark.parametrize(
    ("kind", "said"),
    [("journal", "the.study was removed"), pytest.param("sqlite", "cannot be used", marks=pytest.mark.slow)],
)
def test_a_storage_that_disappears_is_one_line(
    kind: str, said: str, write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    removed: list[int] = []
    path = tmp_path / "the.study"
    own = f"trials = 3\nstorage = '{'sqlite:///' * (kind == 'sqlite')}{path}'\n"

    def score(config: RunConfig) -> float:
        if not removed:
            removed.append(1)
            path.unlink()
        return 0.5

    pretend(score)
    one_line(lambert("sweep", write(own)), 4, said, "the.study", "sweep.json")
    assert lambert("sweep", write(own)).code == 0
    assert len(found(tmp_path / "sweep")["trials"]) == 3


@pytest.mark.slow
def test_a_journal_whose_last_line_was_cut_is_read(write: Callable[..., Path], tmp_path: Path, pretend: Any) -> None:
    pretend(lambda config: 0.5)
    parse.call(["sweep", str(write("trials = 1"))])
    journal = tmp_path / "sweep" / "study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    parse.call(["sweep", str(write("trials = 2"))])
    assert [state for state, *_ in results(tmp_path / "sweep")] == ["complete"] * 2
    journal.write_bytes(b"another file\nof text\nand more\n")
    with pytest.raises(DataError, match=r"study\.journal of the sweep cannot be read"):
        parse.call(["sweep", str(write("trials = 2"))])


def test_a_study_of_other_settings_is_refused(write: Callable[..., Path], lambert: Lambert, pretend: Any) -> None:
    pretend(lambda config: 0.5)
    assert lambert("sweep", write("trials = 1")).code == 0
    other = lambert("sweep", write("trials = 2", RATES.replace("1e-2", "1e-1"), train="steps = 4"))
    one_line(other, 2, "space.optim.lr 1e-05 to 0.01 log -> 1e-05 to 0.1 log", "train.steps 3 -> 4", "study 'sweep'")
    free = write("trials = 2\nsampler = 'random'\npruner = 'none'", train="steps = 3\nevaluate_every = 1")
    assert lambert("sweep", free).code == 0


MEETING = """
import os, time
from pathlib import Path
from optuna.samplers import RandomSampler
from lambert.verbs.sweep.processes import is_worker

FOLDER = Path(__file__).parent / "calls"

def sampler(space: list, seed: int):
    '''Notes each call with its process; the first call in a process of --jobs waits for that of the other.'''
    if is_worker():
        FOLDER.mkdir(exist_ok=True)
        with (FOLDER / str(os.getpid())).open("a") as file:
            file.write("x")
        until = time.monotonic() + PATIENCE
        while len(list(FOLDER.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    return RandomSampler(seed=seed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_two_processes_share_the_trials(
    kind: str, write: Callable[..., Path], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meeting.py").write_text(MEETING.replace("PATIENCE", str(HANGS)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "meeting", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    own = f"trials = 2\njobs = 2\nsampler = 'meeting:sampler'\nstorage = '{'sqlite:///' * (kind == 'sqlite')}"
    done = lambert("sweep", write(f"{own}{tmp_path / 'the.study'}'"))
    assert (done.code, done.err) == (0, "")
    calls = [path.read_text() for path in (tmp_path / "calls").iterdir()]
    assert calls == ["xx", "xx"]  # each of two processes was made ready for one study, and chose one trial
    rows = found(tmp_path / "sweep")["trials"]
    assert [(row["number"], row["state"], row["updates"]) for row in rows] == [(0, "complete", 3), (1, "complete", 3)]
    space = dimensions(tomllib.loads(RATES), FinetuneConfig)
    study = optuna.create_study(sampler=search.build_sampler("random", space, 0))
    chosen = [study.ask({one.name: one.distribution for one in space}).params for _ in rows]
    assert [row["params"] for row in rows] == chosen  # those of one process


def test_a_process_that_fails_is_reported_and_a_signal_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse.settings(["sweep", "--out", str(tmp_path), "--jobs", "2"])
    code = "import sys; from lambert.core import launcher; sys.exit(launcher.report_end(4, 'No space left.'))"
    monkeypatch.setattr(processes, "command", lambda recipe: [sys.executable, "-c", code])
    with pytest.raises(processes.Ended, match=r"No space left\.") as ended:
        processes.run_processes(config, StopRequest())
    assert ended.value.exit_code == 4
    monkeypatch.setattr(
        processes, "command", lambda recipe: [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    )
    with pytest.raises(MachineError, match="Process 1 of 2 of the sweep ended by SIGKILL"):
        processes.run_processes(config, StopRequest())
    monkeypatch.setattr(processes, "command", lambda recipe: [sys.executable, "-c", "import time; time.sleep(600)"])
    stop = StopRequest()
    monkeypatch.setattr(type(stop), "check", lambda self: None)
    stop._received = 15
    processes.run_processes(config, stop)  # ends the processes
    read = settings.read(tmp_path / processes.RECIPE)["sweep"]
    assert (read["jobs"], read["out"]) == (1, str(tmp_path))


def test_a_password_is_not_shown() -> None:
    config = parse.settings(["sweep", "--out", "o", "--storage", "postgresql://me:secret@host/db"])
    assert storage.display_name(config) == "postgresql://host/db"
