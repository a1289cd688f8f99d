"""What may be unequal between ranks, and changes nothing: threads, rows that they cannot share evenly."""

from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, Lambert, rows, trained


def test_threads_that_differ_change_nothing_in_a_deterministic_run(cluster: Cluster) -> None:
    same: dict[str, Any] = {"train__deterministic": True, "train__steps": 4}
    cluster.run(1, **same, out=cluster.folder / "alone")
    ranks = cluster.run(each={1: {"environment": {"OMP_NUM_THREADS": "2"}, "fault": two_threads}}, **same)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert (trained(cluster.folder / "run") == trained(cluster.folder / "alone")).all()


def two_threads() -> None:
    """What OMP_NUM_THREADS=2 does where torch is not loaded yet."""
    import torch

    torch.set_num_threads(2)


@pytest.mark.parametrize("deterministic", [False, True])
def test_fewer_rows_than_ranks_can_share(
    deterministic: bool, cluster: Cluster, pretrained: Path, tmp_path: Path
) -> None:
    """Three rows for two ranks, two an update; and batches and epochs that end in the middle of one another."""
    (tmp_path / "rows.tsv").write_text("text\tlabel\nthe river\twater\nan old stone\tland\nthe boat found\twater\n")
    same: dict[str, Any] = {
        "data": "rows.tsv", "dev": "rows.tsv", "init": pretrained, "train__batch_size": 2, "train__epochs": 3,
        "train__micro_tokens": 16, "train__device": "cpu", "train__compile": "off", "task__max_length": 16,
        "train__deterministic": deterministic, "log__every": 1,
    }  # fmt: skip
    each = {rank: {"verb": "finetune"} for rank in range(2)}
    cluster.run(1, each=each, **same, out="alone")
    ranks = cluster.run(2, each=each, **same, out="run")
    assert [rank.code for rank in ranks] == [0, 0], ranks
    alone, together = (rows(tmp_path / name) for name in ("alone", "run"))
    assert [row["step"] for row in together] == [1, 2, 3, 4, 5]
    assert together == (alone if deterministic else [pytest.approx(row, rel=1e-5) for row in alone])


def test_fewer_sequences_than_a_batch(cluster: Cluster, tmp_path: Path, lambert: Lambert) -> None:
    """A corpus of a few sequences, and a batch that holds each several times."""
    (tmp_path / "few.txt").write_text("the river walked slowly near the old boat.\n" * 3)
    lambert("prepare", input=tmp_path / "few.txt", out=tmp_path / "few", documents="line", vocabulary=60, heldout=0)
    same: dict[str, Any] = {
        "corpus": "few", "packing__mode": "full", "packing__sequence_length": 16, "log__every": 1, "train__steps": 3,
    }  # fmt: skip
    cluster.run(1, **same, out="alone")
    ranks = cluster.run(2, **same, out="run")
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert rows(tmp_path / "run") == [pytest.approx(row, rel=1e-5) for row in rows(tmp_path / "alone")]
