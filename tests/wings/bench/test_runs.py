"""Whole runs through the command line: the product and its peers as processes, on the same sequences."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sides import SideHere

from lambert.core.errors import MachineError
from lambert.measure import ceilings
from lambert.wings.bench import environments, peer_run, runs
from lambert.wings.bench.runs import run_process
from lambert.wings.bench.verb import BenchConfig

Lambert = Callable[..., Any]
SMALL = {"work": "run", "size": "tiny", "length": 48, "sequences": 4, "updates": 3, "rounds": 1, "threads": 1}


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SideProcess", SideHere)
    monkeypatch.setattr(environments, "candidates", lambda device: [{}])
    monkeypatch.setattr(ceilings, "product_ceiling", lambda *_, **__: 1e10)  # half a second each
    monkeypatch.setattr(ceilings, "SUSTAINED", 0.01)
    monkeypatch.setattr(ceilings, "COPIED", 2**20)


@pytest.fixture
def config(corpus: Path) -> BenchConfig:
    settings: dict[str, Any] = SMALL
    return BenchConfig(**settings, corpus=corpus).resolve()


@pytest.mark.slow
def test_a_run_beside_its_peers(lambert: Lambert, corpus: Path) -> None:
    peers = ["transformers-expert", "transformers"]
    done = lambert("bench", "--json", **SMALL, corpus=corpus, peer=",".join(peers))
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert list(found["sides"]) == ["lambert", *peers]
    assert found["sequences"] == 2 * 4  # the first update is not measured
    assert found["fill"] == pytest.approx(found["tokens"] / (8 * 48), abs=1e-4)
    assert found["settings"]["dropout"] == 0.1
    for name, side in found["sides"].items():
        assert (len(side["seconds"]), len(side["starts"])) == (1, 1)
        assert side["tokens_per_second"] == pytest.approx(found["tokens"] / side["seconds"][0], rel=0.05)
        assert side["start_seconds"] > side["seconds"][0] > 0
        assert 100 < side["memory_mb"] < 2000
        assert side["processor_seconds"][0] > 0.5
        assert side["losses"][0] == pytest.approx(np.log(160) + np.log(2), rel=0.25)
        assert name == "lambert" or side["ratio_range"] == [side["ratio"]] * 2


@pytest.mark.slow
def test_the_table_of_a_run_fits_a_terminal(lambert: Lambert, corpus: Path) -> None:
    done = lambert("bench", **SMALL, corpus=corpus, packing="full", optim="adamw", precision="float32")
    assert (done.code, done.err) == (0, "")
    assert "run, tiny, 8 sequences of up to 48 tokens" in done.out
    assert "start s" in done.out
    assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.parametrize("packing", ["pairs", "full"])
def test_the_forms_of_the_peer_compute_the_same_loss(
    config: BenchConfig, tmp_path: Path, packing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without dropout, whatever the micro-batches: the expert's loss is the mean over the masked tokens of the update;
    the model's own loss of one micro-batch is the same."""
    config = dataclasses.replace(config, packing=packing, dropout=0.0)
    runs.write(config, tmp_path)
    found = []
    for form, tokens in (("expert", 10_000), ("expert", 64), ("stock", 10_000)):
        out = tmp_path / "out.jsonl"
        given = ["--length=48", "--updates=1", f"--form={form}", f"--micro-tokens={tokens}", f"--out={out}"]
        monkeypatch.setattr(sys, "argv", ["peer_run.py", str(tmp_path), *given])
        peer_run.main()
        found.append(json.loads(out.read_text())["loss"])
    assert found == pytest.approx([found[0]] * 3, abs=1e-4)


def test_the_peer_reads_the_sequences_of_the_run(config: BenchConfig, tmp_path: Path) -> None:
    data = runs.write(config, tmp_path)
    for form, tokens in (("expert", 96), ("stock", 96)):
        sequences = peer_run.Sequences(tmp_path / runs.SEQUENCES, form, tokens, 48)
        seen = []
        for number in range(config.updates):
            parts = sequences.update(number)
            assert len(parts) >= 2
            masks = [part["attention_mask" if form == "stock" else "inside"] for part in parts]
            ids = [part["input_ids" if form == "stock" else "ids"] for part in parts]
            assert all(rows.numel() <= max(tokens, rows.shape[1]) for rows in ids)
            masks = [torch.ones_like(rows) if mask is None else mask for mask, rows in zip(masks, ids, strict=True)]
            seen += [rows[mask.bool()] for rows, mask in zip(ids, masks, strict=True)]
            lengths = torch.cat([mask.sum(1) for mask in masks])
            assert sorted(lengths.tolist()) == sorted(data.lengths_US[number].tolist())
        with np.load(tmp_path / runs.SEQUENCES) as arrays:
            assert sorted(torch.cat(seen).tolist()) == sorted(arrays["ids_T"].tolist())


def test_the_fastest_micro_batches_are_taken(config: BenchConfig, tmp_path: Path, monkeypatch: Any) -> None:
    config = dataclasses.replace(config, length=512, sequences=64)
    seconds = {2048: 3.0, 4096: 1.0, 8192: 2.0}

    def trial(config: BenchConfig, name: str, command: Any, tokens: int, side: runs.RunTimes, *rest: object) -> None:
        assert config.updates == 3
        side.seconds.append(seconds[tokens])

    monkeypatch.setattr(runs, "_peer", trial)
    command = runs.PEERS["transformers"]
    assert runs.find_micro_tokens(config, "mine", command, tmp_path) == 4096
    assert (
        runs.find_micro_tokens(dataclasses.replace(config, sequences=1), "mine", runs.PEERS["transformers"], tmp_path)
        == 2048
    )
    assert (
        runs.find_micro_tokens(dataclasses.replace(config, micro_tokens=99), "m", runs.PEERS["transformers"], tmp_path)
        == 99
    )


def test_a_command_is_measured_and_its_failure_told(tmp_path: Path) -> None:
    held = np.zeros(2**26, dtype=np.uint8) + 1  # the memory of this process does not count
    small = run_process("small", [sys.executable, "-c", "print(1)"], tmp_path, os.environ)
    large = run_process("large", [sys.executable, "-c", "x = bytearray(b'1' * 2**27)"], tmp_path, os.environ)
    assert small.memory_mb < 60
    assert large.memory_mb > 120
    assert len(held)
    with pytest.raises(MachineError, match=r"broken ended with code 3: no room"):
        run_process("broken", [sys.executable, "-c", "import sys; print('no room'); sys.exit(3)"], tmp_path, os.environ)
