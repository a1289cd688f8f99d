"""Ranks that delay their peers are named."""

import pytest

from lambert.distributed.stragglers import Stragglers


class Paced:
    """A step of four ranks, the third of which takes so long."""

    def __init__(self, slowest: float, loads: tuple[int, ...] = (100, 100, 100, 100)) -> None:
        self.rank_seconds, self.loads, self.tokens = [1.0, 1.0, slowest, 1.0], loads, sum(loads)


@pytest.mark.parametrize(("slowest", "said"), [(1.1, 0), (3.0, 1)])
def test_a_straggler_is_named_once(slowest: float, said: int) -> None:
    slow = Stragglers()
    lines = [line for _ in range(200) if (line := slow.watch(Paced(slowest)))]  # type: ignore[arg-type]
    assert len(lines) == said
    assert all("rank 2 is slow" in line for line in lines)


def test_more_work_is_not_slowness() -> None:
    slow = Stragglers()
    assert not any(slow.watch(Paced(3.0, (100, 100, 300, 100))) for _ in range(100))  # type: ignore[arg-type]


def test_idle_ranks_are_said_once() -> None:
    slow = Stragglers()
    lines = [slow.watch(Paced(0.0, (100, 100, 0, 0))) for _ in range(3)]  # type: ignore[arg-type]
    assert "2 of 4 ranks have no work" in lines[0]
    assert lines[1:] == ["", ""]
