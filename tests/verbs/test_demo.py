"""The demo without its training, which the check of the wheel runs (tests/packaging)."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

from lambert.commands import parse
from lambert.optim.schedule import schedule
from lambert.verbs import demo
from lambert.verbs.demo import results

Lambert = Callable[..., Any]


COMPARED = {
    "systems": [{"seeds": 3}],
    "comparisons": [{"scores": {"f1": {"first": 0.25, "second": 0.5, "low": 0.2, "high": 0.3}}}],
}


def started(out: Path, *, short: bool = False, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Runs a demo whose commands do nothing. Returns them."""
    found: list[list[str]] = []
    monkeypatch.setattr(results, "load", lambda folder: lambda row: {"tokens": row["text"].split(), "tags": ["NAME"]})
    monkeypatch.setattr(results, "SENTENCES", ("[b]",))

    def call(tokens: list[str]) -> Any:
        found.append(tokens)
        if tokens[0] == "prepare":
            (out / "corpus").mkdir()
            manifest = {"splits": {"heldout": {"unigram_cross_entropy": 3.0}}}
            (out / "corpus" / "manifest.json").write_text(json.dumps(manifest))
        if tokens[0] == "pretrain":
            (out / "pretrain").mkdir()
            (out / "pretrain" / "scores.json").write_text('{"mlm": 2.0}')
        return COMPARED if tokens[0] == "compare" else None

    with monkeypatch.context() as context:
        context.setattr(parse, "call", call)
        done = demo.run(demo.DemoConfig(out, short))
    assert done.folder == out / "names-pretrained" / "seed-1"
    assert done.scores == ({"mlm": 2.0} if short else {"mlm": 2.0, "f1": 0.5, "f1_scratch": 0.25})
    return found


@pytest.mark.parametrize("name", ["demo", 'a "folder" \\ with é', "."])
def test_recipes_have_their_paths_in_the_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = started(Path(name), monkeypatch=monkeypatch)
    assert [words[0] for words in commands] == ["prepare", "pretrain", "finetune", "finetune", "compare", "report"]
    prepare, pretrain, tuned, fresh, compare = (parse.settings(words) for words in commands[:-1])
    assert all(Path(path).is_file() for path in prepare.input)
    assert Path(prepare.out) == pretrain.corpus == Path(name, "corpus")
    assert pretrain.out == tuned.init == fresh.init == Path(name, "pretrain")
    assert tuned.data.is_file()
    assert tuned.dev.is_file()  # without dev, a run says that nothing is scored
    assert (tuned.random_init, fresh.random_init) == (False, True)
    assert dataclasses.replace(fresh, out=tuned.out, random_init=False) == tuned
    assert compare.runs == (fresh.out, tuned.out)


def test_short_is_a_check_without_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = started(tmp_path, short=True, monkeypatch=monkeypatch)
    assert [words[0] for words in commands] == ["prepare", "pretrain", "finetune", "report", "verify"]
    recipe, pretrain = (parse.settings(["pretrain", commands[1][1], *more]) for more in ([], commands[1][2:]))
    assert pretrain.train.steps == 350
    assert parse.settings(commands[2]).seeds == (1,)
    said = capsys.readouterr().out
    assert "All commands ran" in said
    assert "on purpose" in said
    assert "F1" not in said
    rates = [schedule(one.optim, one.train.steps) for one in (recipe, pretrain)]
    assert [rates[0](n) for n in range(280)] == [rates[1](n) for n in range(280)]  # so the curves begin alike
    assert {200} <= set(recipe.expect.updates)


def test_the_table_says_what_pretraining_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started(tmp_path, monkeypatch=monkeypatch)
    summary = json.loads((tmp_path / "pretrain" / "summary.json").read_text())
    assert summary["tables"][0]["rows"] == [
        ["loss of masked words, held-out text", "2.00 nats", "3.00 (frequencies of words alone)"],
        ["names found, F1, 3 seeds", "50.0%", "25.0% (the same from scratch)"],
        ["what pre-training adds", "+25.0 points", "2.0 times, 95% interval +20.0 to +30.0"],
    ]
    assert summary["examples"][0]["rows"] == [["[b]", "[b]"]]
    assert "does not show" not in capsys.readouterr().out
    results.Results(tmp_path, 2.0, 3.0, results.Gain(0.1, 0.0, -0.1, 0.3, 3)).show(1.0)
    said = capsys.readouterr().out
    assert "does not show that pre-training helped" in said
    assert "none is found" in said


@pytest.mark.slow  # two minutes: the whole demo
def test_the_whole_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    done = parse.call(["demo"])
    assert done.scores["mlm"] < 4
    assert done.scores["f1"] > 1.5 * done.scores["f1_scratch"]
    said = capsys.readouterr().out
    assert "names: rochester, jane\n" in said
    assert "names: bennet\n" in said


def test_without_matplotlib_there_is_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert "report" not in {words[0] for words in started(tmp_path, monkeypatch=monkeypatch)}


def test_an_earlier_demo_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tmp_path, monkeypatch=monkeypatch)
    (tmp_path / "names-scratch").mkdir()
    recipe = tmp_path / "recipes" / "names.toml"
    recipe.write_text(recipe.read_text() + "\n# a line of mine\n")
    started(tmp_path, monkeypatch=monkeypatch)
    assert "mine" not in recipe.read_text()
    assert {path.name for path in tmp_path.iterdir()} <= demo.WRITTEN - {"names-scratch"}


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
