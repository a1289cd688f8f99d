"""Every snippet of the documentation: Python blocks run in order, and each `lambert` command has flags that exist.

A block that cannot run has `<!-- not run: reason -->` on the line above its fence. A Python block that begins with a
comment such as `# mine.py` is that module, which the later blocks of the page can import.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lambert as lambert_library
from lambert.commands import parse
from lambert.verb import all_verbs, find
from lambert.verbs import demo

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "migrating").glob("*.md"))
PAGES += sorted((ROOT / "benchmarks").rglob("*.md"))
BLOCK = re.compile(r"(?P<above>[^\n]*)\n(?P<indent> *)```(?P<kind>\w+)\n(?P<code>.*?)\n(?P=indent)```", re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .{4,} -->")
MODULE = re.compile(r"# (\w+\.py)\n")
WALKTHROUGHS = {
    "From a CSV file to a model in use": "finetune", "From a folder of texts to a search": "vectors",
    "Margins of a teacher": "vectors",
}  # fmt: skip
"""The pages of sections."""
FIRST = ROOT / "docs" / "first-csv.md"
"""A page whose commands and Python blocks run together."""
MODULES = ("Transformer", "Pooling", "Normalize")
COLUMNS = ("query", "passage", "label")
SHORT = ["--train.steps", "2", "--task.max-length", "48"]
KINDS = {"python", "sh", "json", "toml", "diff"}


def blocks(page: Path, kind: str) -> list[str]:
    """The code of a page's blocks of this kind that are to run."""
    found = BLOCK.finditer("\n\n" + page.read_text(encoding="utf-8"))
    return [block["code"] for block in found if block["kind"] == kind and not NOT_RUN.fullmatch(block["above"].strip())]


def commands(page: Path) -> list[list[str]]:
    """The words behind each `lambert` of the shell blocks, without comments and redirections."""
    found = []
    for code in blocks(page, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>&;")
            lexer.whitespace_split = True
            words = list(lexer)
            while "lambert" in words:
                words = words[words.index("lambert") + 1 :]
                ends = [words.index(mark) for mark in ("|", "<", ">", "&&", ";") if mark in words]
                found.append(words[: min(ends, default=len(words))])
    return found


@pytest.fixture
def folder(
    tmp_path: Path, texts: Path, corpus: Path, pretrained: Path, labelled: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:  # fmt: skip
    """The current folder of a reader: texts, a corpus, runs, labelled files, and the recipes."""
    (tmp_path / "my_texts").mkdir()
    shutil.copy(texts, tmp_path / "my_texts" / "stories.txt")
    shutil.copytree(corpus, tmp_path / "corpus")
    shutil.copytree(pretrained, tmp_path / "runs" / "mine")
    for split in ("train", "dev"):
        shutil.copy(labelled("classify", split), tmp_path / f"{split}.tsv")
        (tmp_path / f"{split}.conll").write_text("Peter B-PER\nBlackburn I-PER\n\nfell O\nhere O\n")
    (tmp_path / "mine.csv").write_text((tmp_path / "train.tsv").read_text().replace("\t", ","))
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    shutil.copytree(demo.PACKAGE / demo.RECIPES, tmp_path / "runs" / "demo" / "recipes")
    recipe = (pretrained / "config.toml").read_text().replace(str(corpus), "corpus")
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    (tmp_path / "modules").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_blocks_are_of_known_kinds() -> None:
    kinds = {block["kind"] for page in PAGES for block in BLOCK.finditer("\n\n" + page.read_text(encoding="utf-8"))}
    assert {"python", "sh"} <= kinds <= KINDS


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page != FIRST], ids=lambda page: page.stem
)
def test_python_runs(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder / "modules")
    if page.stem == "library":
        shutil.rmtree(folder / "corpus")  # which the page makes
    names: dict[str, Any] = {"__name__": page.stem}
    for number, code in enumerate(blocks(page, "python"), 1):
        if module := MODULE.match(code):
            (folder / "modules" / module[1]).write_text(code, encoding="utf-8")
            continue
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_have_flags_that_exist(page: Path, folder: Path) -> None:
    for words in commands(page):
        assert find(words) is not None, words
        if words[0] == "horovodrun":
            continue
        for word in words[1:]:
            if word.endswith(".toml") and not Path(word).is_file() and not Path(word).is_absolute():
                assert not word.startswith("recipes/"), f"{word} is not among the recipes"
                own = blocks(page, "toml") if words[0] in ("sweep", "plan") else [Path("recipe.toml").read_text()]
                Path(word).write_text(own[0])
        inner = next((at for at, word in enumerate(words) if at and word in all_verbs()), None)
        if words[0] == "launch":
            assert inner is not None, words
            assert parse.call(words, run=lambda config, *_, **__: config) is not None, words
            words = words[inner:]  # noqa: PLW2901
        assert parse.settings(words) is not None, words


