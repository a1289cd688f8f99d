"""`lambert finetune`: trains an encoder on labelled data for a task, and scores it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lambert.core.errors import REMEDIES, DivergedError, UsageError
from lambert.core.files import json_text, write_atomic
from lambert.core.modules import root
from lambert.core.settings import as_dict, flatten
from lambert.core.world import World
from lambert.distributed import agreement
from lambert.distributed.detection import detect
from lambert.distributed.launch_environment import process_info
from lambert.engine import archive
from lambert.engine.log import append
from lambert.engine.numerics import check_gradients, numerics
from lambert.engine.precision import Precision, resolve_precision
from lambert.engine.progress import COUNTS, score_text
from lambert.engine.signals import Interrupted, StopRequest
from lambert.engine.step import Step
from lambert.inference.config import InferenceConfig
from lambert.inference.outputs import check_padding, check_positions, check_segments, check_widths, outputs
from lambert.inference.text_model import TextModel
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.files import fingerprint
from lambert.model.folder import model_folder
from lambert.model.heads import Model
from lambert.model.pooling import pooled_width
from lambert.optim.optimizers import check_names
from lambert.runs.distillation import keep_layers, relation_teacher
from lambert.runs.folder import CONFIG, INITIAL_WEIGHTS, check_place, fingerprints, open_run
from lambert.runs.microbatch import check_model
from lambert.runs.publish import LabelledFile, Trained, publish_run
from lambert.runs.result import Result, Say, silent
from lambert.runs.run import freeze
from lambert.runs.updates import run_to_end, run_updates
from lambert.tasks import Outputs, TaskConfig, check_metrics, parse_task, resolve, score_predictions, task_class
from lambert.tasks.distillation import SpanTeacher, Teacher, check_teacher, teacher_of
from lambert.tasks.reading.cache import FOLDER, FeatureCache
from lambert.tasks.reading.dev_split import split_off_dev
from lambert.tasks.reading.files import digest, find_splits
from lambert.tasks.reading.unknown import unknown_notes
from lambert.tasks.scores.examples import EXAMPLES, examples_of, write
from lambert.tasks.task import own_class
from lambert.tasks.vectors import sentence_transformers
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.training_data import (
    DIVIDED,
    LABELLED,
    check_examples,
    check_label_order,
    describe_counts,
    drop_repeated,
    note_shared_rows,
)

_OF_VECTORS = (
    "pooling", "normalize", "prompt", "prompt_b", "prompts", "default_prompt", "include_prompt", "truncate_dim",
)  # fmt: skip
"""Settings of vectors that a folder of vectors has."""
_TOKENS = 8192
"""Tokens of a batch in which the predictions of the best weights are computed. They do not depend on it."""
SEEDS = "seeds.json"


def run(config: FinetuneConfig, say: Say = silent) -> Result:
    """Trains from the newest checkpoint in `out` or from the beginning, writes the task model to `out`/model and scores
    `dev`; with `seeds` once for each seed.

    Raises SavedAndStopped after a signal, whenever it comes.
    """
    if config.seeds:
        return _run_seeds(config, say)
    return run_to_end(partial(updates, config, say=say), config.out)


def score_names(config: FinetuneConfig) -> list[str]:
    """Returns the names of the scores, the headline first; none without `dev`. Scores `dev` once, without training.
    Writes nothing but features to `cache`."""
    with detect(config.train.device, config.train.timeout) as world, numerics(world, threads=config.train.threads):
        run = _prepare(config, world)
        if run.dev is None:
            return []
        precision = Precision(resolve_precision(config.train.precision, world), world.device)
        found = outputs(run.model.to(world.device), run.dev, precision, world, config.train.micro_tokens or _TOKENS)
        names = score_predictions(run.task, run.dev, run.task.predictions(run.dev, found))
    headline = "" if config.task.metrics else own_class(config.task.name).headline
    return sorted(names, key=lambda name: name != headline)


def prepare_trial(config: FinetuneConfig, sweep: Path) -> FinetuneConfig:
    """Returns the settings of a run of the sweep in the folder `sweep`, which has the features of its labelled files.
    Raises UsageError if the run computes no scores, or has several seeds."""
    if config.seeds:
        raise UsageError("seeds is a setting of finetune alone: give the seeds as sweep.seeds.")
    if find_splits(config.data, config.dev)[1] is None:
        raise UsageError("A sweep compares the scores on held-out data: set dev.")
    return replace(config, cache=config.cache or sweep / FOLDER)


def updates(config: FinetuneConfig, stop: StopRequest | None = None, say: Say = silent) -> Iterator[Step]:
    """Yields each update of the run, with the scores on `dev` if they were computed; the last has the final scores.
    Yields nothing if the run is complete.

    Closing the iterator, as `break` does, saves a checkpoint; the same call continues from it.
    """
    if config.seeds:
        raise UsageError("The updates of one run need one seed: set seed instead of seeds.")
    check_gradients()
    stop = StopRequest() if stop is None else stop  # without signal handlers, never requested
    with detect(config.train.device, config.train.timeout) as world:
        with world.fail_together("reading its data"):
            if world.is_first:
                check_place(config.out)
            check_names(config.optim)
            prepared = _prepare(config, world)
            config, task, data, dev = prepared.config, prepared.task, prepared.data, prepared.dev
            model, tokenizer, hashes, notes = prepared.model, prepared.tokenizer, prepared.hashes, prepared.notes
            length = task.config.max_length
            relations = relation_teacher(config.distil, model, tokenizer, config.code, length, world)
            teacher = _load_teacher(config, task, tokenizer, world)
            train_path, dev_path = prepared.train_path, prepared.dev_path
        if teacher is not None:
            data.teacher, line = _ask_teacher(config, task, data, train_path, teacher)
            notes.append(line)

        def check_signal(sequences: int) -> None:
            if stop.agree(world):  # all ranks leave together
                stop.check()

        kept: list[Any] = []

        def predict(model: Model, precision: Precision, micro_tokens: int) -> None:
            assert dev is not None
            found = outputs(model, dev, precision, world, micro_tokens, check_signal)
            kept[:] = task.predictions(dev, _check_finite(found, dev_path))

        def score(model: Model, precision: Precision, micro_tokens: int) -> dict[str, float]:
            if dev is None:
                return {}
            try:
                predict(model, precision, micro_tokens)
                return score_predictions(task, dev, kept)
            except Interrupted:
                return {}

        for path, rows in ((train_path, data), (dev_path, dev)):
            if path is not None:
                notes += [describe_counts(path, rows, task.config), *rows.notes]
        notes += prepared.features.notes
        if dev_path is None:
            notes.append("nothing is scored, because no dev file is given (--dev)")
        first_start = not archive.find_last(config.out)
        with open_run(config, world, fingerprints(model, tokenizer, hashes)):
            for line in notes if world.is_first else ():
                if first_start:
                    append(config.out, line)
                say(line)
            scores = yield from run_updates(config, model, data, score, world, stop, say, teacher=relations)
            if scores is not None and dev is not None and "best_update" in scores:
                # The predictions are those of the best weights.
                name = resolve_precision(config.train.precision, world)
                predict(model, Precision(name, world.device), config.train.micro_tokens or _TOKENS)
            if scores is not None and world.is_first:
                say(_publish(prepared, scores, kept))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A run before its first update."""

    config: FinetuneConfig
    """The settings, in which the model and the data have determined those that were unset."""
    task: Any
    data: Any
    dev: Any
    """None without dev data."""
    train_path: Path
    dev_path: Path | None
    """The files of `data` and `dev`: those of the settings, or those with the two parts of the labelled data."""
    model: Model
    tokenizer: Any
    features: FeatureCache
    hashes: dict[str, str]
    """What the run depends on, by name."""
    notes: list[str]


