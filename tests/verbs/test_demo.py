"""The demo without its training, which the check of the wheel runs (tests/packaging)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line

from lambert import cli
from lambert.verbs import demo
from lambert.verbs.demo import results

Lambert = Callable[..., Any]


def started(out: Path, *, short: bool = False, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Runs a demo whose commands do nothing. Returns them."""
    found: list[list[str]] = []
    table = results.Results(out, out, (1.0, 2.0), 3.0, 2, (0.5, 0.25), 0.1, (("a [b]", "c"),))
    monkeypatch.setattr(results, "compared", lambda *_, **__: table)

    def call(tokens: list[str]) -> None:
        found.append(tokens)
        if tokens[0] == "pretrain":
            (out / Path(tokens[1]).stem).mkdir()

    demo.run(demo.DemoConfig(out, short), call)
    return found


@pytest.mark.parametrize("name", ["demo", 'a "folder" \\ with é', "."])
def test_recipes_have_their_paths_in_the_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = started(Path(name), monkeypatch=monkeypatch)
    assert [words[0] for words in commands] == ["prepare", "pretrain", "pretrain", *["finetune"] * 6, "report"]
    prepare, first, second, *tuned = (cli.settings(words) for words in commands[:-1])
    assert all(Path(path).is_file() for path in prepare.input)
    assert Path(prepare.out) == first.corpus == second.corpus == Path(name, "corpus")
    assert first.out == second.init == Path(name, "pretrain-32")
    assert all(config.data.is_file() and config.init == second.out for config in tuned)
    assert {config.out.parent for config in tuned} == {Path(name)}
    assert len({config.out for config in tuned}) == 6


def test_short_is_fewer_updates_and_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = started(tmp_path, short=True, monkeypatch=monkeypatch)
    assert all("--train.steps" in words for words in commands if words[0] in ("pretrain", "finetune"))
    assert len(commands) == 8
    summary = json.loads((tmp_path / "pretrain-64" / "summary.json").read_text())
    assert summary["tables"][0]["rows"][2] == [
        "names found, F1, mean of 2 seeds",
        "50.0%",
        "25.0% (the same from scratch)",
    ]


def test_without_matplotlib_there_is_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert "report" not in {words[0] for words in started(tmp_path, monkeypatch=monkeypatch)}


def test_an_earlier_demo_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tmp_path, monkeypatch=monkeypatch)
    (tmp_path / "names-scratch-3").mkdir()
    recipe = tmp_path / "recipes" / "names.toml"
    recipe.write_text(recipe.read_text() + "\n# a line of mine\n")
    started(tmp_path, monkeypatch=monkeypatch)
    assert "mine" not in recipe.read_text()
    assert {path.name for path in tmp_path.iterdir()} <= demo.WRITTEN - {"names-scratch-3"}


@pytest.mark.parametrize("name", ["data/mine.txt", "notes.txt", "recipes/names.toml", "corpus/part"])
def test_files_of_others_are_not_deleted(name: str, tmp_path: Path, lambert: Lambert) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    one_line(lambert("demo", out=tmp_path), 2, "has files that no demo wrote", name.partition("/")[0])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_that_is_not_text(tmp_path: Path, lambert: Lambert) -> None:
    one_line(lambert("demo", out=tmp_path / "caf\udce9"), 2, "is not UTF-8")
    assert [*tmp_path.iterdir()] == []


def test_a_file_beside_a_demo_is_not_deleted(tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tmp_path, monkeypatch=monkeypatch)
    (tmp_path / "notes.txt").write_text("mine")
    one_line(lambert("demo", out=tmp_path), 2, "notes.txt")
    one_line(lambert("demo", out=tmp_path / "notes.txt"), 2, "cannot be written")


def test_f1_of_names(tmp_path: Path) -> None:
    """Against the same scores by hand."""
    tags = [["NAME", "O", "NAME"], ["O", "O"], ["NAME"]]
    found = [["NAME", "NAME", "O"], ["O", "O"], ["NAME"]]
    test = tmp_path / "test.jsonl"
    runs = {"all": tags, "some": found, "none": [["O"] * len(row) for row in tags]}
    for name, rows in {"": tags, **runs}.items():
        path = tmp_path / name / results.PREDICTIONS if name else test
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({"tags": row}) + "\n" for row in rows))
    (a, b), error = results.f1_of_names([tmp_path / "all", tmp_path / "some"], [tmp_path / "none"] * 2, test)
    assert (a, b) == (pytest.approx((1 + 4 / 6) / 2), 0)
    assert np.sqrt((1 / 3) ** 2 / 4) < error < 0.5
