"""One rank's tensors, optimizer state and objects on all, and batch normalization over all, against one process."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lambert.horovod as hvd

OTHER = 3
"""A rank's values here are the rank times this, plus what the root has."""


def ours(tensor: Tensor) -> Tensor:
    return tensor + OTHER * hvd.rank()


def parameters_of_every_kind_are_the_roots() -> None:
    for root in (0, 1):
        wanted = {
            "matrix": torch.arange(6.0).reshape(2, 3),
            "transposed": torch.arange(6.0).reshape(2, 3).t(),
            "scalar": torch.tensor(2.5),
            "count": torch.tensor(7),
            "half": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
            "nothing": torch.zeros(0, 2),
        }
        for form in (dict, lambda named: list(named.items()), lambda named: iter(list(named.values()))):
            found = {name: (tensor.clone() if hvd.rank() == root else ours(tensor)) for name, tensor in wanted.items()}
            assert not found["transposed"].is_contiguous()
            hvd.broadcast_parameters(form(found), root_rank=root)
            torch.testing.assert_close(found, wanted)
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, float(hvd.rank()))
    hvd.broadcast_parameters(model.named_parameters(), root_rank=1)
    assert model.weight.requires_grad
    assert model.weight.eq(1).all()


def trained(make: Callable[[Any], torch.optim.Optimizer], steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(hvd.rank())
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()

        def closure() -> Any:
            loss = model(torch.randn(2, 3)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    return model, optimizer


MAKERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda ps: torch.optim.AdamW(ps, lr=0.1 * (1 + hvd.rank()), betas=(0.5 + 0.1 * hvd.rank(), 0.9)),
    lambda ps: torch.optim.SGD(ps, lr=0.1 * (1 + hvd.rank()), momentum=0.9, nesterov=hvd.rank() == 0),
    lambda ps: torch.optim.SGD(ps, lr=torch.tensor(0.1 * (1 + hvd.rank()))),
    lambda ps: torch.optim.RMSprop(ps, lr=0.1 * (1 + hvd.rank()), centered=True, momentum=0.5),
    lambda ps: torch.optim.LBFGS(ps, lr=0.1 * (1 + hvd.rank()), max_iter=2),
]


def state_and_options_are_the_roots_whoever_has_more() -> None:
    for make in MAKERS:
        for steps in ((2, 0), (0, 2), (3, 1), (0, 0)):
            model, optimizer = trained(make, steps[hvd.rank()])
            group = optimizer.param_groups[0]
            before = [p.detach().clone() for p in model.parameters()]
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            root, other = hvd.allgather_object(optimizer.state_dict(), name="state")
            torch.testing.assert_close(other, root)
            assert bool(root["state"]) == (steps[0] > 0 and not plain_sgd(optimizer))
            # In place: a scheduler holds the group, and parameters do not move.
            assert optimizer.param_groups[0] is group
            torch.testing.assert_close([p.detach() for p in model.parameters()], before)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            optimizer.zero_grad()
            torch.manual_seed(9)
            model(torch.randn(2, 3)).sum().backward()
            if not isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step()
                first, second = hvd.allgather_object([p.tolist() for p in model.parameters()])
                assert first == second


def plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.SGD) and not optimizer.param_groups[0]["momentum"]


def optimizers_of_different_groups_are_told() -> None:
    model = nn.Linear(2, 2)
    groups = [[model.weight, model.bias]] if hvd.rank() == 0 else [[model.weight], [model.bias]]
    optimizer = torch.optim.SGD([{"params": group} for group in groups], lr=0.1)
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match=r"groups of \[1, 1\] parameters here and of \[2\] on rank 0"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    else:
        hvd.broadcast_object(([2], [{}], {1: 2}), name="optimizer_state")


def objects_of_any_size_arrive() -> None:
    for root in (0, 1):
        mine: Any = {"rank": hvd.rank(), "long": list(range(1000 * (1 + hvd.rank())))}
        assert hvd.broadcast_object(mine, root_rank=root)["rank"] == root
    assert hvd.broadcast_object(None if hvd.rank() else "words", name="differently typed") == "words"
    assert hvd.allgather_object(["x"] * hvd.rank(), name="lists") == [[], ["x"]]


def batch_norm_is_that_of_the_joint_batch() -> None:
    for sizes, shape, options in (
        ((3, 5), (4,), {}),
        ((1, 2), (4, 3), {"momentum": None}),
        ((2, 0), (4, 2, 2), {"affine": False}),
        ((2, 3), (4,), {"track_running_stats": False}),
    ):
        torch.manual_seed(1)
        whole = torch.randn(sum(sizes), *shape) * 3 + 5

        def part_of(tensor: Any, sizes: tuple[int, ...] = sizes) -> Tensor:
            part: Tensor = tensor.split(sizes)[hvd.rank()]
            return part

        weights = torch.randn(sum(sizes), *shape)
        plain = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)](4, **options)
        synchronized = hvd.SyncBatchNorm(4, **options)
        for _ in range(2):
            joint = whole.clone().requires_grad_()
            part = part_of(whole).clone().requires_grad_()
            wanted, found = plain(joint), synchronized(part)
            (wanted * weights).sum().backward()
            (found * part_of(weights)).sum().backward()
            close(found, part_of(wanted))
            close(part.grad, part_of(joint.grad))
        if options.get("affine", True):
            close(hvd.allreduce(gradient(synchronized.weight), op=hvd.Sum), plain.weight.grad)
            close(hvd.allreduce(gradient(synchronized.bias), op=hvd.Sum), plain.bias.grad)
        if options.get("track_running_stats", True):
            torch.testing.assert_close(dict(synchronized.named_buffers()), dict(plain.named_buffers()))
        close(synchronized.eval()(whole), plain.eval()(whole))
    half = hvd.SyncBatchNorm(4)(torch.randn(8, 4, dtype=torch.bfloat16, requires_grad=True))
    assert half.dtype == torch.bfloat16
    half.sum().backward()
    with pytest.raises(ValueError, match="more than one value per channel"):
        hvd.SyncBatchNorm(4)(torch.randn(1 - hvd.rank(), 4))


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


CHECKS = [
    parameters_of_every_kind_are_the_roots,
    state_and_options_are_the_roots_whoever_has_more,
    optimizers_of_different_groups_are_told,
    objects_of_any_size_arrive,
    batch_norm_is_that_of_the_joint_batch,
]


def test_on_ranks(outcome: str) -> None:
    assert not outcome, outcome


def test_what_holds_no_tensors_is_a_value_error() -> None:
    for wrong in (torch.zeros(2), "weight", 3, {"weight": 1.0}, [None]):
        with pytest.raises(ValueError, match="broadcast_parameters takes"):
            hvd.broadcast_parameters(wrong, root_rank=0)


def test_an_object_that_cannot_be_pickled_is_an_error_and_no_hang() -> None:
    hvd.init()
    with pytest.raises(TypeError, match="cannot pickle"):
        hvd.broadcast_object(threading.Lock())
    hvd.shutdown()
