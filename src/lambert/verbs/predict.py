"""`lambert predict`: reads JSON lines from standard input and writes one prediction per line, in constant memory."""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from lambert.core.batch import Source
from lambert.core.errors import DataError
from lambert.core.files import json_text
from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.engine.signals import graceful_stop
from lambert.inference.answer_file import Add, answer_file
from lambert.inference.outputs import compare_ranks
from lambert.inference.text_model import TextModel
from lambert.runs.result import Say, silent
from lambert.tasks import Outputs, Task, predict
from lambert.verbs.settings.predict import PredictConfig

OutputsOf = Callable[[Source], Outputs]
"""Runs the model over every sequence of a Source. All ranks must call it."""
_INPUT_SECONDS = 365 * 86_400.0
"""Maximum pause of the input."""
_END = "[]"
"""Broadcast to the other ranks instead of a chunk at the end of the input."""


def run(config: PredictConfig, say: Say = silent) -> None:
    """Reads until the input ends. The "id" of a line is copied to its prediction. Raises SavedAndStopped after a
    signal."""
    with graceful_stop(
        "; the predictions so far are complete lines", "To continue: the same command, with the remaining lines."
    ):
        _answer(config, say)


def _answer(config: PredictConfig, say: Say) -> None:
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        raise DataError(
            "The launcher restarted this process after a crash, but the lines that were read before are lost. Run the "
            "command again with the lines that have no prediction."
        )
    failure: Exception | None = None
    with detect(config.inference.device) as world:
        with world.together("reading the model"):
            model = TextModel(config.model, config.task, config.code, config.inference, world, config.columns)
            task = model.task
        compare_ranks(world, config.model)
        if world.is_first:
            try:
                with answer_file(config.out) if config.out else nullcontext(lambda row: say(json_text(row))) as add:
                    _lead(task, model.outputs, world, config.chunk, add)
            except (DataError, BrokenPipeError) as error:
                failure = error  # the other ranks do not have it: it is raised when all have ended
        else:
            _follow(task, model.outputs, world, config.chunk)
    if failure is not None:
        raise failure


def _lead(task: Task[Any, Any], outputs_of: OutputsOf, world: World, chunk: int, add: Add) -> None:
    """Reads standard input, broadcasts every valid chunk to the other ranks, and adds the predictions. Raises DataError
    for a bad line and BrokenPipeError for a closed output, when the other ranks know that the input has ended."""
    lines: list[str] = []

    def recorded() -> Iterator[str]:
        for line in _lines(sys.stdin):
            lines.append(line)
            yield line

    def broadcast(source: Source) -> Outputs:
        world.broadcast_text(json.dumps(lines))
        lines.clear()
        return outputs_of(source)

    try:
        for answer in predict(task, broadcast, recorded(), chunk=chunk):
            add(answer)
    except (DataError, BrokenPipeError):
        world.broadcast_text(_END)
        raise
    world.broadcast_text(_END)


def _follow(task: Task[Any, Any], outputs_of: OutputsOf, world: World, chunk: int) -> None:
    """Computes this rank's share of every chunk."""
    while lines := json.loads(world.broadcast_text("", _INPUT_SECONDS)):
        deque(predict(task, outputs_of, lines, chunk=chunk), maxlen=0)


def _lines(stream: Iterable[str]) -> Iterator[str]:
    try:
        yield from stream
    except UnicodeDecodeError as error:
        raise DataError(f"The input is not UTF-8 ({error.reason}). Convert it to UTF-8.") from error
