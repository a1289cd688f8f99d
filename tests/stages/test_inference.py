"""Which folder holds the model, and what a batch size may not change."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lambert.core.errors import DataError, UsageError
from lambert.engine.dist import World
from lambert.engine.precision import Precision
from lambert.stages.inference import check_positions, load_task, model_folder, outputs


def test_a_run_folder_stands_for_its_model(pretrained: Path, tmp_path: Path) -> None:
    assert model_folder(pretrained) == model_folder(pretrained / "model") == pretrained / "model"
    with pytest.raises(DataError, match="No such model folder"):
        model_folder(tmp_path / "none")


def test_a_task_is_cut_to_the_models_positions(pretrained: Path) -> None:
    model, task = load_task(pretrained, "")
    assert (task.config.name, task.config.max_length, model.training) == ("mask", 64, False)
    check_positions(64, model)
    with pytest.raises(UsageError, match=r"task\.max_length = 65 exceeds the model's 64 positions"):
        check_positions(65, model)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_outputs_come_in_order_whatever_the_batches(
    precision: str, tuned: Callable[[str], Path], labelled: Callable[[str, str], Path]
) -> None:
    model, task = load_task(tuned("classify"), "")
    data, world = task.read(labelled("classify", "dev")), World.detect("cpu")
    found = [
        torch.cat(
            [batch["label"].float() for batch in outputs(model, data, Precision(precision, world.device), world, n)]
        )
        for n in (1, 50, 10_000)
    ]
    assert found[0].shape == (16, 2)
    for other in found[1:]:
        assert float((found[0] - other).abs().max()) < (1e-5 if precision == "float32" else 0.1)
