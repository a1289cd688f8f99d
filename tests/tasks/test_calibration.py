"""Calibration, compared with a loop over the bins and with scipy's minimiser."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from lambert.tasks.calibration import BINS, COLDEST, HOTTEST, reliability, temperature
from lambert.tasks.metrics import softmax


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


def test_the_temperature_is_bounded() -> None:
    sure = softmax(np.array([[9.0, 0.0], [0.0, 9.0]]))
    assert temperature(sure, np.array([0, 1])) == pytest.approx(COLDEST)
    assert temperature(sure, np.array([1, 0])) == pytest.approx(HOTTEST)