def _prepare(given: FinetuneConfig, world: World) -> _Prepared:
    """Reads the data and the encoder of a run. Raises LambertError if they do not fit each other or the settings."""
    folder = model_folder(given.init)
    train_path, held_out = find_splits(given.data, given.dev)
    config = replace(given, data=train_path, dev=held_out, task=resolve(given.task, train_path))
    config.check_dev()
    shape = layout.encoder_config(layout.read_config(folder), folder, config.code)
    tokenizer = tokenizers.load(folder, needs=task_class(config.task).special_tokens)
    task_config = _fill_from_folder(config.task, folder).resolve_length(shape.positions)
    optim = config.optim.resolve(shape)
    config = replace(config, task=task_config, optim=optim)
    cache = FeatureCache(config.cache, tokenizer, agreement.code())
    task: Any
    task, data = cache.learn(config.task, train_path)
    check_metrics(task, given.task.metrics)
    parts: list[str] = []
    whole_path = train_path
    dev_path = None if isinstance(held_out, float) else held_out
    if isinstance(held_out, float):
        kept = config.cache or config.out.with_name(f"{config.out.name}-rows")
        parts = [*data.notes]
        train_path, dev_path, line = split_off_dev(train_path, held_out, task.config, kept)
        data = cache.read(task, train_path, training=True)
        parts.append(line)
    pooled = pooled_width(shape.hidden, task.embed.pooling) if task.computes_vectors else 0
    layers = sentence_transformers.layers(folder, pooled) if pooled else []
    if layers:
        task.layers = data.layers = layers
    config = replace(config, train=config.train.resolve(data.size(0)))
    notes = [*_list_chosen(given, config), *parts]
    config = config.resolve()
    dev = cache.read(task, dev_path) if dev_path else None
    halves: list[tuple[Path | None, Any]] = [(train_path, data), (dev_path, dev)] if parts else []
    for path, rows in halves:
        rows.notes = drop_repeated(rows.notes, path, parts, whole_path)
    check_label_order(config, dev, task.config.labels)
    notes += note_shared_rows(data, dev, train_path, dev_path)
    notes += unknown_notes([(train_path, data), (dev_path, dev)])
    heads = {task.head: task.labels}
    check_model(shape, config.optim.name, world, shard_optimizer=config.train.shard_optimizer)
    labels = task.config.labels
    model, report = weights.load(folder, heads, roles.size(tokenizer), config.seed, config.code, labels=labels)
    check_positions(task.config.max_length, model)
    check_segments(task.config, model)
    check_padding(tokenizer, model.config, folder)
    check_widths(task, model)
    check_examples(config, data, model.config)
    notes += filter(None, [keep_layers(model, config.distil.student_layers)])
    if config.random_init:
        model = weights.draw(model.config, heads, config.seed)
    else:
        notes = [*report.warnings(), *notes]
    notes += filter(None, [_note_untrained(layers), _note_reader(shape, heads), freeze(model, config.train.freeze)])
    if task.computes_vectors:
        notes += filter(None, [_note_similarity(folder, task.embed.similarity_name)])
    files = {LABELLED: train_path} | ({"the dev data": dev_path} if dev_path else {})
    files |= {DIVIDED: whole_path} if parts else {}
    hashes = {name: digest(path) for name, path in files.items()}
    if not config.random_init:
        hashes[INITIAL_WEIGHTS] = fingerprint(folder)
    if config.distil.teacher is not None:
        hashes["the teacher"] = fingerprint(model_folder(config.distil.teacher))
    return _Prepared(config, task, data, dev, train_path, dev_path, model, tokenizer, cache, hashes, notes)


