"""A model over a labelled or unlabelled Source: what finetune, evaluate and predict share."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lambert.core.batch import Source
from lambert.core.errors import DataError, UsageError
from lambert.corpus import tokenizer as tokenizers
from lambert.data.stream import once
from lambert.engine.dist import World
from lambert.engine.precision import Precision
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.heads import Model
from lambert.tasks import Task, create, described


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """How a model is run on data."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the products; bfloat16 is faster where the processor has it and moves scores by hundredths."""
    micro_tokens: int = 8192
    """Tokens computed at once; bounds the memory and changes no result."""
    device: str = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:N or mps."""


def model_folder(path: Path) -> Path:
    """The model folder that `path` is, or that the run folder `path` holds. Raises DataError where there is neither."""
    folder = path / "model" if (path / "model").is_dir() else path
    if not folder.is_dir():
        raise DataError(f"No such model folder: {path}.")
    return folder


def load_task(path: Path, name: str) -> tuple[Model, Task[Any, Any]]:
    """The model in a folder and the task it was fine-tuned for; `name`, where given, must be that task."""
    folder = model_folder(path)
    settings = layout.read_config(folder)
    tokenizer = tokenizers.load(folder)
    config = described(settings, name)
    positions = layout.encoder_config(settings, folder / layout.CONFIG).positions
    task = create(replace(config, max_length=min(config.max_length, positions)), tokenizer)
    model, report = weights.load_with_report(folder, {task.head: task.labels}, tokenizer.get_vocab_size())
    if report.missing:
        raise DataError(f"{folder} has no head for {task.config.name!r} (no {report.missing[0]}): fine-tune it.")
    return model.eval(), task


def check_positions(max_length: int, model: Model) -> None:
    """Raises UsageError where sequences of `max_length` tokens exceed the model's positions."""
    if max_length > model.config.positions:
        raise UsageError(
            f"task.max_length = {max_length} exceeds the model's {model.config.positions} positions. "
            f"Use --task.max-length {model.config.positions} or less."
        )


def outputs(
    model: Model,
    source: Source,
    precision: Precision,
    world: World,
    micro_tokens: int,
    advance: Callable[[int], None] = lambda sequences: None,
) -> Iterator[Mapping[str, Tensor]]:
    """`model.outputs` of every sequence of a Source, in order, batch by batch; tells `advance` how many are done."""
    model.eval()
    with torch.inference_mode():
        for batch in once(source, micro_tokens=micro_tokens):
            with precision.autocast():
                found = model.outputs(world.put(batch))
            yield found
            advance(batch.sequences)
