"""Every number among the settings of every verb, with values that no number should have."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from commands import is_flag, one_line

from lambert.core.errors import UsageError
from lambert.verb import all_verbs, settings_of

Lambert = Callable[..., Any]

NEEDED = {
    "demo": [],
    "prepare": ["--input=t", "--out=o"],
    "corpus peek": ["--input=t"],
    "corpus fetch": ["--from=s3://b/c", "--out=o"],
    "corpus verify": ["c"],
    "pretrain": ["--corpus=c", "--out=o", "--model.layers=1"],
    "finetune": ["--data=d", "--out=o", "--init=i"],
    "sweep": ["--out=o"],
    "evaluate": ["--model=m", "--data=d"],
    "predict": ["--model=m"],
    "serve": ["--model=m"],
    "extend": ["m", "--input=t", "--out=o", "--words=1"],
    "import": ["--from=f", "--out=o"],
    "export": ["--model=m", "--out=o"],
    "bench": [],
    "plan": ["r.toml"],
    "verify": ["r.toml"],
    "launch": ["pretrain"],
    "report": ["run"],
    "compare": ["a", "b"],
    "doctor": [],
}
NEVER = {
    int: (2**63, 10**30, -(10**30), math.nan, math.inf, -math.inf),
    float: (math.nan, math.inf, -math.inf, 1e300, -1e300, 10**300),
}
"""What no setting of a kind may be."""
MAY_BE_NEGATIVE = {"null_threshold", "seed", "seeds"}
MAY_BE_INFINITE = {"trust"}
# What has no default and what a number does not depend on.
GIVEN = {name: Path(name) for name in ("out", "corpus", "data", "init", "model")} | {
    "input": (Path("x"),), "word_list": Path("words.txt"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Number:
    """A number among the settings."""

    verb: str
    flag: str
    table: Any
    name: str
    kind: type
    count: int


def numbers(verb: str, kind: Any, prefix: str = "") -> Iterator[Number]:
    """Every number among the settings, those of nested tables too."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not is_flag(kind, field.name):
            continue
        hint = hints[field.name]
        for part in (hint, *get_args(hint)):
            if dataclasses.is_dataclass(part):
                yield from numbers(verb, part, f"{prefix}{field.name}.")
            elif part in (int, float):
                count = len(get_args(hint)) if get_origin(hint) is tuple else 1
                yield Number(verb, prefix + field.name, kind, field.name, part, count)
                break


def all_numbers() -> list[Number]:
    """Each once, though pretrain and finetune share tables."""
    kinds = {name: settings_of(verb) for name, verb in all_verbs().items() if verb.settings}
    found = {(number.table, number.name): number for verb, kind in kinds.items() for number in numbers(verb, kind)}
    return list(found.values())


NUMBERS = {f"{number.verb} {number.flag}": number for number in all_numbers()}


def test_every_verb_is_walked() -> None:
    assert NEEDED.keys() == {name for name, verb in all_verbs().items() if verb.settings}
    assert len(NUMBERS) > 70
    assert {"pretrain model.layers", "finetune train.epochs", "launch timeout", "bench rounds"} <= NUMBERS.keys()
    assert NUMBERS["finetune optim.betas"].count == 2


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_numbers_out_of_every_range_are_refused(number: Number) -> None:
    required = {field.name: GIVEN[field.name] for field in dataclasses.fields(number.table) if field.name in GIVEN}
    required |= {"model": ("m",)} if number.verb == "serve" else {}
    required |= {"model": None} if {"corpus", "model"} <= required.keys() else {}  # a table
    number.table(**required)
    for value in (*NEVER[number.kind], *(() if number.name in MAY_BE_NEGATIVE else (-1,))):
        if value == math.inf and number.name in MAY_BE_INFINITE:
            continue
        given = required | {number.name: value if number.count == 1 else (value,) * number.count}
        with pytest.raises(UsageError, match=rf"{number.name} = .* must be"):
            number.table(**given)


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_not_a_number_is_a_line_and_2(number: Number, lambert: Lambert) -> None:
    flag = f"--{number.flag.replace('_', '-')}"
    flags = [f"{flag}=nan"] if number.count == 1 else [flag, *["nan"] * number.count]
    needed = NEEDED[number.verb]
    called = lambert(number.verb, *(flags + needed if number.verb == "launch" else needed + flags))
    one_line(called, 2)
    assert number.name.replace("_", "-") in called.err.replace("_", "-")
