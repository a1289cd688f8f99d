"""The machinery of the studies in benchmarks/: runs that continue, plans that depend on results, tables and plots."""

import argparse
import functools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from patience import HANGS

from benchmarks.aggregation import run as aggregation
from benchmarks.base_encoder import run as base_encoder
from benchmarks.block import run as block
from benchmarks.budgets import run as budgets
from benchmarks.large_batches import run as large_batches
from benchmarks.precision import run as precision
from benchmarks.support import experiment
from benchmarks.support.experiment import BENCHMARKS
from benchmarks.two_stages import run as two_stages

Row = dict[str, Any]


def three(rows: list[Row]) -> Iterator[Row]:
    """Two rates, and then the better one again with another seed."""
    yield {"lr": 1.0, "seed": 1}
    yield {"lr": 0.1, "seed": 1}
    yield {"lr": min((row for row in rows if row["seed"] == 1), key=lambda row: row["mlm"])["lr"], "seed": 2}


def test_a_study_that_was_killed_makes_the_runs_that_are_missing(tmp_path: Path) -> None:
    out, made = tmp_path / "study" / "runs.jsonl", []

    def run(plan: Row) -> Row:
        if len(made) == 1:
            made.append({})
            raise KeyboardInterrupt
        made.append(plan)
        return {**plan, "mlm": plan["lr"] + 5}

    with pytest.raises(KeyboardInterrupt):
        experiment.continue_runs(out, three, run)
    assert experiment.read(out) == [{"lr": 1.0, "seed": 1, "mlm": 6.0}]
    assert experiment.continue_runs(out, three, run, most=1) == experiment.read(out)
    rows = experiment.continue_runs(out, three, run)
    assert rows == experiment.read(out)
    assert [(row["lr"], row["seed"]) for row in rows] == [(1.0, 1), (0.1, 1), (0.1, 2)]
    before = list(made)
    experiment.continue_runs(out, three, run)
    assert made == before


def test_a_line_that_was_cut_off_is_ignored_and_replaced(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    experiment.append(out, {"seed": 1})
    with out.open("a") as file:
        file.write('{"seed": 2, "ml')
    assert experiment.read(out) == [{"seed": 1}]
    experiment.append(out, {"seed": 3})
    assert [json.loads(line) for line in out.read_text().splitlines()] == [{"seed": 1}, {"seed": 3}]


def test_sigterm_ends_the_run_under_way(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(experiment.ROOT)!r})\n"
        "import subprocess, pathlib\n"
        "from benchmarks.support import experiment\n"
        "command = [sys.executable, '-c', 'import time, os; print(os.getpid(), flush=True); time.sleep(600)']\n"
        "run = lambda plan: subprocess.run(command) and plan\n"
        f"out = pathlib.Path({str(tmp_path / 'runs.jsonl')!r})\n"
        "experiment.continue_runs(out, lambda rows: iter([{'seed': 1}]), run)\n"
    )
    study = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert study.stdout is not None
    child = Path("/proc") / study.stdout.readline().strip()
    study.send_signal(signal.SIGTERM)
    assert study.wait(HANGS) != 0
    study.communicate()
    for _ in range(3000):
        if not child.exists():
            break
        time.sleep(0.1)
    assert not child.exists()
    assert not (tmp_path / "runs.jsonl").exists()


def test_progress_counts_the_runs_of_the_whole_plan() -> None:
    def plans(rows: list[Row]) -> Iterator[Row]:
        for seed in (1, 2):
            for lr in (1.0, 2.0) if seed == 1 else [experiment.best(experiment.select(rows, seed=1))["lr"]]:
                yield {"seed": seed, "lr": lr}

    rows = [{"seed": 1, "lr": 2.0, "mlm": 3.0}]
    assert experiment.progress(plans, rows) == "Runs so far: 1 of 3."
    assert len(rows) == 1


def test_a_run_that_diverged_is_never_the_best() -> None:
    rows = [{"lr": 1, "mlm": None}, {"lr": 2, "mlm": 6.0}, {"lr": 3, "mlm": 5.0}, {"lr": 4}]
    assert experiment.best(rows)["lr"] == 3


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0], "1.00"),
        ([1.0, 2.0, 3.0], "2.00 ± 1.00"),
        ([1.0, None, 3.0], "2.00 ± 1.41, 1 of 3 diverged"),
        ([None], "1 of 1 diverged"),
    ],
)
def test_spread(values: list[float | None], shown: str) -> None:
    assert experiment.spread(values, 2) == shown


def test_the_results_are_written_into_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"# Title\n\n{experiment.BEGIN}\nold\n{experiment.END}\n\nEnd.\n")
    made = experiment.table(["a", "b"], [[1, "x"]])
    for _ in range(2):
        experiment.publish(tmp_path / "runs.jsonl", made)
    whole = f"# Title\n\n{experiment.BEGIN}\n\n| a | b |\n|---|---|\n| 1 | x |\n\n{experiment.END}\n\nEnd.\n"
    assert page.read_text() == whole
    assert made in capsys.readouterr().out


def test_the_same_runs_give_the_same_plot(tmp_path: Path) -> None:
    panels = {"loss": {"lamb": [(2, [1.0, 2.0]), (1, [3.0])], "empty": [(1, [])]}, "F1": {"lamb": [(1, [4.0])]}}
    for name in ("a.svg", "b.svg"):
        experiment.plot(tmp_path / name, panels, "batch", ["nats", "F1"])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"svg" in (tmp_path / "a.svg").read_bytes()


