"""`lambert import` and `lambert export`: convert model folders and verify the outputs before a folder appears."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.core.files import check_new_folder
from lambert.core.modules import encoder_path
from lambert.core.registry import Kind, lookup
from lambert.core.unsupported import NOT_DOWNLOADED, refuse_model
from lambert.inference.outputs import check_padding
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.families import reads_segments
from lambert.model.files import weights_file
from lambert.model.heads import Model
from lambert.model.publish import publish
from lambert.runs.result import Result, Say, silent
from lambert.tasks.card import card_of_converted
from lambert.tasks.model_folder import read_extras, task_of
from lambert.tasks.vectors.sentence_transformers import length
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.wings.convert import formats, hugging_face, onnx, openvino, program
from lambert.wings.convert.checking import Check, Comparison, check
from lambert.wings.convert.settings import ExportConfig, ImportConfig
from lambert.wings.convert.tensorflow import bert_names as tensorflow
from lambert.wings.convert.tensorflow.checkpoint import Checkpoint, find


@dataclass(frozen=True, slots=True)
class Imported(Result):
    """The outcome of an import. `folder` is the model folder, or the folder that was only compared."""

    checks: tuple[Comparison, ...] = ()
    """What was compared with the library that made the folder; empty without `check`, or without the library."""


def run_import(config: ImportConfig, say: Say = silent) -> Imported:
    """Converts the folder, compares it with the library that made it, or both. The model folder appears only after its
    outputs have been verified."""
    checks: list[Comparison] = []
    if config.out is None and config.check is None:
        raise UsageError("import requires --out, the model folder to write, or --check, texts to compare with only.")
    for line in _compare_only(config, checks) if config.out is None else _convert(config, config.out, checks):
        say(line)
    return Imported(config.out or config.source, checks=tuple(checks))


def _compare_only(config: ImportConfig, checks: list[Comparison]) -> Iterator[str]:
    """Compares the unconverted folder with the library that made it."""
    if find(config.source) is not None:
        raise UsageError(
            f"{config.source} is a checkpoint of TensorFlow, which no library of --check reads: give --out."
        )
    _check_exists(config.source)
    assert config.check is not None
    found = check(config.source, config.source, config.check, config.against, config.code)
    yield from _lines(found, checks, config, "")
    if not found.table:
        raise UsageError(f"Nothing was compared: {found.notes[-1]}")


def _check_exists(folder: Path) -> None:
    refuse_model(folder)
    if not folder.is_dir():
        raise DataError(f"No such folder: {folder}. {NOT_DOWNLOADED}")


def _lines(found: Check, checks: list[Comparison], config: ImportConfig, end: str) -> Iterator[str]:
    """Yields the table of a check and adds it to `checks`. Raises DataError with the first difference."""
    checks += found.table
    yield from found.lines()
    if problem := found.problem():
        raise DataError(f"{found.library} reads {config.source} differently: {problem}{end}.")


def _convert(config: ImportConfig, out: Path, checks: list[Comparison]) -> Iterator[str]:
    prefix = find(config.source)
    folder = config.source / encoder_path(config.source) if prefix is None else prefix.parent
    if prefix is None:
        _check_exists(folder)
    elif not folder.is_dir():
        raise DataError(f"No such folder: {folder}. {NOT_DOWNLOADED}")
    check_new_folder(out)
    checkpoint = None if prefix is None else tensorflow.open_checkpoint(prefix)
    layout.check_family(layout.read_config(folder), folder)
    if checkpoint is None:
        weights_file(folder)  # raises if there is none, before the tokenizer is read
    tokenizer = tokenizers.load(folder, lowercase=config.lowercase)
    path = tokenizers.file_in(folder)
    if roles.find_id(tokenizer, "mask") is None:
        roles.template(tokenizer, str(path))
        yield (
            "note: the tokenizer has no mask token: the model can be fine-tuned, but its pre-training cannot be "
            "continued."
        )
    else:
        roles.specials(tokenizer, str(path))  # raises if a special piece is missing
    pieces = roles.size(tokenizer)
    if checkpoint is None:
        model, report = weights.load(folder, vocabulary=pieces, code=config.code, pooler=True)
    else:
        if config.lowercase is None and not (folder / tokenizers.CONFIG).is_file():
            _check_case(tokenizer, path)
        model, report = _google(checkpoint, folder, pieces)
    check_padding(tokenizer, model.config, folder)
    yield from (*report.lines(), *report.warnings())
    extra, files = read_extras(folder, model.config)
    task = task_of(folder, layout.read_config(folder))
    positions = model.config.positions
    write_tokenizer = partial(
        tokenizers.save,
        tokenizer,
        longest=min(length(folder) or positions, positions),
        segments=reads_segments(model.config),
    )
    lines: list[str] = []

    def compare(written: Path) -> None:
        if config.check is not None and prefix is None:
            found = check(folder, written, config.check, config.against, config.code)
            for line in _lines(found, checks, config, "; nothing was written"):
                lines.append(line)

    if config.check is not None and prefix is not None:
        lines.append("note: no library reads checkpoints of TensorFlow 1, so nothing was compared on the texts.")
    try:
        verified = publish(
            model, out, write_tokenizer, extra, card=card_of_converted(model, out, folder, task), files=files,
            replace=True, compare=True, check=compare,
        )  # fmt: skip
    finally:
        yield from lines
    yield verified
    yield f"model  {out}"


def _google(checkpoint: Checkpoint, folder: Path, pieces: int) -> tuple[Model, weights.Report]:
    """Returns the model of a checkpoint of google-research/bert, and how it differs from the checkpoint."""
    tensors, aside = tensorflow.tensors(checkpoint)
    settings = layout.read_config(folder)
    if tensorflow.CLASSIFIER in tensors:
        labels = len(tensors[tensorflow.CLASSIFIER])
        settings = {"architectures": ["BertForSequenceClassification"], "num_labels": labels, **settings}
    heads, stored = layout.heads_of(settings, tensors, folder), (tensors, checkpoint.path)
    model, report = weights.load(folder, heads, pieces, pooler=True, share=True, stored=stored)
    if lost := [name for name in report.unexpected if name.startswith("bert.")]:
        raise DataError(
            f"{checkpoint.path} holds {lost[0]}, and {folder / layout.GOOGLE_CONFIG} describes a model without it. "
            "Correct its sizes, or take the bert_config.json of this checkpoint."
        )
    return model, replace(report, unexpected=(*report.unexpected, *aside))


def _check_case(tokenizer: Any, path: Path) -> None:
    """Raises UsageError if the name of the folder, such as uncased_L-12_H-768_A-12, contradicts the capitals of the
    pieces of the vocabulary."""
    named = re.search(r"(?:^|[_-])(un|)cased(?:[_-]|$)", path.resolve().parent.name.lower())
    lowercase = tokenizers.normalization(tokenizer).get("lowercase")
    if named is not None and lowercase is not None and bool(named[1]) != lowercase:
        raise UsageError(
            f"{path} {'has no' if lowercase else 'has'} pieces with capitals, and the name of its folder says "
            f"{named[1]}cased. Set --lowercase or --no-lowercase."
        )


def run_export(config: ExportConfig, say: Say = silent) -> Result:
    """Converts `config.model` to `config.format` and verifies the result."""
    for line in lookup(FORMATS, config.format, "--format", Kind((ExportConfig,)))(config) or ():
        say(line)
    return Result(config.out)


def _export_hugging_face(config: ExportConfig) -> Iterator[str]:
    formats.check_precision(config, {"float32": 0, "bfloat16": 0})
    if config.precision == "bfloat16":
        yield from hugging_face.export_bfloat16(config)
    else:
        folder = layout.model_folder(config.model)
        yield from _convert(ImportConfig(source=folder, code=config.code), config.out, [])


FORMATS: dict[str, Callable[[ExportConfig], Iterable[str] | None]] = {
    "hf": _export_hugging_face,
    "sentence-transformers": hugging_face.export_vectors,
    "onnx": partial(formats.export, onnx.FORMAT),
    "openvino": partial(formats.export, openvino.FORMAT),
    "torch": partial(formats.export, program.TORCH),
    "aoti": program.export_aoti,
}
