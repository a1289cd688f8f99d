"""What lies on the disks of the ranks' machines, or does not: every rank ends within a minute, with one line that names
the rank and the cause.
"""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusters import SLOWEST, Cluster, Lambert, assert_all, ended, flip, trained
from tiny import free_port  # type: ignore[import-not-found]

from lambert.core.contents import sha256
from lambert.core.shards import read_manifest, with_hash


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def forget(path: Path) -> None:
    path.unlink()
    path.with_name("vocab.txt").unlink()


@pytest.mark.parametrize(
    ("name", "damage", "gist"),
    [
        ("train/00000.bin", Path.unlink, "corpus/train/00000.bin is missing or not "),
        ("train/00000.bin", cut, "corpus/train/00000.bin is missing or not "),
        ("tokenizer.json", forget, "No tokenizer in corpus: neither tokenizer.json nor vocab.txt"),
    ],
)
def test_data_that_one_machine_has_not(
    name: str, damage: Callable[[Path], None], gist: str, cluster: Cluster, corpus: Path
) -> None:
    """The recipe is the same, with a path that leads to another disk on each machine."""
    nodes = []
    for number in (0, 1):
        nodes.append(cluster.folder / "nodes" / str(number))
        shutil.copytree(corpus, nodes[-1] / "corpus")
    damage(nodes[1] / "corpus" / name)
    ranks = cluster.run(each={n: {"folder": folder} for n, folder in enumerate(nodes)}, corpus="corpus")
    assert_all(ranks, 3, f"Rank 1 failed reading its data: {gist}")


def test_another_tokenizer_on_one_machine(cluster: Cluster, corpus: Path) -> None:
    for number in (0, 1):
        shutil.copytree(corpus, cluster.folder / str(number) / "corpus")
    path = cluster.folder / "1" / "corpus" / "tokenizer.json"
    words = json.loads(path.read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["the"], vocabulary["a"] = vocabulary["a"], vocabulary["the"]
    path.write_text(json.dumps(words))
    manifest = read_manifest(path.parent) | {"tokenizer_sha256": sha256(path)}
    del manifest["manifest_sha256"]
    (path.parent / "manifest.json").write_text(json.dumps(with_hash(manifest)))
    ranks = cluster.run(each={n: {"folder": cluster.folder / str(n)} for n in (0, 1)}, corpus="corpus")
    assert_all(ranks, 2, "Rank 1 differs from rank 0 in the tokenizer: ")


def test_another_corpus_on_one_machine(cluster: Cluster, corpus: Path, texts: Path, lambert: Lambert) -> None:
    for number, vocabulary in ((0, 160), (1, 120)):
        out = cluster.folder / str(number) / "corpus"
        lambert("prepare", input=texts, out=out, documents="line", vocabulary=vocabulary, heldout=0.2, workers=1)
    ranks = cluster.run(each={n: {"folder": cluster.folder / str(n)} for n in (0, 1)}, corpus="corpus")
    assert_all(ranks, 2, "Rank 1 differs from rank 0 in the corpus")


UNWRITABLE = Path("/proc/lambert")
"""Where not even the super-user can make anything."""
linux = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, a folder that nobody can write to")


@linux
def test_a_run_folder_that_cannot_be_written(cluster: Cluster) -> None:
    assert_all(cluster.run(out=UNWRITABLE), 2, f"{UNWRITABLE} cannot be written")


def test_checkpoints_that_are_damaged_or_elsewhere(cluster: Cluster) -> None:
    """Nobody needs to write but the first rank, and that into the run folder alone."""
    folders = {1: {"folder": UNWRITABLE.parent}} if UNWRITABLE.parent.is_dir() else {}
    ranks = cluster.run(each=folders, train__save_every=4)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    run, apart = cluster.folder / "run", cluster.folder / "apart"
    expected = trained(run)
    shutil.rmtree(run / "model")
    for place in (apart / "0", apart / "1"):
        place.mkdir(parents=True)
    shutil.copytree(run, apart / "0" / "run")
    ranks = cluster.run(each={n: {"folder": apart / str(n)} for n in (0, 1)}, out="run")
    assert_all(ranks, 4, "Rank 1 failed reading the checkpoint: run/checkpoints/step-000008 is missing here")
    flip(run / "checkpoints" / "step-000008" / "model.safetensors")
    first, second = cluster.run(3, train__save_every=4)[:2]  # a run that has begun goes on with any number
    assert (first.code, second.code, second.text) == (0, 0, "")
    assert first.text.count("step-000008 is damaged: model.safetensors") == 1
    assert "continuing after update 4 of 8" in first.text
    assert trained(run) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    shutil.rmtree(run / "model")
    metrics = (run / "metrics.jsonl").read_bytes()
    for folder in (run / "checkpoints").glob("step-00000?"):
        flip(folder / "optimizer.safetensors")
    for _ in range(2):
        ranks = cluster.run()
        assert [rank.code for rank in ranks] == [3, 3]
        assert all("step-000004.corrupt, step-000008.corrupt" in rank.text for rank in ranks), ranks
    assert (run / "metrics.jsonl").read_bytes() == metrics
    assert not (run / "model").exists()


def test_two_jobs_on_one_run_folder(cluster: Cluster) -> None:
    more: dict[str, Any] = {"train__steps": 5000, "log__console": False}
    port = free_port()
    first = [cluster.start(rank, 2, port, more) for rank in range(2)]
    lock = cluster.folder / "run" / "lock.json"
    until = time.monotonic() + SLOWEST
    while not (lock.exists() and lock.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    holder = f"in use by process {first[0][0].pid} on {socket.gethostname()}."
    assert_all(cluster.run(**more), 2, holder)
    os.kill(first[1][0].pid, signal.SIGTERM)
    assert [rank.code for rank in ended(first)] == [75, 75]
