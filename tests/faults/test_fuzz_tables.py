"""Tables in the dialects of spreadsheets and libraries: every verb reads the same rows, or refuses them in the same
words."""

import csv
import gzip
import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from odd_files import EXAMPLES, fuzz
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from lambert.core.errors import DataError
from lambert.inference.input_rows import InputFiles
from lambert.tasks import Columns, TaskConfig, create
from lambert.tasks.reading.table import plain_label, read_labelled_rows
from lambert.wings.corpus.reading.pieces import normalise_newlines
from lambert.wings.corpus.reading.readers import Layout, read

TASK = create(TaskConfig(labels=("a", "b")), Tokenizer(WordPiece()))
RIGHT = ("text", "label")
NAMES = (RIGHT, RIGHT, RIGHT, ("Text", "LABEL"), (" text", "label "), ("TEXT", "Label"))
LABELS = (
    ("a", "b"), ("1", "2"), ("1,5", "2,5"), ("true", "false"), ("sehr gut", "schlecht"), ("caf\u00e9", "cafe\u0301"),
    ("joy;fear", "joy"), ("-1", "007"), ("a\u00a0", "a\u200b"),
)  # fmt: skip
WORDS = (
    "good", "day", "3,5", "a;b", "x|y", "one, two", "He said", "no.", "\u00fcber", "\u65e5\u672c\u8a9e", "\U0001f600",
    "it's", "#1", "1.234,50",
)  # fmt: skip
INSIDE = ('"no"', "two\nlines", "two\r\nlines", "tab\there", "a\u2028b")
ENCODINGS = ("utf-8", "utf-8", "utf-8-sig", "utf-16")


@dataclass(frozen=True)
class Dialect:
    separator: str
    quoting: int
    end: str
    encoding: str
    names: tuple[str, str]
    swapped: bool
    numbered: bool
    spaced: bool
    blank: bool
    sep_line: bool
    last_end: bool
    packed: bool
    suffix: str


dialects = st.builds(
    Dialect,
    separator=st.sampled_from(",;|\t"), quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n", "\r"]), encoding=st.sampled_from(ENCODINGS), names=st.sampled_from(NAMES),
    swapped=st.booleans(), numbered=st.booleans(), spaced=st.sampled_from([False, False, True]),
    blank=st.sampled_from([False, False, True]), sep_line=st.sampled_from([False, False, False, True]),
    last_end=st.booleans(), packed=st.sampled_from([False, False, True]), suffix=st.sampled_from([".csv", ".tsv"]),
)  # fmt: skip
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
inner = st.builds(lambda a, b, c: f"{a} {b} {c}", texts, st.sampled_from(INSIDE), texts)
tables = st.sampled_from(LABELS).flatmap(
    lambda labels: st.lists(st.tuples(texts | inner, st.sampled_from(labels)), min_size=3, max_size=6)
)


def content(dialect: Dialect, rows: Sequence[tuple[str, str]]) -> bytes:
    """The bytes of a table. Between tabs all cells are in quotation marks, since few may be part of the text."""
    if dialect.separator == "\t":
        dialect = replace(dialect, quoting=csv.QUOTE_ALL, spaced=False)
    order = (1, 0) if dialect.swapped else (0, 1)
    table = [[row[at] for at in order] for row in (dialect.names, *rows)]
    if dialect.numbered:
        table = [[name, *cells] for name, cells in zip(["id", *map(str, range(len(rows)))], table, strict=True)]
    out = io.StringIO()
    writer = csv.writer(out, delimiter=dialect.separator, quoting=dialect.quoting, lineterminator=dialect.end)  # type: ignore[arg-type]
    lines = [f"sep={dialect.separator}{dialect.end}"] if dialect.sep_line else []
    for cells in table:
        out.seek(0)
        out.truncate()
        writer.writerow(cells)
        line = out.getvalue()
        if dialect.spaced:
            cut = io.StringIO()
            csv.writer(cut, delimiter="\x01", quoting=csv.QUOTE_ALL, lineterminator=dialect.end).writerow(cells)
            line = cut.getvalue().replace("\x01", f"{dialect.separator} ")
        lines += [line, dialect.end * dialect.blank]
    text = "".join(lines) if dialect.last_end else "".join(lines).rstrip("\r\n")
    data = text.encode(dialect.encoding)
    return gzip.compress(data) if dialect.packed else data


