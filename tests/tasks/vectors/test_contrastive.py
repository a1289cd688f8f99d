"""Losses of sentence vectors: the values and gradients of sentence-transformers, and what equal texts change."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lambert.tasks.vectors import contrastive

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "contrastive.json").read_text())
LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "ranking": (contrastive.ranking, 4),
    "ranking-pairs": (contrastive.ranking, 2),
    "cosent": (contrastive.cosent, 2),
    "cosine": (contrastive.cosine_error, 2),
    "margin": (contrastive.margin_error, 4),
    "widths": (contrastive.at_widths(contrastive.ranking, (6, 3)), 4),
}


def vectors(texts: int) -> Tensor:
    return torch.tensor(GOLDEN["vectors"][:texts]).transpose(0, 1).contiguous().requires_grad_()


def different(examples: int, texts: int) -> Tensor:
    return torch.arange(examples * texts).view(examples, texts)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_those_of_sentence_transformers(name: str) -> None:
    loss, texts = LOSSES[name]
    found_NGD = vectors(texts)
    named = {"cosent": "scores", "cosine": "scores", "margin": "margins"}
    labels = torch.tensor(GOLDEN[named[name]]) if name in named else different(len(found_NGD), texts)
    losses_N = loss(found_NGD, labels)
    assert losses_N.shape == (len(found_NGD),)
    torch.testing.assert_close(losses_N.mean(), torch.tensor(GOLDEN[name]["loss"]))
    (grad_NGD,) = torch.autograd.grad(losses_N.mean(), [found_NGD])
    expected_NGD = torch.tensor(GOLDEN[name]["gradients"]).transpose(0, 1)
    torch.testing.assert_close(grad_NGD, expected_NGD, rtol=1e-4, atol=1e-5)


def test_equal_texts_are_no_negatives() -> None:
    found_NGD, texts_NG = vectors(2), different(5, 2)
    alone_N = contrastive.ranking(found_NGD[:4], texts_NG[:4])
    twin_NGD = torch.cat([found_NGD[:4], found_NGD[:1]])  # the first example once more
    twin_NG = torch.cat([texts_NG[:4], texts_NG[:1]])
    twice_N = contrastive.ranking(twin_NGD, twin_NG)
    torch.testing.assert_close(twice_N[0], alone_N[0])
    torch.testing.assert_close(twice_N[4], alone_N[0])
    counted_N = contrastive.ranking(twin_NGD, different(5, 2))  # as if they were different texts
    assert counted_N[0] > twice_N[0]


def test_cosent_without_pairs_in_order_is_nothing() -> None:
    assert contrastive.cosent(vectors(2), torch.ones(5)).sum() == 0
