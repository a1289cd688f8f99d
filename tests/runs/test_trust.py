"""The trust ratios in the log are those of the optimizer, for each group of tensors."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.optim.groups import decay_groups
from lambert.optim.lamb import Lamb
from lambert.runs.log import trust_summary

Lambert = Callable[..., Any]


@pytest.mark.parametrize("fused", [True, False])
def test_groups_have_the_figures_of_their_tensors(fused: bool) -> None:
    shape = EncoderConfig(vocabulary=50, layers=2, hidden=16, heads=2, intermediate=32, positions=8)
    model = weights.draw(shape, {"mlm": 0}, 0)
    optimizer = Lamb(decay_groups(model), lr=1e-3, fused=fused)
    assert trust_summary(optimizer) == {}
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    ratios = optimizer.trust_ratios()
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
    assert set(optimizer.trust_ratios(adapted=True)) == matrices
    assert {ratio for name, ratio in ratios.items() if name not in matrices} == {1.0}
    found = trust_summary(optimizer)
    blocks = [ratio for name, ratio in ratios.items() if ".blocks." in name and name in matrices]
    assert len(blocks) == 12
    assert [found[f"trust/blocks_{name}"] for name in ("min", "median", "max")] == [
        min(blocks),
        median(blocks),
        max(blocks),
    ]
    assert found["trust/heads_min"] == found["trust/heads_max"] == ratios["heads.mlm.dense.weight"]
    assert len(found) == 9


def test_other_optimizers_have_none() -> None:
    assert trust_summary(torch.optim.AdamW([torch.zeros(2, requires_grad=True)])) == {}


@pytest.mark.parametrize(("name", "logged"), [("lamb", True), ("adamw", False)])
def test_rows_have_them(
    name: str, logged: bool, corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    flags = small | {"corpus": corpus, "out": tmp_path / "run", "train__steps": 4, "optim__name": name}
    done = lambert("pretrain", **flags)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ["trust/blocks_median" in row for row in rows if "lr" in row] == [logged, logged]
