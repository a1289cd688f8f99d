"""A rank that leaves, crashes or is killed without a launcher: the others say who, and end too."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, assert_all


def raises() -> None:
    strike(lambda: 1 / 0)


def leaves() -> None:
    strike(lambda: os._exit(7))


def is_killed() -> None:
    strike(lambda: os.kill(os.getpid(), signal.SIGKILL))


def strike(fault: Callable[[], object]) -> None:
    """Has the fault befall this process in the fifth update."""
    from lambert.optim.optimizers import build
    from lambert.runs import run

    def struck(*arguments: Any) -> Any:
        optimizer = build(*arguments)
        step, calls = optimizer.step, iter(range(99))

        def stepping(*more: Any) -> Any:
            if next(calls) == 4:
                fault()
            return step(*more)

        optimizer.step = stepping  # type: ignore[method-assign, assignment]
        return optimizer

    run.build = struck  # type: ignore[attr-defined, assignment]


@pytest.mark.parametrize(
    ("fault", "who", "code", "gist"),
    [
        (raises, 1, 1, "rank 1 left: ZeroDivisionError: division by zero"),
        (is_killed, 2, -9, "rank 2 does not answer: killed, hung or cut off"),
        (leaves, 0, 7, "rank 0, which hosts the rendezvous store, does not answer: killed, hung or cut off"),
    ],
)
def test_a_rank_that_is_lost(
    fault: Callable[[], None], who: int, code: int, gist: str, cluster: Cluster, corpus: Path
) -> None:
    ranks = cluster.run(3, each={who: {"fault": fault}}, train__batch_size=6, train__save_every=2)
    lost = ranks.pop(who)
    assert lost.code == code
    assert_all(ranks, 4, gist)
    assert all(f"Rank {n} lost its peers" in rank.line for n, rank in zip({0, 1, 2} - {who}, ranks, strict=True))
    assert max((cluster.folder / "run" / "checkpoints").glob("step-??????")).name in ("step-000002", "step-000004")
    if fault is raises:
        assert lost.line.startswith("bug: ZeroDivisionError: division by zero")
