from typing import Any

import pytest

from lambert.core.errors import UsageError
from lambert.wings.corpus.cleaning import find_cleaner, prose
from lambert.wings.corpus.filtering import Ledger, apply_filters, wrap_cleaner
from lambert.wings.corpus.reading.readers import Piece


@pytest.mark.parametrize(
    "text", ["It is cold today.", 'He said: "Go home now!"', "Home\nAbout\nThis is a page.", "天气很冷。"]
)
def test_prose_keeps_a_document_with_a_sentence(text: str) -> None:
    assert prose(text) == text


@pytest.mark.parametrize(
    "text", ["", "Home\nAbout us\nContact", "v1.", "Page 3.", "...", "Café.", "Über uns!", "© 2024."]
)
def test_prose_drops_a_document_without_one(text: str) -> None:
    assert prose(text) is None


def test_the_first_piece_decides_and_unreadable_documents_pass() -> None:
    steps = [("short", wrap_cleaner("short", lambda text: text.upper() if len(text) > 2 else None))]
    pieces = [
        Piece("abc", "1", last=False), Piece("d", "2"),  # the second piece is short: it is kept as it is
        Piece("e", "3", last=False), Piece("fghi", "4"),  # dropped with its long second piece
        Piece("", "5", error="is damaged"), Piece("klm", "6"),
    ]  # fmt: skip
    ledger = Ledger()
    found = list(apply_filters(pieces, steps, ledger))
    assert [(piece.text, piece.place) for piece in found] == [("ABC", "1"), ("d", "2"), ("", "5"), ("KLM", "6")]
    assert found[2].error
    assert ledger.dropped == {"short": 1}
    assert [sample["text"] for sample in ledger.samples["short"]] == ["e"]
    assert {sample["text"] for sample in ledger.samples["kept"]} == {"abc", "klm"}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (len, "returned a int"),
        (lambda text: "\ud800", "failed at line 7: Unicode"),
        (lambda text: text[99], "failed at line 7: IndexError"),
    ],
)
def test_a_function_that_fails_is_named(function: Any, words: str) -> None:
    with pytest.raises(UsageError, match=f"clean = 'mine:tidy' {words}"):
        list(apply_filters([Piece("abc", "line 7")], [("mine:tidy", wrap_cleaner("mine:tidy", function))], Ledger()))


def test_a_step_from_outside_must_be_a_function_of_a_text() -> None:
    assert find_cleaner("prose") is prose
    with pytest.raises(UsageError, match="cannot be imported"):
        find_cleaner("no_such_module:clean")
    with pytest.raises(UsageError, match="standard library"):
        find_cleaner("os:system")
