"""`lambert predict`: reads rows from standard input or files and writes one prediction for each, in constant memory.

With files in and a file out, the predictions so far are kept, and the same command continues.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from lambert.core.batch import Source
from lambert.core.errors import DataError, UsageError
from lambert.core.files import json_text
from lambert.core.settings import as_dict
from lambert.core.world import World
from lambert.distributed.agreement import software
from lambert.distributed.detection import detect
from lambert.engine.progress import aside, progress
from lambert.engine.signals import CONTINUE, graceful_stop
from lambert.inference.answer_file import Unfinished, answer_file, input_identity, model_identity, settings_text
from lambert.inference.answer_formats import ERROR
from lambert.inference.input_rows import START, InputFiles, InputRow, Position, plain, rows_of_stream
from lambert.inference.outputs import compare_ranks
from lambert.inference.text_model import TextModel
from lambert.runs.result import Say, silent
from lambert.tasks import Outputs, Row, Task, make_request
from lambert.tasks.reading.unknown import Unknown
from lambert.tasks.task import make_readable_request
from lambert.verbs.settings.predict import PredictConfig

OutputsOf = Callable[[Source], Outputs]
"""Runs the model over every sequence of a Source. All ranks must call it."""
_INPUT_SECONDS = 365 * 86_400.0
"""Maximum pause of the input."""
_END = "[]"
"""Broadcast to the other ranks instead of a chunk at the end of the input."""
_PLACES = ("model", "input", "out")
"""Settings that do not change predictions: the model and the input are compared by their content."""


def run(config: PredictConfig, say: Say = silent) -> None:
    """Reads until the input ends. The "id" of a row is copied to its prediction. Raises SavedAndStopped after a signal,
    and DataError at the end if rows had errors."""
    status, again = _describe_interruption(config)
    with graceful_stop(" before the first prediction; nothing was written", again) as stop:
        _answer(config, say, lambda: setattr(stop, "status", status))


def _describe_interruption(config: PredictConfig) -> tuple[str, str]:
    """Returns the state after an interruption that follows the first predictions, and how to continue."""
    if _continues(config):
        return "; the predictions so far are kept", CONTINUE
    if config.input:
        return "; the predictions so far are complete lines", "To be able to continue, name a file (--out)."
    if config.out is not None:
        return f"; {config.out} was not written", "To be able to continue, name the files to read (--input)."
    return "; the predictions so far are complete lines", "To continue: the same command, with the remaining lines."


def _continues(config: PredictConfig) -> bool:
    """Returns whether the same command continues where it was stopped."""
    return bool(config.input) and config.out is not None


def _answer(config: PredictConfig, say: Say, answered: Callable[[], None]) -> None:
    """Calls `answered` when there are predictions."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) and not _continues(config):
        raise DataError(
            "The launcher restarted this process after a crash, but the lines that were read before are lost. Run the "
            "command again with the lines that have no prediction, or name files as input and out."
        )
    failure: Exception | None = None
    with detect(config.inference.device) as world:
        with world.fail_together("reading the model"):
            columns = replace(config.columns, label="")  # not needed, and `text` may have its name
            model = TextModel(config.model, config.task, config.code, config.inference, world, columns, config.squad())
            task = model.task.with_top(config.top)
            _check_vectors(config, task)
        compare_ranks(world, config.model)
        if world.is_first:
            if say is not silent:  # standard output has the predictions alone
                for note in model.folder_notes:
                    aside(note)
            try:
                failure = _lead(model, task, config, world, say, answered)
            except (DataError, UsageError, BrokenPipeError) as error:
                failure = error  # the other ranks do not have it: it is raised when all have ended
            world.broadcast_text(_END)
        else:
            _follow(task, model.outputs, world)
    if failure is not None:
        raise failure


def _check_vectors(config: PredictConfig, task: Task[Any, Any]) -> None:
    """Raises UsageError if the output is for vectors and the task has none. A task from outside may have some."""
    if config.out is not None and config.out.suffix == ".npy" and not task.computes_vectors and not config.code:
        name = task.config.name
        instead = "add --task embed" if name == "mask" else "write .jsonl or .parquet"
        raise UsageError(f"{config.out}: .npy is for vectors, and the task {name!r} has none: {instead}.")