def _publish(run: _Prepared, scores: Mapping[str, float], predictions: list[Any]) -> str:
    """Writes the examples and the model folder of a run that has ended, and returns a line about the folder.
    `predictions` are those for the dev data."""
    task, data, dev, dev_path = run.task, run.data, run.dev, run.dev_path
    tuned = task if dev is None else task.tune(dev, predictions)
    if dev_path is not None and (examples := examples_of(tuned, dev, predictions, dev_path)):
        write(run.config.out / EXAMPLES, examples)
    dev_file = LabelledFile(dev_path, run.hashes["the dev data"], dev.counts) if dev_path and dev else None
    trained = Trained(task.config, LabelledFile(run.train_path, run.hashes[LABELLED], data.counts), dev_file)
    extra, more = tuned.model_config(), tuned.model_files(run.model.config.hidden)
    return publish_run(run.config, run.model, run.tokenizer, extra, scores, more, trained)


def _load_teacher(config: FinetuneConfig, task: Any, tokenizer: Any, world: World) -> TextModel | None:
    """Loads the teacher whose predictions are learnt, which reads the training file by the columns of the student; None
    if there is none. Raises UsageError if it was fine-tuned for something else or, for question answering, if it
    divides paragraphs into other windows."""
    if config.distil.teacher is None or not config.distil.share:
        return None
    folder = model_folder(config.distil.teacher)
    check_teacher(task.config, parse_task(layout.read_config(folder), source=folder / layout.CONFIG))
    inference = InferenceConfig(device=str(world.device))
    teacher = TextModel(config.distil.teacher, "", config.code, inference, world, task.config.columns)
    if task.soft_targets == "tokens":
        if teacher.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise UsageError(
                f"distil.teacher = {config.distil.teacher} has another vocabulary than the student, so the start and "
                "the end of an answer are other tokens: take a teacher with the vocabulary of the student."
            )
        check_positions(task.config.max_length, teacher.model)
    return teacher


