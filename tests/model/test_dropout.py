"""Dropout: its rate, its scale, and what it is a function of."""

import pytest
import torch

from lambert.model.dropout import dropout, keep_mask, survival

TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9])
def test_rate(dtype: torch.dtype, probability: float) -> None:
    torch.manual_seed(1)
    mask = keep_mask((400, 1003), probability, dtype)
    assert mask.dtype == dtype
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    kept = float(mask.double().mean())
    assert abs(kept - (1 - probability)) < 5 * (probability * (1 - probability) / 401200) ** 0.5 + 2**-17
    assert abs(survival(probability) - (1 - probability)) <= 2**-17


def test_survivors_are_scaled() -> None:
    torch.manual_seed(1)
    values = torch.ones(10000)
    dropped = dropout(values, 0.25, training=True)
    assert dropped.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert float(dropped.mean()) == pytest.approx(1, abs=0.03)


def test_nothing_is_dropped_outside_training_or_at_zero() -> None:
    values = torch.ones(5)
    assert dropout(values, 0.5, training=False) is values
    assert dropout(values, 0.0, training=True) is values


def test_a_function_of_the_seed_and_not_of_threads() -> None:
    masks = []
    for seed, threads in ((7, 1), (7, 2), (8, 1)):
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        masks.append(keep_mask((300, 300), 0.3, torch.float32))
    torch.set_num_threads(1)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_elements_are_independent() -> None:
    torch.manual_seed(2)
    rows = keep_mask((100_000, 4), 0.5, torch.float64)
    correlation = torch.corrcoef(torch.cat([rows.T, rows.roll(1, 0).T]))
    correlation.fill_diagonal_(0)
    assert float(correlation.abs().max()) < 5 / 100_000**0.5
