"""Turns, times and ratios, on sides whose seconds are given."""

import pytest

from lambert.core.errors import UsageError
from lambert.wings.bench.verb import BenchConfig, time_rounds
from lambert.wings.bench.work import Times, Work, figures, import_peer, sides


class Given:
    """A side whose seconds are given, and what was done in which order."""

    def __init__(self, name: str, times: tuple[float, float], rounds: list[float], done: list[str]) -> None:
        self._name, self._times, self._rounds, self._done = name, times, iter(rounds), done

    def build(self) -> Times:
        self._done.append(f"build {self._name}")
        return Times(*self._times, check=4, memory_mb=100)

    def round(self) -> float:
        self._done.append(self._name)
        return next(self._rounds)


def given(done: list[str]) -> dict[str, Given]:
    return {
        "lambert": Given("lambert", (1, 5), [1, 2, 3], done),
        "peer": Given("peer", (7, 10), [2, 2, 9], done),
    }


def work(**more: object) -> Work:
    return Work({}, **{"tokens": 600, "sequences": 6, "padded": 900, "operations": 1200, **more})  # type: ignore[arg-type]


def test_rounds_interleave_and_start_up_is_apart() -> None:
    done: list[str] = []
    times = time_rounds(given(done), 3, between=lambda: done.append("ceilings"))
    assert done == ["build lambert", "build peer", "ceilings", *["lambert", "peer", "ceilings"] * 3]
    assert times["lambert"] == Times(build=1, first=5, check=4, memory_mb=100, rounds=[1, 2, 3])
    assert times["peer"] == Times(build=7, first=10, check=4, memory_mb=100, rounds=[2, 2, 9])


def test_ratios_are_those_of_each_round() -> None:
    found = figures(work(), time_rounds(given([]), 3), best=2000.0, shaped=1000.0)
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
    made = work(sequences=0, padded=0, operations=0, unit="parameters", more=lambda side, seconds: {side: seconds})
    own = figures(made, time_rounds(given([]), 3), best=0.0, shaped=0.0)["lambert"]
    assert own["parameters_per_second"] == 300
    assert own["lambert"] == 2
    for figure in ("sequences", "padded_parameters"):
        assert own[f"{figure}_per_second"] is None
    assert own["share_of_ceiling"] is own["share_of_shaped_ceiling"] is None


def test_peers_are_chosen_by_name() -> None:
    peers = {"one": lambda value: lambda: value, "other": lambda value: lambda: -value}
    made = sides(BenchConfig(peer="other, one,"), lambda: lambda: 0.0, peers, 3.0)
    assert [(name, side()()) for name, side in made.items()] == [("lambert", 0), ("other", -3), ("one", 3)]
    with pytest.raises(UsageError, match=r"peer = 'on' is unknown\. Did you mean 'one'"):
        sides(BenchConfig(peer="other,on"), lambda: lambda: 0.0, peers)
    with pytest.raises(UsageError, match="is in Python's standard library"):
        sides(BenchConfig(peer="math:pi"), lambda: lambda: 0.0, peers)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UsageError, match=r"^peer = fast needs nowhere_to_be: pip install 'some-thing'\.$"):
        import_peer("nowhere_to_be", "fast", "some-thing")
