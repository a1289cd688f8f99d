"""How tables are written, recognised from their first rows."""

import io

import pytest

from lambert.text.streams import BLOCK
from lambert.text.tables import TableFormat, find_row_starts, read_cells, read_table_rows, recognise_table

ROWS = (("good day", "a"), ("bad rain", "b"))


def form(content: str | bytes, suffix: str = ".csv") -> TableFormat:
    return recognise_table(content if isinstance(content, bytes) else content.encode(), suffix)


def read(content: str | bytes, suffix: str = ".csv", *, named: bool = False) -> list[list[str] | str]:
    """The cells of each row below the first one, or why it cannot be read. `named`: the first row has the names."""
    data = content if isinstance(content, bytes) else content.encode()
    table = form(data, suffix)
    stream = io.BytesIO(data)
    stream.seek(table.second[0])
    names = table.first if named else [*map(str, range(len(table.first)))]
    rows = read_table_rows(stream, table, names, *table.second)
    return [row.error or [*row.row.values()] for row in rows]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [",", ";", "|", "\t", ", ", "; "])
def test_the_first_rows_show_the_separator(separator: str, end: str, suffix: str) -> None:
    text = "".join(separator.join(row) + end for row in (("text", "label"), *ROWS))
    for content in (text, f"\ufeff{end}{text}", text.removesuffix(end), f"sep={separator[0]}{end}{text}"):
        table = form(content, suffix)
        assert (table.separator, table.first) == (separator[0], ("text", "label"))
        assert read(content, suffix) == [[*row] for row in ROWS]


@pytest.mark.parametrize(
    ("content", "separator", "first"),
    [
        ("good;3,5\nbad;2,1\n", ";", ("good", "3,5")),  # decimal commas
        ("one; two,a\nx; y,b\n", ",", ("one; two", "a")),  # prose
        ("gj04\t1\t\tYes, the sailors.\nks08\t0\t*\tNo, made.\n", "\t", ("gj04", "1", "", "Yes, the sailors.")),
        ("id|text|label\n1|a, b|x\n2|c, d|y\n", "|", ("id", "text", "label")),
        ('text;label\n"a;b";x\nc, d, e;y\n', ";", ("text", "label")),
        ("text\ngood, really\nbad\n", ",", ("text",)),
        ("good 1,a|b\nbad 2,b|c\n", ",", ("good 1", "a|b")),  # the suffix decides
    ],
)
def test_what_the_rows_have_in_common_decides(content: str, separator: str, first: tuple[str, ...]) -> None:
    table = form(content)
    assert (table.separator, table.first) == (separator, first)


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        ('text\tlabel\n"He said ""no"""\ta\nbad\tb\n', True),
        ('text\tlabel\n"one\ntwo"\ta\nbad\tb\n', True),
        ('text\tlabel\n"a"\t"x"\n"b"\t"y"\n', True),
        ('"text"\t"label"\na\tx\n', True),
        ('text\nfirst\n"second line\nof text"\nthird\n', True),  # one column
        ('text\tlabel\n"good day"\ta\nbad\tb\n', False),  # a text in quotation marks
        ('text\tlabel\n"good" day\ta\n"" it\tb\n', False),
        ('text\tlabel\n"One.\ta\nTwo."\tb\nbad\tb\n', False),  # a quotation over two rows
        ("text\tlabel\ngood\ta\n", False),
    ],
)
def test_quotation_marks_between_tabs(content: str, quoted: bool) -> None:
    assert form(content, ".tsv").quoted == quoted


def test_spaces_after_separators() -> None:
    assert read('text, label\n"a, b", "x"\nc, y\n') == [["a, b", "x"], ["c", "y"]]
    assert read("text,label\n a,x\nb,y\n") == [[" a", "x"], ["b", "y"]]  # in the cell of a text


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("text,label\ngood,a\nbad,b\n", "'text'"),
        ("Satz;Note\ngut;3,5\nschlecht;1\n", "'Note' above numbers"),
        ("good,a\nbad,b\n", ""),
        ("why,question\nwho,question\n", ""),
        ("gj04\t1\tThe sailors.\nks08\t0\tMade.\n", ""),
        ("3,5\n1,2\n", ""),
    ],
)
def test_a_first_row_that_looks_like_names(content: str, named: str) -> None:
    found = form(content).named
    assert named in found
    assert bool(found) == bool(named)


def test_rows_that_cannot_be_read() -> None:
    found = read(b'text,label\nx,\xe9\n"a \\"b\\" c",x\na,b,c\n\nd\n"e"f,x\n"g,y\n"h",z\nlast,a\n"never,b\n')
    assert found == [
        "is not UTF-8 text (byte 0xe9): it may be in Windows-1252 (Latin-1) or one like it. Convert the file, such as "
        "with iconv -f CP1252 -t UTF-8 (CP1250 for Central Europe, CP1254 for Turkish)",
        "has a quotation mark after a backslash: within a cell, write it twice, without the backslash",
        "has 3 cells where the first line has 2: put a cell that holds a comma in quotation marks",
        "has 1 cell where the first line has 2",
        "is not a row (',' expected after '\"')",
        "is not a row (',' expected after '\"'), read up to line 9: a quotation mark may be missing",
        ["last", "a"],
        "begins a cell with a quotation mark that is never closed: the rest of the file is lost",
    ]


def test_lines_of_the_header_are_no_rows() -> None:
    again = "has the names of the columns again, as where files were joined: remove the line"
    found = read("text,label\nx,a\n\ufefftext, label\ny,b\n", named=True)
    assert found == [["x", "a"], again, ["y", "b"]]
    assert read("text,label\ntext,label\n") == [["text", "label"]]
    assert read("text|label\na|b\n--|--\n", named=True) == [["a", "b"], ["--", "--"]]
    rule = "is the line below the header of a Markdown table: write the table as CSV or TSV"
    assert read("| text | label |\n| --- | :---: |\n", named=True) == [rule]


def test_the_first_of_two_columns_with_one_name() -> None:
    table = form("a,,\n")
    rows = read_table_rows(io.BytesIO(b"1,2,3\n"), table, ["a", "", ""], 0, 0)
    assert [row.row for row in rows] == [{"a": "1", "": "2"}]


def test_a_beginning_that_is_cut_within_a_row() -> None:
    content = b"text;label\n" + b'"a; b";x\n' * (BLOCK // 9 + 2)
    assert form(content[:BLOCK]) == form(content[: 9 * 100 + 11])


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (b"text,label," + b"x" * BLOCK, "has no line end in its first 1 MiB"),
        (b"column," * (BLOCK // 7) + b"text\n", "has no line end in its first 1 MiB"),
        (
            b'"text,label\n' + b"words of a text,x\n" * (BLOCK // 18),
            "has no end of the quotation mark of its first row",
        ),
        (b"\n" * (BLOCK + 1) + b"text,label\n", "has no row in its first 1 MiB"),
    ],
)
def test_a_first_row_that_does_not_end_in_the_beginning(first: bytes, problem: str) -> None:
    content = first + b"a,b\n"
    assert form(content[:BLOCK]).problem.startswith(problem)
    assert not form(content[:900]).problem  # a short file is read to its end


def test_where_rows_begin_and_all_cells() -> None:
    content = b'\xef\xbb\xbftext,label\n"a\nb",x\nc,y\n'
    assert [content[at : at + 1] for at in find_row_starts(io.BytesIO(content), form(content))] == [b'"', b"c"]
    assert [cells for _, cells, _ in read_cells(content, ".csv")] == [["text", "label"], ["a\nb", "x"], ["c", "y"]]
