"""Which requests are ready, whatever the order in which they come: the bookkeeping alone, without processes."""

import json
import random
from itertools import count
from typing import Any

import pytest
import torch

from lambert.wings.horovod.fusion import neutral, scale
from lambert.wings.horovod.matching import Match, Matching, find_set_bits
from lambert.wings.horovod.requests import ReduceOp, Request, TensorKind, find_disagreement


def request(name: str, shape: tuple[int, ...] = (2,), kind: str = "allreduce", **changes: Any) -> Request:
    plain = Request(kind, f"{kind}.{name}", 0, (TensorKind("float32", shape, "cpu"),))
    return plain._replace(**changes)


class Rank:
    """A rank's side: repeats a request under its number as soon as it has one."""

    def __init__(self) -> None:
        self.numbers: dict[Request, int] = {}

    def message(self, requests: list[Request]) -> tuple[int, list[Request]]:
        bits = sum(1 << self.numbers[r] for r in requests if r in self.numbers)
        return bits, [r for r in requests if r not in self.numbers]


@pytest.mark.parametrize("seed", range(20))
def test_every_request_runs_once_when_the_last_rank_has_made_it(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 4)
    matching, ranks = Matching(list(range(size)), capacity=3), [Rank() for _ in range(size)]
    by_number: list[Request] = []
    for _ in range(6):
        shapes = {name: chance.choice([(2,), (2,), (3,)]) for name in "abcde"}
        left = {
            rank: chance.sample([request(name, shape) for name, shape in shapes.items()], 5) for rank in range(size)
        }
        ran: list[Request] = []
        asked: dict[Request, int] = dict.fromkeys(left[0], 0)
        while any(left.values()):
            rank = chance.choice([rank for rank, waiting in left.items() if waiting])
            some = [left[rank].pop() for _ in range(chance.randint(1, len(left[rank])))]
            matching.add(rank, *ranks[rank].message(some), now=0.0)
            for each in some:
                asked[each] += 1
            ready, matches = matching.take_ready([])
            ran += [by_number[number] for number in find_set_bits(ready)]
            for match in matches:
                assert match.error is None
                ran += match.requests
                if match.number is not None:
                    assert match.number == len(by_number)
                    by_number += match.requests
                    for each_rank in ranks:
                        each_rank.numbers[match.requests[0]] = match.number
            assert sorted(ran) == sorted(each for each, times in asked.items() if times == size)
    assert matching.find_stalled(1.0, []) == {}
    assert len(by_number) <= 3


def test_a_number_is_given_the_second_time() -> None:
    matching = Matching([0], capacity=10)
    numbers = []
    for _ in range(3):
        matching.add(0, 0, [request("a")], now=0.0)
        numbers.append(matching.take_ready([])[1][0].number)
    assert numbers == [None, 0, None]
    for name in count():  # names that never return are forgotten
        matching.add(0, 0, [request(f"once.{name}")], now=0.0)
        assert matching.take_ready([])[1][0].number is None
        if name > 30:
            break


def test_ranks_that_joined_need_not_ask() -> None:
    matching = Matching([0, 1, 2], capacity=10)
    matching.add(0, 0, [request("a")], now=0.0)
    matching.add(2, 0, [request("b")], now=0.0)
    assert matching.take_ready([1]) == (0, [])
    matching.add(2, 0, [request("a")], now=0.0)
    (match,) = matching.take_ready([1])[1]
    assert match.name == "allreduce.a"
    matching.recheck()
    (match,) = matching.take_ready([1, 0])[1]
    assert match.name == "allreduce.b"
    assert matching.take_ready([0, 1, 2]) == (0, [])


def test_who_is_waited_for() -> None:
    matching = Matching([0, 1, 2], capacity=10)
    for rank in (0, 1, 2, 0, 1, 2):
        matching.add(rank, 0, [request("a")], now=0.0)
        matching.take_ready([])
    matching.add(0, 1, [], now=5.0)
    matching.add(1, 0, [request("b")], now=6.0)
    assert matching.find_stalled(4.0, []) == {}
    assert matching.find_stalled(5.0, []) == {"allreduce.a": [1, 2]}
    assert matching.find_stalled(6.0, [2]) == {"allreduce.a": [1], "allreduce.b": [0]}


def test_a_match_survives_the_wire() -> None:
    matching = Matching([0, 1], capacity=10)
    for rank, rows in enumerate((2, 3)):
        matching.add(rank, 0, [request("x", (rows, 4), "allgather", prescale=0.1)], now=0.0)
    (match,) = matching.take_ready([])[1]
    assert [each.tensors[0].shape for each in match.requests] == [(2, 4), (3, 4)]
    assert Match.parse(json.loads(json.dumps(match))) == match
    for nonsense in (["allreduce"], [1, 2, 3, [4], 5, 6, 7, 8, 9]):
        with pytest.raises(ValueError, match=r"not a request|unpack"):
            Request.parse(nonsense)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (request("x", (3,)), "allreduce 'x': ranks do not agree on the shape: rank 0 sent [2]; rank 1 sent [3]"),
        (request("x", op=ReduceOp.Max), "the reduction: rank 0 sent Sum; rank 1 sent Max"),
        (request("x", tensors=(TensorKind("float32", (2,), "cuda"),)), "CPU or GPU: rank 0 sent cpu; rank 1 sent cuda"),
    ],
)
def test_what_ranks_do_not_agree_on(second: Request, message: str) -> None:
    assert find_disagreement({0: request("x"), 1: request("x")}, []) is None
    assert message in (find_disagreement({0: request("x"), 1: second}, []) or "")


def test_ranks_that_agree_are_named_together() -> None:
    text = find_disagreement({0: request("x"), 1: request("x", (3,)), 2: request("x"), 3: request("x")}, [])
    assert text is not None
    assert text.endswith("ranks 0, 2, 3 sent [2]; rank 1 sent [3]")


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.uint8, torch.float16, torch.float64])
@pytest.mark.parametrize("op", [ReduceOp.Min, ReduceOp.Max, ReduceOp.Product, ReduceOp.Sum])
def test_neutral_values_change_nothing(op: ReduceOp, dtype: torch.dtype) -> None:
    reduce = {ReduceOp.Min: torch.minimum, ReduceOp.Max: torch.maximum, ReduceOp.Product: torch.mul}.get(op, torch.add)
    values = torch.tensor([0, 1, 100], dtype=dtype)
    assert torch.equal(reduce(values, torch.tensor(neutral(op, dtype), dtype=dtype)), values)


def test_integers_are_scaled_exactly_and_truncated() -> None:
    assert scale(torch.tensor([49 * 49, -5, 2**62]), 1, 49).tolist() == [49, 0, 2**62 // 49]
    assert scale(torch.tensor([3, -3]), 0.5, 1).tolist() == [1, -1]
    assert scale(torch.tensor([6.0e4], dtype=torch.float16), 1, 4).item() == 15000
