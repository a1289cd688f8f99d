"""What a sweep searches and how it chooses, the metric, and what is refused before the first trial."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from commands import one_line
from hypothesis import given
from hypothesis import strategies as st

from lambert.core.errors import UsageError
from lambert.corpus.tokens import tokenizer as tokenizers
from lambert.tasks import TaskConfig, learn
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.sweep import metric, search
from lambert.verbs.sweep.result import Row, Table
from lambert.verbs.sweep.space import dimensions

Lambert = Callable[..., Any]


def test_the_choice_depends_on_the_number_of_the_trial_alone() -> None:
    space = dimensions({"optim.lr": {"low": 1e-5, "high": 1e-2, "log": True}}, FinetuneConfig)
    kinds = {one.name: one.distribution for one in space}
    studies = [optuna.create_study(sampler=search.sampler("random", space, seed)) for seed in (1, 1, 2)]
    first, second, other = ([study.ask(kinds).params["optim.lr"] for _ in range(6)] for study in studies)
    assert first == second
    assert len({*first, *other}) == 12
    assert all(1e-5 <= value <= 1e-2 for value in first)


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 7))
def test_points_of_a_range_are_those_of_arange(low: int, width: int, step: int) -> None:
    if step > width:
        return
    table = {"low": low / 4, "high": (low + width) / 4, "step": step / 4}
    (one,) = dimensions({"optim.lr": table}, FinetuneConfig)
    expected = np.arange(low, low + width + 1, step) / 4
    assert one.points() == pytest.approx(expected.tolist())
    assert one.ends() == pytest.approx((expected[0], expected[-1]))
    assert all(one.distribution._contains(point) for point in one.points())


def test_importances_name_the_setting_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # which is slow to import, and must not be needed
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    for number in range(30):
        trial = study.ask()
        value = trial.suggest_float("matters", 0.0, 1.0) + 0.001 * trial.suggest_float("hardly", 0.0, 1.0)
        study.tell(trial, value)
        if number == search.LEAST_COMPLETE - 2:
            assert search.importances(study, ["matters", "hardly"]) == {}
    shares = search.importances(study, ["matters", "hardly"])
    assert list(shares) == ["matters", "hardly"]
    assert sum(shares.values()) == pytest.approx(1.0)


def row(number: int, value: float, error: float | None) -> Row:
    return Row(number, "complete", {}, value, None, error, "", 0.0, 1, [], {}, {})


def test_the_verdict_relates_the_lead_to_its_error() -> None:
    rows = [row(0, 0.80, 0.03), row(1, 0.90, 0.03), row(2, 0.85, 0.04), row(3, 0.5, 0.03)]
    (text,) = Table("accuracy", False, (1,), rows).verdict()
    assert "trial 1 is ahead of trial 2 by 0.05, 1.0 standard errors (0.05, over the held-out examples)." in text
    assert "1 of the others are within 2 standard errors" in text  # 0.1 / 0.042 and 0.4 / 0.042 are more
    assert "best of 4 values" in text
    (text,) = Table("loss", True, (1, 2), rows).verdict()
    assert text.startswith("trial 3 is ahead of trial 0 by 0.3, 7.1 standard errors (0.042, over 2 seeds).")


def test_the_names_of_scores_are_those_of_the_runs(pretrained: Path, tuned: Callable[[str], Path]) -> None:
    for task, run in (("", pretrained), ("classify", tuned("classify"))):
        names = json.loads((run / "scores.json").read_text())
        assert metric.SCORES[task][0] in names
        own = {name for name in names if not name.endswith(("_se", "examples", "temperature"))}
        assert own <= set(metric.SCORES[task])


SPANS = "ann B-PER\nlives O\n\nbob B-PER\nin O\n"
FIRST = {
    "tags of spans": ("tag", "x.conll", SPANS),
    "tags of words": ("tag", "x.conll", SPANS.replace("B-PER", "NNP").replace(" O", " VB")),
    "a search": ("embed", "x.jsonl", '{"anchor": "ann", "positive": "bob"}\n{"anchor": "eve", "positive": "rome"}\n'),
    "scored pairs": ("embed", "x.csv", "sentence1,sentence2,score\nann,bob,0.5\neve,bob,1\nann,eve,0.2\n"),
    "a label": ("classify", "x.csv", "text,label\nann,a\nbob,b\n"),
    "several labels": ("multilabel", "x.csv", "text,label\nann,a\nbob,b\n"),
    "a value": ("regress", "x.csv", "text,label\nann,1\nbob,2\neve,4\n"),
    "choices": ("choice", "x.jsonl", '{"text": "ann", "choices": ["a", "b"], "label": 1}\n' * 2),
}


@pytest.mark.parametrize("case", FIRST)
def test_the_default_is_the_first_score_of_the_task(case: str, pretrained: Path, tmp_path: Path) -> None:
    name, file, content = FIRST[case]
    path = tmp_path / file
    path.write_text(content)
    config = TaskConfig(name=name).resolved()
    task, _ = learn(config, tokenizers.load(pretrained / "model"), path)
    data = task.read(path)
    draw = np.random.default_rng(1)
    predictions: list[Any] = {
        "tag": lambda: [[0, 1], [0, 1]],
        "embed": lambda: list(draw.normal(size=(len(data.texts_NG), 2, 4))),
        "regress": lambda: draw.normal(size=3).tolist(),
        "choice": lambda: [np.array([0.2, 0.8])] * 2,
    }.get(name, lambda: list(np.array([[0.4, 0.6], [0.1, 0.9]])))()
    first = next(iter(task.score(data, predictions)))
    assert metric.metric_of("", "", name, metric.headline(config, path, path)) == (first, False)


WRONG = {
    "a range upside down": ('"optim.lr" = {low = 1e-2, high = 1e-5}', "low = 0.01 is above high = 1e-05"),
    "a logarithm of zero": ('"optim.lr" = {low = 0.0, high = 1.0, log = true}', "above 0 on a logarithmic scale"),
    "a setting that does not exist": ('"optim.lrr" = {choices = [1.0]}', "Did you mean optim.lr?"),
    "a table that does not exist": ('"optm.lr" = {choices = [1.0]}', "unknown table [optm]. Did you mean [optim]?"),
    "a key that does not exist": ('"optim.lr" = {low = 1e-5, hihg = 1.0}', "hihg is unknown. Did you mean 'high'?"),
    "an end that is missing": ('"optim.lr" = {low = 1e-5}', "lacks high"),
    "no choices": ('"optim.lr" = {choices = []}', "at least one value"),
    "a choice twice": ('"train.batch_size" = {choices = [4, 4]}', "a value twice"),
    "a range of names": ('"optim.name" = {low = 1, high = 2}', "is not a number"),
    "a fraction of a whole number": ('"train.batch_size" = {low = 4.5, high = 8}', "must be whole"),
    "a value that a setting cannot have": (
        '"optim.warmup_ratio" = {low = 0.0, high = 1.5}',
        "[sweep.space] optim.warmup_ratio = 1.5: optim.warmup_ratio = 1.5 must be at least 0 and below 1",
    ),
    "a choice of the wrong type": ('"train.batch_size" = {choices = ["many"]}', "train.batch_size"),
    "both log and step": ('"optim.lr" = {low = 1e-5, high = 1.0, log = true, step = 0.1}', "both log and step"),
    "a step beyond the range": ('"optim.lr" = {low = 0.1, high = 0.2, step = 0.3}', "at most high - low"),
    "no table": ('"optim.lr" = 3', "must be a table"),
    "the seed": ('"seed" = {choices = [1, 2]}', "sweep.seeds"),
    "the seeds": ('"seeds" = {choices = [[1], [2]]}', "sweep.seeds"),
    "the folder": ('"out" = {choices = ["a", "b"]}', "sweep.out"),
    "what is also set": ('"train.steps" = {choices = [3, 4]}', "both in [sweep.space] and set beside it"),
    "nothing": ("", "[sweep.space] is empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_space_is_refused(case: str, write: Callable[..., Path], tmp_path: Path, lambert: Lambert) -> None:
    space, message = WRONG[case]
    one_line(lambert("sweep", write(space=space)), 2, message)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("own", "base", "parts"),
    [
        ("", "", ["How long to search?", "trials, minutes or updates"]),
        ("trials = 0", "", ["trials = 0"]),
        ("trials = 1\nseeds = []", "", ["seeds is empty"]),
        ("trials = 1\nseeds = [1, 1]", "", ["a seed twice"]),
        ("trials = 1\nmetric = 'pearson'", "", ["metric = 'pearson'", "classify", "Known: accuracy, ece, f1"]),
        ("trials = 1\nmetric = 'acuracy'", "", ["Did you mean 'accuracy'?"]),
        ("trials = 1\nsampler = 'tpee'", "", ["sampler = 'tpee' is unknown. Did you mean 'tpe'?"]),
        ("trials = 1\npruner = 'mediam'", "", ["Did you mean 'median'?"]),
        ("trials = 1\nsampler = 'grid'", "", ["optim.lr needs choices, or a step"]),
        ("trials = 1\ntrails = 2", "", ["unknown setting trails. Did you mean trials?"]),
        ("trials = 1\nverb = 'pretrain'", "", ["the sweep: unknown setting", "sweep.verb"]),
        ("trials = 1\nrecipe = 'nowhere.toml'", "", ["No such recipe: nowhere.toml"]),
        ("trials = 1", "sead = 3", ["the sweep: unknown setting sead. Did you mean seed?"]),
        ("trials = 1", "seeds = [1, 2]", ["give the seeds as sweep.seeds"]),
        ("trials = 1\nstorage = 'nodb://x/y'", "", ["'nodb://x/y' is no URL of a database"]),
    ],
)
def test_wrong_settings_are_refused(
    own: str, base: str, parts: list[str], write: Callable[..., Path], lambert: Lambert
) -> None:
    one_line(lambert("sweep", write(own, base=base)), 2, *parts)


def test_what_a_sweep_needs(write: Callable[..., Path], tmp_path: Path, lambert: Lambert) -> None:
    recipe = write()
    recipe.write_text("".join(line + "\n" for line in recipe.read_text().splitlines() if not line.startswith("dev")))
    one_line(lambert("sweep", recipe), 2, "set dev")
    recipe.write_text('data = "x"\n')
    one_line(lambert("sweep", recipe), 2, "no table [sweep]")
    one_line(lambert("sweep", write("trials = 1\nstorage = 'sqlite:////nowhere/x.db'")), 4, "cannot be used")


def test_a_score_that_the_runs_lack_ends_the_sweep(
    write: Callable[..., Path], lambert: Lambert, pretend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(lambda config: 0.5)
    monkeypatch.delitem(metric.SCORES, "classify")  # as for a task from outside
    one_line(lambert("sweep", write("trials = 1")), 2, "Set sweep.metric")
    one_line(lambert("sweep", write("trials = 1\nmetric = 'bleu'")), 2, "metric = 'bleu'", "Known: accuracy.")


def test_the_metric_of_a_named_data_set_is_its_official_score(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    pretend(lambda config: 0.5)
    (tmp_path / "x.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\t0\nc\td\t1\n")
    recipe = write("trials = 1")
    text = recipe.read_text().replace("[task]", '[task]\nname = "glue/mrpc"')
    recipe.write_text(re.sub('data = ".*"', f'data = "{tmp_path / "x.tsv"}"', text))
    one_line(lambert("sweep", recipe), 2, "metric = 'f1' is no score of these runs. Known: accuracy.")
    recipe.write_text(text.replace("glue/mrpc", "glue/mrcp"))
    one_line(lambert("sweep", recipe), 2, "Did you mean 'glue/mrpc'?")


def test_help_imports_neither_torch_nor_optuna() -> None:
    call = "try: lambert.cli.main(['sweep', '--help'])\nexcept SystemExit: pass"
    code = f"import sys, lambert.cli\n{call}\nassert not {{'torch', 'optuna'}} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    importlib.import_module("lambert.verbs.settings.sweep")
    assert UsageError
