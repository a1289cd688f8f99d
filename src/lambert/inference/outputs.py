"""Runs a model over a labelled or unlabelled Source, for finetune, evaluate and predict."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lambert.core.batch import Batch, Ints, Source
from lambert.core.contents import model_files, sha256
from lambert.core.errors import DataError, UsageError, quote
from lambert.core.registry import check_named
from lambert.core.world import World
from lambert.data.stream import split
from lambert.distributed.agreement import compare, software
from lambert.engine.precision import Precision
from lambert.inference.cpu import for_cpu
from lambert.inference.graphs import find_graphs
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.families import takes_pairs
from lambert.model.folder import model_folder
from lambert.model.heads import Model
from lambert.model.labels import PREDICTED, fits
from lambert.model.pooling import pooled_width
from lambert.tasks import Task, TaskConfig, create, task_class
from lambert.tasks.config import Columns, OtherColumns
from lambert.tasks.model_folder import task_of
from lambert.tasks.reading.files import digest
from lambert.tasks.task import own_class
from lambert.tasks.vectors import sentence_transformers
from lambert.tasks.vectors.embed import Embed
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers

_PARTS = 8
"""Number of batches into which little data is divided, so that several ranks share it."""
FAST_TOKENS = 1024
"""Tokens of a batch above which a CPU is not faster. A GPU is, so little data stays in few batches there."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A model with its tokenizer and its task."""

    model: Model
    tokenizer: Any
    task: Task[Any, Any]
    missing: str
    """An error message if the folder has no head for the task, whose weights are then random; else empty."""
    notes: tuple[str, ...]
    """Lines about pieces that the tokenizer may have lost, and about layers that are not used."""


def load_task(
    path: Path,
    name: str,
    code: Collection[str] = (),
    columns: Columns | OtherColumns | None = None,
    squad: Mapping[str, Any] = MappingProxyType({}),
) -> LoadedTask:
    """Loads a model that was fine-tuned for a task, or a Hugging Face folder with a task head.

    Args:
        path: Run folder or model folder.
        name: The expected task; empty: the task that the folder describes.
        code: Names of code from outside that the folder may import.
        columns: Columns of the data; OtherColumns: where they differ from those that the model was fine-tuned on.
        squad: Settings of question answering that replace those of the model's task, such as the language.
    """
    folder = model_folder(path)
    settings = layout.read_config(folder)
    layout.check_family(settings, folder)
    config = task_of(folder, settings, name)
    check_named(config.name, (*code, name), "lambert.task.name", folder / layout.CONFIG)
    tokenizer = tokenizers.load(folder, needs=task_class(config).special_tokens)
    if columns is not None:
        columns = columns.over(config.columns) if isinstance(columns, OtherColumns) else columns
        config = replace(config, columns=columns)
    if squad and config.name != "squad":
        raise UsageError(f"{' and '.join(squad)} is for squad, not for {config.name!r}, the task of {folder}.")
    config = replace(config, squad=replace(config.squad, **squad))
    encoder = layout.encoder_config(settings, folder, code)
    length = min(config.resolve_length(encoder.positions).max_length, encoder.positions)
    task = create(replace(config, max_length=length), tokenizer)
    if isinstance(task, Embed):
        task.layers = sentence_transformers.layers(folder, pooled_width(encoder.hidden, task.embed.pooling))
    heads, pieces = {task.head: task.labels}, roles.size(tokenizer)
    model, report = weights.load(folder, heads, pieces, code=code, share=True)
    report.check_tied(folder, heads)
    check_segments(task.config, model)
    check_padding(tokenizer, model.config, folder)
    lacking = ""
    if report.missing:
        own = layout.find_task_head(settings, layout.check_family(settings, folder))
        other = own in PREDICTED and not fits(task.head, own)
        why = f"its head predicts {PREDICTED[own]}" if other else f"no {report.missing[0]}"
        lacking = f"{folder} has no head for {task.config.name!r} ({why}): fine-tune it."
        if unnamed := layout.find_unnamed_head(settings, report.unexpected, folder):
            lacking = unnamed
    return LoadedTask(model.eval(), tokenizer, task, lacking, report.unused)


def check_positions(max_length: int, model: Model) -> None:
    """Raises UsageError if `max_length` exceeds the number of the model's positions."""
    if max_length > model.config.positions:
        raise UsageError(
            f"task.max_length = {max_length} exceeds the model's {model.config.positions} positions. "
            f"Use --task.max-length {model.config.positions} or less."
        )


def check_segments(config: TaskConfig, model: Model) -> None:
    """Raises UsageError if the task has text pairs and the model does not take them."""
    if own_class(config.name).reads_pairs(config) and not takes_pairs(model.config):
        raise UsageError(
            f"The model has segment_types = {model.config.segment_types}, and text pairs need 2: use another model."
        )


def check_padding(tokenizer: Any, config: EncoderConfig, folder: Path) -> None:
    """Raises DataError if transformers would treat a token of texts as padding: encoders whose positions begin after
    that of padding, such as RoBERTa, give each token with the id of padding that position, and do not count it."""
    number = config.position_offset - 1
    name = None if number < 0 else tokenizer.id_to_token(number)
    template = roles.template(tokenizer, str(folder))
    in_texts = number in (template.cls, template.sep, roles.find_id(tokenizer, "unk"))
    if (
        name is not None
        and (in_texts or number not in roles.special_ids(tokenizer))
        and name.strip("[]<>|").lower() != "pad"
    ):
        raise DataError(
            f"{folder} has pad_token_id = {number}, which is the ordinary piece {quote(name)} in its tokenizer. "
            "Correct pad_token_id; if the tokenizer is of another model, replace it."
        )


