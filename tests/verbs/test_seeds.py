"""Several seeds in one command."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

import lambert as library
from lambert.core.errors import UsageError
from lambert.verbs.finetune import summarise_seeds

Lambert = Callable[..., Any]


@pytest.fixture(scope="module")
def flags(pretrained: Path, labelled: Callable[[str, str], Path]) -> dict[str, object]:
    files = {"data": labelled("classify", "train"), "dev": labelled("classify", "dev"), "init": pretrained}
    return files | {"task__max_length": 64, "train__steps": 4, "train__batch_size": 8, "optim__lr": 3e-3}


def test_each_seed_is_an_ordinary_run_and_a_repeat_adds_what_is_missing(
    flags: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    out = tmp_path / "runs"
    done = lambert("finetune", "--seeds", 3, out=out, **flags)
    assert done.code == 0, done.err
    alone = lambert("finetune", out / "seed-3" / "config.toml", "--out", tmp_path / "alone")
    assert alone.code == 0, alone.err
    scores = [json.loads((run / "scores.json").read_text()) for run in (out / "seed-3", tmp_path / "alone")]
    assert scores[0] == scores[1]
    first = (out / "seed-3" / "scores.json").stat().st_mtime_ns
    done = lambert("finetune", "--seeds", 1, 3, out=out, **flags)
    assert done.code == 0, done.err
    assert (out / "seed-3" / "scores.json").stat().st_mtime_ns == first
    assert {path.name for path in out.iterdir()} == {"seed-1", "seed-3", "seeds.json", "features"}
    assert len([*(out / "features").glob("*.features")]) == 2  # of data and dev, for both seeds
    logs = [(out / f"seed-{seed}" / "log.txt").read_text() for seed in (3, 1)]
    assert [log.count(f"features are read from {out / 'features'}") for log in logs] == [0, 2]
    kept = json.loads((out / "seeds.json").read_text())
    assert kept["seeds"] == [1, 3]
    values = [json.loads((out / f"seed-{seed}" / "scores.json").read_text())["loss"] for seed in kept["seeds"]]
    assert kept["scores"]["loss"]["values"] == values
    assert len(set(values)) == 2
    *before, last = done.out.splitlines()
    assert last == f"models  {out / 'seed-1' / 'model'}, {out / 'seed-3' / 'model'}"
    table = before[-len(kept["scores"]) :]  # without the number of examples
    assert table[0].split()[:2] == ["2", "seeds"]
    loss = next(line.split() for line in table if line.startswith("loss "))
    assert [float(cell) for cell in loss[1:]] == pytest.approx(
        [kept["scores"]["loss"][key] for key in ("mean", "deviation", "mean_se", "examples_se")], abs=5e-5
    )
    one_line(lambert("finetune", out=out, **flags), 2, "is not a run folder")
    one_line(lambert("finetune", "--seeds", 1, out=tmp_path / "alone", **flags), 2, "holds a run of one seed")
    found = library.finetune(**{**flags, "out": out, "seeds": [1, 3]})
    assert found.scores["loss"] == pytest.approx(kept["scores"]["loss"]["mean"])
    assert found.folder == out


def test_what_is_refused(flags: dict[str, object], tmp_path: Path, lambert: Lambert) -> None:
    one_line(lambert("finetune", "--seeds", 1, 1, out=tmp_path, **flags), 2, "names a seed twice")
    one_line(lambert("finetune", "--seed", 1, 2, out=tmp_path, **flags), 2, "For several seeds: --seeds 1 2.")
    with pytest.raises(UsageError, match="set seed instead of seeds"):
        next(library.updates(**{**flags, "out": tmp_path, "seeds": [1, 2]}))


def test_the_numbers_summarise_seeds() -> None:
    scores = [{"f1": 0.5, "f1_se": 0.03}, {"f1": 0.7, "f1_se": 0.04}, {"f1": 0.9, "f1_se": 0.0}]
    (found,) = summarise_seeds(scores).values()
    assert found["values"] == [0.5, 0.7, 0.9]
    expected = {"mean": 0.7, "deviation": 0.2, "mean_se": 0.2 / math.sqrt(3), "examples_se": 0.05 / math.sqrt(3)}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert summarise_seeds(scores[:1]) == {"f1": {"mean": 0.5, "values": [0.5], "examples_se": 0.03}}
    assert "examples_se" not in summarise_seeds([*scores, {"f1": 1.0}])["f1"]
    assert "temperature" not in summarise_seeds([{"temperature": 1.5}, {}])
    assert summarise_seeds([{}, {}]) == {}
