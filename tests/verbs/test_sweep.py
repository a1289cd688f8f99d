"""Searches over settings: what a trial is, what continues, how trials are chosen and ended, and what is refused."""

import importlib
import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from commands import one_line
from hypothesis import given
from hypothesis import strategies as st

from lambert import cli
from lambert.core import settings
from lambert.core.errors import DataError, DivergedError, MachineError, UsageError
from lambert.engine.signals import StopRequest
from lambert.runs.config import RunConfig
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.sweep import metric, processes, search, storage, trials
from lambert.verbs.sweep.result import Row, Table
from lambert.verbs.sweep.space import dimensions

Lambert = Callable[..., Any]
RATES = '"optim.lr" = {low = 1e-5, high = 1e-2, log = true}\n"train.batch_size" = {choices = [4, 8]}\n'


@pytest.fixture
def write(tmp_path: Path, pretrained: Path, labelled: Callable[[str, str], Path]) -> Callable[..., Path]:
    """`write(own, space, base)`: a recipe of a sweep in tmp_path/sweep, three updates a run."""

    def written(own: str = "trials = 2", space: str = RATES, base: str = "", train: str = "steps = 3") -> Path:
        path = tmp_path / "sweep.toml"
        path.write_text(
            f'data = "{labelled("classify", "train")}"\ndev = "{labelled("classify", "dev")}"\ninit = "{pretrained}"\n'
            f"{base}\n[task]\nmax_length = 64\n[train]\nmicro_tokens = 512\n{train}\n"
            f'[sweep]\nout = "{tmp_path / "sweep"}"\n{own}\n[sweep.space]\n{space}'
        )
        return path

    return written


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[RunConfig], Any]], list[RunConfig]]:
    """`pretend(score)` replaces training by three updates whose accuracy `score(config)` returns; it returns the list
    of the settings of all runs that began."""

    def pretended(score: Callable[[RunConfig], Any]) -> list[RunConfig]:
        begun: list[RunConfig] = []

        def updates(config: RunConfig, stop: StopRequest) -> Iterator[Any]:
            begun.append(config)
            value = score(config)
            for index in range(1, 4):
                yield SimpleNamespace(index=index, last=index == 3, scores={"accuracy": value, "accuracy_se": 0.1})
            config.out.mkdir(parents=True, exist_ok=True)
            (config.out / "scores.json").write_text(json.dumps({"accuracy": value, "accuracy_se": 0.1}))

        monkeypatch.setitem(trials.UPDATES, "finetune", updates)
        return begun

    return pretended


def found(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "sweep.json").read_text())
    return content


def results(out: Path) -> list[tuple[Any, ...]]:
    """State, settings and value of each trial, without times."""
    return [(row["state"], row["values"], row["value"], row["intermediate"]) for row in found(out)["trials"]]


# --- real runs ---


def test_a_sweep_end_to_end(write: Callable[..., Path], tmp_path: Path, lambert: Lambert) -> None:
    recipe, out = write("trials = 2\nseeds = [1, 2]\nsampler = 'random'"), tmp_path / "sweep"
    done = lambert("sweep", recipe)
    assert (done.code, done.err) == (0, "")
    folders = sorted(path.name for path in (out / "trials").iterdir())
    assert folders == ["0000-seed1", "0000-seed2", "0001-seed1", "0001-seed2"]
    for row in found(out)["trials"]:
        runs = [out / "trials" / f"{row['number']:04d}-seed{seed}" for seed in (1, 2)]
        values = [json.loads((run / "scores.json").read_text())["accuracy"] for run in runs]
        assert row["value"] == pytest.approx(fmean(values))
        assert row["deviation"] == pytest.approx(stdev(values))
        for seed, run in enumerate(runs, 1):
            config = settings.dotted(settings.read(run / "config.toml"))
            assert {name: config[name] for name in row["values"]} == row["values"]
            assert config["seed"] == seed
        assert row["updates"] == 6
    best = next(row for row in found(out)["trials"] if row["number"] == found(out)["best"])
    assert best["value"] == max(row["value"] for row in found(out)["trials"])
    config = cli.settings(["finetune", str(out / "best.toml")])
    assert config.optim.lr == best["values"]["optim.lr"]
    assert (config.seed, config.out) == (1, out / "best")
    before = results(out)
    again = lambert("sweep", recipe)  # the budget is used up: only the table
    assert (again.code, results(out)) == (0, before)
    assert "2 trials: 2 complete" in again.out
    assert "best so far" not in again.out
    run = out / "trials" / "0000-seed1"
    assert "already" in lambert("finetune", run / "config.toml").out


