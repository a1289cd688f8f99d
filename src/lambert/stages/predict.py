"""`lambert predict`: JSON lines from standard input, one answer a line to standard output, in constant memory."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lambert.core.errors import DataError, UsageError
from lambert.engine.dist import World
from lambert.engine.signals import polite
from lambert.stages.inference import InferenceConfig, load_task, outputs, ready
from lambert.tasks import predict


@dataclass(frozen=True, slots=True)
class PredictConfig:
    """Answers of a model, line by line: {"text": ...}, {"question": ..., "context": ...}, or a text with [MASK]."""

    model: Path
    """Run folder or model folder: fine-tuned, or pre-trained (then it fills in [MASK])."""
    task: str = ""
    """classify, regress, squad, tag or mask; empty: the task that the model folder describes."""
    chunk: int = 512
    """Lines read before the first answer; more are packed better, fewer are answered sooner."""
    inference: InferenceConfig = field(default_factory=InferenceConfig)

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise UsageError(f"chunk = {self.chunk} must be at least 1.")


def run(config: PredictConfig) -> None:
    """Reads until the input ends; "id" is handed through. Raises SavedAndStopped after a signal."""
    with polite("; the answers so far are whole lines", "the same command, with the lines that have none."):
        _answer(config)


def _answer(config: PredictConfig) -> None:
    model, task = load_task(config.model, config.task)
    world = World.detect(config.inference.device)
    model, precision = ready(model, config.inference.precision, world.device)
    answers = predict(
        task,
        lambda source: outputs(model, source, precision, world, config.inference.micro_tokens),
        _lines(sys.stdin),
        chunk=config.chunk,
    )
    for answer in answers:
        print(json.dumps(answer, ensure_ascii=False), flush=True)


def _lines(stream: Iterable[str]) -> Iterator[str]:
    try:
        yield from stream
    except UnicodeDecodeError as error:
        raise DataError(f"The input is not UTF-8 ({error.reason}). Convert it to UTF-8.") from error
