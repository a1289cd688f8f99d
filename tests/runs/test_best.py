"""The best weights of a run by a held-out score, and runs that end early."""

import json
import math
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from commands import last_line, one_line
from safetensors.torch import load_file
from torch import nn

from lambert.core.errors import DataError, UsageError
from lambert.core.world import World
from lambert.runs.best import Best, is_better
from lambert.runs.config import TrainConfig
from lambert.verbs import finetune

Lambert = Callable[..., Any]
OPTIONS = TrainConfig(keep_best="accuracy", patience=2, evaluate_every=10)


def test_losses_and_errors_are_better_when_lower() -> None:
    for name in ("loss", "mse", "mlm", "nsp"):
        assert is_better(name, 0.5, 0.6)
        assert not is_better(name, 0.6, 0.5)
    for name in ("accuracy", "f1", "mlm_accuracy", "matthews", "exact_match", "pearson"):
        assert is_better(name, 0.6, 0.5)
        assert not is_better(name, 0.5, 0.6)
    for name in ("loss", "f1"):
        assert not is_better(name, 0.5, 0.5), "the first of equal scores stays"
        assert is_better(name, 0.5, math.nan)
        assert not is_better(name, math.nan, 0.5)
        assert not is_better(name, math.nan, math.nan)


def linear(value: float) -> nn.Module:
    net = nn.Linear(1, 1)
    nn.init.constant_(net.weight, value)
    return net


def test_the_best_of_many_evaluations(tmp_path: Path) -> None:
    values = [0.5, math.nan, 0.7, 0.7, 0.6, 0.9, 0.1]
    best = Best(tmp_path, "accuracy", 2, World())
    best.begin(0, {})
    for number, value in enumerate(values, 1):
        best.offer(10 * number, {"accuracy": value, "loss": 1.0}, linear(number))
        assert best.exhausted == (number == 5)
    net = linear(0)
    scores, line = best.take({"accuracy": 0.1, "loss": 1.0}, net)
    assert scores == {"accuracy": 0.9, "loss": 1.0, "best_update": 60.0, "final_accuracy": 0.1}
    assert net.weight.item() == 6
    assert line == "best accuracy 0.9 after update 60 (0.1 after the last, 70): model/ has these weights"


def test_evaluations_are_repeated_after_a_kill(tmp_path: Path) -> None:
    """The weights are of a later update than the checkpoint; the evaluations are those of a run without the kill."""
    values, seen = {10: 0.5, 20: 0.4, 30: 0.6, 40: 0.55, 50: 0.6}, {}
    best = Best(tmp_path, "accuracy", 2, World())
    best.begin(0, {})
    saved = {}
    for step, value in values.items():
        best.offer(step, {"accuracy": value}, linear(step))
        saved[step] = best.state()
        seen[step] = best.exhausted
    assert [step for step, ended in seen.items() if ended] == [50]
    for kept in (10, 20, 30, 40):
        again = Best(tmp_path, "accuracy", 2, World())
        again.begin(kept, saved[kept])
        assert again.step == 30
        for step in (step for step in values if step > kept):
            again.offer(step, {"accuracy": values[step]}, linear(-1))
            assert again.exhausted == seen[step]
        assert again.take({"accuracy": 0.6}, linear(0))[0]["best_update"] == 30
        assert load_file(tmp_path / "best" / "model.safetensors")["weight"].item() == 30
    again.offer(50, {"accuracy": 0.6}, linear(-1))
    assert again.state() == saved[50], "an evaluation that is repeated does not count twice"


def test_damage_is_found(tmp_path: Path) -> None:
    best = Best(tmp_path, "accuracy", 2, World())
    best.begin(0, {})
    best.offer(10, {"accuracy": 0.5}, linear(1))
    file, manifest = tmp_path / "best" / "model.safetensors", tmp_path / "best" / "manifest.json"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"x")
    with pytest.raises(DataError, match=r"best, the best weights so far, is damaged \(its weights have another SHA"):
        Best(tmp_path, "accuracy", 2, World()).begin(10, best.state())
    best.offer(20, {"accuracy": 0.4}, linear(2))
    with pytest.raises(DataError, match="SHA-256"):
        best.take({"accuracy": 0.4}, linear(0))
    file.write_bytes(whole)
    for text in ("{", "[]", '{"step": 10, "scores": {}, "sha256": ""}'):
        manifest.write_text(text)
        with pytest.raises(DataError, match="delete it"):
            Best(tmp_path, "accuracy", 2, World()).begin(10, best.state())
    anew = Best(tmp_path, "accuracy", 2, World())
    anew.begin(0, {})
    assert anew.step == 0
    assert not (tmp_path / "best").exists()


def test_a_disk_that_refuses_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    best = Best(tmp_path, "accuracy", 2, World())
    best.begin(0, {})
    best.offer(10, {"accuracy": 0.5}, linear(1))
    with mock.patch("lambert.engine.archive.save_file", side_effect=OSError(28, "No space left on device")):
        best.offer(20, {"accuracy": 0.6}, linear(2))
    assert "No space left on device" in caplog.text
    assert "still those of update 10" in caplog.text
    assert best.step == 10
    assert best.take({"accuracy": 0.6}, linear(0))[0]["best_update"] == 10


