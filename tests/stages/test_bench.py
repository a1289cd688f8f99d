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
from lambert.stages import bench
from lambert.stages.bench import BenchConfig, drawn_batch, drawn_lengths

Lambert = Callable[..., Any]
SIDE = {
    "sequences_per_second", "tokens_per_second", "padded_tokens_per_second", "share_of_ceiling", "memory_mb",
    "first_loss", "seconds",
}  # fmt: skip
WHOLE = {"settings", "lengths", "threads", "torch", "machine", "device", "ceiling_gflops", "lambert"}


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

    monkeypatch.setattr(bench.subprocess, "run", run)
    monkeypatch.setattr(bench, "product_ceiling", lambda *_, **__: 1e10)  # half a second each


def test_alone(lambert: Lambert) -> None:
    done = lambert("bench", "--json", size="tiny", rounds=1, sequences=2, length=16)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert set(found) == WHOLE
    assert set(found["lambert"]) == SIDE
    assert len(found["lambert"]["seconds"]) == 1
    assert found["lambert"]["memory_mb"] > 50
    assert found["lambert"]["first_loss"] == pytest.approx(np.log(30522) + np.log(2), rel=0.02)


def test_beside_a_peer(lambert: Lambert) -> None:
    arguments = {"size": "tiny", "rounds": 2, "sequences": 2, "length": 24, "peer": "transformers"}
    done = lambert("bench", "--json", "--optimizer", **arguments, precision="float32")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert set(found) == WHOLE | {"transformers", "ratio", "ratio_range"}
    assert set(found["lambert"]) == set(found["transformers"]) == SIDE
    # Both sides have the same weights and data.
    assert found["lambert"]["first_loss"] == pytest.approx(found["transformers"]["first_loss"], abs=2e-3)
    low, high = found["ratio_range"]
    assert low <= found["ratio"] <= high
    speeds = [found[side]["tokens_per_second"] for side in ("lambert", "transformers")]
    assert all(speed > 0 for speed in speeds)


def test_the_table(lambert: Lambert) -> None:
    shown = lambert("bench", size="tiny", rounds=1, sequences=2, length=16, lengths="full").out
    assert "2 sequences of up to 16 tokens, 100% full" in shown
    assert any(line.startswith("lambert ") and line.endswith(" MB") for line in shown.splitlines())
    assert "10.0 GFLOP/s" in shown


@pytest.mark.parametrize(("sequences", "length"), [(1, 16), (2, 16), (8, 32), (8, 512), (64, 128)])
def test_lengths_fill_as_much_as_articles_do(sequences: int, length: int) -> None:
    config = BenchConfig(sequences=sequences, length=length)
    sizes_S = drawn_lengths(config)
    assert sizes_S.shape == (sequences,)
    assert (sizes_S >= 1).all()
    assert (sizes_S <= length).all()
    assert abs(sizes_S.mean() / length - bench.FILL) <= max(0.02, 0.5 / (sequences * length))
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
