"""Rows from standard input."""

import io

import pytest

from lambert.inference.input_rows import rows_of_stream


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b'{"text": "a"}\n\n{"text": "b"}', [1, 3]),
        (b'[{"text": "a"},\n{"text": "b"}]', [1, 2]),
        (b'{\n "text": "a"\n}\n{\n "text": "b"\n}\n', [1, 4]),
        ('{"text": "a"}\n{"text": "b"}\n'.encode("utf-16"), [1, 2]),
    ],
)
def test_rows_in_lines_and_over_lines(content: bytes, lines: list[int]) -> None:
    found = [(row.place, row.row) for row in rows_of_stream(io.BufferedReader(io.BytesIO(content)))]
    assert found == [(f"line {line}", {"text": text}) for line, text in zip(lines, "ab", strict=True)]


def test_a_line_longer_than_what_is_looked_at_is_one_row() -> None:
    content = b'{"text": "' + b"," * 20_000 + b'"}\nx\n{"text": "b"}'
    found = [row.error is None for row in rows_of_stream(io.BufferedReader(io.BytesIO(content)))]
    assert found == [True, False, True]


def test_what_standard_input_may_hold_is_said_for_a_table() -> None:
    (first, _) = rows_of_stream(io.BufferedReader(io.BytesIO(b"text,label\na,b\n")))
    assert "name a table as a file" in str(first.error)
    (first, _) = rows_of_stream(io.BufferedReader(io.BytesIO(b"text,label\na,b\n")), "message")
    assert 'a JSON object like {"message": "..."}' in str(first.error)
