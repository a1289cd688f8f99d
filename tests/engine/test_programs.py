"""Passes by programs of the compiled kernels: the bits of the same passes without a program."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flat import make_batch
from tiny import Share

from lambert.core.batch import Batch, Target
from lambert.core.world import World
from lambert.engine.loop import train
from lambert.engine.precision import Precision
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.model.passes import find_passes
from lambert.native import library
from lambert.ops.native import NativeOps
from lambert.ops.program import Program
from lambert.optim import optimizers
from lambert.optim.config import OptimConfig

pytestmark = pytest.mark.skipif(library() is None, reason="needs the compiled kernels")
WORDS = 100


def batches(count: int) -> list[Batch]:
    """Batches of different numbers of tokens, sequences and targets."""
    draw = np.random.default_rng(0)
    return [
        make_batch([int(n) for n in draw.integers(3, 30, 3 + number % 4)], WORDS, seed=number)
        for number in range(count)
    ]


def updates(found: list[Batch]) -> Iterator[Share]:
    """Updates of two micro-batches."""
    for first in range(0, len(found), 2):
        two = found[first : first + 2]
        names = two[0].targets
        counts = {name: float(sum(batch.targets[name].count for batch in two)) for name in names}
        loads = [sum(batch.tokens for batch in two)]
        yield Share([[*enumerate(two)]], counts, loads, sum(batch.sequences for batch in two))


class Outcome:
    """A run of BERT in bfloat16 with dropout, with programs or by torch's autograd. `change` gets the net and the
    precision after each update."""

    def __init__(
        self, found: list[Batch], change: Callable[[int, Model, Precision], None] = lambda *_: None, *,
        programs: bool = True, **shape: Any,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        usual = {"vocabulary": WORDS, "hidden": 64, "layers": 2, "heads": 2, "intermediate": 128}
        config = EncoderConfig(**{**usual, **shape}, positions=32, dropout=0.1, attention_dropout=0.1)
        net, precision = Model(config, {"mlm": 0, "nsp": 0}), Precision("bfloat16")
        steps = train(
            net, optimizers.build(net, OptimConfig(name="lamb", lr=1e-2, warmup_ratio=0.0)), updates(found),
            schedule=lambda _: 1e-2, max_grad_norm=1.0, precision=precision, world=World(), seed=3, start=0,
            steps=len(found) // 2, passes=find_passes(net) if programs else None,
        )  # fmt: skip
        self.losses, self.norms = [], []
        for number, step in enumerate(steps):
            self.losses.append([*step.losses.values()])
            self.norms.append(step.grad_norm)
            change(number, net, precision)
        self.weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of tokens of the batches that programs compute from now on."""
    found: list[int] = []
    run = Program.run

    def counted(self: Program, sizes: dict[str, int], inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found.append(sizes["tokens"])
        return run(self, sizes, inputs)

    monkeypatch.setattr(Program, "run", counted)
    return found


def same(found: Outcome, expected: Outcome) -> None:
    assert found.losses == expected.losses
    assert found.norms == expected.norms
    assert torch.equal(found.weights, expected.weights)


def test_a_program_has_the_bits_of_the_pass(runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found = batches(24)
    programmed = Outcome(found)
    assert len(runs) >= 16
    assert len(set(runs)) > 8
    runs.clear()
    same(programmed, Outcome(found, programs=False))
    monkeypatch.setattr("lambert.engine.programs._RECORDINGS", 0)
    same(programmed, Outcome(found))
    assert not runs


def test_batches_without_targets_and_with_weights(runs: list[int]) -> None:
    found = batches(20)
    none = Target(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    for number in (3, 8):
        found[number] = found[number].with_targets({**found[number].targets, "nsp": none})
    for number in (9, 14):
        mlm = found[number].targets["mlm"]
        weighted = Target(mlm.at_N, mlm.labels_N, torch.linspace(0, 1, len(mlm.at_N)))
        found[number] = found[number].with_targets({**found[number].targets, "mlm": weighted})
    programmed = Outcome(found)
    assert runs
    same(programmed, Outcome(found, programs=False))


def scale(net: Model, precision: Precision) -> None:
    with torch.no_grad():
        net.encoder.blocks[0].query.weight.mul_(0.5)


def load(net: Model, precision: Precision) -> None:
    net.load_state_dict({name: tensor * 0.9 for name, tensor in net.state_dict().items()})
    precision.drop_rounded_weights()


def move(net: Model, precision: Precision) -> None:
    net.encoder.blocks[1].norm.weight.data = torch.full((64,), 0.5)


def drop_more(net: Model, precision: Precision) -> None:
    net.encoder.blocks[1].dropout = 0.3


def drop_less(net: Model, precision: Precision) -> None:
    net.encoder.config = replace(net.encoder.config, dropout=0.0)


def hook(net: Model, precision: Precision) -> None:
    net.encoder.blocks[0].register_forward_hook(lambda block, inputs, output: output * 0.5)


@pytest.mark.parametrize("change", [scale, load, move, drop_more, drop_less, hook])
def test_what_changes_between_updates(runs: list[int], change: Callable[[Model, Precision], None]) -> None:
    def change_twice(number: int, net: Model, precision: Precision) -> None:
        if number in (5, 8):
            change(net, precision)

    found = batches(28)
    programmed = Outcome(found, change_twice)
    assert runs
    same(programmed, Outcome(found, change_twice, programs=False))


@pytest.mark.parametrize(
    "shape",
    [{"vocabulary": 101}, {"heads": 8}, {"hidden": 96}, {"embedding": 48}, {"intermediate": 129}, {"embedding": 32}],
)
def test_sizes_that_the_kernels_lack(runs: list[int], shape: dict[str, int]) -> None:
    found = batches(12)
    same(Outcome(found, **shape), Outcome(found, programs=False, **shape))


def test_targets_of_other_objectives(runs: list[int]) -> None:
    found = batches(20)
    other = Target(torch.tensor([0]), torch.tensor([1]))
    for number in range(10, 20):
        found[number] = found[number].with_targets({**found[number].targets, "label": other})
    same(Outcome(found), Outcome(found, programs=False))
    assert len(runs) > 12


def test_labels_that_are_not_contiguous(runs: list[int]) -> None:
    """As those of Google's instances, which are a column of a table."""
    found = batches(20)
    strided = [*found]
    for number in range(6, 20):
        nsp = found[number].targets["nsp"]
        column_N = torch.stack([nsp.labels_N, nsp.labels_N], 1)[:, 0]
        assert not column_N.is_contiguous()
        strided[number] = found[number].with_targets({**found[number].targets, "nsp": Target(nsp.at_N, column_N)})
    same(Outcome(strided), Outcome(found, programs=False))
    same(Outcome(strided, programs=False), Outcome(found))
    assert runs


def test_a_wrong_index_is_refused(runs: list[int]) -> None:
    found = batches(12)
    found[-1].ids_T[2] = WORDS
    with pytest.raises(IndexError, match="index 100 is out of range for 100 rows"):
        Outcome(found)
    assert runs


def test_a_pass_that_torch_computes_has_no_program(runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass is computed by autograd then, with the same dropout."""
    found = batches(8)
    automatic = Outcome(found, programs=False)
    take = NativeOps.take_rows
    monkeypatch.setattr(NativeOps, "take_rows", lambda self, x_TD, ids_N: take(self, x_TD * 1, ids_N))
    same(Outcome(found), automatic)
    assert not runs
