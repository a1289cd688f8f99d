"""The choice of how gradients travel, from updates whose times are made up."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig, Name
from lambert.engine.loop import OutOfMemory
from lambert.engine.precision import Precision
from lambert.engine.signals import Interrupted, StopRequest
from lambert.runs import exchange_autotune as tuning
from lambert.verbs.report.ranks import _TIMED

Tune = Callable[..., tuple[list[str], str, int]]


class Recorder:
    """An exchange that has no method yet."""

    method, decided = "float32", False

    def use(self, name: str) -> None:
        self.method = name


@pytest.fixture
def autotune(monkeypatch: pytest.MonkeyPatch) -> Tune:
    """`autotune(seconds, ...)`: lines, the method chosen, updates taken, where updates take so long by each method."""

    def run(seconds: dict[Name, float], *, short_of_memory: int = 0, stop: StopRequest | None = None) -> Any:
        exchange, taken, failures = Recorder(), [], iter(range(short_of_memory))

        def train(*arguments: Any, **options: Any) -> Iterator[Any]:
            for number in range(options["start"], options["steps"]):
                if exchange.method != "float32" and next(failures, None) is not None:
                    raise OutOfMemory("out of memory", number, 64, 8)
                taken.append(number)
                first = number == options["start"]  # is slower, and must not count
                yield SimpleNamespace(seconds=9.0 if first else seconds[exchange.method])  # type: ignore[index]

        monkeypatch.setattr(tuning, "train", train)
        config: Any = SimpleNamespace(
            exchange=ExchangeConfig(method="auto", tolerates=tuple(name for name in seconds if name != "float32")),
            seed=1,
        )
        microbatch = SimpleNamespace(lower=lambda error: f"smaller than {error.tokens}")
        stub: Any = SimpleNamespace(
            config=config,
            exchange=exchange,
            world=World(),
            model=torch.nn.Linear(1, 1),
            microbatch=microbatch,
            precision=Precision("float32"),
        )
        lines = list(tuning.autotune(stub, lambda number: iter(()), 100, stop or StopRequest()))
        return lines, exchange.method, len(taken)

    return run


def test_the_fastest_method_is_taken_and_the_table_says_why(autotune: Tune) -> None:
    lines, chosen, _ = autotune({"float32": 0.4, "int8": 0.1, "bfloat16": 0.2})
    assert chosen == "int8"
    assert ["<- chosen" in line for line in lines] == [False, True, False]
    assert "0.100 s per update,  4.00x" in lines[1]
    assert all(_TIMED.search(line) for line in lines)  # the page of a run reads them in its log


def test_float32_stays_where_another_is_hardly_faster(autotune: Tune) -> None:
    assert autotune({"float32": 0.4, "int8": 0.39})[1] == "float32"


def test_a_candidate_that_runs_out_of_memory_is_timed_again_with_smaller_micro_batches(autotune: Tune) -> None:
    lines, chosen, _ = autotune({"float32": 0.4, "int8": 0.1}, short_of_memory=1)
    assert lines[0] == "smaller than 64"
    assert chosen == "int8"


def test_a_signal_breaks_it_off(autotune: Tune) -> None:
    stop = StopRequest()
    stop._received = 15
    with pytest.raises(Interrupted, match="SIGTERM"):
        autotune({"float32": 0.4, "int8": 0.1}, stop=stop)
