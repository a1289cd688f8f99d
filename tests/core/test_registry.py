"""Names of extension points: known ones, ones from outside, and ones that are neither."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lambert.core.errors import UsageError
from lambert.core.registry import Kind, check_named, choose, lookup

KNOWN: dict[str, Callable[..., Any]] = {"dumps": json.dumps, "loads": json.loads}
FUNCTION = Kind((float, dict))

MODULE = """
import functools
import os
from os import system
from typing import Any

pi = 3

class Base: ...

class Derived(Base):
    def __init__(self, progress, config): ...
    def forward(self, states, batch): ...

class Narrow(Derived):
    def forward(self, states): ...

def plain(progress, config): ...
def annotated(progress: float, config: dict[str, Any] | None, more=1): ...
def unresolved(progress: "Nowhere", config): ...
def of_whole_numbers(progress: int, config: Any): ...
def of_texts(progress: str, config): ...
def of_one(progress): ...
def of_three(progress, config, more): ...
def open_ended(*arguments): ...
wrapped = functools.wraps(plain)(lambda *given: plain(*given))
partly = functools.partial(of_three, more=1)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's own, which can be imported."""
    (tmp_path / "registered_by_tests.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import registered_by_tests

    return registered_by_tests


def test_known_names_and_names_from_outside(mine: Any) -> None:
    assert lookup(KNOWN, "dumps", "format", FUNCTION) is json.dumps
    assert lookup(KNOWN, "registered_by_tests:plain", "format", FUNCTION) is mine.plain
    assert choose(KNOWN, "loads", "format") is json.loads


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dumsp", r"format = 'dumsp' is unknown\. Did you mean 'dumps'\?"),
        ("x", r"is unknown\. Known: dumps, loads\."),
        ("nowhere.at:all", "cannot be imported: No module named 'nowhere'"),
        ("registered_by_tests:plein", "cannot be imported: module 'registered_by_tests' has no attribute 'plein'"),
        ("registered_by_tests:", "cannot be imported"),
        (":loads", "cannot be imported"),
        (".json:loads", "cannot be imported"),
        ("registered_by_tests:pi", "is neither a class nor a function"),
        ("os:system", r"is in Python's standard library; it must be a Python function of \(float, dict\)"),
        ("json:load", "is in Python's standard library"),
        ("os.path:join", "is in Python's standard library"),
        ("registered_by_tests:system", "is not written in Python, or is in Python's standard library"),
        ("numpy:add", "is not written in Python|takes other arguments"),
        ("torch:add", "is not written in Python"),
        ("registered_by_tests:of_texts", "takes other arguments"),
        ("registered_by_tests:of_one", "takes other arguments"),
        ("registered_by_tests:of_three", "takes other arguments"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_a_name_that_is_neither_is_explained(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lookup(KNOWN, name, "format", FUNCTION)


@pytest.mark.parametrize(
    "name",
    ["plain", "annotated", "unresolved", "of_whole_numbers", "open_ended", "wrapped", "partly", "Derived"],
)
def test_what_can_be_called_so_is_taken(name: str, mine: Any) -> None:
    assert lookup(KNOWN, f"registered_by_tests:{name}", "format", FUNCTION) is getattr(mine, name)


def test_a_class_must_derive_and_have_its_methods(mine: Any) -> None:
    kind = Kind((float, dict), base=mine.Base, methods={"forward": 2})
    assert lookup({}, "registered_by_tests:Derived", "block", kind) is mine.Derived
    for name, reason in (
        ("plain", "the wrong base class"),
        ("Base", "other arguments"),
        ("Narrow", "no method forward of 2"),
    ):
        with pytest.raises(UsageError, match=f"block = .*{reason}.*; it must be a class derived from .*Base, made"):
            lookup({}, f"registered_by_tests:{name}", "block", kind)


def test_what_a_file_names_must_be_named_by_the_user_too() -> None:
    check_named("bert", (), "lambert_block", "config.json")
    check_named("mine:Block", ("mine:Block",), "lambert_block", "config.json")
    with pytest.raises(
        UsageError, match=r"^config\.json asks for code .*lambert_block = 'mine:Block'.* --code mine:Block$"
    ):
        check_named("mine:Block", ("mine:Other",), "lambert_block", "config.json")


def test_where_nothing_from_outside_fits_nothing_is_imported() -> None:
    with pytest.raises(UsageError, match=r"size = 'json:load' is unknown"):
        choose({"tiny": {"layers": 2}}, "json:load", "size")