def trained(path: Path) -> tuple[list[tuple[str, str]], str]:
    """The rows that finetune, evaluate and sweep read, and why they refuse the file."""
    found: list[tuple[str, str]] = []
    try:
        for _, row in read_labelled_rows(path, Columns(), []):
            found.append((row["text"], plain_label(row["label"])))
    except DataError as error:
        return found, str(error).removeprefix(str(path))
    return found, ""


def predicted(path: Path) -> tuple[list[str], list[str]]:
    try:
        rows = list(InputFiles([path], TASK).rows())
    except DataError as error:
        return [], [str(error).removeprefix(str(path))]
    errors = [str(row.error).removeprefix(str(path)) for row in rows if row.error is not None]
    return [row.row["text"] for row in rows if row.error is None], errors


def prepared(path: Path) -> tuple[list[str], list[str]]:
    pieces = list(read(path, Layout()))
    errors = [f":{piece.place.removeprefix('line ')} {piece.error}." for piece in pieces if piece.error]
    return [piece.text for piece in pieces if not piece.error], errors


def continued(path: Path) -> list[str]:
    """The rows that predict reads if it is stopped after each one."""
    files, found = InputFiles([path], TASK), []
    first = next(files.rows(), None)
    while first is not None:
        found.append(first.row["text"] if first.error is None else f"<{first.error}>")
        first = next(files.rows(first.after), None)
    return found


def test_every_verb_reads_the_same_rows(tmp_path: Path) -> None:
    @examples(fuzz, max_examples=max(180, EXAMPLES))
    @given(dialects, tables)
    def check(dialect: Dialect, rows: list[tuple[str, str]]) -> None:
        if dialect.end == "\r":  # the only line end of such a file
            rows = [(text.replace("\r\n", "\r").replace("\n", "\r"), label) for text, label in rows]
        path = tmp_path / f"rows{dialect.suffix}{'.gz' * dialect.packed}"
        path.write_bytes(content(dialect, rows))
        labelled, refused = trained(path)
        assert not refused, (dialect, refused)
        lines = "\n" if dialect.end == "\r" else "\r"
        expected = [text.replace("\r", lines) for text, _ in rows]
        assert [text for text, _ in labelled] == expected
        assert [label for _, label in labelled] == [plain_label(label) for _, label in rows]
        assert predicted(path) == (expected, [])
        assert continued(path) == expected
        assert prepared(path) == ([normalise_newlines(text) for text in expected], [])

    check()


damages = st.sampled_from(["ragged", "short", "byte", "quote", "backslash", "doubled", "no header", "nul", "empty"])


def test_every_verb_refuses_in_the_same_words(tmp_path: Path) -> None:
    @examples(fuzz, max_examples=max(180, EXAMPLES))
    @given(dialects, tables, damages, st.integers(0, 5))
    def check(dialect: Dialect, rows: list[tuple[str, str]], damage: str, at: int) -> None:
        names = {"doubled": ("text", "text"), "no header": ("gut", "a")}.get(damage, dialect.names)
        dialect = replace(dialect, names=names, encoding="utf-8", packed=False, end="\n", last_end=True, blank=False)
        lines = content(dialect, [(text.replace("\n", " "), label) for text, label in rows]).split(b"\n")
        at = 2 + dialect.sep_line + at % max(1, len(lines) - 3 - dialect.sep_line)
        sign = dialect.separator.encode()
        lines[at] = {
            "ragged": lines[at] + sign + b"more", "short": b"short", "byte": b"caf\xe9" + lines[at],
            "quote": b'"never' + sign + b"a", "backslash": b'"a \\"b\\" c"' + sign + b"a", "nul": b"\0" + lines[at],
            "empty": b"",
        }.get(damage, lines[at])  # fmt: skip
        path = tmp_path / f"rows{dialect.suffix}"
        path.write_bytes(b"\n".join(lines))
        (labelled, refused), (told, errors), (texts, problems) = trained(path), predicted(path), prepared(path)
        if damage in ("doubled", "no header"):
            assert refused
            assert errors
            assert problems
            return
        assert told[: len(labelled)] == [text for text, _ in labelled]
        assert texts == [normalise_newlines(text) for text in told]
        assert problems == errors
        assert refused == (errors[0] if errors else "")

    check()


def test_labels_in_two_forms_are_one() -> None:
    assert (
        plain_label("cafe\u0301\u200b ")
        == plain_label("\ufeffcaf\u00e9\u00a0")
        == unicodedata.normalize("NFC", "cafe\u0301")
    )
