"""Subsets of three ranks work among themselves, at the same time as all together."""

import pytest
import torch

import lambert.horovod as hvd


def same_on(ranks: list[int], found: torch.Tensor, wanted: list[float]) -> None:
    if hvd.rank() in ranks:
        assert found.tolist() == wanted, (hvd.rank(), found, wanted)


def sets_reduce_over_their_own_ranks() -> None:
    outer, last = hvd.add_process_set([2, 0]), hvd.add_process_set([2])
    assert (outer.ranks, outer.size(), outer.included()) == ([0, 2], 2, hvd.rank() != 1)
    mine = torch.tensor([float(hvd.rank())])
    if outer.included():
        assert outer.rank() == [0, None, 1][hvd.rank()]
        same_on([0, 2], hvd.allreduce(mine, name="x", op=hvd.Sum, process_set=outer), [2])
        same_on([0, 2], hvd.allgather(mine, process_set=outer), [0, 2])
        same_on([0, 2], hvd.broadcast(mine, 2, process_set=outer), [2])
        same_on([0, 2], hvd.reducescatter(torch.arange(2.0), op=hvd.Sum, process_set=outer), [2.0 * bool(hvd.rank())])
        same_on([0, 2], hvd.alltoall(mine.repeat(2), process_set=outer), [0, 2])
        hvd.barrier(process_set=outer)
    else:
        with pytest.raises(ValueError, match="rank 1 is not a member"):
            hvd.allreduce(mine, process_set=outer)
        with pytest.raises(ValueError, match="rank 1 is not a member"):
            outer.rank()
    if last.included():
        same_on([2], hvd.allreduce(mine, process_set=last), [2])
    same_on([0, 1, 2], hvd.allreduce(mine, name="x", op=hvd.Sum), [3])
    assert hvd.remove_process_set(outer)
    assert hvd.remove_process_set(last)


def one_name_runs_in_two_sets_at_once() -> None:
    pair = hvd.add_process_set([0, 1])
    for _ in range(4):
        mine = torch.tensor([float(hvd.rank() + 1)])
        order = [hvd.global_process_set, pair] if hvd.rank() == 0 else [pair, hvd.global_process_set]
        handles = {
            each: hvd.allreduce_async(mine, name="both", op=hvd.Sum, process_set=each)
            for each in order
            if each.included()
        }
        same_on([0, 1, 2], hvd.synchronize(handles[hvd.global_process_set]), [6])
        if pair in handles:
            same_on([0, 1], hvd.synchronize(handles[pair]), [3])
    assert hvd.remove_process_set(pair)


def removed_sets_cannot_be_used_and_may_come_again() -> None:
    pair = hvd.add_process_set(hvd.ProcessSet([1, 2]))
    with pytest.raises(ValueError, match="exists already"):
        hvd.add_process_set([2, 1])
    assert hvd.remove_process_set(pair)
    assert pair.size() is None
    assert not hvd.remove_process_set(pair)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="is not registered"):
        hvd.allreduce(torch.ones(1), process_set=pair)
    for _ in range(2):
        again = hvd.add_process_set([1, 2])
        if again.included():
            same_on([1, 2], hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=again), [2])
        assert hvd.remove_process_set(again)


def ranks_must_name_the_same_set() -> None:
    with pytest.raises(hvd.HorovodInternalError, match="do not agree on the process set"):
        hvd.add_process_set([[0, 1], [0, 1], [0, 2]][hvd.rank()])
    for wrong in ([], [0, 0], [3], [-1]):
        with pytest.raises(ValueError, match="distinct ranks between 0 and 2"):
            hvd.add_process_set(wrong)


def gradients_stay_within_the_set() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        x = torch.ones(2, requires_grad=True)
        gathered = hvd.allgather(x, process_set=pair)
        torch.autograd.backward((gathered * torch.arange(4.0) * (1 + hvd.rank())).sum())
        assert x.grad is not None
        same_on([0], x.grad, [0, 2])
        same_on([2], x.grad, [4, 6])
    assert hvd.remove_process_set(pair)


def adasum_takes_sets_of_a_power_of_two() -> None:
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        same_on([0, 1], hvd.allreduce(torch.eye(2)[hvd.rank()], op=hvd.Adasum, process_set=pair), [1, 1])
    with pytest.raises(NotImplementedError, match="power of two, not 3"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)
    assert hvd.remove_process_set(pair)


def sets_may_be_given_to_init() -> None:
    hvd.shutdown()
    pair, one = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])
    hvd.init(process_sets=[pair, one])
    own = next(each for each in (pair, one) if each.included())
    assert own.size() == len(own.ranks or [])
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=own).item() == own.size()
    hvd.barrier()  # whoever leaves ends the session for all: the pair may still work when rank 2 has its sum
    hvd.shutdown()
    hvd.init(process_sets="dynamic")


RANKS = 3
CHECKS = [
    sets_reduce_over_their_own_ranks,
    one_name_runs_in_two_sets_at_once,
    removed_sets_cannot_be_used_and_may_come_again,
    ranks_must_name_the_same_set,
    gradients_stay_within_the_set,
    adasum_takes_sets_of_a_power_of_two,
    sets_may_be_given_to_init,
]


def test_on_ranks(outcome: str) -> None:
    assert not outcome, outcome
