"""What is said where ranks differ, fail or break."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from exchange_runs import Found, found_by
from tiny import Tiny

from lambert.core.errors import DataError, LambertError, MachineError, UsageError
from lambert.core.world import World
from lambert.distributed import agreement


def caught(work: Callable[[], object]) -> tuple[str, str]:
    try:
        work()
    except LambertError as error:
        return type(error).__name__, str(error)
    return "", ""


def agreed(world: World) -> Any:
    """What is said where ranks differ, fail or break."""

    def failing() -> None:
        with world.fail_together("reading its data"):
            if world.rank == 1:
                raise DataError("no shard 7.")

    net = Tiny()
    same = caught(lambda: agreement.compare_weights(world, net, 5))
    if world.rank == 1:
        net.dense.weight.data.view(torch.int32)[0, 0] ^= 1
    return {
        "same": same,
        "weights": caught(lambda: agreement.compare_weights(world, net, 5)),
        "facts": caught(lambda: agreement.compare(world, {"seed": 1 + (world.rank == 1), "lr": 0.5})),
        "equal facts": caught(lambda: agreement.compare(world, agreement.software())),
        "failing": caught(failing),
    }


found = found_by(agreed)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_that_differ_are_named_on_all(found: Found, size: int) -> None:
    for rank in range(size):
        said = found("agreed", size, rank)
        assert said["same"] == said["equal facts"] == ("", "")
        kind, text = said["weights"]
        assert kind == MachineError.__name__
        assert "dense.weight" in text
        assert size == 2 or "rank 1 differ" in text
        kind, text = said["facts"]
        assert kind == UsageError.__name__
        assert "Rank 1 differs from rank 0 in seed: 2 instead of 1" in text
        assert said["failing"] == ("DataError", "Rank 1 failed reading its data: no shard 7.")
