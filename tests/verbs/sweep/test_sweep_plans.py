"""What a sweep searches and how it chooses, the metric, and what is refused before the first trial."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from commands import one_line
from hypothesis import given
from hypothesis import strategies as st

from lambert.commands import parse
from lambert.core.errors import UsageError
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.sweep import search, sweep
from lambert.verbs.sweep.result import TrialRow, TrialTable
from lambert.verbs.sweep.space import dimensions

Lambert = Callable[..., Any]


def test_the_choice_depends_on_the_number_of_the_trial_alone() -> None:
    space = dimensions({"optim.lr": {"low": 1e-5, "high": 1e-2, "log": True}}, FinetuneConfig)
    kinds = {one.name: one.distribution for one in space}
    studies = [optuna.create_study(sampler=search.build_sampler("random", space, seed)) for seed in (1, 1, 2)]
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
    assert one.list_points() == pytest.approx(expected.tolist())
    assert one.ends() == pytest.approx((expected[0], expected[-1]))
    assert all(one.distribution._contains(point) for point in one.list_points())


def test_importances_name_the_setting_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # which is slow to import, and must not be needed
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    for number in range(30):
        trial = study.ask()
        value = trial.suggest_float("matters", 0.0, 1.0) + 0.001 * trial.suggest_float("hardly", 0.0, 1.0)
        study.tell(trial, value)
        if number == search.LEAST_COMPLETE - 2:
            assert search.compute_importances(study, ["matters", "hardly"]) == {}
    shares = search.compute_importances(study, ["matters", "hardly"])
    assert list(shares) == ["matters", "hardly"]
    assert sum(shares.values()) == pytest.approx(1.0)


def row(number: int, value: float, error: float | None) -> TrialRow:
    return TrialRow(number, "complete", {}, value, None, error, "", 0.0, 1, [], {}, {})


def test_the_verdict_relates_the_lead_to_its_error() -> None:
    rows = [row(0, 0.80, 0.03), row(1, 0.90, 0.03), row(2, 0.85, 0.04), row(3, 0.5, 0.03)]
    (text,) = TrialTable("accuracy", False, (1,), rows).verdict()
    assert "trial 1 is ahead of trial 2 by 0.05, 1.0 standard errors (0.05, over the held-out examples)." in text
    assert "1 of the others are within 2 standard errors" in text  # 0.1 / 0.042 and 0.4 / 0.042 are more
    assert "best of 4 values" in text
    (text,) = TrialTable("loss", True, (1, 2), rows).verdict()
    assert text.startswith("trial 3 is ahead of trial 0 by 0.3, 7.1 standard errors (0.042, over 2 seeds).")


SPANS = "ann B-PER\nlives O\n\nbob B-PER\nin B-LOC\n"
FIRST: dict[str, tuple[str, str, str, str, str]] = {
    "tags of spans": ("tag", "x.conll", SPANS, "span_f1", "span_f1_LOC"),
    "tags of words": ("tag", "x.conll", SPANS.replace("B-PER", "NNP").replace(" O", " VB"), "f1", ""),
    "a search": ("embed", "x.jsonl", '{"anchor": "ann", "positive": "bob"}\n' * 2, "ndcg_10", "map_100"),
    "scored pairs": ("embed", "x.csv", "sentence1,sentence2,score\na,b,0.5\nc,d,1\na,e,0\n", "spearman", "pearson"),
    "two labels": ("classify", "x.csv", "text,label\nann,a\nbob,b\n", "accuracy", "f1"),
    "three labels": ("classify", "x.csv", "text,label\nann,a\nbob,b\neve,c\n", "accuracy", "f1_macro"),
    "several labels": ("multilabel", "x.csv", "text,label\nann,a\nbob,b\n", "f1_micro", "f1_macro"),
    "a value": ("regress", "x.csv", "text,label\nann,1\nbob,2\neve,4\n", "pearson", "mse"),
    "choices": ("choice", "x.jsonl", '{"text": "ann", "choices": ["a", "b"], "label": 1}\n' * 2, "accuracy", "loss"),
}
"""For each case the task, a labelled file, the default metric, and another one ("": none)."""
LACKING = {"three labels": "f1", "a search": "spearman", "tags of words": "span_f1", "scored pairs": "ndcg_10"}
"""Scores of the same task with another file."""


@pytest.mark.parametrize("case", FIRST)
def test_the_metrics_are_the_scores_on_dev(case: str, pretrained: Path, tmp_path: Path) -> None:
    name, file, content, first, other = FIRST[case]
    (tmp_path / file).write_text(content)
    flags = {"data": tmp_path / file, "dev": tmp_path / file, "init": pretrained, "out": tmp_path / "out"}
    flags |= {"task.name": name, "task.max-length": 32}
    given = parse.settings(["finetune", *(f"--{flag}={value}" for flag, value in flags.items())])
    names = sweep.score_names(given)
    assert sweep.metric_of("", "", names) == (first, False)
    if other:
        assert sweep.metric_of(other, "", names)[0] == other
    if case in LACKING:
        with pytest.raises(UsageError, match="is not a score of these runs"):
            sweep.metric_of(LACKING[case], "", names)
    assert not (tmp_path / "out").exists()


def test_the_metrics_of_question_answering_and_pre_training(
    pretrained: Path, corpus: Path, labelled: Callable[[str, str], Path], tmp_path: Path
) -> None:
    flags = [f"--data={labelled('squad', 'dev')}", f"--dev={labelled('squad', 'dev')}", f"--init={pretrained}"]
    given = parse.settings(["finetune", *flags, f"--out={tmp_path}", "--task.name=squad", "--task.squad.max-query=16"])
    assert sweep.score_names(given)[:2] == ["f1", "exact_match"]
    scores = json.loads((pretrained / "scores.json").read_text())
    given = parse.settings(["pretrain", str(pretrained / "config.toml")])
    assert sweep.score_names(given) == [name for name in scores if name != "update"]
    whole = parse.settings(["pretrain", str(pretrained / "config.toml"), "--packing.mode=full"])
    assert sweep.score_names(whole) == ["mlm", "mlm_accuracy"]


WRONG = {
    "a range upside down": ('"optim.lr" = {low = 1e-2, high = 1e-5}', "low = 0.01 is above high = 1e-05"),
    "a logarithm of zero": ('"optim.lr" = {low = 0.0, high = 1.0, log = true}', "above 0 on a logarithmic scale"),
    "a setting that does not exist": ('"optim.lrr" = {choices = [1.0]}', "Did you mean optim.lr?"),
    "a table that does not exist": ('"optm.lr" = {choices = [1.0]}', "unknown table [optm]. Did you mean [optim]?"),
    "an optimizer that does not exist": (
        '"optim.name" = {choices = ["adamw", "adamm"]}',
        "optim.name = 'adamm' is unknown. Did you mean",
    ),
    "a schedule that does not exist": ('"optim.schedule" = {choices = ["linear", "linaer"]}', "Did you mean 'linear'?"),
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
    "a date": ('"optim.lr" = {choices = [1979-05-27]}', "is neither a text, a number"),
    "a date as an end": ('"optim.lr" = {low = 1979-05-27, high = 1}', "must be a number"),
    "infinity": ('"optim.lr" = {low = 0.1, high = inf}', "must be a number of at most 2^53"),
    "no number": ('"optim.lr" = {low = nan, high = 1}', "must be a number"),
    "a huge number": (f'"train.steps" = {{low = 1, high = {10**400}}}', "must be a number of at most 2^53"),
    "a tiny step": ('"optim.lr" = {low = 0.1, high = 1.0, step = 5e-324}', "more than 1,000,000 values"),
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
        ("trials = 1\nmetric = 'pearson'", "", ["metric = 'pearson' is not a score of these runs", "Known: accuracy"]),
        ("trials = 1\nmetric = 'acuracy'", "", ["Did you mean 'accuracy'?"]),
        ("trials = 1\nsampler = 'tpee'", "", ["sampler = 'tpee' is unknown. Did you mean 'tpe'?"]),
        ("trials = 1\npruner = 'mediam'", "", ["Did you mean 'median'?"]),
        ("trials = 1\nsampler = 'grid'", "", ["optim.lr needs choices, or a step"]),
        ("trials = 1\ntrails = 2", "", ["unknown setting trails. Did you mean trials?"]),
        ("trials = 1\nverb = 'pretrain'", "", ["unknown setting verb"]),
        ("trials = 1\nrecipe = 'nowhere.toml'", "", ["No such recipe: nowhere.toml"]),
        ("trials = 1", "sead = 3", ["the sweep: unknown setting sead. Did you mean seed?"]),
        ("trials = 1", "seeds = [1, 2]", ["give the seeds as sweep.seeds"]),
        ("trials = 1\nstorage = 'nodb://x/y'", "", ["'nodb://x/y' is not a URL of a database"]),
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


def test_a_score_that_only_some_runs_lack_ends_the_sweep(
    write: Callable[..., Path], lambert: Lambert, pretend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = pretend(lambda config: 0.5)
    one_line(lambert("sweep", write("trials = 1\nmetric = 'bleu'")), 2, "metric = 'bleu'", "Known: accuracy.")
    assert not begun
    monkeypatch.setattr(sweep, "score_names", lambda config: ["bleu"])  # of other settings than those of the trial
    one_line(lambert("sweep", write("trials = 1")), 2, "metric = 'bleu'", "Known: accuracy.")


def test_the_metric_of_a_named_data_set_is_its_official_score(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretrained: Path
) -> None:
    texts = {"paragraph": "a", "question": "b", "answer": "c"}
    rows = [{**texts, "idx": {"paragraph": 1, "question": n, "answer": 0}, "label": n} for n in (0, 1)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = write("trials = 1")
    text = recipe.read_text().replace("[task]", '[task]\nname = "superglue/multirc"')
    recipe.write_text(re.sub('(data|dev) = ".*"', rf'\1 = "{tmp_path / "x.jsonl"}"', text))
    given = parse.settings(["sweep", str(recipe)])
    for asked, found in (("", "f1"), ("exact_match", "exact_match")):
        assert sweep.check_sweep(replace(given, metric=asked)).config.metric == found
    recipe.write_text(text.replace("superglue/multirc", "superglue/multircc"))
    one_line(lambert("sweep", recipe), 2, "Did you mean 'superglue/multirc'?")


def test_help_imports_neither_torch_nor_optuna() -> None:
    call = "try: lambert.cli.main(['sweep', '--help'])\nexcept SystemExit: pass"
    code = f"import sys, lambert.cli\n{call}\nassert not {{'torch', 'optuna'}} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    importlib.import_module("lambert.verbs.settings.sweep")
    assert UsageError
