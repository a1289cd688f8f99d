"""`lambert verify`: right runs are on the curve, wrong ones are found and their causes are named."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import last_line, one_line

import lambert as library
from lambert.core.errors import UsageError
from lambert.core.settings import read
from lambert.engine.trackers import TRACKERS, TensorBoard
from lambert.verbs.verify.writing import toml, write

Lambert = Callable[..., Any]
STEPS = 40


def test_the_table_is_what_the_runs_have(made: tuple[Path, list[Path]]) -> None:
    recipe, runs = made
    text = recipe.read_text()
    assert text.startswith("# A recipe.\n")
    assert "every = 5  # rows" in text
    found = read(recipe)["expect"]
    assert found["source"].endswith("; the runs have the seeds 1, 2, 3, 4, 5, 6")
    assert (found["seeds"], found["every"]) == (6, 5)
    assert [band["update"] for band in found["losses"]] == [10, 25, 40]
    rows = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in runs]
    for band, steps in zip(found["losses"], ([5, 10], [15, 20, 25], [30, 35, 40]), strict=True):
        means = [sum(row["loss"] for row in run if "lr" in row and row["step"] in steps) / len(steps) for run in rows]
        assert (band["low"] + band["high"]) / 2 == pytest.approx(sum(means) / 6, abs=1e-3)
        assert band["low"] < min(means) <= max(means) < band["high"]
    assert [score["name"] for score in found["scores"]] == ["mlm", "mlm_accuracy"]
    assert found["data"].keys() == {"the corpus", "the tokenizer"}
    assert found["environment"]["precision"] == ["float32"]


def test_another_seed_is_on_the_curve_and_nothing_is_left(
    made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, _ = made
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    done = lambert("verify", recipe, "--updates", 30, "--seed", 9, "--train.precision=bfloat16")
    assert done.code == 0, done.err + done.out
    assert "loss, updates 11 to 25" in done.out
    assert "not reached: loss, updates 26 to 40\nnot compared: mlm at the end and 1 more\n" in done.out
    assert "differs: precision is bfloat16, and was float32" in done.out
    assert done.out.endswith("on the curve\n")
    assert not (recipe.parent / "never").exists()
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.mark.parametrize(
    ("flags", "cause"),
    [(["--optim.lr", "5e-2"], "--optim.lr is not the recipe's"), (["--optim.lr=5e-4"], "--optim.lr=5e-4 is not the")],
)
def test_a_wrong_learning_rate_is_off_the_curve(
    made: tuple[Path, list[Path]], flags: list[str], cause: str, lambert: Lambert
) -> None:
    done = lambert("verify", made[0], "--updates", STEPS, *flags)
    last_line(done, 5, "is off the curve: loss, updates ", "expected ", cause)
    assert "OFF the curve" in done.out


def test_other_data_are_off_the_curve_and_named(
    made: tuple[Path, list[Path]], texts: Path, lambert: Lambert, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("".join(f"{line[::-1]} {line}\n" for line in texts.read_text().splitlines()))
    flags: dict[str, object] = {"documents": "line", "vocabulary": 300, "heldout": 0.2, "workers": 1}
    assert lambert("prepare", input=tmp_path / "other.txt", out=tmp_path / "corpus", **flags).code == 0
    done = lambert("verify", made[0], "--updates", 30, corpus=tmp_path / "corpus")
    last_line(done, 5, "is off the curve", "the corpus is another one", "the tokenizer is another one")


def test_a_run_that_diverges_is_off_the_curve(made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path) -> None:
    flags = ["--optim.name=adamw", "--optim.lr=1e4", "--optim.max-grad-norm=0", "--optim.warmup-ratio=0"]
    strict = ["--guard.factor=1", "--guard.margin=0", "--guard.patience=1"]  # ends the run before the first band
    done = lambert("verify", made[0], "--updates", STEPS, *flags, *strict)
    last_line(done, 5, "is off the curve: Training diverged at step ", "--optim.lr=1e4 is not the recipe's")
    assert "not reached: loss, updates 1 to 10" in done.out
    assert "OFF the curve" not in done.out
    done = lambert("verify", made[0], "--updates", STEPS, "--json", *flags, *strict)
    found = json.loads(done.out[: done.out.rindex("}") + 1])
    assert found["on_curve"] is False
    assert found["problem"].startswith("Training diverged at step ")
    given = lambert("pretrain", made[0], *flags, *strict, "--log.every=1", out=tmp_path / "run")
    assert given.code == 5
    last_line(lambert("verify", made[0], run=tmp_path / "run"), 5, "is off the curve: Training diverged at step ")


def test_a_run_before_the_first_band_is_not_compared(
    made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path
) -> None:
    recipe, runs = made
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text(lines[0])
    (copy / "scores.json").unlink()
    said = ["has losses up to update 5", "the first number of [expect] is the loss, updates 1 to 10"]
    one_line(lambert("verify", recipe, run=copy), 3, *said)


def test_a_folder_that_is_given_is_the_beginning_of_the_run(
    made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path
) -> None:
    recipe, runs = made
    for _ in range(2):  # the second time, nothing is run again
        assert lambert("verify", recipe, "--updates", 25, "--seed", 1, out=tmp_path / "run").code == 0
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == 25
    assert lambert("pretrain", recipe, seed=1, out=tmp_path / "run").code == 0
    scores = [json.loads((run / "scores.json").read_text()) for run in (tmp_path / "run", runs[0])]
    assert scores[0] == scores[1]


def test_a_run_with_another_log_every_is_refused_unless_it_has_the_losses(
    made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path
) -> None:
    recipe, _ = made
    for every in (1, 10):
        done = lambert("pretrain", recipe, "--log.every", every, seed=1, out=tmp_path / f"every-{every}")
        assert done.code == 0, done.err
    done = lambert("verify", recipe, run=tmp_path / "every-1")
    assert done.code == 0, done.err
    said = ["every-10 has no logged loss of update 5", "take a run that had log.every = 5 from its first update on"]
    one_line(lambert("verify", recipe, run=tmp_path / "every-10"), 2, *said)
    one_line(lambert("verify", recipe, "--seed", 1, out=tmp_path / "every-10"), 2, *said)
    assert lambert("pretrain", recipe, "--log.every", 1000, seed=1, out=tmp_path / "unlogged").code == 0
    one_line(lambert("verify", recipe, run=tmp_path / "unlogged"), 2, "unlogged has no logged loss of update 5")


def test_settings_of_a_given_run_that_are_not_the_recipes_are_named(
    made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path
) -> None:
    recipe, runs = made
    done = lambert("pretrain", recipe, "--optim.lr=5e-2", seed=1, out=tmp_path / "run")
    assert done.code == 0, done.err
    done = lambert("verify", recipe, run=tmp_path / "run")
    last_line(done, 5, "is off the curve", "Likely causes: optim.lr is 0.05, and the recipe has 0.005.")
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace("steps = 40", "steps = 45").replace('corpus = "', 'corpus = "./'))
    (copy / "scores.json").write_text('{"mlm": 9.0, "mlm_accuracy": 0.1}')  # at the end of a longer run
    found = library.verify(recipe, run=copy)
    (difference,) = found.differences
    assert difference.startswith("train.steps is 45, and the recipe has 40, so the curve is compared as far as")
    assert found.on_curve
    assert found.rows[-1].here is None


def test_a_finished_run_is_compared_to_its_scores(
    made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path
) -> None:
    recipe, runs = made
    done = lambert("verify", recipe, "--json", run=runs[0])
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["on_curve"] is True
    assert [row["what"] for row in found["rows"]][-1] == "mlm_accuracy at the end"
    assert all(row["on_curve"] for row in found["rows"])
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    (copy / "scores.json").write_text('{"mlm": 9.0, "mlm_accuracy": 0.1}')
    last_line(lambert("verify", recipe, run=copy), 5, "mlm at the end is 9.0000")
    (copy / "scores.json").write_text('{"accuracy": 9.0}')
    one_line(lambert("verify", recipe, run=copy), 2, "the run has no score 'mlm'. It has: accuracy")
    text = (copy / "metrics.jsonl").read_text()
    (copy / "metrics.jsonl").write_text(text.replace('"loss": ', '"loss": null, "other": ', 1))
    (copy / "scores.json").unlink()
    last_line(lambert("verify", recipe, run=copy), 5, "loss, updates 1 to 10 is not finite")


def test_trackers_get_the_rows_of_a_folder_that_is_given_alone(
    made: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def tracker(run: Path, start: int) -> TensorBoard:
        started.append(run)
        return TensorBoard(run, start)

    monkeypatch.setitem(TRACKERS, "tensorboard", tracker)
    for out in (None, tmp_path / "run"):
        library.verify(made[0], updates=10, seed=9, out=out, log__trackers=["tensorboard"])
    assert started == [tmp_path / "run"]


def test_the_library(made: tuple[Path, list[Path]]) -> None:
    recipe, runs = made
    found = library.verify(recipe, updates=10, seed=9)
    assert found.on_curve
    assert found.updates == 10
    assert [row.on_curve for row in found.rows] == [True, None, None, None, None]
    assert library.verify(recipe, updates=40, optim__lr=0.05).on_curve is False
    assert library.verify(recipe, run=runs[1]).on_curve
    with pytest.raises(UsageError, match="no table \\[expect\\]"):
        library.verify(recipe, expect=None)
    with pytest.raises(UsageError, match=r"^verify: give corpus for pretrain or data"):
        library.verify(recipe, corpus=None)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--updates", "9"], "--updates 9 ends before the first band of [expect], at 10 updates"),
        (["--train.steps", "30"], "a band up to update 40, and the run has train.steps = 30"),
        (["--run", "none"], "none is not a run folder: it has no config.toml"),
        (["--run", "a", "--write-from", "b"], "give one"),
        (["--run", "a", "--updates", "3"], "--updates"),
        (["--optim.lrr", "1"], "Did you mean"),
        (["--updates", "-1"], "updates = -1 must be at least 0"),
    ],
)
def test_wrong_flags_are_one_line(made: tuple[Path, list[Path]], flags: list[str], said: str, lambert: Lambert) -> None:
    done = lambert("verify", made[0], *flags)
    assert done.code in (2, 3)
    one_line(done, done.code, said)


def test_recipes_without_a_curve_are_one_line(recipe: Path, lambert: Lambert) -> None:
    one_line(lambert("verify", recipe), 2, "has no table [expect]", "--write-from")
    recipe.write_text('input = ["x"]\nout = "c"\n')
    one_line(lambert("verify", recipe), 2, "is not a recipe of pretrain or finetune")
    one_line(lambert("verify"), 2, "verify requires a RECIPE: lambert verify runs/demo/recipes")
    one_line(lambert("verify", recipe.parent / "none.toml"), 2, "No such recipe")


def test_what_a_finetuning_run_derives_is_no_difference(
    made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path
) -> None:
    recipe, data = tmp_path / "run.toml", tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"text": "the word {n} is here", "label": "{"ab"[n % 2]}"}}\n' for n in range(40)))
    recipe.write_text(
        f'data = "{data}"\ninit = "{made[1][0]}"\nout = "{tmp_path / "run"}"\n'
        "[train]\nsteps = 10\nbatch_size = 4\n[log]\nevery = 1\n",
        encoding="utf-8-sig",
    )
    runs = [tmp_path / f"seed-{seed}" for seed in (1, 2)]
    for seed, run in enumerate(runs, 1):
        assert lambert("finetune", recipe, seed=seed, out=run).code == 0
    assert lambert("verify", recipe, "--write-from", *runs).code == 0
    assert library.verify(recipe, run=runs[0]).differences == []
    assert library.verify(recipe, run=runs[0], train__batch_size=8).differences == [
        "train__batch_size is not the recipe's", "train.batch_size is 4, and the recipe has 8",
    ]  # fmt: skip


def test_unknown_scores_and_runs_that_are_not_alike_are_one_line(
    made: tuple[Path, list[Path]], lambert: Lambert, tmp_path: Path
) -> None:
    recipe, runs = made
    other = tmp_path / "other.toml"
    other.write_text(recipe.read_text().replace('name = "mlm"', 'name = "nsp"'))
    one_line(lambert("verify", other), 2, "expect.scores names 'nsp', and the run has: mlm, mlm_accuracy")
    one_line(lambert("verify", other, "--write-from", runs[0]), 2, "needs two runs or more")
    one_line(lambert("verify", other, "--write-from", runs[0], runs[0]), 2, "Two of the runs have seed = 1")
    copy = shutil.copytree(runs[1], tmp_path / "copy")
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace("lr = 0.005", "lr = 0.5"))
    one_line(lambert("verify", other, "--write-from", runs[0], copy), 2, "optim.lr = 0.005", "0.5: take runs of one")
    (copy / "config.toml").write_text(config)
    (copy / "data.json").write_text('{"the corpus": "x"}')
    one_line(lambert("verify", other, "--write-from", runs[0], copy), 3, "was trained on other data")


def test_the_table_is_replaced_wherever_it_is(made: tuple[Path, list[Path]], tmp_path: Path) -> None:
    recipe, _ = made
    path = tmp_path / "run.toml"
    before = recipe.read_text()
    own = toml(_expect(recipe))
    rest = before[: before.index("[expect]")]
    path.write_text(
        f'corpus = "c"\n{own}\n# Of the model.\n\n# The shape.\n[model]{rest.partition("[model]")[2]}# the end\n'
    )
    write(path, _expect(recipe))
    found = path.read_text()
    assert found.count("[expect]") == found.count("[expect.data]") == found.count("[model]") == 1
    assert "# the end" in found
    assert 'corpus = "c"\n\n# Of the model.\n\n# The shape.\n[model]\n' in found
    write(path, _expect(recipe))
    assert path.read_text() == found
    path.write_text(f"{found}# after all\n")
    write(path, _expect(recipe))
    assert "# after all\n" in path.read_text()
    assert math.isclose(read(path)["optim"]["lr"], 5e-3)


def test_the_demos_own_seed_is_inside_of_its_bands() -> None:
    """The runs behind the bands have other seeds. The log has the losses of the recipe's seed."""
    root = Path(library.__file__).parent
    bands = read(root / "verbs" / "demo" / "recipes" / "pretrain.toml")["expect"]["losses"]
    log = (Path(__file__).parents[3] / "docs" / "log.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| \d+ to (\d+) \| ([\d.]+) to ([\d.]+) \| ([\d.]+) \|\n", log)
    assert [int(row[0]) for row in rows] == [band["update"] for band in bands]
    for row, band in zip(rows, bands, strict=True):
        assert (float(row[1]), float(row[2])) == (band["low"], band["high"])
        assert all(band["low"] <= float(loss) <= band["high"] for loss in row[3:])


def _expect(recipe: Path) -> library.ExpectConfig:
    from lambert.runs.expect import expectation

    return expectation(read(recipe)["expect"], "the recipe")
