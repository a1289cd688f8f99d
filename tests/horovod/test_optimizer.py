"""Training on two ranks with half a batch each is training on one with the whole: with every option, and misused."""

import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lambert.horovod as hvd
from lambert.horovod.compression import Compressor

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


def gradients_stay_where_others_look_for_them() -> None:
    model, reference = net(), net()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters())
    plain = adamw(reference)
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    kept: list[list[Tensor]] = []
    for step, batch in enumerate(batches(8)):
        if step < 3:  # dropped by zero_grad, and kept here
            optimizer.zero_grad(set_to_none=True)
        elif step < 6:  # set to zero where they lie
            optimizer.zero_grad(set_to_none=False)
        elif step == 6:  # parts of one vector
            for p, part in zip(
                model.parameters(), flat.split_with_sizes([p.numel() for p in model.parameters()]), strict=True
            ):
                p.grad = part.view(p.shape)
        else:
            flat.zero_()
        plain.zero_grad()
        model(mine(batch)).square().mean().backward()
        reference(batch).square().mean().backward()
        before = [id(p.grad) for p in model.parameters()]
        optimizer.step()
        plain.step()
        assert [id(p.grad) for p in model.parameters()] == before
        wanted = [p.grad.clone() for p in reference.parameters() if p.grad is not None]
        same([p.grad for p in model.parameters() if p.grad is not None], wanted)
        if step < 2:
            kept += [[p.grad for p in model.parameters() if p.grad is not None], wanted]
        if step >= 6:
            same([flat], [torch.cat([grad.flatten() for grad in wanted])])
    same(kept[0], kept[1])
    same(kept[2], kept[3])
    same([p.detach() for p in model.parameters()], [p.detach() for p in reference.parameters()])


def ranks_may_differ_in_the_order_of_their_gradients() -> None:
    torch.manual_seed(4)
    layers = [nn.Linear(3, 3) for _ in range(6)]
    model = nn.ModuleList(layers)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for step in range(5):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        order = layers[:: 1 - 2 * hvd.rank()][: 6 - step % 3 * hvd.rank()]
        for layer in order:
            layer(torch.ones(1, 3) * (step + 1)).sum().backward()
        optimizer.step()
        there = hvd.allgather_object([p.grad.tolist() for p in model.parameters() if p.grad is not None])
        assert there[0] == there[1]
        # Each layer's bias has a gradient of one, on the ranks that used it.
        used = hvd.allgather_object([layers[i] in order for i in range(6)])
        for i, layer in enumerate(layers):
            assert layer.bias.grad is not None
            assert layer.bias.grad.tolist() == [sum(each[i] for each in used) / 2] * 3


def a_gradient_that_a_rank_lacks_counts_as_zeros() -> None:
    layers = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    model = nn.ModuleList(layers)
    for layer in layers:
        nn.init.ones_(layer.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        layers[hvd.rank()](torch.ones(1, 1)).sum().backward()
        optimizer.step()
    # Twice the step of half a gradient.
    assert [layer.weight.item() for layer in layers] == [0.0, 0.0]


def a_hook_has_started_each_reduction_before_step() -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters())
    model(mine(batches(1)[0])).sum().backward()
    # Rank 0 asks for nothing more before rank 1 is through: what rank 1 waits for was started by backward.
    if hvd.rank() == 1:
        optimizer.synchronize()
    hvd.barrier()
    if hvd.rank() == 0:
        optimizer.synchronize()


def changes_of_gradients_between_synchronize_and_step_count() -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    before = [p.detach().clone() for p in model.parameters()]
    (model(mine(batches(1)[0])).sum() * 100).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with optimizer.skip_synchronize(), warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    moved = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
    torch.testing.assert_close(moved.norm(), torch.tensor(0.5), rtol=1e-3, atol=1e-3)

    model(mine(batches(1)[0])).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"without optimizer.skip_synchronize\(\)"):
        optimizer.step()


def misuse_is_told_and_mended() -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters())
    loss = model(mine(batches(1)[0])).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after loss.backward\(\)"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step = 1 times"):
        loss.backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    for _ in range(2):
        model(mine(batches(1)[0])).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    model(mine(batches(1)[0])).sum().backward()
    optimizer.step()


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


def sparse_gradients_are_reduced() -> None:
    for as_dense in (False, True):
        torch.manual_seed(3)
        table = nn.Embedding(6, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=as_dense
        )
        before = table.weight.detach().clone()
        table(torch.tensor([0, 1 + hvd.rank(), 1 + hvd.rank()])).sum().backward()
        optimizer.step()
        moved = (before - table.weight.detach())[:, 0]
        torch.testing.assert_close(moved, torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]))
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse


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


def parameters_outlive_their_optimizers() -> None:
    model = net()
    first = hvd.DistributedOptimizer(adamw(model), model.named_parameters())
    model(mine(batches(1)[0])).sum().backward()
    first.step()
    del first
    gc.collect()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters())
    optimizer.zero_grad()
    model(mine(batches(1)[0])).sum().backward()
    optimizer.step()
    assert not any(p._post_accumulate_grad_hooks and len(p._post_accumulate_grad_hooks) > 1 for p in model.parameters())


def layers_that_are_unfrozen_or_added_are_reduced_from_then_on() -> None:
    for op in (hvd.Average, hvd.Adasum):
        model = net()
        model[0].requires_grad_(False)
        plain = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, op=op)
        for step, batch in enumerate(batches(6)):
            if step == 2:
                model[0].requires_grad_(True)
            if step == 4:
                optimizer.add_param_group({"params": model[4].parameters()})
            model.zero_grad()
            model(mine(batch)).square().mean().backward()
            optimizer.step()
        here, there = hvd.allgather_object([p.tolist() for p in model.parameters()])
        assert here == there
        assert all(p.ne(q).any() for p, q in zip(model.parameters(), net().parameters(), strict=True))


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
    gradients_stay_where_others_look_for_them,
    ranks_may_differ_in_the_order_of_their_gradients,
    a_gradient_that_a_rank_lacks_counts_as_zeros,
    a_hook_has_started_each_reduction_before_step,
    changes_of_gradients_between_synchronize_and_step_count,
    misuse_is_told_and_mended,
    schedulers_and_scalers_work,
    compiled_models_are_reduced_too,
    closures_are_reduced_each_time,
    sparse_gradients_are_reduced,
    adasum_joins_steps,
    parameters_outlive_their_optimizers,
    layers_that_are_unfrozen_or_added_are_reduced_from_then_on,
    state_from_before_is_kept,
    ranks_outside_a_process_set_step_alone,
]


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