def test_the_runs_of_the_aggregation_study_are_recognised() -> None:
    """Their keys are those of the plans of today, so a study continues."""
    args = argparse.Namespace(
        seeds=[1], modes=["samples", "scaled"], aggregated=[1, 4, 16, 100], batch=4, epochs=2, updates=40, lr=1e-4
    )
    rows = experiment.read(BENCHMARKS / "aggregation" / "runs.jsonl")
    plans = [*aggregation.plans(args, 2000, rows)]
    assert sum(not experiment.is_missing(plan, rows) for plan in plans) >= 10


def test_another_seed_is_tried_where_the_base_is_on_the_plateau(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(base_encoder, "lambert", lambda verb, recipe, flags, threads: made.append(flags["out"]))
    losses = {"pretrain-64-1": 5.7, "pretrain-64-2": 4.2}
    monkeypatch.setattr(base_encoder, "scores", lambda run: {"mlm": losses.get(run.name, 6.0)})
    assert base_encoder.train(tmp_path, 1, seeds=(1, 2, 3)).name == "pretrain-64-2"
    assert [path.name for path in made][-2:] == ["pretrain-32-2", "pretrain-64-2"]
    with pytest.raises(SystemExit, match="on the plateau"):
        base_encoder.train(tmp_path, 1, seeds=(1, 3))


def test_the_compute_at_equal_loss_is_interpolated() -> None:
    curve = [(1.0, 6.0), (2.0, 5.0), (4.0, 4.0)]
    assert two_stages.equal_loss(curve, 5.5) == pytest.approx(1.5)
    assert two_stages.equal_loss(curve, 4.5) == pytest.approx(3.0)
    assert two_stages.equal_loss(curve, 3.0) is None
    assert two_stages.equal_loss([], 3.0) is None


PLANNED = [(large_batches, 82), (two_stages, 39), (precision, 15), (block, 55)]


@pytest.mark.parametrize(("study", "runs"), PLANNED)
def test_the_plan_of_a_study_has_as_many_runs_as_its_page_says(study: ModuleType, runs: int) -> None:
    """`runs` as long as no result asks for more."""
    args = argparse.Namespace(
        seeds=[1, 2, 3], batches=[32, 128, 512, 2048], samples=81_920 if study is two_stages else 65_536,
        batch=16 if study is block else 32, lr=4e-3, steps=1000 if study is block else 200, long=2000,
        dropouts=[0.0], precisions=["float32", "bfloat16", "float16"], micro_tokens=[1 << 14], size="tiny",
        batch_size=16, device="cpu", rates=BENCHMARKS / "block/rates.jsonl", lrs=[1e-3, 2e-3, 4e-3],
        width=128, arms=getattr(study, "ARMS", ()),
    )  # fmt: skip
    plans = functools.partial(study.plans, args)
    assert experiment.progress(plans, []) == f"Runs so far: 0 of {runs}."
    assert study.__file__ is not None
    folder = Path(study.__file__).parent
    assert experiment.progress(plans, experiment.read(folder / "runs.jsonl")) in (folder / "README.md").read_text()


def test_jobs_keep_the_rows_beside_a_run_that_fails(tmp_path: Path) -> None:
    def run(plan: Row) -> Row:
        if plan["seed"] == 2:
            raise ValueError("seed 2")
        return {**plan, "mlm": 1.0}

    plans = [{"seed": seed} for seed in (1, 2, 3)]
    with pytest.raises(ValueError, match="seed 2"):
        experiment.continue_runs(tmp_path / "runs.jsonl", lambda rows: iter(plans), run, jobs=2)
    assert sorted(row["seed"] for row in experiment.read(tmp_path / "runs.jsonl")) == [1, 3]
    rows = experiment.continue_runs(tmp_path / "runs.jsonl", lambda rows: iter(plans[::2]), run, jobs=2)
    assert len(rows) == 2


def test_rates_beyond_the_grid_are_tried_while_the_best_is_at_its_edge() -> None:
    def tried(loss: Callable[[float], float | None]) -> list[float]:
        rows: list[Row] = []
        for rate in large_batches.find_rates((1.0, 2.0, 4.0), rows, arm="lamb"):
            rows.append({"arm": "lamb", "lr": rate, "mlm": loss(rate)})
            rows.append({"arm": "adamw", "lr": rate, "mlm": -rate})
        return [row["lr"] for row in rows[::2]]

    assert tried(lambda rate: abs(rate - 2)) == [1, 2, 4]
    assert tried(lambda rate: abs(rate - 8)) == [1, 2, 4, 8, 16]
    assert tried(lambda rate: None if rate > 1 else rate) == [1, 2, 4, 0.5, 0.25]
    assert tried(lambda rate: None) == [1, 2, 4]


def test_the_study_of_budgets_refuses_what_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("--table", "--runs=1"):
        monkeypatch.setattr(sys, "argv", ["budgets.py", "score", name])
        with pytest.raises(SystemExit, match="2"):
            budgets.main()
        assert f"unrecognized arguments: {name}" in capsys.readouterr().err


def test_a_run_that_diverged_has_a_row_without_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverged(verb: str, recipe: Path | None, *, ends: tuple[int, ...], **more: object) -> int:
        assert experiment.DIVERGED in ends
        return int(experiment.DIVERGED)

    monkeypatch.setattr(experiment, "lambert", diverged)
    monkeypatch.setattr(two_stages, "operations", lambda *given: 1.0)
    args = argparse.Namespace(
        work=tmp_path, corpus=tmp_path, samples=64, batch=32, threads=1, precision="float32",
        out=tmp_path / "runs.jsonl", seeds=[1], lr=4e-3, device="cpu",
    )  # fmt: skip
    plans = [*two_stages.plans(args, [])]
    rows = [two_stages.run(args, plan) for plan in plans]
    assert [row["mlm"] for row in rows] == [None] * len(rows)
    for row in rows:
        experiment.append(args.out, row)
    two_stages.show(args)
