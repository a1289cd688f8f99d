"""The model for padded rows computes what Lambert computes, for every family and head."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import HEADS, KINDS, saved

from lambert.wings.convert.original import Original, read
from lambert.wings.convert.padded import PaddedModel, export_program, output_names
from lambert.wings.convert.sample import LargestDifference, pad, samples
from lambert.wings.convert.settings import ExportConfig


def opened(kind: str, head: str, folder: Path, **settings: bool) -> tuple[Original, PaddedModel]:
    original = read(ExportConfig(saved(kind, head, folder / "model", **settings), folder / "out"))
    return original, PaddedModel(original.model, original.finish)


def pairs() -> list[Any]:
    """Every family and head, those slow whose parts other pairs have."""
    few = {"mpnet": "vector", "nomic_bert": "mlm", "gte": "label", "eurobert": "tag", "camembert": "span"}
    slow = {(kind, head) for kind in few for head in HEADS if head != few[kind]}
    return [pytest.param(*pair, marks=[pytest.mark.slow] * (pair in slow)) for pair in itertools.product(KINDS, HEADS)]


@pytest.mark.parametrize(("kind", "head"), pairs())
def test_equal_outputs(kind: str, head: str, tmp_path: Path) -> None:
    original, net = opened(kind, head, tmp_path)
    difference = LargestDifference()
    with torch.inference_mode():
        for rows in samples(original):
            found = net.eval()(*[torch.from_numpy(rows.inputs[name]) for name in net.inputs])
            difference.add(rows, {name: x.numpy() for name, x in zip(net.outputs, found, strict=True)})
    assert max(largest for _, largest in difference.outputs.values()) > 0.01
    assert difference.absolute <= 5e-6
    assert net.outputs == output_names(original.model.labels)
    assert ("token_type_ids" in net.inputs) == (kind in ("bert", "electra", "nomic_bert"))


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_padding_changes_nothing(kind: str, tmp_path: Path) -> None:
    """Also far more padding than tokens, where tokens near the end read only padding."""
    _, net = opened(kind, "tag", tmp_path)
    row, other = [2, 9, 11, 30, 3], [2] + [7 + n % 40 for n in range(150)] + [3]
    several = pad([row, other], [[0] * len(row), [0] * len(other)], net.inputs)
    alone = pad([row], [[0] * len(row)], net.inputs)
    with torch.inference_mode():
        (wide,), (found,) = (
            net.eval()(*[torch.from_numpy(inputs[name]) for name in net.inputs]) for inputs in (several, alone)
        )
    assert wide.isfinite().all()
    np.testing.assert_allclose(wide[0, : len(row)].numpy(), found[0].numpy(), atol=2e-6)


def test_vectors_as_they_are(tmp_path: Path) -> None:
    for normalize in (True, False):
        original, net = opened("distilbert", "vector", tmp_path / str(normalize), normalize=normalize)
        rows = next(iter(samples(original)))
        with torch.inference_mode():
            states_BMD, vectors_BD = net.eval()(*[torch.from_numpy(rows.inputs[name]) for name in net.inputs])
        mean = states_BMD[0].mean(0)
        wanted = mean / mean.norm() if normalize else mean
        np.testing.assert_allclose(vectors_BD[0].numpy(), wanted.numpy(), atol=1e-6)


def test_a_program_of_any_size(tmp_path: Path) -> None:
    """One program takes 1 row and several, of 2 tokens and as many as there are positions."""
    original, net = opened("modernbert", "choice", tmp_path)
    program = export_program(net.eval(), original.model.config.positions).module()
    for shape in [(1, 1, 2), (1, 4, 192), (3, 2, 33)]:
        inputs = torch.full(shape, 9), torch.ones(shape, dtype=torch.int64)
        with torch.inference_mode():
            torch.testing.assert_close(program(*inputs)[0], net(*inputs)[0], atol=2e-6, rtol=0)
    with pytest.raises(Exception, match=r"193|192"):
        program(torch.full((1, 1, 193), 9), torch.ones(1, 1, 193, dtype=torch.int64))
