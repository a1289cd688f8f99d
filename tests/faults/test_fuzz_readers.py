"""Text and labelled files that nobody meant: each is read, or refused in one line that names the file and the place."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from json_lines import predict
from odd_files import EXAMPLES, damaged, encoded, fuzz, some
from tokenizers import Tokenizer

from lambert.core.errors import DataError, LambertError, UsageError
from lambert.tasks import TaskConfig, create
from lambert.tasks.config import Columns, SquadConfig
from lambert.text.tokenizers import tokenizer as tokenizers

TASKS = ("classify", "regress", "tag", "squad")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | some | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(some, inner, max_size=3),
    max_leaves=4,
)


def readable(error: LambertError, path: Path) -> None:
    """The error is one line of a length that can be read, and names the file."""
    text = str(error)
    assert "\n" not in text
    assert len(text) < 1500, text[:2000]
    assert path.name in text, text


# --- raw text ---

documents = st.one_of(
    some.map(encoded),
    st.lists(some, max_size=6).map(lambda lines: encoded("\n".join(lines))),
    st.lists(st.dictionaries(st.sampled_from(["text", "id"]), values, max_size=2), max_size=4).map(
        lambda rows: encoded("".join(f"{json.dumps(row)}\n" for row in rows))
    ),
    st.lists(some, max_size=3).map(
        lambda texts: encoded("".join(f'<doc id="1" title="t">\n{text}\n</doc>\n' for text in texts))
    ),
    st.binary(max_size=40),
)  # fmt: skip


def test_raw_text(prepared: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    @examples(fuzz, max_examples=max(20, EXAMPLES // 4))
    @given(
        damaged(documents),
        st.sampled_from([".txt", ".md", ".jsonl", ".parquet", "", ".odd"]),
        st.sampled_from(["auto", "auto", "auto", "text", "jsonl", "parquet", "wikipedia", "mediawiki"]),
        st.sampled_from(["file", "blank-line", "line"]),
        st.sampled_from(["auto", "wrapped", "paragraphs"]),
        st.sampled_from(["en", "de", "zh", "xx"]),
    )
    def check(file: tuple[str, bytes], ending: str, kind: str, documents: str, lines: str, language: str) -> None:
        packed, data = file
        prepared(f"file{ending}{packed}", data, format=kind, documents=documents, lines=lines, language=language)

    check()


# --- labelled files ---


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "the"]
    return tokenizers.build(pieces, lowercase=True)


def configured(task: str, **settings: Any) -> TaskConfig:
    return TaskConfig(
        name=task, max_length=16, squad=SquadConfig(max_query=4, stride=3),
        labels=("a", "b") if task in ("classify", "tag") else (), **settings,
    )  # fmt: skip


def reads(tokenizer: Tokenizer, path: Path, config: TaskConfig) -> None:
    """Reads a file to be learnt from, with and without its labels known, and to be scored."""
    task = create(config, tokenizer)
    unlabelled = TaskConfig(name=config.name, max_length=config.max_length, squad=config.squad, columns=config.columns)
    for read in (
        lambda: type(task).learn(unlabelled, tokenizer, path)[1],
        lambda: task.read(path, training=True),
        lambda: task.read(path),
    ):
        try:
            data = read()
            rows = range(min(3, data.size(0)))
            data.collate([0] * len(rows), list(rows)) if rows else None
        except (DataError, UsageError) as error:
            readable(error, path)


def parquet(table: list[tuple[str, str]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    kept = [[encoded(cell).decode("utf-8", "replace") for cell in column] for column in zip(*table, strict=True)]
    columns = kept or [[], []]
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": columns[0], "label": columns[1]}), out)
    return out.getvalue()


labels = st.sampled_from(["a", "b", "1", "2.5"]) | values
words = st.lists(st.sampled_from(["a", "the"]) | some, max_size=4) | values
rows = st.one_of(
    st.fixed_dictionaries({}, optional={"text": some, "label": labels, "tokens": words, "tags": words}),
    st.builds(lambda text, label: {"text": text, "label": label}, some, labels),
    st.builds(lambda tokens, tag: {"tokens": tokens, "tags": [tag] * len(tokens)}, st.lists(some), labels),
    values,
)
cells = some.map(lambda text: text.replace("\n", " ").replace("\t", " "))
tables = {
    ".jsonl": st.lists(rows.map(json.dumps) | cells, max_size=5).map(lambda lines: encoded("\n".join(lines))),
    ".tsv": st.lists(st.lists(cells | labels.map(str), min_size=1, max_size=3), max_size=5).map(
        lambda table: encoded("".join("\t".join(row) + "\n" for row in [["text", "label"], *table]))
    ),
    ".csv": st.lists(st.lists(some, min_size=1, max_size=3), max_size=5).map(
        lambda table: encoded("".join(",".join(row) + "\n" for row in [["text", "label"], *table]))
    ),
    ".parquet": st.lists(st.tuples(some, some), max_size=4).map(parquet),
}


@pytest.mark.parametrize("ending", sorted(tables))
def test_labelled_tables(ending: str, tokenizer: Any, tmp_path: Path) -> None:
    @fuzz
    @given(
        damaged(tables[ending] | st.binary(max_size=30)),
        st.sampled_from(["classify", "regress", "tag"]),
        st.sampled_from([Columns(), Columns(text="1", label="2"), Columns(text_b="text"), Columns(header=False)]),
    )
    def check(file: tuple[str, bytes], task: str, columns: Columns) -> None:
        packed, data = file
        path = tmp_path / f"rows{ending}{packed}"
        path.write_bytes(data)
        reads(tokenizer, path, configured(task, columns=columns))

    check()


def maybe(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(right, right, right, right, values)


answers = st.fixed_dictionaries(
    {}, optional={"text": maybe(some), "answer_start": maybe(st.integers(-3, 20) | st.just(10**30))}
)
asked = st.fixed_dictionaries(
    {"id": maybe(some), "question": maybe(some), "answers": maybe(st.lists(answers | values, max_size=2))},
    optional={"is_impossible": values},
)
paragraphs = st.fixed_dictionaries({"context": maybe(some), "qas": maybe(st.lists(maybe(asked), max_size=3))})
articles = st.fixed_dictionaries({"paragraphs": maybe(st.lists(maybe(paragraphs), max_size=3))})
squads = st.fixed_dictionaries({"data": maybe(st.lists(maybe(articles), max_size=2))}, optional={"version": values})


def test_squad_files(tokenizer: Any, tmp_path: Path) -> None:
    @fuzz
    @given(damaged(maybe(squads).map(lambda value: encoded(json.dumps(value)))))
    def check(file: tuple[str, bytes]) -> None:
        packed, data = file
        path = tmp_path / f"squad.json{packed}"
        path.write_bytes(data)
        reads(tokenizer, path, configured("squad"))

    check()


# --- predict ---

questions = st.fixed_dictionaries(
    {}, optional={"text": some, "tokens": words, "question": some, "context": some, "id": values}
)


@pytest.mark.parametrize("name", [*TASKS, "mask"])
def test_lines_to_predict(name: str, tokenizer: Any) -> None:
    import torch

    task = create(configured(name), tokenizer)
    sizes = {"mlm": tokenizer.get_vocab_size(), "label": 2, "value": 1, "tag": 2, "span": 2}

    def outputs_of(source: Any) -> Any:
        draw = torch.Generator().manual_seed(0)
        for sequence, length in enumerate(source.lengths_S.tolist()):
            batch = source.collate([0], [sequence])
            count = {"mlm": batch.targets["mlm"].count if name == "mask" else 0, "label": 1, "value": 1}
            size = count.get(task.head, length), sizes[task.head]
            yield {task.head: torch.randn(size, generator=draw)}

    def check(lines: list[str]) -> None:
        found: list[str] = []
        try:
            found += [json.dumps(answer) for answer in predict(task, outputs_of, lines, chunk=2)]
        except DataError as error:
            said = str(error)
        else:
            said = ""
            assert len(found) == sum(bool(line.strip()) for line in lines)
        assert not said or said.startswith("line "), said
        assert "\n" not in said
        assert len(said) < 1500

    @fuzz
    @given(st.lists(maybe(questions).map(json.dumps) | cells, max_size=4))
    def fuzzed(lines: list[str]) -> None:
        check(lines)

    fuzzed()


NESTED = b'{"text": "a", "label": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
FOUND: dict[str, tuple[str, bytes, str]] = {
    "whole number beyond floats": ("regress", b'{"text": "a", "label": 1' + b"0" * 400 + b"}\n", ":1"),
    "number of thousands of digits": ("regress", b'{"text": "a", "label": ' + b"9" * 5000 + b"}\n", ":1"),
    "list for a label": ("classify", b'{"text": "a", "label": "b"}\n{"text": "a", "label": [1]}\n', ":2"),
    "object for a label": ("classify", b'{"text": "a", "label": "b"}\n{"text": "a", "label": {"a": 1}}\n', ":2"),
    "NaN for a label": ("classify", b'{"text": "a", "label": "b"}\n{"text": "a", "label": NaN}\n', ":2"),
    "long label": ("classify", b'{"text": "a", "label": "%s"}\n' % (b"x" * 100_000), ":1"),
    "many keys": ("classify", json.dumps(dict.fromkeys(map(str, range(50_000)))).encode() + b"\n", ":1"),
    "deep nesting": ("classify", NESTED, ":1"),
    "a million empty lines": ("classify", b"\n" * 1_000_000, "no rows"),
    "surrogate": ("classify", b'{"text": "\\ud800", "label": "a"}\n', ":1"),
    "list for a word": ("tag", b'{"tokens": [["a"]], "tags": ["a"]}\n', ":1"),
}


@pytest.mark.parametrize("found", FOUND)
def test_found_before(found: str, tokenizer: Any, tmp_path: Path) -> None:
    name, content, said = FOUND[found]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        create(configured(name), tokenizer).read(path)
    readable(refused.value, path)
    assert said in str(refused.value)


def test_a_parquet_file_whose_pages_are_overwritten(tokenizer: Any, tmp_path: Path) -> None:
    """pyarrow's error is an OSError of several lines."""
    path, content = tmp_path / "rows.parquet", parquet([("a", "b")])
    path.write_bytes(content[:4] + bytes(60) + content[64:])
    with pytest.raises(DataError) as refused:
        create(configured("classify"), tokenizer).read(path)
    readable(refused.value, path)
