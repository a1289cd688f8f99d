"""What is said about dev rows and unknown words, and a share of the rows as dev rows, by the verbs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

import lambert as library

Lambert = Callable[..., Any]
FEW = {"train__steps": 1, "task__max_length": 32}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "mine.csv"
    words = [a + b for a in "abcdefgh" for b in "klmno"]
    rows = [f"a {kind} day {word},{label}" for word in words for kind, label in (("good", 1), ("bad", 0))]
    path.write_text("text,label\n" + "".join(f"{row}\n" for row in rows))
    return path


def test_a_share_of_the_rows(mine: Path, pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    given = {"init": pretrained, "data": mine, "dev": 0.25, **FEW}
    done = lambert("finetune", out=tmp_path / "run", **given)
    assert done.code == 0, done.err
    parts = sorted((tmp_path / "run-rows").glob("*/*.jsonl"))
    dev, train = ([json.loads(line) for line in part.read_text().splitlines()] for part in parts)
    assert f"{len(train)} train and {len(dev)} dev rows (dev = 0.25, by the hash of each text)" in done.out + done.err
    assert len(train) + len(dev) == 80
    assert "are also in" not in done.out + done.err
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["examples"] == len(dev)
    assert "dev = 0.25\n" in (tmp_path / "run" / "config.toml").read_text()
    done = lambert("finetune", out=tmp_path / "run", **given)
    assert "all its 1 updates already" in done.out + done.err
    one_line(
        lambert("finetune", out=tmp_path / "no", **{**given, "dev": 1.5}), 2, "a share of the rows between 0 and 1"
    )
    again = library.finetune(out=tmp_path / "seeds", seeds=(1, 2), **given)
    assert again.scores["examples"] == len(dev)
    assert [path.read_bytes() for path in sorted((tmp_path / "seeds" / "features").glob("dev-*/*.jsonl"))] == [
        path.read_bytes() for path in parts
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"optim__name": "adam"}, "optim.name = 'adam' is unknown. Did you mean"),
        ({"optim__schedule": "lineer"}, "optim.schedule = 'lineer' is unknown. Did you mean 'linear'?"),
        ({"out": "other"}, "other exists and is not a run folder"),
        ({"out": "/proc/run"}, "/proc/run-rows cannot be written"),
    ],
)
def test_a_wrong_setting_leaves_no_rows(
    wrong: dict[str, str], said: str, mine: Path, pretrained: Path, tmp_path: Path, lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    one_line(
        lambert("finetune", **{"out": "run", "init": pretrained, "data": mine, "dev": 0.25, **FEW, **wrong}), 2, said
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_sweep_holds_out_a_share(mine: Path, pretrained: Path, tmp_path: Path) -> None:
    base = {"data": str(mine), "dev": 0.25, "init": str(pretrained), "train.steps": 1, "task.max_length": 32}
    found = library.sweep(out=tmp_path / "sweep", trials=1, base=base, space={"optim.lr": {"choices": [1e-4, 1e-3]}})
    assert found.scores
    assert len([*(tmp_path / "sweep").rglob("dev.jsonl")]) == 1


def test_rows_on_both_sides_and_unknown_words(mine: Path, pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    done = lambert("finetune", init=pretrained, data=mine, dev=mine, out=tmp_path / "run", **FEW)
    assert f"note: 80 of 80 dev examples ({mine}) are also in {mine}, with equal texts" in done.out + done.err
    assert "% of the words of" not in done.out + done.err
    other = tmp_path / "other.csv"
    other.write_text("text,label\nжук жук,1\nжук жук жук,1\na day,0\na day,0\n")
    done = lambert("evaluate", model=tmp_path / "run", data=other)
    assert f"note: 55.6% of the words of {other} (5 of 9) are [UNK]" in done.out
    done = lambert("predict", model=tmp_path / "run", stdin='{"text": "жук жук"}\n')
    assert "100.0% of the words of the input (2 of 2) are [UNK]" in done.err
    assert "UNK" not in done.out


@pytest.mark.parametrize("dev", ["10%", "0,1", ",2"])
def test_a_share_in_another_form_is_refused(dev: str, mine: Path, tmp_path: Path, lambert: Lambert) -> None:
    done = lambert("finetune", init=tmp_path, data=mine, dev=dev, out=tmp_path / "run")
    assert done.code == 2
    assert f"dev = '{dev}': write a share of the rows as a decimal number, such as 0.1." in done.err
