"""Trackers with their real packages: they get the numbers, and write in the run folder alone."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from commands import one_line
from patience import HANGS

from lambert.core.errors import UsageError
from lambert.engine import trackers
from lambert.engine.log import RunLog
from lambert.engine.trackers import TRACKERS, check_trackers, start_trackers
from lambert.runs.config import LogConfig

Lambert = Callable[..., Any]
ROWS: list[dict[str, Any]] = [
    {"step": step, "time": 1e9 + step, "loss": 5.0, "loss/mlm": 8.0 / step, "lr": 1e-3, "utilisation": None}
    for step in (2, 4, 6)
]


def tracked(name: str, run: Path, rows: list[dict[str, Any]], start: int = 0) -> None:
    tracker = start_trackers([name], run, start)[name]
    for row in rows:
        tracker.row(row)
    tracker.close()


def state() -> dict[str, object]:
    return {
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "threads": {thread.name for thread in threading.enumerate()},
        "modules": {name for name in sys.modules if name.partition(".")[0] in ("mlflow", "wandb", "opentelemetry")},
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
    }


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that take seconds to import may take minutes on a busy machine."""
    monkeypatch.setattr(trackers, "_LONGEST_END", HANGS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder and a current folder, both empty."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def mlflow_metrics(run: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each metric of the one run in the file store, whose lines are: time, value, step."""
    (folder,) = (path.parent for path in (run / "mlflow").glob("*/*/meta.yaml"))
    found = {}
    for path in (path for path in (folder / "metrics").rglob("*") if path.is_file()):
        lines = [line.split() for line in path.read_text().splitlines()]
        found[str(path.relative_to(folder / "metrics"))] = [(int(line[2]), float(line[1])) for line in lines]
    return found


@pytest.mark.slow
def test_mlflow_gets_the_numbers_and_goes_on_in_the_same_run(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    before, run = state(), tmp_path / "run"
    tracked("mlflow", run, ROWS[:2])
    tracked("mlflow", run, ROWS[2:], start=4)
    assert mlflow_metrics(run) == {
        "loss": [(2, 5.0), (4, 5.0), (6, 5.0)],
        "loss.mlm": [(2, 4.0), (4, 2.0), (6, 8.0 / 6)],
        "lr": [(2, 1e-3), (4, 1e-3), (6, 1e-3)],
    }
    assert (run / "mlflow" / "tracker.txt").read_text() == ""
    assert [*home.iterdir()] == [*Path().iterdir()] == []
    after = state()
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}


@pytest.mark.slow
def test_wandb_gets_the_numbers_offline(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    before, run = state(), tmp_path / "run"
    tracked("wandb", run, ROWS)
    (made,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    found = made.read_bytes()
    assert b"loss/mlm" in found
    assert b"utilisation" not in found
    assert [*home.iterdir()] == [*Path().iterdir()] == []
    after = state()
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_no_network_connection_is_opened(name: str, home: Path, tmp_path: Path) -> None:
    """In a network namespace of its own, without any interface, everything is as it is with one."""
    pytest.importorskip(name)
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    strace = subprocess.run(["which", "strace"], capture_output=True, check=False).returncode == 0
    log = tmp_path / "strace.txt"
    watch = ["strace", "-f", "-qq", "-e", "trace=connect,sendto", "-o", str(log)] if strace else []
    command = ["unshare", "-rn", *watch, sys.executable, "-P", "-m", "lambert.engine.trackers", name]
    done = subprocess.run(
        [*command, str(tmp_path / "run")], input="".join(json.dumps(row) + "\n" for row in ROWS), text=True,
        capture_output=True, check=False, timeout=HANGS, env=os.environ | trackers.ENVIRONMENT,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if strace:
        assert re.findall(r"^.*(?:AF_INET|sin_addr).*$", log.read_text(), re.MULTILINE) == []


def process_of(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the process of a tracker this shell script."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(trackers, "find_spec", lambda package: True)


def test_a_tracker_that_ends_costs_its_rows_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process_of("echo no room >&2\nexit 1", tmp_path, monkeypatch)
    with RunLog(tmp_path / "run", steps=10, quiet=True, trackers=("mlflow",)) as log:
        process: Any = log._trackers["mlflow"]
        process._process.wait(HANGS)
        log.scores(1, {"mlm": 1.0})
        log.scores(2, {"mlm": 1.0})
    assert "gets no further rows: MachineError: mlflow ended with code 1. See" in (tmp_path / "run/log.txt").read_text()
    assert "no room" in (tmp_path / "run" / "mlflow" / "tracker.txt").read_text()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_process_that_does_not_read_holds_up_neither_training_nor_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process_of("trap '' INT TERM\nexec sleep 300", tmp_path, monkeypatch)
    monkeypatch.setattr(trackers, "_LONGEST_END", 0.5)
    monkeypatch.setattr(trackers, "_MOST_UNSENT", 100_000)
    with RunLog(tmp_path / "run", steps=10, quiet=True, trackers=("wandb",)) as log:
        process: Any = log._trackers["wandb"]
        for step in range(200):  # a pipe has room for 64 kB
            log.scores(step, {"x" * 1_000: 1.0})
        assert 100_000 <= len(process._unsent) < 102_000
    assert process._process.returncode == -signal.SIGKILL
    assert caplog.text.count("wandb does not read its rows") == 1
    assert "wandb did not end within 0.5 s. See " in (tmp_path / "run" / "log.txt").read_text()


def test_a_process_that_reads_late_gets_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process_of("sleep 0.3\nexec cat", tmp_path, monkeypatch)
    rows = [{"step": step, "text": "x" * 10_000} for step in range(50)]
    tracked("mlflow", tmp_path / "run", rows)
    output = (tmp_path / "run" / "mlflow" / "tracker.txt").read_text()
    assert [json.loads(line) for line in output.splitlines()] == rows


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_says_how_to_install_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda package: None)
    with pytest.raises(UsageError, match=rf"log.trackers names {name}, .*: pip install 'lambert-bert\[{name}\]'"):
        RunLog(tmp_path, steps=1, trackers=(name,))


class Mine:
    """A tracker from outside."""

    rows: ClassVar[list[Mapping[str, Any]]] = []

    def __init__(self, run: Path, start: int) -> None:
        self.start = start

    def row(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.rows.append({"closed": self.start})


def test_a_tracker_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    monkeypatch.setattr(Mine, "rows", [])
    check_trackers(["mine:Mine"])
    tracked("mine:Mine", tmp_path, ROWS[:1], start=3)
    assert Mine.rows == [ROWS[0], {"closed": 3}]


class Failing(Mine):
    """A tracker whose method `fails` raises."""

    fails = "row"
    calls: ClassVar[list[str]] = []

    def row(self, row: Mapping[str, Any]) -> None:
        self._call("row")

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method == self.fails:
            raise RuntimeError("no\nserver")


@pytest.mark.parametrize(("fails", "calls"), [("row", ["row"]), ("close", ["row", "row", "close"])])
def test_a_tracker_that_fails_ends_neither_the_run_nor_hides_its_error(
    fails: str, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    monkeypatch.setattr(Failing, "fails", fails)
    monkeypatch.setattr(Failing, "calls", [])
    monkeypatch.setattr(Mine, "rows", [])

    def run() -> None:
        with RunLog(tmp_path, steps=10, trackers=("mine:Failing", "mine:Mine")) as log:
            log.scores(1, {"mlm": 1.0})
            log.scores(2, {"mlm": 1.0})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert Failing.calls == calls
    assert [row.get("step") for row in Mine.rows] == [1, 2, None]  # the other one gets all of them
    warning = "warning: the tracker mine:Failing gets no further rows: RuntimeError: no server. The run continues."
    assert (tmp_path / "log.txt").read_text().count(warning) == 1
    assert " ".join(capsys.readouterr().err.split()).count(warning) == 1


def test_names_are_checked_before_the_run(recipe: Path, lambert: Lambert) -> None:
    with pytest.raises(UsageError, match=r"log.trackers = 'wandbb' is unknown. Did you mean 'wandb'"):
        LogConfig(trackers=("wandbb",))
    with pytest.raises(UsageError, match=r"log.trackers names wandb twice"):
        LogConfig(trackers=("wandb", "wandb"))
    one_line(lambert("pretrain", recipe, "--log.trackers", "x"), 2, "log.trackers = 'x' is unknown. Known: mlflow")


@pytest.mark.slow
def test_a_run_with_all_trackers(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert, home: Path
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    flags = {**small, "corpus": corpus, "out": out, "train__steps": 4}
    done = lambert("pretrain", "--log.trackers", *TRACKERS, **flags)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["loss/mlm"]) for row in rows if "loss/mlm" in row]
    assert mlflow_metrics(out)["loss.mlm"] == losses
    assert [*(out / "tensorboard").iterdir()] != []
    assert [*(out / "wandb").glob("offline-run-*")] != []
    assert [*home.iterdir()] == [*Path().iterdir()] == []
