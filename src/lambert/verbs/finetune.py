"""`lambert finetune`: trains an encoder on labelled data for a task, and scores it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lambert.core.contents import sha256
from lambert.core.settings import as_dict, dotted
from lambert.corpus.tokens import tokenizer as tokenizers
from lambert.distributed.detection import detect
from lambert.engine import archive
from lambert.engine.log import append
from lambert.engine.precision import Precision
from lambert.engine.signals import Interrupted, StopRequest
from lambert.engine.step import Step
from lambert.inference.outputs import check_positions, check_segments, outputs
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.files import fingerprint
from lambert.model.folder import model_folder
from lambert.model.heads import Model
from lambert.runs.folder import INITIAL_WEIGHTS, fingerprints, open_run
from lambert.runs.freezing import freeze
from lambert.runs.microbatch import check_model
from lambert.runs.publish import publish_run
from lambert.runs.result import Result, Say, silent
from lambert.runs.updates import run_to_end, run_updates
from lambert.tasks import learn, needed_pieces
from lambert.verbs.settings.finetune import FinetuneConfig


def run(config: FinetuneConfig, say: Say = silent) -> Result:
    """Trains from the newest checkpoint in `out` or from the beginning, writes the task model to `out`/model and scores
    `dev`.

    Raises SavedAndStopped after a signal, whenever it comes.
    """
    return run_to_end(updates, config, say)


def updates(config: FinetuneConfig, stop: StopRequest | None = None, say: Say = silent) -> Iterator[Step]:
    """Yields each update of the run, with the scores on `dev` if they were computed; the last has the final scores.
    Yields nothing if the run is complete.

    Closing the iterator, as `break` does, saves a checkpoint; the same call continues from it.
    """
    stop = StopRequest() if stop is None else stop  # without signal handlers, never requested
    with detect(config.train.device, config.train.timeout) as world:
        with world.together("reading its data"):
            folder, given = model_folder(config.init), config
            shape = layout.encoder_config(layout.read_config(folder), folder, config.code)
            tokenizer = tokenizers.load(folder, needs=needed_pieces(config.task.name))
            task_config, optim = config.task.resolved(shape.positions), config.optim.resolved(shape)
            config = replace(config, task=task_config, optim=optim)
            task, data = learn(config.task, tokenizer, config.data)
            config = replace(config, train=config.train.resolved(data.size(0)))
            notes = [*_resolved(given, config)]
            config = replace(config, optim=config.optim.at_batch(config.train.batch_size))
            dev = task.read(config.dev) if config.dev else None
            heads = {task.head: task.labels}
            check_model(shape, config.train, config.optim.name, world)
            pieces = tokenizer.get_vocab_size()
            model, report = weights.load(folder, heads, pieces, config.seed, config.code)
            check_positions(task.config.max_length, model)
            check_segments(task.config, model)
            if config.random_init:
                model = weights.fresh(model.config, heads, config.seed)
            else:
                notes = [*report.warnings(), *notes]
            notes += filter(None, [freeze(model, config.train.freeze)])
            files = {"the labelled data": config.data} | ({"the dev data": config.dev} if config.dev else {})
            hashes = {name: sha256(path) for name, path in files.items()}
            if not config.random_init:
                hashes[INITIAL_WEIGHTS] = fingerprint(folder)

        def check_signal(sequences: int) -> None:
            if stop.agreed(world):  # all ranks leave together
                stop.check()

        def score(model: Model, precision: Precision, micro_tokens: int) -> dict[str, float]:
            if dev is None:
                return {}
            try:
                found = outputs(model, dev, precision, world, micro_tokens, check_signal)
                return task.score(dev, task.predictions(dev, found))
            except Interrupted:
                return {}

        labelled = [(config.data, data), *([(config.dev, dev)] if config.dev is not None else [])]
        notes += [_counts(path, rows, task.config.max_length) for path, rows in labelled]
        if config.dev is None:
            notes.append("nothing is scored, because no dev file is given (--dev)")
        first_start = not archive.last(config.out)
        with open_run(config, world, fingerprints(model, tokenizer, hashes)):
            for line in notes if world.is_first else ():
                if first_start:
                    append(config.out, line)
                say(line)
            scores = yield from run_updates(config, model, data, score, world, stop, say)
            if scores is not None and world.is_first:
                say(publish_run(config, model, tokenizer, task.model_config(), scores))


def _resolved(given: FinetuneConfig, config: FinetuneConfig) -> Iterator[str]:
    """Yields a line with the settings that were not given, and their values."""
    before, now = dotted(as_dict(given)), dotted(as_dict(config))
    found = ", ".join(f"{name} = {value:g}" for name, value in now.items() if before.get(name) != value)
    if found:
        yield f"chosen by the model and the data: {found}"


def _counts(path: Path, data: Any, max_length: int) -> str:
    """Returns a line with the numbers of examples that were read, cut and left out."""
    words = {"cut": f"longer than {max_length} tokens were cut"}
    counts = (f"{count:,} {words.get(name, name.replace('_', ' '))}" for name, count in data.counts.items() if count)
    return f"{path}  {', '.join(counts)}"
