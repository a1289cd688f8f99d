"""Names of extension points: known ones, ones from outside, and ones that are neither."""

import json

import pytest

from lambert.core.errors import UsageError
from lambert.core.registry import choose, lookup

KNOWN = {"dumps": json.dumps, "loads": json.loads}


def test_known_names_and_names_from_outside() -> None:
    assert lookup(KNOWN, "dumps", "format") is json.dumps
    assert lookup(KNOWN, "json:load", "format") is json.load
    assert choose(KNOWN, "loads", "format") is json.loads


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dumsp", r"format = 'dumsp' is unknown\. Did you mean 'dumps'\?"),
        ("x", r"is unknown\. Known: dumps, loads\."),
        ("nowhere.at:all", "cannot be imported: No module named 'nowhere'"),
        ("json:lods", "cannot be imported: module 'json' has no attribute 'lods'"),
        ("json:", "cannot be imported"),
        (":loads", "cannot be imported"),
        (".json:loads", "cannot be imported"),
        ("math:pi", "is neither a class nor a function"),
    ],
)
def test_a_name_that_is_neither_is_explained(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lookup(KNOWN, name, "format")


def test_where_nothing_from_outside_fits_nothing_is_imported() -> None:
    with pytest.raises(UsageError, match=r"size = 'json:load' is unknown"):
        choose({"tiny": {"layers": 2}}, "json:load", "size")
