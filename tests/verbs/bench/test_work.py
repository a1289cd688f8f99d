"""Turns, times and ratios, on sides that move a clock of their own."""

from collections.abc import Callable

import pytest

from lambert.core.errors import UsageError
from lambert.verbs.bench import BenchConfig
from lambert.verbs.bench.work import Step, Times, Work, figures, needed, sides, timed


class Clock:
    """Seconds that pass only when a side says so, and what was done in which order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[str] = []

    def side(self, name: str, build: float, rounds: list[float]) -> Callable[[], Step]:
        left = list(rounds)

        def made() -> Step:
            self.now += build
            self.done.append(f"build {name}")

            def step() -> float:
                self.now += left.pop(0)
                self.done.append(name)
                return len(left)

            return step

        return made

    def __call__(self) -> float:
        return self.now


def work(clock: Clock, **more: object) -> Work:
    made = {"lambert": clock.side("lambert", 1, [5, 2, 1, 2, 3]), "peer": clock.side("peer", 7, [10, 2, 2, 2, 9])}
    return Work(made, **{"tokens": 600, "sequences": 6, "padded": 900, "operations": 1200, **more})  # type: ignore[arg-type]


def test_rounds_interleave_and_start_up_is_apart() -> None:
    clock = Clock()
    times = timed(work(clock), 3, between=lambda: clock.done.append("ceilings"), clock=clock)
    start = ["build lambert", "lambert", "lambert", "build peer", "peer", "peer"]
    assert clock.done == [*start, "ceilings", *["lambert", "peer", "ceilings"] * 3]
    assert times["lambert"] == Times(build=1, first=5, check=4, rounds=[1, 2, 3])
    assert times["peer"] == Times(build=7, first=10, check=4, rounds=[2, 2, 9])


def test_ratios_are_those_of_each_round() -> None:
    clock = Clock()
    made = work(clock)
    found = figures(made, timed(made, 3, clock=clock), best=2000.0, shaped=1000.0)
    own, peer = found["lambert"], found["peer"]
    assert own["seconds"] == [1, 2, 3]
    assert (own["sequences_per_second"], own["tokens_per_second"], own["padded_tokens_per_second"]) == (3, 300, 450)
    assert (own["share_of_ceiling"], own["share_of_shaped_ceiling"]) == (0.3, 0.6)
    assert (own["build_seconds"], own["compile_seconds"]) == (1, 3)
    assert (peer["build_seconds"], peer["compile_seconds"]) == (7, 8)
    assert "ratio" not in own
    # 2/1, 2/2 and 9/3: their median is 2, while the medians of the seconds are equal.
    assert peer["ratio"] == 2
    assert peer["ratio_range"] == [1, 3]


def test_what_a_work_does_not_have_is_null() -> None:
    clock = Clock()
    made = work(
        clock, sequences=0, padded=0, operations=0, unit="parameters", more=lambda side, seconds: {side: seconds}
    )
    own = figures(made, timed(made, 3, clock=clock), best=0.0, shaped=0.0)["lambert"]
    assert own["parameters_per_second"] == 300
    assert own["lambert"] == 2
    for figure in ("sequences", "padded_parameters"):
        assert own[f"{figure}_per_second"] is None
    assert own["share_of_ceiling"] is own["share_of_shaped_ceiling"] is None


def test_a_side_that_learns_is_built_anew() -> None:
    clock = Clock()
    times = timed(work(clock, anew=True), 3, clock=clock)
    assert clock.done.count("build lambert") == 4
    assert times["lambert"].rounds == [1, 2, 3]
    assert times["peer"].rounds == [2, 2, 9]


def test_peers_are_chosen_by_name() -> None:
    peers = {"one": lambda value: lambda: value, "other": lambda value: lambda: -value}
    made = sides(BenchConfig(peer="other, one,"), lambda: lambda: 0.0, peers, 3.0)
    assert [(name, side()()) for name, side in made.items()] == [("lambert", 0), ("other", -3), ("one", 3)]
    with pytest.raises(UsageError, match=r"peer = 'on' is unknown\. Did you mean 'one'"):
        sides(BenchConfig(peer="other,on"), lambda: lambda: 0.0, peers)
    with pytest.raises(UsageError, match="is of Python's standard library"):
        sides(BenchConfig(peer="math:pi"), lambda: lambda: 0.0, peers)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UsageError, match=r"^peer = fast needs nowhere_to_be: pip install 'some-thing'\.$"):
        needed("nowhere_to_be", "fast", "some-thing")
