import dataclasses
import gzip
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Called, one_line

from lambert.core.errors import UsageError
from lambert.core.shards import read_manifest
from lambert.wings.corpus.verbs.prepare import PrepareConfig, run


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.txt"
    path.write_text(
        "\n\n".join(f"The river is {n} miles long. Nobody has walked {n} miles along it." for n in range(40))
    )
    return path


def test_it_says_what_was_kept(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = PrepareConfig((rows,), tmp_path / "corpus", vocabulary=120, documents="blank-line", heldout=0.1)
    said: list[str] = []
    manifest = read_manifest(run(config, said.append).folder)
    shown = "\n".join(said)
    assert "40 kept of 40; dropped: none" in shown
    assert f"{manifest['splits']['train']['tokens']:,} tokens" in shown
    run(config, said.append)
    assert f"already prepared: {config.out}" in said
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/other.bin").write_bytes(b"?")
    rows.rename(tmp_path / "texts/rows.txt")
    run(PrepareConfig((tmp_path / "texts",), tmp_path / "b", vocabulary=9000, documents="blank-line"), said.append)
    assert any(line.startswith("files ") and "1 of another kind (" in line and "other.bin)" in line for line in said)
    assert [line for line in said if re.match(r"note: the vocabulary has [\d,]+ pieces, not 9,000: ", line)]
    assert capsys.readouterr().out == ""


def test_a_corpus_of_one_document_is_remarked_on(rows: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run(PrepareConfig((rows,), tmp_path / "one", vocabulary=120), said.append)
    assert "heldout     no documents" in said
    (warning,) = [line for line in said if line.startswith("warning: ")]
    assert "the corpus is one document" in warning
    assert "--documents blank-line" in warning
    said.clear()
    run(PrepareConfig((rows,), tmp_path / "many", vocabulary=120, documents="blank-line"), said.append)
    assert not [line for line in said if "warning" in line or "no documents" in line]


@pytest.mark.parametrize("steps", [(), ("extract",), ("extract", "tokens")])
def test_a_file_that_ends_early_is_a_warning(tmp_path: Path, steps: tuple[str, ...]) -> None:
    lines = [f'{{"text": "The river is {n} miles long, and nobody has walked along it."}}\n' for n in range(999)]
    whole = gzip.compress("".join([*lines[:500], "{\n" * 30, *lines[500:]]).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-200])
    said: list[str] = []
    config = PrepareConfig((tmp_path / "cut.jsonl.gz",), tmp_path / "out", vocabulary=120, max_bad=0.1, steps=steps)
    run(config, said.append)
    (warning,) = [line for line in said if line.startswith("warning: ")]
    assert re.search(r"cut.jsonl.gz, line \d+, is damaged or truncated after this .* are missing", warning)


def test_a_vocabulary_of_another_script_is_a_warning(rows: Path, tmp_path: Path) -> None:
    first = run(PrepareConfig((rows,), tmp_path / "first", vocabulary=120, documents="blank-line"))
    (tmp_path / "thai.txt").write_text("\n\n".join("\u0e01\u0e02\u0e03 " * 9 + str(n) for n in range(40)))
    said: list[str] = []
    settings: dict[str, Any] = {"tokenizer": str(first.folder), "documents": "blank-line"}
    run(PrepareConfig((tmp_path / "thai.txt",), tmp_path / "out", **settings), said.append)
    (warning,) = [line for line in said if line.startswith("warning: ")]
    assert re.search(r"\d\d% of the tokens of train are \[UNK\]: .* another language or script", warning)


def test_preparing_does_not_wait_for_torch(rows: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from lambert.wings.corpus.verbs.prepare import PrepareConfig, run\n"
        "texts, out = map(Path, sys.argv[1:])\n"
        "run(PrepareConfig((texts,), out, vocabulary=120, documents='line', workers=2), print)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    arguments = [sys.executable, "-c", code, str(rows), str(tmp_path / "corpus")]
    assert b"corpus " in subprocess.run(arguments, capture_output=True, check=True).stdout


def test_the_command_line(rows: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lambert", "prepare", "--input", str(rows), "--out", str(tmp_path / "corpus")]
    done = subprocess.run([*command, "--vocabulary", "120"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    again = subprocess.run([*command, "--vocabulary", "121"], capture_output=True, text=True, check=False)
    said = "was prepared with vocabulary = 120, not 121"
    one_line(Called(again.returncode, again.stdout, again.stderr), 2, said)


def test_accents_that_are_kept_are_said(tmp_path: Path) -> None:
    texts = [
        "한글은 조선의 세종대왕이 만든 글자이다. 백성이 쉽게 쓰고 읽게 하였다.\n\n",
        "서울은 한국의 수도이다. 사람이 많다.",
    ]
    (tmp_path / "ko.txt").write_text("".join(f"{number} {texts[0]}" * 3 + texts[1] for number in range(8)))
    said: list[str] = []
    config = PrepareConfig(
        (tmp_path / "ko.txt",), tmp_path / "ko", vocabulary=300, documents="blank-line", min_tokens=2
    )
    manifest = read_manifest(run(config, said.append).folder)
    assert manifest["normalizer"] == {"lowercase": True, "strip_accents": False}
    assert [line for line in said if line.startswith("note: accents are kept")]
    assert any(
        re.match(r"vocabulary +\d+ pieces; lower case, accents kept, 0.00% of the tokens are", line) for line in said
    )
    pieces = (tmp_path / "ko/vocab.txt").read_text(encoding="utf-8").split("\n")
    assert {"한", "##글"} <= set(pieces)
    assert not any("\u1100" <= character <= "\u11ff" for piece in pieces for character in piece)
    said.clear()
    run(dataclasses.replace(config, out=tmp_path / "stripped", strip_accents=True), said.append)
    assert not [line for line in said if line.startswith("note: accents")]
    with pytest.raises(UsageError, match="strip_accents = None, not True"):
        run(dataclasses.replace(config, strip_accents=True))


@pytest.mark.parametrize("steps", [(), ("extract",), ("extract", "tokens")])
def test_holes_of_templates_are_said(tmp_path: Path, steps: tuple[str, ...]) -> None:
    pages = "".join(
        f"<page><title>Page {n}</title><ns>0</ns><revision><text>The river {n} is {{{{length}}}} miles long. Nobody "
        "has walked along it.</text></revision></page>"
        for n in range(20)
    )
    (tmp_path / "wiki.xml").write_text(f'<mediawiki xml:lang="en">{pages}</mediawiki>')
    said: list[str] = []
    config = PrepareConfig((tmp_path / "wiki.xml",), tmp_path / "out", vocabulary=120, steps=steps)
    done = run(config, said.append)
    (line,) = [line for line in said if line.startswith("templates ")]
    assert line == "templates   20 holes in 40 sentences of wikis (500.0 in 1,000): 20 {{length}}"
    if steps != ("extract",):
        found = read_manifest(done.folder)["documents"]["found"]
        assert found == {"sentences": 40, "holes": 20, "{{length}}": 20}