def _check_finite(found: Outputs, path: Path | None) -> Outputs:
    """Yields the outputs for a labelled file. Raises DivergedError if one is not finite."""
    for batch in found:
        for name, values in batch.items():
            if not values.isfinite().all():
                raise DivergedError(f"Training diverged: the output {name!r} for {path} is not finite. {REMEDIES}")
        yield batch


def _ask_teacher(
    config: FinetuneConfig, task: Any, data: Any, path: Path, teacher: TextModel
) -> tuple[Teacher | SpanTeacher, str]:
    """Returns the teacher's predictions for the training file `path`, and a line about them. All ranks must call it."""
    spans, options = task.soft_targets == "tokens", config.distil
    judge: Any = task if spans else teacher.task
    rows = data if spans else teacher.read(path)
    found = [{name: tensor.cpu() for name, tensor in batch.items()} for batch in teacher.outputs(rows)]
    scores = score_predictions(judge, rows, judge.predictions(rows, found))
    name, value = next(iter(scores.items()))
    line = f"teacher  {options.teacher}, {name} {value:.4f} on the training file"
    soft = judge.soft(rows, found)
    if spans:
        return SpanTeacher.of(soft, rows.lengths_S, options.share, options.temperature), line
    return teacher_of(soft, task.config, teacher.task.config.labels, options.share, options.temperature), line


def _list_chosen(given: FinetuneConfig, config: FinetuneConfig) -> Iterator[str]:
    """Yields a line with the settings that were not given, and their values."""
    before, now = flatten(as_dict(given)), flatten(as_dict(config))
    found = ", ".join(f"{name} = {_format(value)}" for name, value in now.items() if before.get(name) != value)
    if found:
        yield f"determined from the model and the data: {found}"


def _fill_from_folder(task: TaskConfig, folder: Path) -> TaskConfig:
    """Returns the task with the settings of a folder of vectors where the task has defaults."""
    if not own_class(task.name).computes_vectors or root(folder) is None:
        return task
    stored, unset = sentence_transformers.read_task(folder), TaskConfig(name=task.name)
    kept = {
        name: getattr(stored.embed, name)
        for name in _OF_VECTORS
        if getattr(task.embed, name) == getattr(unset.embed, name)
    }
    if task.embed.loss == "margin":
        kept.pop("normalize", None)
    return replace(task, max_length=task.max_length or stored.max_length, embed=replace(task.embed, **kept))