def check_widths(task: Task[Any, Any], model: Model) -> None:
    """Raises UsageError if a width at which vectors are cut exceeds the model's."""
    widths, most = task.config.embed.widths, task.width(model.config.hidden)
    if too_wide := [width for width in widths if width > most]:
        raise UsageError(f"task.embed.widths has {max(too_wide)}, and vectors of the model have {most} components.")


def ready(model: Model, precision: str, device: torch.device) -> tuple[Model, Precision]:
    """Returns the model on its device, prepared for inference, and the Precision to run it in. Changes the model in
    place; on a CPU its weights are converted to bfloat16 or int8 once. Raises UsageError for int8 on a GPU."""
    if precision == "int8" and device.type != "cpu":
        raise UsageError(f"precision = 'int8' runs on CPUs only, not on {device}: use bfloat16.")
    if device.type == "cpu" and precision in ("bfloat16", "int8"):
        return for_cpu(model, "int8" if precision == "int8" else "bfloat16"), Precision("float32", device)
    return model.to(device), Precision(precision, device)


def compare_ranks(world: World, model: Path, data: Path | None = None) -> None:
    """Raises UsageError on all ranks if the code, the model folder or the data file differ between ranks."""
    if world.size == 1:
        return
    facts = {f"the model's {path.name}": sha256(path) for path in model_files(model_folder(model))}
    compare(world, software() | facts | ({"the data": digest(data)} if data else {}))


class HasOutputs(Protocol):
    """A Model, or another object that computes outputs from a batch."""

    def eval(self) -> Any: ...
    def outputs(self, batch: Batch) -> Mapping[str, Tensor]: ...


def outputs(
    model: HasOutputs,
    source: Source,
    precision: Precision,
    world: World,
    micro_tokens: int,
    advance: Callable[[int], None] = lambda sequences: None,
    *,
    constant: bool = False,
) -> Iterator[Mapping[str, Tensor]]:
    """Yields `model.outputs` for every sequence of a Source, in order, batch by batch. Every rank computes its share
    and yields all outputs. Calls `advance` on all ranks with the number of sequences completed since its last call.
    `constant`: the weights of the model do not change as long as it lives.

    Batches do not depend on the number of ranks, so outputs are equal bit for bit. On a CPU each core computes separate
    batches, which share `micro_tokens`, because threads that share one matrix product wait for one another.
    """
    if micro_tokens < 1:
        raise UsageError(f"micro_tokens = {micro_tokens} tokens is too few: choose 1 or more.")
    model.eval()
    # The smallest number of threads of all ranks, so that all ranks divide the data in the same way.
    streams = -world.largest(-torch.get_num_threads() if world.device.type == "cpu" else -1)
    indices_S = np.arange(source.size(0))
    epochs_S = np.zeros_like(indices_S)
    lengths_S, tokens = source.lengths(epochs_S, indices_S), max(1, micro_tokens // streams)
    if world.device.type == "cpu":
        tokens = min(tokens, max(FAST_TOKENS, math.ceil(int(lengths_S.sum()) / _PARTS)))
    cuts = batch_bounds(lengths_S, tokens, streams)
    own = cuts[world.rank :: world.size]
    batches = (source.collate(epochs_S[low:high], indices_S[low:high]) for low, high in own)
    run = partial(compute_outputs, model, precision, world, constant=constant)
    streams = min(streams, len(cuts))
    found = map(run, batches) if streams <= 1 else _side_by_side(run, batches, streams)
    for first in range(0, len(cuts), world.size):
        round_cuts = cuts[first : first + world.size]
        yield from world.gather_tensors(next(found, {}))[: len(round_cuts)]
        advance(sum(high - low for low, high in round_cuts))


def batch_bounds(lengths_S: Ints, micro_tokens: int, streams: int) -> list[tuple[int, int]]:
    """Returns the bounds of batches of sequences with about equal numbers of tokens, at most about `micro_tokens`. With
    enough sequences, the number of batches is a multiple of `streams`."""
    size = len(lengths_S)
    count = min(size, math.ceil(int(lengths_S.sum()) / micro_tokens / streams) * streams)
    if count == size:
        return [*pairwise(range(size + 1))]
    return [(low, high) for low, high in split(lengths_S, count) if low < high]


Found = Mapping[str, Tensor]


def compute_outputs(
    model: HasOutputs, precision: Precision, world: World, batch: Batch, *, constant: bool = False
) -> Found:
    """Puts a batch on the device and returns the outputs of the model for it. `constant`: the weights of the model do
    not change as long as it lives, so graphs may read copies of them."""
    if constant and (graphs := find_graphs(model, precision, world, batch)):
        return graphs(batch)
    with torch.inference_mode(), precision.autocast():
        return model.outputs(world.put(batch).with_compute(precision.compute))


def _side_by_side(run: Callable[[Batch], Found], batches: Iterator[Batch], streams: int) -> Iterator[Found]:
    """Yields `map(run, batches)`, computed in `streams` threads that share the cores, one batch ahead."""
    threads = torch.get_num_threads()
    share = (max(1, threads // streams),)
    with ThreadPoolExecutor(streams, "lambert-inference", initializer=torch.set_num_threads, initargs=share) as pool:
        waiting: deque[Future[Found]] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(run, batch))
                if len(waiting) > streams:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            torch.set_num_threads(threads)  # a thread's setting is also the default of new threads
