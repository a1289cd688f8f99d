"""An optimizer's state as named tensors and plain values: what older checkpoints hold is read as it was meant."""

import copy

import pytest
import torch
from torch import nn

from lambert.engine import state
from lambert.optim.config import OptimConfig
from lambert.optim.optimizers import build


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[torch.Tensor]:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in net.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.parametrize("name", ["lamb", "adamw"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_groups_that_were_marked_excluded(name: str, decay: float) -> None:
    """Checkpoints up to version 0.3 have this mark, and the setting of the run as each group's `adapt`."""
    config = OptimConfig(name=name, weight_decay=decay)
    net = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4))
    optimizer = build(net, config)
    trained(net, optimizer, range(3))
    arrays, described = copy.deepcopy(state.moments(optimizer, net))
    for number, group in enumerate(described["groups"]):
        group.update({"excluded": number == 1} | ({"adapt": "decayed"} if name == "lamb" else {}))
    other = copy.deepcopy(net)
    restored = build(other, config)
    state.restore(restored, other, arrays, described, source="checkpoint-000003")
    expected = trained(net, optimizer, range(3, 6))
    for one, two in zip(trained(other, restored, range(3, 6)), expected, strict=True):
        assert torch.equal(one, two)
