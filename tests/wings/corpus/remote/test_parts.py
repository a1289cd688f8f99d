"""Steps on machines that share no file system: the bytes of one machine."""

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lambert.core.errors import DataError, UsageError
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.scale import MakeParts, prepare_on_cluster

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("parts_of_one_file")
STORE = "memory://store/work"


class Machines:
    """Runs each task on a machine of its own: where the work folder is, there is nothing of the other machines."""

    def __init__(self, work: Path, pipeline: list[MakeParts], tasks: int, fails: Callable[[str, int], bool], **_: Any):
        self._work, self._step, self._tasks, self._fails = work, pipeline[0], tasks, fails

    def run(self) -> None:
        others = self._work.with_name("others")
        for rank in range(self._tasks):
            if self._fails(self._step._stage.step, rank):
                continue
            self._work.rename(others)
            try:
                self._step(None, rank, self._tasks)
            finally:
                shutil.rmtree(self._work)
                others.rename(self._work)


class Processes:
    """Runs all tasks at once, each in a process of its own, in one work folder."""

    CODE = "import pickle, sys; pickle.load(sys.stdin.buffer)(None, int(sys.argv[1]), int(sys.argv[2]))"

    def __init__(self, pipeline: list[MakeParts], tasks: int, **_: Any) -> None:
        self._step, self._tasks = pickle.dumps(pipeline[0]), tasks

    def run(self) -> None:
        commands = ([sys.executable, "-c", self.CODE, str(rank), str(self._tasks)] for rank in range(self._tasks))
        started = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
        for process in started:
            process.communicate(self._step)


@pytest.fixture
def inputs() -> Iterator[str]:
    """Six remote files; of the documents of each, the first is in all of them."""
    files = fsspec.filesystem("memory")
    for number in range(6):
        rows = [{"text": f"River {number}{n} of all runs under an old stone bridge near the town."} for n in range(200)]
        rows[0] = {"text": "The same words are in every one of the files, so that five of them are left out again."}
        files.pipe(f"/in/{number}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    yield "memory://in"
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def config(folder: Path, inputs: str, **more: Any) -> PrepareConfig:
    fixed: dict[str, Any] = {"vocabulary": 120, "workers": 1, "clean": ("normalise",), "work": folder / "work"}
    steps = ("extract,clean,deduplicate,tokens",)
    return PrepareConfig(**{"input": (inputs,), "out": folder / "out", "steps": steps} | fixed | more)


def content(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def machines(folder: Path, fails: Callable[[str, int], bool] = lambda step, rank: False) -> Any:
    return partial(Machines, folder / "work", fails=fails)


def test_machines_without_a_shared_disk_give_the_bytes_of_one(inputs: str, tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    tokenizer = tmp_path / "plain"
    prepare(config(tmp_path, inputs, out=tokenizer))
    for more in ({}, {"tokenizer": str(tokenizer), "steps": ("extract,clean,deduplicate,encode,tokens",)}):
        shutil.rmtree(tmp_path / "work")
        expected = prepare(config(tmp_path, inputs, out=tmp_path / f"one{len(more)}", **more))
        assert sum(expected["steps"]["deduplicate"]["dropped"].values()) >= 5
        shutil.rmtree(tmp_path / "work")
        chosen = config(tmp_path, inputs, out=tmp_path / f"many{len(more)}", **more)
        assert prepare_on_cluster(chosen, machines(tmp_path), 4, STORE) == expected
        assert content(tmp_path / f"many{len(more)}") == content(tmp_path / f"one{len(more)}")


def test_only_what_is_missing_is_made(inputs: str, tmp_path: Path) -> None:
    made: list[tuple[str, int]] = []

    def fails(step: str, rank: int) -> bool:
        made.append((step, rank))
        return step == "clean" and rank == 1

    chosen = config(tmp_path, inputs, steps=("extract,clean,tokens",))
    with pytest.raises(DataError, match=r"clean lacks 2 of 6 parts"):
        prepare_on_cluster(chosen, machines(tmp_path, fails), 3, STORE)
    assert len(made) == 6
    files = fsspec.filesystem("memory")
    times = {name: files.info(name)["created"] for name in files.find("/store") if "part-" in name}
    assert len(times) == 20
    shutil.rmtree(tmp_path / "work")  # also the machine of the command is another one
    prepare_on_cluster(chosen, machines(tmp_path), 3, STORE)
    assert {name: files.info(name)["created"] for name in times} == times
    assert content(tmp_path / "out") == content_of_one(inputs, tmp_path)


def content_of_one(inputs: str, folder: Path) -> dict[str, bytes]:
    shutil.rmtree(folder / "work")
    prepare(config(folder, inputs, out=folder / "one", steps=("extract,clean,tokens",)))
    return content(folder / "one")


def test_a_damaged_part_is_made_again(inputs: str, tmp_path: Path) -> None:
    chosen = config(tmp_path, inputs, steps=("extract",))
    prepare_on_cluster(chosen, machines(tmp_path), 2, STORE)
    files = fsspec.filesystem("memory")
    name = next(name for name in files.find("/store") if name.endswith(".parquet"))
    whole = files.cat(name)
    files.pipe(name, whole[:-9])
    shutil.rmtree(tmp_path / "work")
    prepare_on_cluster(chosen, machines(tmp_path), 2, STORE)
    assert files.cat(name) == whole


def test_a_store_must_be_a_url(inputs: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="store = '/shared' is not a URL"):
        prepare_on_cluster(config(tmp_path, inputs), machines(tmp_path), 2, "/shared")


def test_an_input_that_changes_is_named(inputs: str, tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    chosen = config(tmp_path, inputs, steps=("extract",))

    def changes(step: str, rank: int) -> bool:
        files.pipe("/in/3.jsonl", b'{"text": "another"}\n')
        return False

    with pytest.raises(DataError, match=r"3\.jsonl.* changed while it was read.*extract lacks 1 of 6 parts"):
        prepare_on_cluster(chosen, machines(tmp_path, changes), 2, STORE)
    assert any("failed-" in name for name in files.find("/store"))


@pytest.mark.slow
def test_processes_with_inputs_parts_and_corpus_in_s3(bucket: Any, inputs: str, tmp_path: Path) -> None:
    files, name = bucket
    memory = fsspec.filesystem("memory")
    for path in memory.find("/in"):
        files.pipe(f"{name}{path}", memory.cat_file(path))
    chosen = config(tmp_path, f"s3://{name}/in", out=f"s3://{name}/out", steps=("extract,clean,tokens",))
    manifest = prepare_on_cluster(chosen, Processes, 3, f"s3://{name}/work")
    files.invalidate_cache()
    assert len(files.find(f"{name}/work")) == 2 * 2 * 6
    assert json.loads(files.cat(f"{name}/out/manifest.json"))["manifest_sha256"] == manifest["manifest_sha256"]
    assert len(manifest["inputs"]) == 6
