"""`lambert predict`: JSON lines from standard input, one answer a line to standard output, in constant memory."""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambert.core.batch import Source
from lambert.core.errors import DataError, UsageError
from lambert.engine.cluster.dist import World
from lambert.engine.signals import polite
from lambert.stages.inference import InferenceConfig, compare_ranks, load_task, outputs, ready
from lambert.tasks import Outputs, Task, predict

OutputsOf = Callable[[Source], Outputs]
"""Runs the model over every sequence, on all ranks together."""
_INPUT_SECONDS = 365 * 86_400.0
"""How long the input may pause."""
_END = "[]"
"""What the other ranks are given for a chunk when there is none."""


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
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        raise DataError(
            "Started again after a crash of one process, when lines had been read that are gone now. Start the command "
            "anew, with the lines that have no answer."
        )
    with World.detect(config.inference.device) as world:
        with world.together("reading the model"):
            model, task = load_task(config.model, config.task)
            model, precision = ready(model, config.inference.precision, world.device)
        compare_ranks(world, config.model)

        def outputs_of(source: Source) -> Outputs:
            return outputs(model, source, precision, world, config.inference.micro_tokens)

        work = _lead if world.is_first else _follow
        failure = work(task, outputs_of, world, config.chunk)
    if failure is not None:
        raise failure


def _lead(task: Task[Any, Any], outputs_of: OutputsOf, world: World, chunk: int) -> Exception | None:
    """Reads standard input, hands every chunk that can be answered to the other ranks, and prints the answers. Gives
    the bad line, or the end of the output's reader, that ended it: the other ranks have nothing to say to it."""
    lines: list[str] = []

    def heard() -> Iterator[str]:
        for line in _lines(sys.stdin):
            lines.append(line)
            yield line

    def shared(source: Source) -> Outputs:
        world.broadcast_text(json.dumps(lines))
        lines.clear()
        return outputs_of(source)

    failure = None
    try:
        for answer in predict(task, shared, heard(), chunk=chunk):
            print(json.dumps(answer, ensure_ascii=False), flush=True)
    except (DataError, BrokenPipeError) as error:
        failure = error
    world.broadcast_text(_END)
    return failure


def _follow(task: Task[Any, Any], outputs_of: OutputsOf, world: World, chunk: int) -> None:
    """Computes this rank's share of every chunk."""
    while lines := json.loads(world.broadcast_text("", _INPUT_SECONDS)):
        deque(predict(task, outputs_of, lines, chunk=chunk), maxlen=0)


def _lines(stream: Iterable[str]) -> Iterator[str]:
    try:
        yield from stream
    except UnicodeDecodeError as error:
        raise DataError(f"The input is not UTF-8 ({error.reason}). Convert it to UTF-8.") from error