@dataclass(slots=True)
class Tally:
    """Counts rows and their errors."""

    rows: int = 0
    errors: int = 0
    """Number of rows with errors."""
    first: str = ""
    """The first error."""
    unknown: Unknown = field(default_factory=Unknown)
    """The unknown words of the rows that this process has read."""
    empty: int = 0
    """Number of rows with an empty text that this process has read."""
    first_empty: str = ""
    """The place of the first of them."""

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


@dataclass(slots=True)
class Sink:
    """Where predictions go."""

    add: Callable[[Row], None]
    commit: Callable[[Position, Tally], None] = lambda position, tally: None
    """Called after each chunk with the position of the input after it."""
    finish: Callable[[], None] = lambda: None
    """Called after the last prediction."""
    start: Position = START
    """Where the input begins."""
    tally: Tally = field(default_factory=Tally)
    """What was counted before."""


def _lead(
    model: TextModel, task: Task[Any, Any], config: PredictConfig, world: World, say: Say, answered: Callable[[], None]
) -> DataError | None:  # fmt: skip
    """Reads the input, sends the rows of every chunk to the other ranks, and writes the predictions. Returns the error
    to raise at the end if rows had errors. Raises BrokenPipeError for a closed output."""
    files = InputFiles(config.input, task, [*_parse_keep(config.keep)]) if config.input else None
    with ExitStack() as stack:
        sink = stack.enter_context(_open_sink(config, model, say))
        tally = sink.tally
        if tally.rows:
            answered()
        rows = files.rows(sink.start) if files else _rows_of_stdin(task)
        quiet = config.out is None or say is silent
        bar = stack.enter_context(
            progress(None, "predict", unit="rows", quiet=quiet, done=tally.rows, summary=False, measured=1)
        )
        began, before = time.monotonic(), tally.rows
        while chunk := list(islice(rows, config.chunk)):
            for answer in _answers(task, model.outputs, world, config, chunk, tally):
                sink.add(answer)
            sink.commit(chunk[-1].after, tally)
            _say_notes(files, say)
            answered()
            bar.total = tally.rows / share if files and (share := files.share()) else None
            bar.advance(len(chunk), f"{(tally.rows - before) / (time.monotonic() - began):,.0f} rows/s")
        _say_notes(files, say)
        bar.show("writing the file")
        sink.finish()
    for line in _list_remarks(tally, config) if say is not silent else ():
        aside(line)
    return tally.error()


def _rows_of_stdin(task: Task[Any, Any]) -> Iterator[InputRow]:
    read = task.columns_read() if ":" not in task.config.name else None
    return rows_of_stream(getattr(sys.stdin, "buffer", sys.stdin), next(iter(read[0] if read else ()), "text"))


def _list_remarks(tally: Tally, config: PredictConfig) -> Iterator[str]:
    """Yields what is said at the end, on stderr: about unknown words and empty texts, and where the predictions are."""
    if line := tally.unknown.note("the input"):
        yield line
    if tally.empty:
        have = "row has an empty text" if tally.empty == 1 else "rows have an empty text"
        which = "it is" if tally.empty == 1 else "the first is"
        yield f"note: {tally.empty:,} {have}, which is predicted like any other; {which} {tally.first_empty}."
    if config.out is not None and not tally.errors:  # the error says what is in the file
        yield f"predictions  {config.out}, {tally.rows:,} row{'s' * (tally.rows != 1)}"


def _say_notes(files: InputFiles | None, say: Say) -> None:
    """Prints the notes about the input on stderr, since the predictions may go to standard output."""
    while files is not None and files.notes:
        note = files.notes.pop(0)
        if say is not silent:
            aside(note)


@contextmanager
def _open_sink(config: PredictConfig, model: TextModel, say: Say) -> Iterator[Sink]:
    copied = {"id", *_parse_keep(config.keep).values()}
    if config.out is None:
        yield _print_to(say)
    elif not config.input:
        with answer_file(config.out, copied) as add:
            yield Sink(add)
    else:
        with _continue(config, config.out, model, copied) as sink:
            yield sink


