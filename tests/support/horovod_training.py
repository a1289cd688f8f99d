"""Checks that training on two ranks with half a batch each equals training on one with the whole batch.

They run on ranks for `tests/wings/horovod/test_optimizer.py`, in one group of processes with those of
`horovod_gradients.py`.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lambert.horovod as hvd
from lambert.wings.horovod.compression import Compressor

BATCH = 8


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1))


def batches(steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(BATCH, 4, generator=generator) for _ in range(steps)]


def mine(batch: Tensor) -> Tensor:
    return batch.chunk(hvd.size())[hvd.rank()]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def alone(steps: int, make: Callable[[nn.Module], torch.optim.Optimizer] = adamw, scale: float = 1.0) -> list[Tensor]:
    model = net()
    optimizer = make(model)
    for batch in batches(steps):
        optimizer.zero_grad()
        (model(batch).square().mean() * scale).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def together(steps: int, make: Callable[[nn.Module], Any] = adamw, passes: int = 1, **options: Any) -> list[Tensor]:
    model = net()
    optimizer = hvd.DistributedOptimizer(
        make(model), model.named_parameters(), backward_passes_per_step=passes, **options
    )
    for batch in batches(steps):
        optimizer.zero_grad()
        for part in mine(batch).chunk(passes):
            (model(part).square().mean() / passes).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def same(found: list[Tensor], wanted: list[Tensor], rtol: float = 1e-4, atol: float = 1e-6) -> None:
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


def the_mean_of_the_ranks_is_the_mean_of_the_batch() -> None:
    same(together(4), alone(4))


def passes_add_up_before_they_are_reduced() -> None:
    same(together(4, passes=2), alone(4))


def groups_change_nothing() -> None:
    same(together(4, groups=2), alone(4))
    same(together(4, groups=100), alone(4))
    model = net()
    first, second, *_ = model.parameters()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters(), groups=[[second, first]])
    for batch in batches(4):
        optimizer.zero_grad()
        model(mine(batch)).square().mean().backward()
        optimizer.step()
    same([p.detach() for p in model.parameters()], alone(4))


def predivision_changes_nothing() -> None:
    same(together(4, gradient_predivide_factor=2.0), alone(4))
    same(together(4, gradient_predivide_factor=2.0, groups=2), alone(4))


def a_sum_is_the_mean_times_the_ranks() -> None:
    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    same(together(4, sgd, op=hvd.Sum), alone(4, sgd, scale=2.0))


def narrow_gradients_are_close() -> None:
    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        same(together(4, sgd, compression=compression), alone(4, sgd), rtol=0.05, atol=5e-3)
        assert not torch.equal(together(4, sgd, compression=compression)[0], together(4, sgd)[0])


def a_compressor_of_ones_own_sees_every_gradient() -> None:
    class Halved(Compressor):
        @staticmethod
        def compress(tensor: Tensor) -> tuple[Tensor, Any]:
            return tensor / 2, "half"

        @staticmethod
        def decompress(tensor: Tensor, ctx: Any) -> Tensor:
            assert ctx == "half"
            return tensor * 2

    same(together(4, compression=Halved), alone(4))


def schedulers_and_scalers_work() -> None:
    def with_scheduler(optimizer: Any, model: nn.Module, scheduler: Any, part: Callable[[Tensor], Tensor]) -> float:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for batch in batches(4):
            optimizer.zero_grad()
            scaler.scale(model(part(batch)).square().mean()).backward()
            if isinstance(model, nn.Module) and hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        return float(optimizer.param_groups[0]["lr"])

    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    reference, model = net(), net()
    plain = adamw(reference)
    rate = with_scheduler(plain, reference, schedule(plain), lambda batch: batch)
    before = adamw(model)
    scheduler = schedule(before)  # made before the wrapping, and still obeyed
    optimizer = hvd.DistributedOptimizer(before, model.named_parameters())
    assert isinstance(optimizer, torch.optim.AdamW)
    assert type(optimizer).__name__ == "AdamW"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(Detected call of|Seems like)")
        assert with_scheduler(optimizer, model, scheduler, mine) == rate
    same([p.detach() for p in model.parameters()], [p.detach() for p in reference.parameters()])

    model = net()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_scheduler(optimizer, model, schedule(optimizer), mine) == rate


def compiled_models_are_reduced_too() -> None:
    model = net()
    compiled: Any = torch.compile(model, backend="aot_eager")
    optimizer = hvd.DistributedOptimizer(adamw(model), compiled.named_parameters())
    for batch in batches(3):
        optimizer.zero_grad(set_to_none=True)
        compiled(mine(batch)).square().mean().backward()
        optimizer.step()
    same([p.detach() for p in model.parameters()], alone(3))


def closures_are_reduced_each_time() -> None:
    def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def run(optimizer: Any, model: nn.Module, part: Callable[[Tensor], Tensor]) -> list[Tensor]:
        for batch in batches(2):

            def closure(batch: Tensor = batch) -> Any:
                optimizer.zero_grad()
                loss = model(part(batch)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        return [p.detach() for p in model.parameters()]

    model, reference = net(), net()
    wanted = run(lbfgs(reference), reference, lambda batch: batch)
    same(run(hvd.DistributedOptimizer(lbfgs(model), model.named_parameters()), model, mine), wanted)


def adasum_joins_steps() -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], op=hvd.Adasum)
    # Orthogonal steps add up ...
    weight.grad = torch.eye(2)[hvd.rank()]
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-1.0, -1.0]))
    # ... and equal ones count once (Maleki et al., 2020, section 3).
    weight.grad = torch.tensor([3.0, 0.0])
    optimizer.synchronize()
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-4.0, -1.0]))
    with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
        pass
    momentum = together(3, op=hvd.Adasum)
    gathered = hvd.allgather_object([p.tolist() for p in momentum])
    assert gathered[0] == gathered[1]
    assert gathered[0] != [p.tolist() for p in net().parameters()]


def state_from_before_is_kept() -> None:
    model = net()
    plain = adamw(model)
    model(batches(1)[0]).sum().backward()
    plain.step()
    wanted = copy.deepcopy(plain.state_dict())
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    torch.testing.assert_close(optimizer.state_dict()["state"], wanted["state"])


def ranks_outside_a_process_set_step_alone() -> None:
    only = hvd.add_process_set([1])
    model = net()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters(), process_set=only)
    for batch in batches(2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    same([p.detach() for p in model.parameters()], alone(2))
    hvd.remove_process_set(only)


CHECKS = [
    the_mean_of_the_ranks_is_the_mean_of_the_batch,
    passes_add_up_before_they_are_reduced,
    groups_change_nothing,
    predivision_changes_nothing,
    a_sum_is_the_mean_times_the_ranks,
    narrow_gradients_are_close,
    a_compressor_of_ones_own_sees_every_gradient,
    schedulers_and_scalers_work,
    compiled_models_are_reduced_too,
    closures_are_reduced_each_time,
    adasum_joins_steps,
    state_from_before_is_kept,
    ranks_outside_a_process_set_step_alone,
]
