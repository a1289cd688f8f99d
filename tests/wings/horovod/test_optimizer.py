"""The distributed optimizer on two ranks, in one group of processes for all checks, on one rank, and misused."""

import copy
from typing import Any

import horovod_gradients
import horovod_training
import pytest
import torch
from horovod_training import adamw, alone, net, same, together
from torch import nn

import lambert.horovod as hvd

CHECKS = [*horovod_training.CHECKS, *horovod_gradients.CHECKS]


def test_on_ranks(outcome: str) -> None:
    assert not outcome, outcome


@pytest.mark.usefixtures("alone")
def test_one_rank_trains_as_without() -> None:
    same(together(3), alone(3))
    same(together(3, op=hvd.Adasum), alone(3))
    with pytest.raises(TypeError, match="copy its state_dict"):
        copy.deepcopy(hvd.DistributedOptimizer(adamw(net())))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"named_parameters": [("a", nn.Parameter(torch.zeros(1)))]}, "lacks 6 of the optimizer's 6 parameters"),
        ({"named_parameters": list(net().parameters())}, "pairs"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op=Average only"),
        ({"backward_passes_per_step": 0}, "at least 1"),
        ({"groups": -1}, "positive number"),
        ({"groups": [["a"]]}, "lists of tensors"),
    ],
)
def test_what_cannot_be_is_a_value_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(adamw(net()), **options)


@pytest.mark.usefixtures("alone")
def test_a_model_is_no_optimizer() -> None:
    wrong: Any = net()
    with pytest.raises(TypeError, match=r"takes a torch optimizer.* not a Sequential; .*model.named_parameters"):
        hvd.DistributedOptimizer(wrong)


@pytest.mark.usefixtures("alone")
def test_names_and_groups_must_not_repeat() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(ValueError, match="more than once: bias, weight"):
        hvd.DistributedOptimizer(optimizer, [*one.named_parameters(), *other.named_parameters()])
    with pytest.raises(ValueError, match="groups contain a parameter more than once"):
        hvd.DistributedOptimizer(optimizer, groups=[[one.weight], [one.weight]])
    with pytest.warns(DeprecationWarning, match="groups"):
        hvd.DistributedOptimizer(optimizer, num_groups=2)
