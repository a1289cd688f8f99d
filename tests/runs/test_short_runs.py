"""Warnings of a run that is too short, or that did not leave the unigrams."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lambert.runs.config import TrainConfig
from lambert.runs.log import BELOW, FEW_UPDATES, explain_few_updates, explain_unigram_loss
from lambert.verbs.report.folders import read
from lambert.verbs.report.ranks import incidents
from lambert.verbs.report.sections import advice

MANIFEST = {"splits": {"heldout": {"unigram_cross_entropy": 6.0, "unigram_entropy": 5.0}}}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (TrainConfig(steps=6), "Raise train.steps, or lower"),
        (TrainConfig(epochs=1), "Raise train.epochs, or lower"),
        (TrainConfig(steps=6, epochs=1), "Raise train.steps and train.epochs, or lower"),
    ],
)
def test_few_updates(options: TrainConfig, named: str) -> None:
    warning = explain_few_updates(options, 1_536)
    assert warning.startswith("warning: the run has only 6 updates.")
    assert named in warning
    assert warning.endswith("an epoch of 1,536 sequences has 6.0 updates of 256")


def test_updates_enough() -> None:
    assert explain_few_updates(TrainConfig(steps=FEW_UPDATES), 1_000) == ""
    assert explain_few_updates(TrainConfig(steps=FEW_UPDATES - 1), 1_000)


def test_the_bar_is_what_frequencies_alone_give() -> None:
    warning = explain_unigram_loss({"mlm": 5.9}, MANIFEST)
    assert "masked-LM loss is 5.90 nats" in warning
    assert "unigram model 6.00" in warning
    assert explain_unigram_loss({"mlm": 6.0 * BELOW - 0.01}, MANIFEST) == ""
    assert explain_unigram_loss({}, MANIFEST) == ""
    assert explain_unigram_loss({"mlm": 1.0}, {"splits": {"heldout": {"unigram_cross_entropy": 0.0}}}) == ""


def test_a_short_run_warns_at_its_first_start_and_at_its_end(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Callable[..., Any]
) -> None:
    done = lambert("pretrain", corpus=corpus, out=tmp_path / "run", **small, train__steps=2)
    first, *_, model, last = done.out.splitlines()
    assert first.startswith("warning: the run has only 2 updates.")
    assert model.startswith("model  ")
    assert "the encoder hardly uses context yet" in last
    log = read(tmp_path / "run", "run").log
    assert [text for _, text in log if text.startswith("warning: ")] == [first, last]
    assert log[0][1] == first
    assert log[-1][1] == last
    assert incidents([read(tmp_path / "run", "run")]) is None
    (notice,) = advice(read(tmp_path / "run", "run"))
    assert notice == f"run: {last.removeprefix('warning: ')}"
    again = lambert("pretrain", corpus=corpus, out=tmp_path / "run", **small, train__steps=2)
    assert "warning: the run has only" not in again.out
    assert read(tmp_path / "run", "run").log == log