def test_settings_that_need_each_other() -> None:
    with pytest.raises(UsageError, match=r"train.keep_best = 'f1' needs train.evaluate_every"):
        TrainConfig(keep_best="f1")
    with pytest.raises(UsageError, match=r"train.patience = 2 needs train.keep_best"):
        TrainConfig(patience=2, evaluate_every=3)


# --- whole runs ---

SCORED = {4: 0.2, 8: 0.7, 12: 0.5, 16: 0.6, 20: 0.65, 24: 0.3}


@pytest.fixture
def flags(pretrained: Path, labelled: Callable[[str, str], Path]) -> dict[str, object]:
    """A fine-tuning of 24 updates with an evaluation every four."""
    found = {"data": labelled("classify", "train"), "dev": labelled("classify", "dev"), "init": pretrained}
    found |= {"task__max_length": 64, "train__steps": 24, "train__batch_size": 4, "train__evaluate_every": 4}
    return {**found, "train__keep_best": "accuracy", "train__threads": 1, "optim__lr": 1e-3, "log__every": 2}


class Scores:
    """Gives the scores of `SCORED` instead of those of the task. A signal comes before or after the outputs of the
    evaluation of update `stop_at`."""

    def __init__(self, first: int, stop_at: int, before: bool) -> None:
        self.next, self._stop_at, self._before = first, stop_at, before

    def outputs(self, *given: Any) -> Iterator[Any]:
        if self.next == self._stop_at and self._before:
            self.next += 4
            signal.raise_signal(signal.SIGTERM)
        yield from ORIGINAL(*given)

    def score(self, *given: Any) -> dict[str, float]:
        step, self.next = self.next, self.next + 4
        if step == self._stop_at:
            signal.raise_signal(signal.SIGTERM)
        return {"accuracy": SCORED.get(step, 0.0), "loss": 1.0}


ORIGINAL = vars(finetune)["outputs"]


