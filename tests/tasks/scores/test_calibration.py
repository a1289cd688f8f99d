"""Calibration, compared with a loop over the bins and with scipy's minimiser."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from lambert.tasks.scores.calibration import BINS, COLDEST, HOTTEST, at_temperature, reliability, temperature
from lambert.tasks.scores.metrics import softmax


def test_the_expected_calibration_error_is_that_of_the_definition() -> None:
    draw = np.random.default_rng(0)
    confidence, correct = np.append(draw.uniform(0.3, 1, 500), [1.0, 1 / BINS, 0.0]), draw.random(503) < 0.7
    total = 0.0
    for number in range(BINS):
        low, high = number / BINS, (number + 1) / BINS
        inside = (confidence > low) & (confidence <= high) if number else confidence <= high
        if inside.any():
            total += inside.sum() / 503 * abs(correct[inside].mean() - confidence[inside].mean())
    found = reliability(confidence, correct)
    assert found.error == pytest.approx(total)
    assert found.counts_B.sum() == 503
    assert (found.counts_B > 0).all()


def test_the_confidence_of_a_calibrated_model_is_its_accuracy() -> None:
    draw = np.random.default_rng(1)
    confidence = draw.uniform(0.5, 1, 200_000)
    assert reliability(confidence, draw.random(200_000) < confidence).error < 0.01


@pytest.mark.parametrize("heat", [0.4, 1.0, 3.0])
def test_the_temperature_minimises_the_loss(heat: float) -> None:
    draw = np.random.default_rng(2)
    logits = draw.normal(0, 2, (4000, 4))
    truth = np.array([draw.choice(4, p=chances) for chances in softmax(logits)])

    def loss(hot: float) -> float:
        return float(-np.log(softmax(logits * heat / hot)[np.arange(4000), truth]).mean())

    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-8}).x
    found = temperature(softmax(logits * heat), truth)
    assert found == pytest.approx(best, rel=1e-4)
    assert found == pytest.approx(heat, rel=0.06)


def test_probabilities_at_a_temperature_are_those_of_the_divided_logits() -> None:
    logits = np.random.default_rng(3).normal(0, 5, (50, 3))
    for heat in (0.05, 1.0, 1.7, 20.0):
        assert at_temperature(softmax(logits), heat) == pytest.approx(softmax(logits / heat), rel=1e-9)
    assert at_temperature(np.array([[1.0, 0.0]]), 20.0).sum() == 1.0
    assert at_temperature(np.zeros((0, 3)), 2.0).shape == (0, 3)


def test_the_temperature_is_bounded() -> None:
    sure = softmax(np.array([[9.0, 0.0], [0.0, 9.0]]))
    assert temperature(sure, np.array([0, 1])) == pytest.approx(COLDEST)
    assert temperature(sure, np.array([1, 0])) == pytest.approx(HOTTEST)
