"""A look at some documents after each step, before anything is prepared."""

import bz2
import json
from pathlib import Path

import pytest

import lambert
from lambert.core.errors import UsageError
from lambert.text.streams import Stream
from lambert.wings.corpus.config import PeekConfig, PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.verbs.peek import format_documents, peek, run


def sentence(n: int) -> str:
    return f"The river number {n} is long. Nobody has walked along it. A boat goes down it. It has fish."


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": sentence(n)}) + "\n" for n in range(40)))
    return path


def test_the_documents_are_those_of_prepare(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepare(PrepareConfig((rows,), out, vocabulary=120, heldout=0.0))
    found = peek(PeekConfig((rows,), tokenizer=str(out)))
    assert [document.text for document in found] == [sentence(n) for n in range(10)]
    assert [document.place for document in found] == [f"line {n}" for n in range(1, 11)]
    assert found[0].sentences == [
        "The river number 0 is long.", "Nobody has walked along it.", "A boat goes down it.", "It has fish.",
    ]  # fmt: skip
    assert "".join(found[3].pieces).startswith("theriver")
    assert found[3].tokens is not None
    assert found[3].tokens >= 20
    assert len(found[3].pieces) == 20


def test_only_the_vocabulary_must_be_learnt_first(rows: Path) -> None:
    (first, *_) = lambert.peek(input=rows)
    assert first.tokens is None
    assert first.pieces[:3] == ["The", "river", "number"]
    assert any("not learnt yet" in line for line in format_documents([first], 100))


def test_filters(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    texts = ["The  cat sat on a mat.", "The cat sat on a mat.", "| a | b |"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "{no\n")
    found = lambert.peek(input=path, clean=["normalise", "prose"])
    assert [[(step.name, step.dropped, step.changed) for step in document.filters] for document in found] == [
        [("normalise", None, True), ("prose", None, False)],
        [("normalise", None, False), ("prose", None, False)],
        [("normalise", None, False), ("prose", "prose", False)],
        [],
    ]
    assert found[0].sentences == ["The cat sat on a mat."]
    assert found[2].sentences == []
    assert "is not JSON" in found[3].error
    text = "\n".join(format_documents(found, 80))
    assert "normalise   changed: 22 to 21 characters" in text
    assert "kept by     normalise, prose" in text
    assert "prose       dropped" in text
    assert "unreadable  is not JSON" in text


def test_unknown_pieces_are_marked(rows: Path, tmp_path: Path) -> None:
    prepare(PrepareConfig((rows,), tmp_path / "corpus", vocabulary=120))
    (tmp_path / "other.txt").write_text("The river ☃ is long.")
    (document,) = lambert.peek(input=tmp_path / "other.txt", tokenizer=tmp_path / "corpus")
    assert "[UNK: ☃]" in document.pieces


def test_documents_are_spread_over_files_and_in_them(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for n in range(30):
        (folder / f"{n:02}.txt").write_text(sentence(n))
    assert [Path(document.source).stem for document in lambert.peek(input=folder)] == [
        f"{n:02}" for n in range(0, 30, 3)
    ]
    large = tmp_path / "large.jsonl"
    row = json.dumps({"text": "A long line of text. " * 500})
    large.write_text("".join(f"{row}\n" for _ in range(1200)))
    places = [document.place for document in lambert.peek(input=large)]
    size = large.stat().st_size
    assert places == ["line 1", *(f"line 1 from byte {size * n // 10:,}" for n in range(1, 10))]


def test_results_in_the_input_folder_are_not_shown(rows: Path) -> None:
    settings = {"input": rows.parent, "out": rows.parent / "corpus", "steps": "extract"}
    lambert.prepare(**settings)
    assert {Path(document.source).name for document in lambert.peek(**settings)} == {"rows.jsonl"}


def test_a_few_files_of_several_kinds(rows: Path, tmp_path: Path) -> None:
    packed = tmp_path / "more.jsonl.bz2"
    packed.write_bytes(bz2.compress(rows.read_bytes()))
    whole = tmp_path / "long.txt"
    whole.write_text("A word. " * 400_000)
    found = lambert.peek(input=[rows, packed, whole])
    assert [Path(document.source).name for document in found] == ["rows.jsonl"] * 4 + ["more.jsonl.bz2"] * 4 + [
        "long.txt"
    ]
    assert [document.whole for document in found] == [True] * 8 + [False]
    assert any("the first piece of a longer document" in line for line in format_documents(found, 200))


def test_parquet(rows: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [json.loads(line)["text"] for line in rows.read_text().splitlines()]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "rows.parquet", row_group_size=2)
    assert [document.text for document in lambert.peek(input=tmp_path / "rows.parquet")] == texts[:10]


def test_files_are_not_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    row = json.dumps({"text": "A line of text. " * 60}) + "\n"
    path.write_text(row * 100_000)
    count = 0
    plain = Stream.read

    def read(stream: Stream, size: int = -1) -> bytes:
        nonlocal count
        data = plain(stream, size)
        count += len(data)
        return data

    monkeypatch.setattr(Stream, "read", read)
    assert len(peek(PeekConfig((path,)))) == 10
    assert 0 < count < path.stat().st_size / 3
    assert sorted(tmp_path.iterdir()) == [path]


def test_lines_fit_and_control_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\x1b[31mred\x1b[0m 漢字" + "漢字 and a word. " * 99 + "\u00a0 end.")
    lines = list(format_documents(lambert.peek(input=path, clean=["normalise"]), 60))
    assert not any("\x1b" in line for line in lines)
    from rich.cells import cell_len

    assert all(cell_len(line) <= 60 for line in lines)
    assert any(cell_len(line) >= 58 for line in lines)
    assert any("\\u00a0" in line for line in lines)


def test_the_command(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    run(PeekConfig((rows,), steps=("extract,clean,tokens",), clean=("normalise",)), said.append)
    assert sum(line.startswith("document ") for line in said) == 10
    assert capsys.readouterr() == ("", "")
    with pytest.raises(UsageError, match=r"corpus peek requires --input\."):
        PeekConfig()
    with pytest.raises(UsageError, match="is unknown"):
        peek(PeekConfig((rows,), clean=("nonsense",)))