def run_blocks(text: str, page: str, names: dict[str, Any], lambert: Callable[..., Any]) -> str:
    """Runs the Python blocks and commands of a text in order, with short training. Returns what the commands wrote."""
    written = ""
    for block in BLOCK.finditer("\n\n" + text):
        above = block["above"].strip()
        if NOT_RUN.fullmatch(above) and "test_walkthroughs" not in above:
            continue
        if block["kind"] == "python":
            exec(compile(block["code"], page, "exec"), names)
            continue
        for line in block["code"].splitlines():
            given, _, command = line.rpartition("lambert ")
            words, _, read = command.replace("1 2 3", "1 2").partition(" < ")
            arguments = shlex.split(words, comments=True)
            stdin = Path(read).read_text() if read else given.removeprefix("echo '").removesuffix("' | ")
            done = lambert(*arguments, *(SHORT if arguments[0] == "finetune" else ()), stdin=stdin)
            assert done.code == 0, (line, done.err)
            written += done.out + done.err
    return written


def test_the_first_page(folder: Path, lambert: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """From a downloaded folder of sentence-transformers and a table of semicolons to predictions and vectors."""
    page = FIRST.read_text(encoding="utf-8")
    assert len(page.split()) <= 600
    shutil.copytree("runs/mine/model", "MiniLM")
    kinds = [(number, name, f"{number}_{name}" if number else "") for number, name in enumerate(MODULES)]
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, name, path in kinds
    ]
    Path("MiniLM/modules.json").write_text(json.dumps(listed))
    Path("MiniLM/1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    Path("MiniLM/1_Pooling/config.json").write_text(json.dumps(pooling))
    rows = [line.rpartition("\t") for line in Path("train.tsv").read_text().splitlines()]
    Path("tickets.csv").write_text("".join(f"{text};{label}\n" for text, _, label in rows), encoding="utf-16")
    Path("new.csv").write_text("text\nthe boat is old\nthe king slept\n")
    names: dict[str, Any] = {}
    written = run_blocks(page, FIRST.name, names, lambert)
    for shown in ("held out after 2 updates: accuracy ", "f1_macro ", "examples ", "model  runs/tickets/model"):
        assert shown in written
    header, *predicted = Path("predictions.csv").read_text().splitlines()
    assert (header, len(predicted)) == ("text,label,probability", 2)
    assert capsys.readouterr().out.splitlines()[0] in {label for *_, label in rows}
    assert np.diag(names["vectors"] @ names["vectors"].T) == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize("title", WALKTHROUGHS)
def test_walkthroughs(title: str, folder: Path, lambert: Callable[..., Any]) -> None:
    """All blocks of a section, in order, with short training and two seeds."""
    page = WALKTHROUGHS[title]
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    names: dict[str, Any] = {}
    judged = [("a boat", "the boat is old", 1), ("a boat", "the king slept", 0), ("a king", "the king slept", 1)]
    (folder / "judged.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in [COLUMNS, *judged]))
    shutil.copytree("runs/mine", "runs/large")
    triplets = [{"query": query, "positive": text, "negative": "the river"} for query, text, right in judged if right]
    (folder / "triplets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in triplets))
    run_blocks(section, page, names, lambert)
    if title == "Margins of a teacher":
        teacher, pair = lambert_library.load("runs/teacher"), {"query": "a boat", "passage": "the river"}
        values = [teacher({**pair, "passage": passage})["value"] for passage in ("the boat is old", "the river")]
        assert names["taught"][0]["label"] == pytest.approx(values[0] - values[1], abs=1e-6)
        lengths = np.linalg.norm(lambert_library.load("runs/taught").encode(["a boat", "a king"]), axis=1)
        assert (np.abs(lengths - 1) > 0.1).all()
        assert len(names["scored"]) == 4
    elif page == "finetune":
        assert len(names["rows"]) == 48
    else:
        assert names["vectors"].shape[0] == len(names["texts"]) == 40
