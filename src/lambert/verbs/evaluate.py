"""`lambert evaluate`: scores a fine-tuned model on labelled data and writes its predictions."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lambert.core.errors import UsageError
from lambert.core.files import check_replaceable, json_text
from lambert.distributed.detection import detect
from lambert.engine.progress import format_scores, progress
from lambert.engine.signals import START_AGAIN, graceful_stop
from lambert.inference.outputs import compare_ranks
from lambert.inference.text_model import TextModel
from lambert.runs.result import Result, Say, silent
from lambert.tasks import Outputs, named, score_predictions
from lambert.tasks.scores.examples import examples_of, is_examples, write
from lambert.tasks.task import is_predictions
from lambert.verbs.settings.evaluate import EvaluateConfig
from lambert.verbs.training_data import describe_counts, note_training_file

_LOWERING = ("cut", "questions_cut", "answers_absent")
"""Counts of a labelled file that are shown to the user, because they lower the scores."""


def run(config: EvaluateConfig, say: Say = silent) -> Result:
    """Scores the model and writes the predictions. With several ranks, only the first returns the scores and writes.

    Raises SavedAndStopped after a signal.
    """
    for name, path in (("predictions", config.predictions), ("examples", config.examples)):
        if path is not None and path.is_dir():
            raise UsageError(f"{path} is a folder: name the {name} file itself (--{name}).")
    with graceful_stop(" before the end; nothing was written", START_AGAIN):
        scores, notes = _score(config, say)
    found: dict[str, Any] = {**scores, "notes": notes} if notes else scores
    for line in ([json_text(found)] if scores else []) if config.json else _lines(scores):
        say(line)
    return Result(config.model, scores, notes)


def _score(config: EvaluateConfig, say: Say) -> tuple[dict[str, float], tuple[str, ...]]:
    """Returns the scores, and lines for the user about the model and the data. With several ranks, only the first has
    them."""
    with detect(config.inference.device) as world:
        with world.fail_together("reading the model and the data"):
            name, columns = named.resolve_for_evaluation(config.task, config.columns, config.data)
            model = TextModel(config.model, name, config.code, config.inference, world, columns, config.squad())
            task = model.task
            if config.predictions is not None and ":" not in task.config.name:  # a task from outside has its own format
                check_replaceable(config.predictions, is_predictions, "evaluate")
            if config.examples is not None:
                check_replaceable(config.examples, is_examples, "evaluate")
                if not task.has_examples:
                    raise UsageError(f"The task {task.config.name!r} has no method `examples`: leave examples out.")
            data = model.read(config.data)
        compare_ranks(world, config.model, config.data)
        notes = (*model.notes(config.data, data), *note_training_file(model.folder, config.data))
        if world.is_first and not config.json:
            if data.unknown.count or any(data.counts.get(name) for name in _LOWERING):
                say(describe_counts(config.data, data, task.config))
            for line in notes:
                say(line)
        quiet = config.json or say is silent or not world.is_first
        with progress(data.size(0), "evaluate", unit="sequences", quiet=quiet) as bar:
            found = model.outputs(data, bar.advance)
            if not world.is_first:
                deque(found, maxlen=0)
                return {}, ()
            predictions = task.predictions(data, _then(found, lambda: bar.show("scoring")))
    scores = score_predictions(task, data, predictions)
    if config.predictions is not None:
        for path in task.write(config.predictions, data, predictions):
            if not config.json:
                say(f"predictions  {path}")
    if config.examples is not None and (examples := examples_of(task, data, predictions, config.data)):
        path = write(config.examples, examples)
        if not config.json:
            say(f"examples  {path}")
    return scores, notes


def _then(found: Outputs, end: Callable[[], None]) -> Outputs:
    """Yields the outputs, then calls `end`."""
    yield from found
    end()


def _lines(scores: Mapping[str, float]) -> Iterator[str]:
    """Yields a line for each score, with its standard error."""
    texts = format_scores(scores)
    width = max([20, *map(len, texts)])
    for name, text in texts.items():
        yield f"{name:{width}} {text}"
