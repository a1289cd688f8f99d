"""Folders of Hugging Face with weights of half the size, and folders of sentence-transformers."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from lambert.core.contents import write_sums
from lambert.core.errors import DataError, UsageError
from lambert.core.files import atomic_folder, check_new_folder, write_errors, write_files
from lambert.model import weights
from lambert.model.heads import Model
from lambert.model.publish import quiet_transformers
from lambert.tasks.card import card_of_converted
from lambert.wings.convert.formats import check, check_installed, check_precision, quiet
from lambert.wings.convert.original import Original, read
from lambert.wings.convert.sample import LONGEST, LargestDifference, samples
from lambert.wings.convert.settings import ExportConfig

_VECTORS = 1e-5
"""Largest difference of a component of a vector from that of sentence-transformers, in float32."""
_HALF = 0.1
"""The largest root mean square of the differences for weights in bfloat16, as a share of that of the outputs."""


def export_bfloat16(config: ExportConfig) -> Iterator[str]:
    """Writes a folder of Hugging Face with weights in bfloat16, which reads back equal to the rounded weights."""
    check_new_folder(config.out)
    original = read(config)
    with write_errors(config.out), atomic_folder(config.out, replace=True) as aside:
        _write(original, aside, config)
        difference = _reread(original, aside, config)
        check(difference, config, _HALF, "The folder with weights in bfloat16")
    yield f"verified: reads back bit for bit; {_describe_rounding(difference)}"
    yield f"model  {config.out}"


def export_vectors(config: ExportConfig) -> Iterator[str]:
    """Writes a folder of sentence-transformers, whose vectors are compared with those of that library."""
    check_precision(config, {"float32": _VECTORS, "bfloat16": _HALF})
    check_installed(config.format, "vectors", ("sentence_transformers",))
    check_new_folder(config.out)
    original = read(config)
    if original.vectors is None:
        raise UsageError(
            f"{config.model} is not a model of vectors, and --format sentence-transformers needs one: fine-tune it "
            "with task.name = 'embed' (docs/vectors.md), or use --format hf."
        )
    with write_errors(config.out), atomic_folder(config.out, replace=True) as aside:
        _write(original, aside, config)
        _reread(original, aside, config)
        with quiet():
            difference = _by_sentence_transformers(original, aside)
        tolerance = _VECTORS if config.precision == "float32" else _HALF
        check(difference, config, tolerance, "sentence-transformers")
    found = f"largest difference from sentence-transformers {difference.absolute:.1e}"
    yield f"verified: reads back bit for bit; {found}"
    yield f"model  {config.out}"


def _describe_rounding(difference: LargestDifference) -> str:
    share = f"{difference.relative:.1%} of the outputs on average"
    return f"rounding to bfloat16 changes outputs by at most {difference.absolute:.1e} ({share})"


def _write(original: Original, folder: Path, config: ExportConfig) -> None:
    with _cast_weights(original.model, config.precision) as model:
        weights.save(model, folder, original.extra)
    original.write_tokenizer(folder)
    card = card_of_converted(original.model, config.out, original.folder, original.task)
    write_files(folder, {**original.files, "README.md": card})
    write_sums(folder)


@contextmanager
def _cast_weights(model: Model, precision: str) -> Iterator[Model]:
    """A context with the model in the type in which it is stored; afterwards it has its own weights again."""
    before = [(parameter, parameter.data) for parameter in model.parameters()]
    try:
        yield model.to(torch.bfloat16) if precision == "bfloat16" else model
    finally:
        for parameter, values in before:
            parameter.data = values


def _reread(original: Original, folder: Path, config: ExportConfig) -> LargestDifference:
    """Returns how the outputs of the folder differ. Raises DataError if its weights are not the rounded ones."""
    again = read(dataclasses.replace(config, model=folder))
    wanted = dict(original.model.named_parameters())
    for name, parameter in again.model.named_parameters():
        rounded = wanted[name].to(torch.bfloat16).float() if config.precision == "bfloat16" else wanted[name]
        if not torch.equal(parameter, rounded):
            raise DataError(f"{folder}: the weights {name!r} that were read back differ; nothing was written.")
    difference = LargestDifference()
    for rows, found in zip(samples(original), samples(again), strict=True):
        difference.add(rows, found.expected)
    return difference


def _by_sentence_transformers(original: Original, folder: Path) -> LargestDifference:
    from sentence_transformers import SentenceTransformer

    difference = LargestDifference()
    with quiet_transformers():
        net = SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"}
        ).eval()  # fmt: skip
        net.max_seq_length = min(original.longest, LONGEST)  # the rows of `samples` are cut there
        for rows in samples(original):
            vectors_SD = net.encode([*rows.texts], prompt="", batch_size=len(rows.texts), show_progress_bar=False)
            expected = {"sentence_embedding": rows.expected["sentence_embedding"]}
            difference.add(dataclasses.replace(rows, expected=expected), {"sentence_embedding": np.asarray(vectors_SD)})
    return difference
