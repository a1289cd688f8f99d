"""Graphs of micro-batches, with a recorder that computes its work again instead of replaying it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flat import make_batch
from recorders import Again
from tiny import Share
from torch import nn

from lambert.core.batch import Batch, SoftTarget, Target
from lambert.core.world import World
from lambert.engine.gradients import Gradients
from lambert.engine.graphs import StepGraph, TrainingGraphs, choose_graphs, graphs_problem
from lambert.engine.loop import train
from lambert.engine.precision import Precision
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.native import library
from lambert.optim import optimizers
from lambert.optim.config import Adapt, OptimConfig
from lambert.optim.lamb import Lamb

TOKENS = 128


def batches(count: int, *, longest: int = 16) -> Iterator[Batch]:
    """Micro-batches of up to TOKENS tokens: most are full, one in four is small."""
    draw = np.random.default_rng(0)
    for number in range(count):
        space = TOKENS if number % 4 < 3 else int(draw.integers(4, TOKENS // 2))
        lengths = []
        while (length := int(draw.integers(3, longest + 1))) <= space:
            lengths.append(length)
            space -= length
        yield make_batch(lengths or [space], 100, seed=number)


def updates(found: list[Batch]) -> Iterator[Share]:
    """Updates of four micro-batches in two shares."""
    for first in range(0, len(found), 4):
        four = [*enumerate(found[first : first + 4])]
        counts: dict[str, float] = {}
        for _, batch in four:
            for name, target in batch.targets.items():
                counts[name] = counts.get(name, 0) + target.count
        tokens = sum(batch.tokens for _, batch in four)
        yield Share([four[:2], four[2:]], counts, [tokens], sum(batch.sequences for _, batch in four))


class Outcome:
    """A run with graphs, or without if `recorder` is None."""

    def __init__(self, recorder: Again | None, found: list[Batch], precision: str = "float32") -> None:
        drop = 0.1 if precision == "bfloat16" else 0.0
        torch.manual_seed(0)
        config = EncoderConfig(
            vocabulary=100, hidden=64, layers=2, heads=2, intermediate=128, positions=32, dropout=drop,
            attention_dropout=drop,
        )  # fmt: skip
        net = Model(config, {"mlm": 0, "nsp": 0})
        self.said: list[str] = []
        self.graphs = TrainingGraphs(recorder or Again(), World(), [16, 32, 64, TOKENS], self.said.append)
        steps = train(
            net, optimizers.build(net, OptimConfig(name="adamw", lr=1e-3, warmup_ratio=0.0)), updates(found),
            schedule=lambda _: 1e-3, max_grad_norm=1.0, precision=Precision(precision), world=World(), seed=3, start=0,
            steps=len(found) // 4, graphs=None if recorder is None else self.graphs,
        )  # fmt: skip
        self.losses = [loss for step in steps for loss in step.losses.values()]
        self.weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_a_run_is_that_without_graphs(precision: str, bound: float) -> None:
    """In bfloat16 with dropout too: the compiled kernels drop the same elements of the real sequences."""
    if precision == "bfloat16" and library() is None:
        pytest.skip("needs the compiled kernels")
    found = [*batches(24)]
    exact, recorder = Outcome(None, found, precision), Again()
    graphed = Outcome(recorder, found, precision)
    assert graphed.losses == pytest.approx(exact.losses, rel=bound)
    assert (graphed.weights - exact.weights).abs().max() < bound * exact.weights.abs().max()
    recorded = recorder.recorded - 1  # of passes; the other is of steps
    assert recorder.replayed == 24 - recorded + 24 // 4 - 1
    assert recorded < 12
    assert not graphed.said


def test_a_batch_that_its_graph_lacks_room_for_gets_a_larger_one() -> None:
    few = make_batch([16] * 8, 100)
    found = [few, few, make_batch([16] + [9] * 12, 100, seed=1), make_batch([16, 9], 100), few, few, few, few]
    exact, recorder = Outcome(None, found), Again()
    graphed = Outcome(recorder, found)
    assert graphed.losses == pytest.approx(exact.losses, rel=1e-5)
    assert recorder.recorded == 3  # of 128 tokens, of 32, and of steps
    many = make_batch([16] + [1] * 112, 100, seed=2)
    found = [few, few, many, few]
    exact, recorder = Outcome(None, found), Again()
    assert Outcome(recorder, found).losses == pytest.approx(exact.losses, rel=1e-5)
    assert recorder.recorded == 3


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError("operation not permitted when stream is capturing\nmore"),
            "RuntimeError: operation not permitted",
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
    ],
)
def test_a_run_goes_on_without_graphs_if_recording_fails(error: Exception, said: str) -> None:
    found = [*batches(8)]
    recorder = Again(error)
    graphed = Outcome(recorder, found)
    (line,) = graphed.said
    assert line.startswith("batches are computed without graphs, which is slower: ")
    assert said in line
    assert "more" not in line
    assert graphed.losses == pytest.approx(Outcome(None, found).losses, rel=1e-5)
    assert (recorder.recorded, recorder.replayed) == (1, 1)  # of steps


def test_what_no_graph_computes() -> None:
    """Batches that are larger than all graphs, and targets with a teacher."""
    large = make_batch([16] * 9, 100)
    mlm = large.targets["mlm"]
    rows = torch.softmax(torch.randn(len(mlm.at_N), 100), -1)
    soft = SoftTarget(mlm.at_N, mlm.labels_N, soft_NL=rows, share=0.5, temperature=2.0)
    small = make_batch([16] * 4, 100)
    taught = small.with_targets({**small.targets, "mlm": SoftTarget(
        small.targets["mlm"].at_N, small.targets["mlm"].labels_N, soft_NL=rows[: len(small.targets["mlm"].at_N)],
        share=0.5, temperature=2.0,
    )})  # fmt: skip
    found = [large, large.with_targets({**large.targets, "mlm": soft}), taught, taught]
    recorder = Again()
    assert Outcome(recorder, found).losses == pytest.approx(Outcome(None, found).losses, rel=1e-5)
    assert recorder.recorded == 1  # of steps


def test_the_number_of_recordings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lambert.engine.graphs._RECORDINGS", 1)
    found, recorder = [*batches(12)], Again()
    assert Outcome(recorder, found).losses == pytest.approx(Outcome(None, found).losses, rel=1e-5)
    assert recorder.recorded == 2  # of passes, and of steps


def test_a_batch_without_targets() -> None:
    none = Target(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    empty = make_batch([16] * 8, 100, mlm=none, nsp=none)
    full = make_batch([16] * 8, 100)
    found = [empty, full, empty, full]
    assert Outcome(Again(), found).losses == pytest.approx(Outcome(None, found).losses, rel=1e-5)


class Steps:
    """Ten steps with clipping, with the graph of a recorder or without, and with what `changes` does before a step."""

    def __init__(self, graph: StepGraph | None, optimizer: Lamb, changes: dict[int, Callable[[], None]]) -> None:
        (group,) = optimizer.param_groups
        net = nn.Module()
        net.weight = group["params"][0]
        gradients, precision, draw = Gradients(net), Precision("float32"), torch.Generator().manual_seed(0)
        self.norms = []
        for number in range(10):
            gradients.clear()
            gradients.accumulate(net.weight, torch.randn(net.weight.shape, generator=draw))
            gradients.collect()
            if number == 7:
                net.weight.grad[0, 0] = math.inf
            changes.get(number, lambda: None)()
            group["lr"] = 0.1 / (1 + number)
            self.norms.append(float(precision.step(optimizer, gradients, 3.0, graph)[0]))
            assert isinstance(group["lr"], float)
        self.weight, self.skipped = net.weight.detach().clone(), precision.skipped


class Fixed(Again):
    """Replays with the learning rates as they were when it recorded, as a graph does that reads their tensors."""

    def __init__(self, optimizer: Lamb) -> None:
        super().__init__()
        self.groups = optimizer.param_groups

    def record(self, work: Any) -> Any:
        again, fixed = super().record(work), [group["lr"] for group in self.groups]

        def replay() -> Any:
            before = [group["lr"] for group in self.groups]
            for group, rate in zip(self.groups, fixed, strict=True):
                group["lr"] = rate
            found = again()
            for group, rate in zip(self.groups, before, strict=True):
                group["lr"] = rate
            return found

        return replay


def lamb(adapt: Adapt) -> Lamb:
    weight = torch.linspace(-1, 1, 24).view(4, 6)
    return Lamb([torch.nn.Parameter(weight)], adapt=adapt)


@pytest.mark.parametrize("adapt", ["all", "none"])
def test_a_graph_of_steps_follows_the_learning_rate(adapt: Adapt) -> None:
    exact = Steps(None, lamb(adapt), {})
    optimizer = lamb(adapt)
    recorder, said = Fixed(optimizer), []
    graph = StepGraph(recorder, torch.device("cpu"), said.append)
    found = Steps(graph, optimizer, {})
    assert (recorder.replayed, recorder.recorded, said) == (9, 1, [])
    assert found.norms == exact.norms
    assert found.skipped == exact.skipped == 1
    assert (found.weight - exact.weight).abs().max() < 1e-6


def test_a_graph_of_steps_is_recorded_anew_if_a_state_is_loaded_or_a_setting_changes() -> None:
    def changes(optimizer: Lamb) -> dict[int, Callable[[], None]]:
        return {
            3: lambda: optimizer.load_state_dict(optimizer.state_dict()),
            5: lambda: optimizer.param_groups[0].update(weight_decay=0.5),
        }

    optimizer = lamb("all")
    exact = Steps(None, optimizer, changes(optimizer))
    optimizer = lamb("all")
    recorder = Fixed(optimizer)
    graph = StepGraph(recorder, torch.device("cpu"), print)
    found = Steps(graph, optimizer, changes(optimizer))
    assert (recorder.replayed, recorder.recorded) == (7, 3)
    assert (found.weight - exact.weight).abs().max() < 1e-6


def test_steps_go_on_without_a_graph_if_recording_fails() -> None:
    said: list[str] = []
    recorder = Again(torch.OutOfMemoryError("CUDA out of memory"))
    graph = StepGraph(recorder, torch.device("cpu"), said.append)
    found = Steps(graph, lamb("all"), {})
    assert (found.weight - Steps(None, lamb("all"), {}).weight).abs().max() < 1e-6
    assert said == ["steps of the optimizer are computed without a graph, which is slower: out of memory"]
    assert recorder.replayed == 0


def test_who_has_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    assert choose_graphs(world, 10, print) is None
    assert not graphs_problem(world)
    monkeypatch.setenv("LAMBERT_GRAPHS", "1")
    assert choose_graphs(world, 10, print) is None
    assert "no GPU" in graphs_problem(world)
    gpu = replace(world, device=torch.device("cuda:0"))
    assert not graphs_problem(gpu)
    assert "several ranks" in graphs_problem(replace(gpu, size=2))
