"""Checks of the gradients of a distributed optimizer: where they are stored, which are reduced, and when.

They run on two ranks for `tests/wings/horovod/test_optimizer.py`, in one group of processes with those of
`horovod_training.py`.
"""

import gc
import warnings

import pytest
import torch
from horovod_training import adamw, batches, mine, net, same
from torch import Tensor, nn

import lambert.horovod as hvd


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


CHECKS = [
    gradients_stay_where_others_look_for_them,
    ranks_may_differ_in_the_order_of_their_gradients,
    a_gradient_that_a_rank_lacks_counts_as_zeros,
    a_hook_has_started_each_reduction_before_step,
    changes_of_gradients_between_synchronize_and_step_count,
    misuse_is_told_and_mended,
    sparse_gradients_are_reduced,
    parameters_outlive_their_optimizers,
    layers_that_are_unfrozen_or_added_are_reduced_from_then_on,
]
