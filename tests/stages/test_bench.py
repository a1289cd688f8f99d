"""Every figure of a measurement, alone and beside a peer, on lengths that take no time."""

import contextlib
import io
import json
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lambert import cli
from lambert.core.errors import UsageError
from lambert.stages.bench import BenchConfig, ceilings, memory
from lambert.stages.bench.batches import FITTED, drawn_batch, drawn_lengths

Lambert = Callable[..., Any]
SIDE = {
    "sequences_per_second", "tokens_per_second", "padded_tokens_per_second", "share_of_ceiling",
    "share_of_shaped_ceiling", "memory_mb", "build_seconds", "compile_seconds", "check", "seconds",
}  # fmt: skip
WHOLE = {
    "settings", "unit", "tokens", "padded_tokens", "sequences", "gflop", "threads", "torch", "machine", "device",
    "ceiling_gflops", "shaped_ceiling_gflops", "copy_gb_per_second", "sides",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory is measured in a process of its own: here its command line is called instead."""

    original = subprocess.run

    def run(command: list[str], **settings: Any) -> Any:
        if command[1:4] != ["-m", "lambert", "bench"]:
            return original(command, **settings)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            cli.call(command[3:])
        return subprocess.CompletedProcess(command, 0, out.getvalue())

    monkeypatch.setattr(memory.subprocess, "run", run)
    monkeypatch.setattr(ceilings, "product_ceiling", lambda *_, **__: 1e10)  # half a second each
    monkeypatch.setattr(ceilings, "COPIED", 2**20)


def test_alone(lambert: Lambert) -> None:
    done = lambert("bench", "--json", size="tiny", rounds=1, sequences=2, length=16)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert set(found) == WHOLE
    own = found["sides"]["lambert"]
    assert set(own) == SIDE
    assert len(own["seconds"]) == 1
    assert own["memory_mb"] > 50
    assert own["check"] == pytest.approx(np.log(30522) + np.log(2), rel=0.02)


def test_beside_a_peer(lambert: Lambert) -> None:
    arguments = {"size": "tiny", "rounds": 2, "sequences": 2, "length": 24, "peer": "transformers"}
    done = lambert("bench", "--json", "--optimizer", **arguments, precision="float32")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert set(found) == WHOLE
    own, peer = found["sides"]["lambert"], found["sides"]["transformers"]
    assert (set(own), set(peer)) == (SIDE, SIDE | {"ratio", "ratio_range"})
    # Both sides have the same weights and data.
    assert own["check"] == pytest.approx(peer["check"], abs=2e-3)
    low, high = peer["ratio_range"]
    assert low <= peer["ratio"] <= high
    assert own["tokens_per_second"] > 0
    assert peer["tokens_per_second"] > 0


def test_the_table(lambert: Lambert) -> None:
    shown = lambert("bench", size="tiny", rounds=1, sequences=2, length=16, lengths="full").out
    assert "2 sequences of up to 16 tokens, 100% full" in shown
    assert any(line.startswith("lambert ") for line in shown.splitlines())
    assert "10.0 GFLOP/s" in shown


@pytest.mark.parametrize(("sequences", "length"), [(1, 16), (2, 16), (8, 32), (8, 512), (64, 128)])
def test_lengths_fill_as_much_as_articles_do(sequences: int, length: int) -> None:
    config = BenchConfig(sequences=sequences, length=length).resolved()
    sizes_S = drawn_lengths(config)
    assert sizes_S.shape == (sequences,)
    assert (sizes_S >= 1).all()
    assert (sizes_S <= length).all()
    assert abs(sizes_S.mean() / length - FITTED["wikipedia"][0]) <= max(0.02, 0.5 / (sequences * length))
    assert (drawn_lengths(config) == sizes_S).all()


def test_a_batch_has_its_targets() -> None:
    from lambert.model.config import EncoderConfig

    batch = drawn_batch(EncoderConfig(vocabulary=30522), np.array([10, 30]), 0)
    assert batch.targets["mlm"].count == 6
    assert (batch.ids_T[batch.targets["mlm"].at_N] == 103).all()
    assert batch.types_T.tolist() == [0] * 5 + [1] * 5 + [0] * 15 + [1] * 15


def test_what_cannot_be_measured(lambert: Lambert) -> None:
    assert "tiny" in lambert("bench", size="tinny").err
    assert lambert("bench", size="tinny").code == 2
    assert "transformers" in lambert("bench", size="tiny", peer="transformer", length=16, sequences=1).err
    with pytest.raises(UsageError, match="rounds"):
        BenchConfig(rounds=0)
