"""The steps on an executor give the bytes of `prepare` alone, whatever the executor and the number of tasks."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import HANGS
from small_corpora import content as all_content
from small_corpora import small_config

from lambert.core.errors import DataError, UsageError
from lambert.core.lock import lock_folder
from lambert.wings.corpus import scale, stages
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.scale import RayTasks, prepare_on_cluster

pytest.importorskip("pyarrow")
executors = pytest.importorskip("datatrove.executor")
pytestmark = pytest.mark.usefixtures("parts_of_one_file")

config = partial(small_config, steps=("extract,clean,tokens",), clean=("normalise",))

FILES = 6
FUNCTION = """
import os, signal
from pathlib import Path

MARKER = Path(__file__).with_name("killed")


def tidy(text):
    if text.startswith("River 3150 ") and not MARKER.exists():
        MARKER.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if "cannot be tidied" in text:
        raise ValueError("too untidy")
    return text
"""


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(FILES):
        rows = [{"text": f"River {number}{n} runs under an old bridge.  It is near\u00a0town."} for n in range(300)]
        (folder / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


def content(out: Path) -> dict[str, bytes]:
    """The files of a corpus and of its work folder, without those that name the corpus, a process or an executor."""
    work = all_content(out.with_name(out.name + ".work"), without=("lock.json", "causes.json", "logs"))
    return all_content(out) | {f".work/{name}": data for name, data in work.items()}


class InOrder:
    """An executor in this process that runs some of its tasks."""

    def __init__(self, pipeline: list[Any], tasks: int, ranks: list[int] | None = None, **_: Any) -> None:
        self._step, self._tasks, self._ranks = pipeline[0], tasks, ranks

    def run(self) -> None:
        for rank in range(self._tasks) if self._ranks is None else self._ranks:
            self._step(None, rank, self._tasks)


@pytest.mark.parametrize(
    ("workers", "tasks"),
    [(1, 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 1), (2, 3), (2, 9)))],
)
def test_datatroves_local_executor_gives_the_bytes_of_one_process(inputs: Path, workers: int, tasks: int) -> None:
    prepare(config(inputs, "one"))
    prepare_on_cluster(config(inputs, "many"), partial(executors.LocalPipelineExecutor, workers=workers), tasks)
    assert content(inputs.parent / "one") == content(inputs.parent / "many")


def test_deduplicating_and_encoding_on_an_executor_give_the_same_corpus(inputs: Path) -> None:
    pytest.importorskip("rensa")
    shutil.copy(inputs / "2.jsonl", inputs / "7.jsonl")
    prepare(config(inputs, "learnt"))
    given: dict[str, Any] = {"tokenizer": str(inputs.parent / "learnt")}
    steps = "extract,clean,deduplicate,{}tokens"
    prepare(config(inputs, "one", steps=(steps.format(""),), **given))
    prepare_on_cluster(config(inputs, "many", steps=(steps.format("encode,"),), **given), InOrder, 4)
    corpora = [{name: data for name, data in content(inputs.parent / out).items() if not name.startswith(".work")}
               for out in ("one", "many")]  # fmt: skip
    assert corpora[0] == corpora[1]
    assert len(list((inputs.parent / "many.work" / "encode").glob("*.parquet"))) == FILES + 1


def test_tasks_and_prepare_do_not_write_at_the_same_time(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract",), clean=())

    class Meanwhile(InOrder):
        def run(self) -> None:
            with lock_folder(chosen.work_folder, shared=True):
                super().run()
                with pytest.raises(UsageError, match="in use by another process"):
                    prepare(chosen)

    prepare_on_cluster(chosen, Meanwhile, 2)
    with lock_folder(chosen.work_folder), pytest.raises(UsageError, match="in use by process"):
        scale.MakeParts(chosen, stages.list_stages(chosen)[0], [])()


def test_without_steps_there_is_nothing_to_distribute(inputs: Path) -> None:
    with pytest.raises(UsageError, match="steps is empty"):
        prepare_on_cluster(config(inputs, "out", steps=(), clean=()), InOrder, 2)


def test_parts_that_exist_are_not_made_again(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract",), clean=())
    with pytest.raises(DataError, match=r"1\.jsonl: its task ended early; see .*extract lacks 2 of 6 parts"):
        prepare_on_cluster(chosen, partial(InOrder, ranks=[0, 2]), 3)
    made: list[str] = []
    original = stages.Extract.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.Extract, "__call__", lambda self, unit: made.append(unit.source) or original(self, unit))
        prepare_on_cluster(chosen, InOrder, 3)
    assert [Path(source).name for source in made] == ["1.jsonl", "4.jsonl"]


@pytest.mark.parametrize("executor", [None, "slurm", InOrder([None], 1)])
def test_what_is_no_executor_is_named(executor: Any, inputs: Path) -> None:
    with pytest.raises(UsageError, match="executor must be a class or function that is called with pipeline"):
        prepare_on_cluster(config(inputs, "out"), executor, 2)


def test_wrong_types_are_named(inputs: Path) -> None:
    with pytest.raises(UsageError, match=r"tasks = '4' must be a whole number"):
        prepare_on_cluster(config(inputs, "out"), InOrder, "4")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"config must be a lambert\.PrepareConfig, not \{"):
        prepare_on_cluster({}, InOrder, 4)  # type: ignore[arg-type]
    for name, value in (("steps", "extract,tokens"), ("weights", 1), ("clean", None)):
        with pytest.raises(UsageError, match=f"{name} = .* must be a list"):
            config(inputs, "out", **{name: value})


def test_a_unit_that_fails_does_not_stop_the_others_and_is_named(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(inputs, "out", clean=(), steps=("extract", "tokens"))
    original = stages.Extract.__call__

    def fail(self: Any, unit: stages.Unit) -> Any:
        if unit.source.endswith("3.jsonl"):
            raise OSError(5, "Input/output error")
        return original(self, unit)

    with monkeypatch.context() as patch:
        patch.setattr(stages.Extract, "__call__", fail)
        with pytest.raises(DataError, match=r"3\.jsonl: OSError: .*Input/output error.*extract lacks 1 of 6 parts"):
            prepare_on_cluster(chosen, InOrder, 2)
    assert len(list((chosen.work_folder / "extract").glob("part-*.parquet"))) == FILES - 1
    prepare_on_cluster(chosen, InOrder, 2)
    assert not list(chosen.work_folder.rglob("failed-*"))


def test_an_executor_that_raises_is_judged_by_the_parts(inputs: Path) -> None:
    class Raises(InOrder):
        def run(self) -> None:
            super().run()
            raise RuntimeError("the connection to the scheduler was lost")

    prepare_on_cluster(config(inputs, "out"), Raises, 2)
    with pytest.raises(DataError, match=r"0\.jsonl: RuntimeError: the connection"):
        prepare_on_cluster(config(inputs, "other"), partial(Raises, ranks=[]), 2)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lambert.wings.corpus.scale.__version__", "0.0.1", r"lambert 0\.0\.1"),
        ("unicodedata.unidata_version", "3.2.0", r"Unicode 3\.2\.0"),
        ("importlib.metadata.version", lambda name: f"{name} 1", "pyarrow pyarrow 1, .*rensa rensa 1"),
    ],
)
def test_a_machine_with_other_versions_makes_no_parts(
    inputs: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, words: str
) -> None:
    class Elsewhere(InOrder):
        def run(self) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(name, value)
                super().run()

    with pytest.raises(DataError, match=rf"has {words}.*, not .*Install the same on all machines"):
        prepare_on_cluster(config(inputs, "out"), Elsewhere, 2)


@pytest.fixture(scope="module")
def function(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a cleaning function, on the path of this process and of the workers, and a running Ray."""
    ray = pytest.importorskip("ray")

    folder = tmp_path_factory.mktemp("code")
    (folder / "scale_tidy.py").write_text(FUNCTION)
    session = Path(tempfile.mkdtemp(prefix="ray-"))  # sockets need a short path
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        before = set(psutil.Process().children(recursive=True))
        ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, _temp_dir=str(session),
                 _memory=8 << 30, log_to_driver=False)  # fmt: skip
        started = set(psutil.Process().children(recursive=True)) - before
        yield folder
        ray.shutdown()
    _, alive = psutil.wait_procs(started, timeout=HANGS)
    assert started
    assert not alive
    shutil.rmtree(session)
    sys.modules.pop("scale_tidy", None)


@pytest.mark.slow
def test_a_killed_worker_does_not_change_the_bytes(inputs: Path, function: Path) -> None:
    prepare_on_cluster(config(inputs, "many", clean=("scale_tidy:tidy",)), partial(RayTasks, memory=100 << 20), 3)
    assert (function / "killed").exists()
    prepare(config(inputs, "one", clean=("scale_tidy:tidy",)))
    assert content(inputs.parent / "one") == content(inputs.parent / "many")


@pytest.mark.slow
def test_a_part_that_fails_is_named_at_the_end(inputs: Path, function: Path) -> None:
    (function / "killed").touch()
    (inputs / "4.jsonl").write_text('{"text": "It cannot be tidied."}')
    with pytest.raises(
        DataError, match=r"4\.jsonl: clean = .*failed at .*jsonl, line 1: ValueError: too untidy.* lacks 1 of 6"
    ):
        prepare_on_cluster(config(inputs, "many", clean=("scale_tidy:tidy",)), partial(RayTasks, memory=100 << 20), 3)
