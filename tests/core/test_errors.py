"""What is printed of names from outside."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from lambert.commands.parse import _say
from lambert.core.errors import printable_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "\\u001b[31mred\\u0007"),
        ("a\rb\x9bc\x7f", "a\\u000db\\u009bc\\u007f"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("\udcff", "\\udcff"),
        ("line\u2028line", "line\\u2028line"),
        ("näme 名前 \U0001f600 e\u0301 \u200f\ttab", "näme 名前 \U0001f600 e\u0301 \u200f\ttab"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable_line(text) == shown
    assert json.loads(f'"{shown}"'.replace("\t", "\\t")) == text


def test_a_line_is_one_line() -> None:
    assert printable_line("a\nserving http://x") == "a\\u000aserving http://x"


def test_what_verbs_say_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    _say("a \x1b[2J\nb")
    assert capsys.readouterr().out == "a \\u001b[2J\\u000ab\n"


def test_errors_are_escaped(lambert: Callable[..., Any]) -> None:
    done = lambert("predict", model="no\x1b[31m\nsuch\u202e")
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert "no\\u001b[31m such\\u202e" in done.err
