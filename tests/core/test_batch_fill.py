"""A batch that is filled to fixed sizes has the losses and gradients of the exact one."""

from dataclasses import replace

import pytest
import torch
from flat import make_batch

from lambert.core.batch import Target
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model

LENGTHS = [9, 4, 15, 1]
TARGETS = {
    "mlm": Target(torch.tensor([1, 5, 28]), torch.tensor([4, 99, 0])),
    "label": Target(torch.arange(4), torch.tensor([2, 0, 1, 1]), torch.tensor([1.0, 0.5, 2.0, 1.0])),
    "tag": Target(torch.arange(0, 29, 7), torch.tensor([4, 0, 1, 2, 2])),
    "span": Target(torch.arange(4), torch.tensor([[2, 5], [0, 0], [14, 14], [0, 0]])),
}


@pytest.mark.parametrize("block", ["bert", "modernbert", "gte", "eurobert", "mpnet"])
@pytest.mark.parametrize(("tokens", "sequences"), [(29, 4), (30, 5), (64, 7), (89, 8)])
def test_losses_and_gradients(block: str, tokens: int, sequences: int) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(
        block=block, vocabulary=100, hidden=32, layers=2, heads=2, intermediate=48, positions=16, dropout=0.0,
        attention_dropout=0.0, segment_types=0 if block in ("mpnet", "eurobert", "modernbert") else 2,
    )  # fmt: skip
    exact = make_batch(LENGTHS, 100, **TARGETS)
    filled = exact.fill(tokens, sequences, {"mlm": 8, "label": sequences, "tag": 5, "span": 6})
    assert (filled.tokens, filled.sequences) == (tokens, sequences)
    assert int(filled.bounds_S1[-1]) == tokens
    assert int(filled.bounds_S1.diff().max()) == filled.longest == 15
    assert {name: target.count for name, target in filled.targets.items()} == {
        name: target.count for name, target in TARGETS.items()
    }
    found = []
    for batch in (exact, filled):
        torch.manual_seed(1)
        net = Model(config, {"mlm": 0, "label": 3, "tag": 5, "span": 0}).double()
        net(batch).sum().backward()
        found.append([net(batch).detach(), *(parameter.grad for parameter in net.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=5e-7)  # losses of spans are float32


@pytest.mark.parametrize(
    ("tokens", "sequences", "targets"), [(28, 4, 8), (45, 5, 8), (30, 3, 8), (29, 5, 8), (64, 8, 2)]
)
def test_what_does_not_fit_is_refused(tokens: int, sequences: int, targets: int) -> None:
    batch = make_batch(LENGTHS, 100, mlm=TARGETS["mlm"])
    with pytest.raises(ValueError, match="do not fill"):
        batch.fill(tokens, sequences, {"mlm": targets})


def test_a_batch_without_targets() -> None:
    """Its losses are 0, and so are their gradients."""
    none = {"mlm": Target(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))}
    filled = make_batch([5, 3], 100, **none).fill(16, 4, {"mlm": 4})
    net = Model(EncoderConfig(vocabulary=100, hidden=32, layers=1, heads=2, intermediate=48, positions=16), {"mlm": 0})
    (loss,) = net(filled)
    loss.backward()
    assert filled.targets["mlm"].count == loss.item() == 0
    assert not any(parameter.grad.any() for parameter in net.parameters() if parameter.grad is not None)


def test_vectors_of_later_tokens_stay() -> None:
    batch = replace(make_batch(LENGTHS, 100), pooled_from_S=torch.tensor([3, 10, 20, 28]))
    filled = batch.fill(40, 6, {"mlm": 9, "nsp": 6})
    assert filled.pooled_from_S is not None
    assert filled.pooled_from_S.tolist() == [3, 10, 20, 28, 29, 34]