def test_a_stopped_sweep_continues_and_chooses_the_same(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write("trials = 2", train="steps = 4\nevaluate_every = 2\nsave_every = 1")
    whole, report = trials.Study.report, itertools.count()

    class Killed(BaseException):
        """Ends the work as a signal that cannot be handled does."""

    def killing(study: Any, trial: Any, value: float, update: int) -> bool:
        if next(report) == 2:  # in the second trial, after two updates
            raise Killed
        return whole(study, trial, value, update)

    monkeypatch.setattr(trials.Study, "report", killing)
    with pytest.raises(Killed):
        cli.call(["sweep", str(recipe)])
    monkeypatch.undo()
    out = tmp_path / "sweep"
    assert [state for state, *_ in results(out)] == ["complete"]
    assert lambert("sweep", recipe).code == 0
    assert "continuing after update" in (out / "trials" / "0001-seed42" / "log.txt").read_text()
    assert lambert("sweep", recipe, "--out", tmp_path / "other").code == 0
    assert results(out) == results(tmp_path / "other")


def test_a_pruned_trial_is_saved_and_can_be_continued(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Always(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return True

    monkeypatch.setitem(search.PRUNERS, "always", lambda every, updates: Always())
    recipe = write("trials = 1\npruner = 'always'", train="steps = 4\nevaluate_every = 2")
    assert lambert("sweep", recipe).code == 0
    (row,) = found(tmp_path / "sweep")["trials"]
    assert (row["state"], row["updates"], list(row["intermediate"])) == ("pruned", 2, ["2"])
    run = tmp_path / "sweep" / "trials" / "0000-seed42"
    assert not (run / "model").exists()
    done = lambert("finetune", run / "config.toml")
    assert (done.code, "continuing after update 2 of 4" in (run / "log.txt").read_text()) == (0, True)
    assert (run / "model").is_dir()


def test_the_names_of_scores_are_those_of_the_runs(pretrained: Path, tuned: Callable[[str], Path]) -> None:
    for task, run in (("", pretrained), ("classify", tuned("classify"))):
        names = json.loads((run / "scores.json").read_text())
        assert metric.SCORES[task][0] in names
        own = {name for name in names if not name.endswith(("_se", "examples", "temperature"))}
        assert own <= set(metric.SCORES[task])


# --- pretended runs ---


def test_every_point_of_a_grid_is_tried_once(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    pretend(lambda config: config.train.batch_size / 100)
    space = '"train.batch_size" = {low = 4, high = 8, step = 2}\n"optim.name" = {choices = ["adamw", "lamb"]}\n'
    assert lambert("sweep", write("sampler = 'grid'", space)).code == 0
    rows = found(tmp_path / "sweep")["trials"]
    points = [(row["values"]["train.batch_size"], row["values"]["optim.name"]) for row in rows]
    assert points == list(itertools.product((4, 6, 8), ("adamw", "lamb")))
    assert found(tmp_path / "sweep")["best"] in (4, 5)


def test_trials_that_fail_are_recorded_and_the_sweep_goes_on(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    errors = iter([DivergedError("The loss is not finite."), ZeroDivisionError("of a task"), None, RuntimeError("x")])

    def score(config: RunConfig) -> float:
        if error := next(errors, None):
            raise error
        return 0.5

    pretend(score)
    done = lambert("sweep", write("trials = 5"))
    assert done.code == 0, done.err
    rows = found(tmp_path / "sweep")["trials"]
    assert [row["state"] for row in rows] == ["diverged", "failed", "complete", "failed", "complete"]
    assert rows[0]["note"] == "The loss is not finite."
    assert "ZeroDivisionError: of a task" in rows[1]["note"]
    assert "ZeroDivisionError" in (tmp_path / "sweep" / "trials" / "0001-crash.txt").read_text()
    assert "5 trials: 1 diverged, 2 failed, 2 complete" in done.out


def test_a_sweep_whose_trials_all_fail_ends(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    def score(config: RunConfig) -> float:
        raise DataError("train.tsv has no rows.")

    begun = pretend(score)
    one_line(lambert("sweep", write("trials = 9")), 3, "All 3 trials failed", "train.tsv has no rows.")
    assert len(begun) == 3
    pretend(lambda config: 0.5)  # once the recipe is corrected, the same folder may have other settings
    assert lambert("sweep", write("trials = 9", base="seed = 7")).code == 0
    assert len(found(tmp_path / "sweep")["trials"]) == 9


@pytest.mark.parametrize(("budget", "count"), [("updates = 7", 0), ("minutes = 1e-9", 1), ("trials = 4", 4)])
def test_a_budget_ends_the_sweep(
    budget: str, count: int, write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pretend(lambda config: 0.5)
    monkeypatch.setattr(trials.archive, "last", lambda folder: 3 if folder.is_dir() else 0)
    assert lambert("sweep", write(budget)).code == 0
    assert len(found(tmp_path / "sweep")["trials"]) == (count or 3)  # 3 x 3 updates are the first sum of at least 7


def test_a_trial_that_kills_its_process_again_and_again_fails(
    write: Callable[..., Path], tmp_path: Path, pretend: Any
) -> None:
    class Killed(BaseException):
        """Ends the work as a signal that cannot be handled does."""

    def score(config: RunConfig) -> float:
        if "0000" in config.out.name:
            raise Killed
        return 0.5

    begun = pretend(score)
    recipe = str(write("trials = 2"))
    for _ in range(3):
        with pytest.raises(Killed):
            cli.call(["sweep", recipe])
    cli.call(["sweep", recipe])
    assert [config.out.name[:4] for config in begun] == ["0000"] * 3 + ["0001"]
    rows = found(tmp_path / "sweep")["trials"]
    assert [row["state"] for row in rows] == ["failed", "complete"]
    assert "killed 3 times" in rows[0]["note"]


def test_a_trial_that_runs_elsewhere_is_left_alone(write: Callable[..., Path], pretend: Any) -> None:
    inner: list[int] = []

    def score(config: RunConfig) -> float:
        if not inner:
            inner.append(1)
            cli.call(["sweep", str(recipe)])  # another process, while this trial runs
        return 0.5

    begun = pretend(score)
    recipe = write("trials = 3")
    cli.call(["sweep", str(recipe)])
    assert [config.out.name[:4] for config in begun] == ["0000", "0001", "0002"]


# --- the storage ---


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_a_storage_that_is_lost_is_restored(
    kind: str, write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    pretend(lambda config: config.optim.lr)
    path = tmp_path / "the.study"
    own = f"storage = '{'sqlite:///' * (kind == 'sqlite')}{path}'\n"
    assert lambert("sweep", write(f"trials = 2\n{own}")).code == 0
    before = results(tmp_path / "sweep")
    path.unlink()
    done = lambert("sweep", write(f"trials = 3\n{own}"))
    assert (done.code, "2 trials are restored" in done.out) == (0, True)
    assert results(tmp_path / "sweep")[:2] == before
    assert len(results(tmp_path / "sweep")) == 3


def test_a_storage_that_disappears_is_one_line(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    removed: list[int] = []

    def score(config: RunConfig) -> float:
        if not removed:
            removed.append(1)
            (tmp_path / "sweep" / "study.journal").unlink()
        return 0.5

    pretend(score)
    done = lambert("sweep", write("trials = 3"))
    one_line(done, 4, "study.journal was removed", "sweep.json")
    assert lambert("sweep", write("trials = 3")).code == 0
    assert len(found(tmp_path / "sweep")["trials"]) == 3


def test_a_journal_whose_last_line_was_cut_is_read(write: Callable[..., Path], tmp_path: Path, pretend: Any) -> None:
    pretend(lambda config: 0.5)
    cli.call(["sweep", str(write("trials = 1"))])
    journal = tmp_path / "sweep" / "study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    cli.call(["sweep", str(write("trials = 2"))])
    assert [state for state, *_ in results(tmp_path / "sweep")] == ["complete"] * 2
    journal.write_bytes(b"another file\nof text\nand more\n")
    with pytest.raises(DataError, match=r"study\.journal of the sweep cannot be read"):
        cli.call(["sweep", str(write("trials = 2"))])


def test_a_study_of_other_settings_is_refused(write: Callable[..., Path], lambert: Lambert, pretend: Any) -> None:
    pretend(lambda config: 0.5)
    assert lambert("sweep", write("trials = 1")).code == 0
    other = lambert("sweep", write("trials = 2", RATES.replace("1e-2", "1e-1"), train="steps = 4"))
    one_line(other, 2, "space.optim.lr 1e-05 to 0.01 log -> 1e-05 to 0.1 log", "train.steps 3 -> 4", "study 'sweep'")
    free = write("trials = 2\nsampler = 'random'\npruner = 'none'", train="steps = 3\nevaluate_every = 1")
    assert lambert("sweep", free).code == 0


# --- choice and statistics ---


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


# --- several processes ---


def test_a_process_that_fails_is_reported_and_a_signal_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cli.settings(["sweep", "--out", str(tmp_path), "--jobs", "2"])
    code = "import sys; from lambert.core import launcher; sys.exit(launcher.report_end(4, 'No space left.'))"
    monkeypatch.setattr(processes, "command", lambda recipe: [sys.executable, "-c", code])
    with pytest.raises(processes.Ended, match=r"No space left\.") as ended:
        processes.run_processes(config, StopRequest())
    assert ended.value.exit_code == 4
    monkeypatch.setattr(
        processes, "command", lambda recipe: [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    )
    with pytest.raises(MachineError, match="Process 1 of 2 of the sweep ended by SIGKILL"):
        processes.run_processes(config, StopRequest())
    monkeypatch.setattr(processes, "command", lambda recipe: [sys.executable, "-c", "import time; time.sleep(60)"])
    stop, began = StopRequest(), time.monotonic()
    monkeypatch.setattr(type(stop), "check", lambda self: None)
    stop._received = 15
    processes.run_processes(config, stop)
    assert time.monotonic() - began < 30
    read = settings.read(tmp_path / processes.RECIPE)["sweep"]
    assert (read["jobs"], read["out"]) == (1, str(tmp_path))


# --- refusals ---

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


def test_a_password_is_not_shown() -> None:
    config = cli.settings(["sweep", "--out", "o", "--storage", "postgresql://me:secret@host/db"])
    assert storage.shown(config) == "postgresql://me@host/db"


def test_help_imports_neither_torch_nor_optuna() -> None:
    call = "try: lambert.cli.main(['sweep', '--help'])\nexcept SystemExit: pass"
    code = f"import sys, lambert.cli\n{call}\nassert not {{'torch', 'optuna'}} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    importlib.import_module("lambert.verbs.settings.sweep")
    assert UsageError
