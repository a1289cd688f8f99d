"""`lambert predict`: reads rows from standard input or files and writes one prediction for each, in constant memory."""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from lambert.core.batch import Source
from lambert.core.errors import DataError, UsageError
from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.engine.signals import graceful_stop
from lambert.inference.answer_file import Add, answer_file, row_text
from lambert.inference.input_rows import InputRow, json_lines
from lambert.inference.outputs import compare_ranks
from lambert.inference.text_model import TextModel
from lambert.runs.result import Say, silent
from lambert.tasks import Outputs, Row, Task, asked
from lambert.tasks.bad_rows import readable
from lambert.verbs.settings.predict import PredictConfig

OutputsOf = Callable[[Source], Outputs]
"""Runs the model over every sequence of a Source. All ranks must call it."""
_INPUT_SECONDS = 365 * 86_400.0
"""Maximum pause of the input."""
_END = "[]"
"""Broadcast to the other ranks instead of a chunk at the end of the input."""


def run(config: PredictConfig, say: Say = silent) -> None:
    """Reads until the input ends. The "id" of a row is copied to its prediction. Raises SavedAndStopped after a signal,
    and DataError at the end if rows had errors."""
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
            tally = Tally()
            try:
                with answer_file(config.out) if config.out else nullcontext(lambda row: say(row_text(row))) as add:
                    _lead(task, model.outputs, world, config, tally, add)
            except (DataError, UsageError, BrokenPipeError) as error:
                failure = error  # the other ranks do not have it: it is raised when all have ended
            world.broadcast_text(_END)
            failure = failure or tally.error()
        else:
            _follow(task, model.outputs, world)
    if failure is not None:
        raise failure


class Tally:
    """Counts rows and their errors."""

    def __init__(self, rows: int = 0, errors: int = 0, first: str = "") -> None:
        self.rows, self.errors, self.first = rows, errors, first
        """Numbers of rows and of those with errors, and the first error."""

    def add(self, errors: Sequence[DataError], rows: int) -> None:
        """Counts the rows of a chunk, and its errors in the order of the rows."""
        self.first = self.first or "".join(map(str, errors[:1]))
        self.rows, self.errors = self.rows + rows, self.errors + len(errors)

    def error(self) -> DataError | None:
        """Returns the error to raise at the end; None if all rows were predicted."""
        if not self.errors:
            return None
        were = "has an error, which stands" if self.errors == 1 else "have errors, which stand"
        which = "it is" if self.errors == 1 else "the first is"
        return DataError(
            f"{self.errors:,} of {self.rows:,} row{'s' * (self.rows != 1)} {were} in place of a prediction; {which}: "
            f"{self.first}"
        )


def _lead(
    task: Task[Any, Any], outputs_of: OutputsOf, world: World, config: PredictConfig, tally: Tally, add: Add
) -> None:
    """Reads the input, sends the rows of every chunk to the other ranks, and adds the predictions. Raises BrokenPipeError
    for a closed output."""
    rows = json_lines(getattr(sys.stdin, "buffer", sys.stdin))
    while chunk := list(islice(rows, config.chunk)):
        for answer in _answers(task, outputs_of, world, config, chunk, tally):
            add(answer)


def _answers(
    task: Task[Any, Any], outputs_of: OutputsOf, world: World, config: PredictConfig, chunk: Sequence[InputRow],
    tally: Tally,
) -> Iterator[Row]:  # fmt: skip
    """Yields the prediction or the error of each row of a chunk. Raises DataError for the first error if `errors` is
    "stop"."""
    errors = {number: row.error for number, row in enumerate(chunk) if row.error is not None}
    whole = [number for number in range(len(chunk)) if number not in errors]
    places, rows = [chunk[number].place for number in whole], [chunk[number].row for number in whole]
    good, request, found = readable(task, rows, places)
    errors |= {whole[number]: error for number, error in found.items()}
    if errors and config.errors == "stop":
        raise errors[min(errors)]
    tally.add([errors[number] for number in sorted(errors)], len(chunk))
    answers: Iterator[Row] = iter(())
    if request is not None:
        if world.size > 1:
            world.broadcast_text(json.dumps([[rows[number] for number in good], [places[number] for number in good]]))
        source, finish = request
        answers = iter(finish(outputs_of(source)))
    for number, row in enumerate(chunk):
        answer = {"error": str(errors[number])} if number in errors else next(answers)
        yield {"id": row.row["id"], **answer} if "id" in row.row and "id" not in answer else answer


def _follow(task: Task[Any, Any], outputs_of: OutputsOf, world: World) -> None:
    """Computes this rank's share of every chunk."""
    while received := json.loads(world.broadcast_text("", _INPUT_SECONDS)):
        rows, places = received
        source, finish = asked(task, rows, places)
        deque(finish(outputs_of(source)), maxlen=0)