def _note_similarity(folder: Path, used: str) -> str:
    """Returns a line if a folder of vectors names another similarity than that `used` by the run; else an empty
    text."""
    stored = sentence_transformers.similarity_name(folder)
    if stored == used or root(folder) is None:
        return ""
    return (
        f"note: {folder} compares vectors by {stored}; the scores of this run and its model folder compare them by "
        f'{used}. To keep it: task.embed.similarity = "{stored}"'
    )


def _note_untrained(layers: Sequence[Any]) -> str:
    """Returns a line about the layers between pooling and vector; empty without any."""
    kinds = ", ".join(type(layer).__name__ for layer in layers)
    return kinds and f"note: the layers after the pooling ({kinds}) stay as they are: only the encoder is trained"


def _note_reader(shape: EncoderConfig, heads: Mapping[str, int]) -> str:
    """Returns a line if transformers cannot read the model folder with its head; else an empty text."""
    name = layout.unknown_to_transformers(shape, heads)
    return f"transformers has no {name}, so only Lambert reads the head of the model folder" if name else ""


def _format(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _run_seeds(config: FinetuneConfig, say: Say) -> Result:
    """Runs each seed, in out/seed-N, and writes out/seeds.json. Finished runs are not repeated. The result has the
    means of the scores. With several ranks only the first writes the file, prints lines and has scores.

    Raises UsageError if `out` is itself a run folder.
    """
    if (config.out / CONFIG).exists():
        raise UsageError(f"{config.out} holds a run of one seed. Choose another --out for several seeds.")
    first, found = process_info().rank == 0, []
    config = replace(config, cache=config.cache or config.out / FOLDER)
    for seed in config.seeds:
        if first:
            say(f"seed {seed}")
        found.append(run(replace(config, seed=seed, seeds=(), out=config.out / f"seed-{seed}"), say).scores)
    if not first:
        return Result(config.out)
    scores = summarise_seeds(found)
    if scores:
        write_atomic(config.out / SEEDS, json_text({"seeds": list(config.seeds), "scores": scores}, indent=1) + "\n")
    for line in _format_seeds(scores, config):
        say(line)
    say(f"models  {', '.join(str(config.out / f'seed-{seed}' / 'model') for seed in config.seeds)}")
    return Result(config.out, {name: of["mean"] for name, of in scores.items()})


def summarise_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Returns for each score its `mean` over the seeds and its `values`; with two seeds or more `deviation` (divided by
    n - 1) and `mean_se`, the standard error of the mean, deviation / sqrt(n); and, if the score has a standard error
    over the examples in every run, `examples_se`: the root mean square of NAME_se."""
    names = [name for name in scores[0] if not name.endswith("_se") or name.removesuffix("_se") not in scores[0]]
    return {name: _summarise_score(name, scores) for name in names if all(name in one for one in scores)}


def _summarise_score(name: str, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    values = [one[name] for one in scores]
    found: dict[str, Any] = {"mean": fmean(values), "values": values}
    if len(values) > 1:
        found |= {"deviation": stdev(values), "mean_se": stdev(values) / math.sqrt(len(values))}
    errors = [one[f"{name}_se"] for one in scores if f"{name}_se" in one]
    if len(errors) < len(values):
        return found
    return {**found, "examples_se": math.sqrt(fmean(error**2 for error in errors))}


def _format_seeds(scores: Mapping[str, Mapping[str, Any]], config: FinetuneConfig) -> Iterator[str]:
    """Yields the table of the scores over the seeds."""
    if not scores:
        yield f"{len(config.seeds)} seeds in {config.out}; without dev there are no scores"
        return
    columns = {"mean": "mean", "deviation": "deviation", "mean_se": "error of mean", "examples_se": "error of examples"}
    count = f"{len(config.seeds)} seed{'s' * (len(config.seeds) > 1)}"
    yield f"{count:20s}" + "".join(f" {label:>17s}" for label in columns.values())
    for name, of in scores.items():
        if name.endswith(COUNTS):
            continue
        cells = [score_text(name, of[key]) if key in of else "" for key in columns]
        yield f"{name:20s}" + "".join(f" {cell:>17s}" for cell in cells)
