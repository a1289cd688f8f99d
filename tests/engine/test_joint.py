"""Losses that depend on the whole global batch: the same gradients in any number of micro-batches and ranks."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import ranks
from torch import Tensor

from lambert.core.batch import Batch, Ints, JointTarget, flat_batch
from lambert.core.world import World
from lambert.data.stream import stream
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.detection import detect
from lambert.distributed.exchange import build
from lambert.engine.loop import train
from lambert.engine.precision import Precision
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.tasks.vectors import contrastive

EXAMPLES, TEXTS = 24, 3


class Triplets:
    """Random texts of 3 to 9 tokens, three to an example."""

    def __init__(self) -> None:
        draw = np.random.default_rng(3)
        self.rows = [[draw.integers(0, 50, draw.integers(3, 10)) for _ in range(TEXTS)] for _ in range(EXAMPLES)]

    def size(self, epoch: int) -> int:
        return EXAMPLES

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        return np.array([sum(map(len, self.rows[i])) for i in indices_S])

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        texts = [text for i in indices_S for text in self.rows[i]]
        ids = np.concatenate(texts)
        labels = torch.from_numpy(indices_S[:, None] * TEXTS + np.arange(TEXTS))
        target = JointTarget(torch.arange(len(labels)), labels, loss=losses)
        return flat_batch(ids, np.zeros_like(ids), np.array([len(t) for t in texts]), {"vector": target})


def losses(rows_SD: Tensor, labels: Tensor) -> Tensor:
    return contrastive.ranking(rows_SD.view(len(labels), TEXTS, -1), labels)


def trained(world: World, micro_tokens: int) -> tuple[dict[str, Tensor], list[float]]:
    """Returns the weights and the losses of three updates of 12 examples."""
    torch.manual_seed(0)
    config = EncoderConfig(
        layers=2, hidden=16, heads=2, intermediate=32, vocabulary=50, positions=16, dropout=0.0,
        attention_dropout=0.0, init_range=0.3,
    )  # fmt: skip
    model = Model(config, {"vector": 0})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchange = build(model, world, ExchangeConfig(), updates=3) if world.size > 1 else None
    batches = stream(
        Triplets(), batch_size=12, micro_tokens=micro_tokens, seed=1, rank=world.rank, world=world.size, stop=3
    )
    steps = train(
        model, optimizer, batches, schedule=lambda applied: 0.1, max_grad_norm=0.0,
        precision=Precision("float32"), world=world, seed=5, start=0, steps=3, exchange=exchange,
    )  # fmt: skip
    found = [step.loss for step in steps]
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}, found


@pytest.mark.parametrize("micro_tokens", [1, 40, 120])
def test_micro_batches_do_not_change_the_loss_or_the_weights(micro_tokens: int) -> None:
    (expected, one), (weights, several) = trained(World(), 10**6), trained(World(), micro_tokens)
    assert several == pytest.approx(one, rel=1e-5)
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-6, msg=name)


def test_both_passes_have_the_same_dropout() -> None:
    """With another dropout in the second pass, a step along the gradient would not be one of the loss: compare it with
    differences of the loss."""
    config = EncoderConfig(
        layers=1, hidden=16, heads=2, intermediate=32, vocabulary=50, positions=16, dropout=0.3, attention_dropout=0.3,
        init_range=0.3,
    )  # fmt: skip

    def loss_and_gradient(move: Tensor | None) -> tuple[float, Tensor]:
        torch.manual_seed(0)
        model = Model(config, {"vector": 0})
        bias = model.encoder.blocks[0].down.bias  # type: ignore[union-attr]
        if move is not None:
            with torch.no_grad():
                bias += move
        before = bias.detach().clone()
        steps = train(
            model, torch.optim.SGD(model.parameters(), lr=1.0), one_update(), schedule=lambda applied: 1.0,
            max_grad_norm=0.0, precision=Precision("float32"), world=World(), seed=5, start=0, steps=1,
        )  # fmt: skip
        (step,) = steps
        return step.loss, before - bias.detach()

    def one_update() -> Iterator[object]:
        return stream(Triplets(), batch_size=12, micro_tokens=60, seed=1, stop=1)

    _, grad_D = loss_and_gradient(None)
    direction_D = grad_D / grad_D.norm()
    above, below = (loss_and_gradient(sign * 1e-2 * direction_D)[0] for sign in (1, -1))
    assert (above - below) / 2e-2 == pytest.approx(float(grad_D.norm()), rel=2e-2)


def test_the_loss_of_one_micro_batch_is_computed_in_float32() -> None:
    batch = Triplets().collate(np.zeros(8, np.int64), np.arange(8))
    target = batch.targets["vector"]
    rows_SD = torch.randn(8 * TEXTS, 16, generator=torch.Generator().manual_seed(0))
    head = Model(EncoderConfig(layers=1, hidden=16, heads=2, vocabulary=50), {"vector": 0}).heads["vector"]
    with torch.autocast("cpu", torch.bfloat16):
        found = head.loss(rows_SD, target, batch)  # type: ignore[operator]
    assert torch.equal(found, losses(rows_SD, target.labels_N).sum())


def compare(path: Path, micro_tokens: int) -> None:
    with detect("cpu") as world:
        weights, found = trained(world, micro_tokens)
    expected, one = torch.load(path, weights_only=True)
    assert found == pytest.approx(one, rel=1e-5)
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_do_not_change_the_loss_or_the_weights(size: int, tmp_path: Path) -> None:
    torch.save(trained(World(), 10**6), tmp_path / "expected.pt")
    ranks(size, compare, tmp_path / "expected.pt", 60)
