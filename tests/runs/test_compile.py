"""Compiled blocks train as eager ones do, with few graphs, and what cannot be compiled trains eagerly."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sides import SideHere
from torch import Tensor

from lambert.core.batch import Batch
from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.engine.compiler import compile_blocks, compile_or_fall_back, describe_cause, should_compile
from lambert.engine.loop import train
from lambert.engine.precision import Precision
from lambert.measure.batches import draw_batch
from lambert.model import attention, weights
from lambert.model.bert import BertBlock
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.heads import Model
from lambert.optim.config import OptimConfig
from lambert.optim.optimizers import build

Lambert = Callable[..., Any]
ENCODER = EncoderConfig(
    vocabulary=1100, layers=2, hidden=32, heads=2, intermediate=64, positions=64, dropout=0.0, attention_dropout=0.0
)
MODERN = replace(ENCODER, block="modernbert", layers=3, modern=ModernConfig(window=8, global_every=2), segment_types=1)
needs_a_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")


def batch(lengths: list[int]) -> Batch:
    return draw_batch(ENCODER, np.array(lengths), seed=len(lengths))


def update(model: Model, of: Batch) -> tuple[Tensor, Tensor]:
    """Summed losses, and all gradients in a row."""
    model.zero_grad()
    sums_K = model(of)
    sums_K.sum().backward()
    return sums_K.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.slow
@needs_a_compiler
def test_compiled_blocks_give_what_eager_ones_give_with_graphs_of_one_shape() -> None:
    from torch._dynamo.utils import counters

    model = weights.draw(ENCODER, {"mlm": 0, "nsp": 0}).train()
    shapes = [[9, 5, 9], [7, 11], [20, 30, 3, 2], [40], [5] * 12]
    eager = [update(model, batch(lengths)) for lengths in shapes]
    names = [*model.state_dict()]
    counters.clear()
    trial = partial(update, model, batch([8, 11, 8, 4]))
    with compile_or_fall_back(model.encoder.blocks, trial, World()) as compilation:
        assert compilation.active, compilation.problem
        assert compilation.seconds > 0
        graphs = counters["stats"]["unique_graphs"]
        assert 0 < graphs <= 3  # for the two layers together
        for lengths, expected in zip(shapes, eager, strict=True):
            for ours, right in zip(update(model, batch(lengths)), expected, strict=True):
                torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)
        assert counters["stats"]["unique_graphs"] == graphs
        assert [*model.state_dict()] == names
    calls = counters["stats"]["calls_captured"]
    assert torch.equal(update(model, batch(shapes[0]))[1], eager[0][1])  # eager again behind it
    assert counters["stats"]["calls_captured"] == calls


@pytest.mark.slow
@needs_a_compiler
def test_a_run_is_compiled_and_learns_the_same(
    lambert: Lambert, corpus: Path, small: dict[str, object], tmp_path: Path
) -> None:
    still = small | {"model__dropout": 0, "model__attention_dropout": 0, "train__steps": 4}
    losses = {}
    for setting in ("off", "on"):
        out = tmp_path / setting
        done = lambert("pretrain", corpus=corpus, out=out, **still, train__compile=setting)
        assert done.code == 0, done.err
        described = json.loads((out / "environment.json").read_text())
        assert described["compiled"] is (setting == "on")
        assert (described["compile_seconds"] > 0) is (setting == "on")
        assert ("blocks compiled in" in (out / "log.txt").read_text()) is (setting == "on")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses[setting] = [row["loss"] for row in rows if "loss" in row]
    assert losses["on"] == pytest.approx(losses["off"], rel=1e-4)


@pytest.mark.slow
def test_without_a_c_compiler_the_run_is_the_eager_one_and_says_so_in_a_line(
    lambert: Lambert, corpus: Path, small: dict[str, object], tmp_path: Path
) -> None:
    import torch._inductor.config as inductor

    same = small | {"train__steps": 2}
    assert lambert("pretrain", corpus=corpus, out=tmp_path / "off", **same, train__compile="off").code == 0
    with inductor.patch({"cpp.cxx": ("/nowhere/g++",), "force_disable_caches": True}):
        done = lambert("pretrain", corpus=corpus, out=tmp_path / "on", **same, train__compile="on")
    assert done.code == 0, done.err
    assert "Traceback" not in done.out + done.err
    said = [line for line in (tmp_path / "on" / "log.txt").read_text().splitlines() if "not compiled" in line]
    assert len(said) == 1
    assert "C++ compiler" in said[0]
    saved = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("off", "on")]
    assert saved[0] == saved[1]
    assert json.loads((tmp_path / "on" / "environment.json").read_text())["compiled"] is False


@pytest.mark.slow
@needs_a_compiler
@pytest.mark.filterwarnings("ignore")  # a compiler's advice
def test_the_benchmark_compiles_lambert_s_side(lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setattr("lambert.wings.bench.verb.SideProcess", SideHere)
    checks = []
    for flag in ("--no-compile", "--compile"):
        counters.clear()
        done = lambert("bench", flag, size="tiny", sequences=2, length=32, rounds=1, precision="float32", json=True)
        assert done.code == 0, done.err
        checks.append(json.loads(done.out)["sides"]["lambert"]["check"])
        assert (counters["stats"]["calls_captured"] > 0) is (flag == "--compile")
    assert checks[1] == pytest.approx(checks[0], abs=2e-4)


@pytest.mark.filterwarnings("ignore")  # a compiler's advice
@pytest.mark.parametrize(
    ("name", "dtype"), [("flash", torch.bfloat16), pytest.param("efficient", torch.float32, marks=pytest.mark.slow)]
)
def test_with_the_kernels_of_gpus_a_block_is_one_graph_for_all_shapes(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setattr(attention, "kernel", lambda device, dtype, width, window: name)
    encoder = replace(ENCODER, dropout=0.1, attention_dropout=0.1)
    block = torch.compile(BertBlock(encoder).to("meta", dtype), backend="aot_eager", dynamic=True, fullgraph=True)
    counters.clear()
    for lengths in ([9, 5, 9], [7, 11, 20, 2], [40, 1]):
        of = batch(lengths).to(torch.device("meta"))
        states_TD = torch.empty(of.tokens, encoder.hidden, device="meta", dtype=dtype, requires_grad=True)
        block(states_TD, of).sum().backward()
        assert states_TD.grad is not None
    assert counters["stats"]["unique_graphs"] == 1


def test_one_rank_that_cannot_compile_makes_all_of_them_eager() -> None:
    class Two(World):
        def largest(self, number: int) -> int:
            return max(number, 1)  # the other rank failed

    block = torch.nn.Linear(4, 4)
    with compile_or_fall_back([block], lambda: None, Two()) as compilation:
        assert not compilation.active
        assert compilation.problem == "another rank could not"
        assert block._compiled_call_impl is None


def test_the_cause_of_a_failure_is_one_line() -> None:
    outer = RuntimeError("backend='inductor' raised:\n a page")
    outer.__cause__ = FileNotFoundError("\n  triton.h is missing\nmore\n")
    assert describe_cause(outer) == "FileNotFoundError: triton.h is missing"
    assert describe_cause(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    ("setting", "device", "expected"),
    [("auto", "cuda", True), ("auto", "cpu", False), ("on", "cpu", True), ("off", "cuda", False)],
)
def test_what_is_compiled_by_default(setting: str, device: str, expected: bool) -> None:
    assert should_compile(setting, torch.device(device)) is expected


# --- GPUs ---


@dataclass(frozen=True)
class Alone:
    """One micro-batch an update."""

    batch: Batch
    wait_seconds: float = 0.0

    @property
    def shares(self) -> list[list[tuple[int, Batch]]]:
        return [[(0, self.batch)]]

    @property
    def counts(self) -> dict[str, int]:
        return {name: target.count for name, target in self.batch.targets.items()}

    @property
    def loads(self) -> list[int]:
        return [self.batch.tokens]

    @property
    def sequences(self) -> int:
        return self.batch.sequences


@pytest.mark.filterwarnings("ignore")  # a compiler's advice
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_cuda_updates_of_a_model_wait_for_nothing_and_learn(precision: str, compiling: bool) -> None:
    world = detect("cuda")
    encoder = replace(ENCODER, dropout=0.1, attention_dropout=0.1)
    model = weights.draw(encoder, {"mlm": 0, "nsp": 0}).to(world.device)
    options = {"schedule": lambda n: 1e-2, "max_grad_norm": 1.0, "world": world, "seed": 1, "start": 0}
    updates = [Alone(batch([9, 5, 9, 30]))] * 20
    run = Precision(precision, world.device)
    optimizer = build(model, OptimConfig(name="lamb"))
    if compiling:
        compile_blocks(model.encoder.blocks)
    first = list(train(model, optimizer, updates, precision=run, steps=2, **options))  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = list(train(model, optimizer, updates, precision=run, steps=20, **options))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found[-1].loss < first[0].loss


@pytest.mark.filterwarnings("ignore")  # a compiler's advice
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.03)])
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(
    ("encoder", "heads"), [(ENCODER, {"mlm": 0, "nsp": 0}), (MODERN, {"mlm": 0})], ids=["bert", "modernbert"]
)
def test_cuda_gives_what_a_cpu_gives(
    encoder: EncoderConfig, heads: dict[str, int], precision: str, tolerance: float, compiling: bool
) -> None:
    model = weights.draw(encoder, heads).train()
    of = batch([9, 5, 9, 30])
    expected = update(model, of)
    model.cuda()
    if compiling:
        compile_blocks(model.encoder.blocks)
    with Precision(precision, torch.device("cuda")).autocast():
        found = update(model, of.to(torch.device("cuda", 0)))
    for ours, right in zip(found, expected, strict=True):
        assert (ours.cpu().float() - right).norm() < tolerance * right.norm()
