"""The settings that decide how torch computes: those of a run, and those of the code around it."""

from typing import Any

import torch

from lambert.core.world import World
from lambert.engine.numerics import numerics, thread_count


def test_ranks_compute_with_as_many_threads_as_the_rank_that_has_fewest() -> None:
    class Unequal(World):
        def largest(self, number: int) -> int:
            return max(number, -1)  # the other rank's answer

    assert thread_count(World()) == torch.get_num_threads()
    assert thread_count(Unequal()) == 1
    assert thread_count(Unequal(), deterministic=True) == 1
    assert thread_count(Unequal(), threads=3) == 3


def settings() -> list[Any]:
    return [
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.random.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
    ]


def test_a_run_and_the_code_around_it_do_not_see_each_other() -> None:
    torch.set_grad_enabled(False)
    torch.set_autocast_enabled("cpu", True)
    before, threads = settings(), torch.get_num_threads()
    with numerics(World(), threads=threads + 1, deterministic=True) as outer:
        torch.manual_seed(1)
        inside = settings()
        assert inside[:2] == [threads + 1, True]
        assert inside[3:] == [True, False]
        with outer.outside():
            assert settings() == before
            torch.manual_seed(2)
            torch.set_autocast_enabled("cpu", False)
            changed = settings()
        assert settings() == inside
        with outer.outside():
            assert settings() == changed
    assert settings() == changed
    assert inside[2] != changed[2] != before[2]
    torch.set_grad_enabled(True)
