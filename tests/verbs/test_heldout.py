"""Held-out masks are the same for all runs on a corpus: 15% of the tokens, whatever the run masks."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lambert
from lambert.core.batch import Batch
from lambert.verbs import pretrain

OTHER = {
    "rate": 0.3, "whole_word": True, "max_predictions": 2, "mask_share": 1.0, "random_share": 0.0,
}  # fmt: skip


def heldout_of(
    corpus: Path, out: Path, small: dict[str, object], monkeypatch: pytest.MonkeyPatch, **settings: object
) -> tuple[list[Batch], dict[str, float]]:
    """The held-out batches of a run, and its scores."""
    seen: list[Batch] = []

    def evaluate(model: Any, batches: Iterator[Batch], *others: Any) -> dict[str, float]:
        seen.extend(kept := list(batches))
        return evaluated(model, iter(kept), *others)

    with monkeypatch.context() as patched:
        evaluated = pretrain.evaluate
        patched.setattr(pretrain, "evaluate", evaluate)
        run = lambert.pretrain(corpus=corpus, out=out, **small, train__steps=1, optim__lr=1e-30, **settings)
    return seen, run.scores


@pytest.mark.parametrize("mode", ["full", "pairs"])
def test_heldout_masks_do_not_depend_on_the_run(
    mode: str, corpus: Path, small: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masking = {f"masking__{name}": value for name, value in OTHER.items()}
    shape = small | {"packing__mode": mode}
    plain, scores = heldout_of(corpus, tmp_path / "plain", shape, monkeypatch)
    found, others = heldout_of(corpus, tmp_path / "found", shape, monkeypatch, **masking)
    assert others == scores
    assert len(found) == len(plain) > 0
    for one, other in zip(found, plain, strict=True):
        assert one.ids_T.tolist() == other.ids_T.tolist()
        assert one.targets["mlm"].at_N.tolist() == other.targets["mlm"].at_N.tolist()
        bounds = one.bounds_S1.tolist()
        lengths_S = np.diff(bounds)
        at_N = one.targets["mlm"].at_N.numpy()
        counts = [int(((at_N >= begin) & (at_N < end)).sum()) for begin, end in pairwise(bounds)]
        assert counts == np.maximum(1, np.rint(0.15 * lengths_S)).astype(int).tolist()
        assert max(counts) > OTHER["max_predictions"]