def run(
    lambert: Lambert, out: Path, flags: dict[str, object], first: int = 0, stop_at: int = -1, before: bool = False
) -> Any:
    """The command, whose first evaluation is that of update `first`. That of update 0 is the check of the name."""
    scores = Scores(first, stop_at, before)
    with (
        mock.patch("lambert.tasks.sentences.classify.Classify.score", scores.score),
        mock.patch.object(finetune, "outputs", scores.outputs),
    ):
        return lambert("finetune", out=out, **flags)


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(path / "model.safetensors")
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def held_out(out: Path) -> list[tuple[int, float, int]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    scored = [row for row in rows if "heldout/accuracy" in row]
    return [(row["step"], row["heldout/accuracy"], row.get("best_update", 0)) for row in scored]


def test_the_best_weights_are_published(flags: dict[str, object], tmp_path: Path, lambert: Lambert) -> None:
    done = run(lambert, tmp_path / "run", flags)
    assert done.code == 0, done.err
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores == {"accuracy": 0.7, "loss": 1.0, "best_update": 8.0, "final_accuracy": 0.3}
    assert "best accuracy 0.7 after update 8 (0.3 after the last, 24)" in done.err
    bests = [(step, value, 4 if step < 8 else 8) for step, value in SCORED.items()]
    assert held_out(tmp_path / "run") == bests
    assert (tmp_path / "run" / "checkpoints" / "step-000024").is_dir()
    eight = lambert("finetune", out=tmp_path / "plain", **{**flags, "train__save_every": 8, "train__keep_best": ""})
    assert eight.code == 0, eight.err
    best = weights(tmp_path / "run" / "best")
    assert not equal(best, weights(tmp_path / "plain" / "checkpoints" / "step-000024"))
    assert equal(weights(tmp_path / "run" / "checkpoints" / "step-000024"), weights(
        tmp_path / "plain" / "checkpoints" / "step-000024"
    )), "training does not depend on keep_best"  # fmt: skip
    word = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(weights(tmp_path / "run" / "model")[word], best["encoder.words.weight"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs that are not stopped, by patience."""
    return {patience: tmp_path_factory.mktemp("whole") / "run" for patience in (0, 3)}


@pytest.mark.parametrize(("patience", "stop_at", "before"), [(0, 12, False), (3, 8, True), (3, 20, True)])
def test_a_run_that_is_stopped_gives_the_same_result(
    patience: int, stop_at: int, before: bool, flags: dict[str, object], tmp_path: Path, lambert: Lambert,
    whole: dict[int, Path],
) -> None:  # fmt: skip
    """An evaluation that a signal interrupts is computed when the run continues."""
    flags, out, other = flags | {"train__patience": patience}, tmp_path / "run", whole[patience]
    if not other.exists():
        assert run(lambert, other, flags).code == 0
    last_line(run(lambert, out, flags, stop_at=stop_at, before=before), 75, "SIGTERM")
    assert not (out / "model").exists()
    done = run(lambert, out, flags, first=stop_at + 4 * (not before))
    assert done.code == 0, done.err
    assert (out / "scores.json").read_bytes() == (other / "scores.json").read_bytes()
    assert equal(weights(out / "model"), weights(other / "model"))
    assert held_out(out) == held_out(other)
    if stop_at == 20:  # the newest checkpoint is from before the evaluation that ended the run
        again = run(lambert, out, flags, first=stop_at)
        assert "has all its 20 updates already of 24" in again.out


def test_a_run_that_keeps_no_weights_repeats_an_interrupted_evaluation(
    flags: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    """Also one that is interrupted twice, but not one that was complete when the signal came."""
    flags, out = flags | {"train__keep_best": ""}, tmp_path / "run"
    for first, stop_at, before, scored in [(4, 12, True, 2), (12, 12, True, 2), (12, 16, False, 4)]:
        called = run(lambert, out, flags, first=first, stop_at=stop_at, before=before)
        last_line(called, 75, "SIGTERM", f"update {stop_at}")
        assert [step for step, _, _ in held_out(out)] == [*SCORED][:scored]
    assert run(lambert, out, flags, first=20).code == 0
    assert held_out(out) == [(step, value, 0) for step, value in SCORED.items()]


def test_a_signal_while_the_best_weights_predict_stops_the_run(
    flags: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    """Otherwise examples.jsonl would have the predictions of the last weights."""
    out = tmp_path / "run"
    last_line(run(lambert, out, flags, stop_at=28, before=True), 75, "SIGTERM", "update 24")
    assert not (out / "model").exists()
    assert not (out / "examples.jsonl").exists()
    assert run(lambert, out, flags, first=24).code == 0
    assert json.loads((out / "scores.json").read_text())["best_update"] == 8.0
    assert (out / "examples.jsonl").is_file()


def test_a_run_that_is_killed_gives_the_same_result(
    flags: dict[str, object], tmp_path: Path, lambert: Lambert, whole: dict[int, Path]
) -> None:
    """The best weights are of update 8, the newest checkpoint that the kill left of update 6."""
    out, flags = tmp_path / "run", flags | {"train__save_every": 6, "train__keep_checkpoints": 9}
    assert run(lambert, out, flags).code == 0
    expected = weights(out / "model"), held_out(out), (out / "scores.json").read_bytes()
    shutil.rmtree(out / "model")
    for step in (12, 18, 24):
        shutil.rmtree(out / "checkpoints" / f"step-{step:06d}")
    assert run(lambert, out, flags, first=8).code == 0
    assert equal(weights(out / "model"), expected[0])
    assert (held_out(out), (out / "scores.json").read_bytes()) == expected[1:]


def test_a_run_without_improvement_ends(flags: dict[str, object], tmp_path: Path, lambert: Lambert) -> None:
    done = run(lambert, tmp_path / "run", flags | {"train__patience": 3})
    assert done.code == 0, done.err
    reason = "accuracy has not improved in 3 evaluations since update 8 (0.7); train.patience = 3"
    assert f"the run ends after update 20 of 24: {reason}" in done.err
    assert f"the run ends after update 20 of 24: {reason}" in (tmp_path / "run" / "log.txt").read_text()
    assert [step for step, *_ in held_out(tmp_path / "run")] == [4, 8, 12, 16, 20]
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert (scores["best_update"], scores["final_accuracy"]) == (8, 0.65)
    again = lambert("finetune", out=tmp_path / "run", **flags, train__patience=3)
    assert (again.code, again.err) == (0, "")
    assert f"has all its 20 updates already of 24, because {reason}" in again.out
    rates = [json.loads(line).get("lr") for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert min(filter(None, rates)) > 1e-3 * 4 / 22, "the schedule is that of 24 updates"


def test_what_cannot_be_scored_is_refused(flags: dict[str, object], tmp_path: Path, lambert: Lambert) -> None:
    called = lambert("finetune", out=tmp_path / "run", **flags | {"train__keep_best": "acuracy"})
    line = last_line(called, 2, "train.keep_best = 'acuracy' is not a score of this run", "Did you mean 'accuracy'?")
    assert "accuracy, f1, f1_macro, matthews, loss" in line
    assert not (tmp_path / "run" / "checkpoints").exists()
    del flags["dev"]
    one_line(lambert("finetune", out=tmp_path / "other", **flags), 2, "train.keep_best = 'accuracy' needs dev")


def test_without_dev_the_run_says_that_nothing_is_scored(
    flags: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    short = {**flags, "train__steps": 1, "train__keep_best": ""}
    assert "nothing is scored" not in lambert("finetune", out=tmp_path / "with", **short).out
    del short["dev"]
    assert (
        "nothing is scored, because no dev file is given (--dev)"
        in lambert("finetune", out=tmp_path / "without", **short).out
    )