def _print_to(say: Say) -> Sink:
    lines: list[str] = []

    def commit(position: Position, tally: Tally) -> None:
        for line in lines:
            say(line)
        lines.clear()

    return Sink(lambda row: lines.append(json_text(row)), commit)


@contextmanager
def _continue(config: PredictConfig, out: Path, model: TextModel, copied: Collection[str]) -> Iterator[Sink]:
    given = {name: value for name, value in as_dict(config).items() if name not in _PLACES}
    facts = {name: value for name, value in software().items() if name != "code"}
    of = {
        "input": input_identity(config.input), "model": model_identity(model.folder),
        "settings": settings_text(given), "software": settings_text(facts),
    }  # fmt: skip
    with Unfinished(out, of, copied) as unfinished:

        def commit(position: Position, tally: Tally) -> None:
            unfinished.rows, unfinished.errors, unfinished.first = tally.rows, tally.errors, tally.first
            unfinished.commit(position)

        tally = Tally(unfinished.rows, unfinished.errors, unfinished.first)
        yield Sink(unfinished.add, commit, unfinished.finish, unfinished.position, tally)


def _parse_keep(keep: Sequence[str]) -> dict[str, str]:
    """Returns the names in the output of the columns to keep, by their names in the input."""
    return {column: name or column for column, _, name in (entry.partition("=") for entry in keep)}


def _answers(
    task: Task[Any, Any], outputs_of: OutputsOf, world: World, config: PredictConfig, chunk: Sequence[InputRow],
    tally: Tally,
) -> Iterator[Row]:  # fmt: skip
    """Yields the prediction or the error of each row of a chunk, with the copied columns. Raises DataError for the
    first error if `errors` is "stop"."""
    errors = {number: row.error for number, row in enumerate(chunk) if row.error is not None}
    whole = [number for number in range(len(chunk)) if number not in errors]
    places, rows = [chunk[number].place for number in whole], [chunk[number].row for number in whole]
    good, request, found = make_readable_request(task, rows, places)
    errors |= {whole[number]: error for number, error in found.items()}
    if errors and config.errors == "stop":
        raise errors[min(errors)]
    tally.add([errors[number] for number in sorted(errors)], len(chunk))
    answers: Iterator[Row] = iter(())
    if request is not None:
        if world.size > 1:
            readable_rows = [[rows[number] for number in good], [places[number] for number in good]]
            world.broadcast_text(json.dumps(readable_rows, default=plain))
        source, finish = request
        tally.unknown += source.unknown
        key, _ = task.config.columns.row_keys()
        empty = [
            places[number] for number in good if isinstance(text := rows[number].get(key), str) and not text.strip()
        ]
        tally.empty, tally.first_empty = tally.empty + len(empty), tally.first_empty or "".join(empty[:1])
        answers = iter(finish(outputs_of(source)))
    keep = _parse_keep(config.keep)
    for number, row in enumerate(chunk):
        answer = {ERROR: str(errors[number])} if number in errors else next(answers)
        yield _with_copies(answer, row.row, keep)


def _with_copies(answer: Row, row: Row, keep: Mapping[str, str]) -> Row:
    """Returns a prediction after the id of its row and the values of the columns that are kept; null where there is
    none. Raises UsageError if a name is that of a key of the prediction too."""
    copies = {"id": plain(row["id"])} if "id" in row else {}
    rest = {key: value for key, value in answer.items() if key != "id"}
    for column, name in keep.items():
        if name in rest:
            raise UsageError(f"keep: predictions have the key {name!r} too. Rename the column: --keep {column}=NAME.")
        copies[name] = plain(row.get(column))
    return copies | rest


def _follow(task: Task[Any, Any], outputs_of: OutputsOf, world: World) -> None:
    """Computes this rank's share of every chunk."""
    while received := json.loads(world.broadcast_text("", _INPUT_SECONDS)):
        rows, places = received
        source, finish = make_request(task, rows, places)
        deque(finish(outputs_of(source)), maxlen=0)
