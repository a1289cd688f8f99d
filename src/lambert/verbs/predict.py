"""`lambert predict`: JSON lines from standard input, one answer a line to standard output, in constant memory."""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from lambert.core.batch import Source
from lambert.core.errors import DataError
from lambert.core.files import json_text
from lambert.core.settings import check
from lambert.core.world import World
from lambert.distributed.group import detect
from lambert.engine.signals import graceful_stop
from lambert.inference.outputs import InferenceConfig, compare_ranks
from lambert.inference.text_model import TextModel
from lambert.runs.result import Say, silent
from lambert.tasks import Outputs, Task, predict
from lambert.tasks.config import OtherColumns

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
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside that the model folder may import (docs/security.md)."""
    chunk: int = 512
    """Lines read before the first answer; more are packed better, fewer are answered sooner."""
    columns: Annotated[OtherColumns, Parameter(name=("--columns", "--task.columns"))] = field(
        default_factory=OtherColumns
    )
    inference: InferenceConfig = field(default_factory=InferenceConfig)

    def __post_init__(self) -> None:
        check(self, chunk="[1, inf)")


def run(config: PredictConfig, say: Say = silent) -> None:
    """Reads until the input ends; "id" is handed through. Raises SavedAndStopped after a signal."""
    with graceful_stop(
        "; the answers so far are whole lines", "To continue: the same command, with the lines that have none."
    ):
        _answer(config, say)


def _answer(config: PredictConfig, say: Say) -> None:
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        raise DataError(
            "Started again after a crash of one process, when lines had been read that are gone now. Start the command "
            "anew, with the lines that have no answer."
        )
    with detect(config.inference.device) as world:
        with world.together("reading the model"):
            model = TextModel(config.model, config.task, config.code, config.inference, world, config.columns)
            task = model.task
        compare_ranks(world, config.model)
        if world.is_first:
            failure = _lead(task, model.outputs, world, config.chunk, say)
        else:
            failure = None
            _follow(task, model.outputs, world, config.chunk)
    if failure is not None:
        raise failure


def _lead(task: Task[Any, Any], outputs_of: OutputsOf, world: World, chunk: int, say: Say) -> Exception | None:
    """Reads standard input, hands every chunk that can be answered to the other ranks, and says the answers. Gives
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
            say(json_text(answer))
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
