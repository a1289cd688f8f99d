"""Writes the folder of a format: complete and verified, or absent."""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from lambert.core.contents import write_sums
from lambert.core.errors import DataError, UsageError
from lambert.core.files import atomic_folder, check_new_folder, json_text, write_errors, write_files
from lambert.model import folder as layout
from lambert.model.publish import TOLERANCE
from lambert.wings.convert.card import format_card
from lambert.wings.convert.original import Original, check_pooled, check_traceable, read
from lambert.wings.convert.padded import PaddedModel, output_names
from lambert.wings.convert.sample import Arrays, LargestDifference, Runtime, samples
from lambert.wings.convert.settings import ExportConfig


@dataclass(frozen=True, slots=True)
class Format:
    """A file format of another runtime."""

    title: str
    """Name of the runtime in messages."""
    write: Callable[[PaddedModel, Original, Path, ExportConfig], None]
    """Writes the model into the folder."""
    load: Callable[[Path], Runtime]
    """Loads the model in the folder with its runtime, computing in float32 where the model does."""
    usage: str
    """Python code for the folder's README.md that computes the outputs of `rows`, a tokenizer's output; NAMES stands
    for the list of the inputs."""
    arrays: Literal["np", "pt"] = "np"
    """What `usage` needs as `rows`: arrays of NumPy or tensors of torch."""
    extra: str = ""
    """Extra of pyproject.toml with the packages."""
    packages: tuple[str, ...] = ()
    """Modules that must be installed."""
    tolerances: Mapping[str, float] = field(default_factory=lambda: {"float32": TOLERANCE})
    """Largest difference from the model, by precision: `Difference.scaled` for float32, `Difference.relative` for the
    others."""
    notes: Callable[[ExportConfig], tuple[str, ...]] = lambda config: ()
    """Lines to show, which the folder's README.md has too."""


def check_precision(config: ExportConfig, known: Mapping[str, object]) -> None:
    """Raises UsageError for a precision that the format does not have."""
    if config.precision not in known:
        have = " and ".join(known)
        raise UsageError(f"--format {config.format} has no precision {config.precision!r}: it has {have}.")


def check_installed(format: str, extra: str, packages: tuple[str, ...]) -> None:
    """Raises UsageError, with the extra to install, if a module is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"--format {format} needs {package}: pip install 'lambert-bert[{extra}]'.")


def export(form: Format, config: ExportConfig) -> Iterator[str]:
    """Writes the folder `config.out` in this format and yields lines to show. The folder appears after the outputs of
    the runtime have been compared with the model's.

    Raises DataError if they differ by more than the tolerance; then nothing is written.
    """
    check_precision(config, form.tolerances)
    if config.calibration is not None and (config.format, config.precision) != ("openvino", "int8"):
        raise UsageError("--calibration is for --format openvino --precision int8.")
    check_installed(config.format, form.extra, form.packages)
    check_new_folder(config.out)
    original = read(config)
    check_traceable(original.model, config.format)
    check_pooled(original, config.format)
    with write_errors(config.out), atomic_folder(config.out, replace=True) as aside, quiet():
        padded = PaddedModel(original.model, original.finish).eval()
        with torch.inference_mode(False), torch.no_grad():
            form.write(padded, original, aside, config)
        difference = compare_outputs(original, form.load(aside))
        check(difference, config, form.tolerances[config.precision], form.title)
        share = f" ({difference.relative:.1%} of the outputs on average)" if config.precision != "float32" else ""
        line = f"verified: largest difference of {form.title} from Lambert {difference.absolute:.1e}{share}"
        lines = (line, *form.notes(config))
        card = format_card(config.format, config.precision, padded, lines, form.arrays, form.usage)
        write_surroundings(original, aside, card)
    yield from form.notes(config)
    yield line
    yield f"model  {config.out}"


def compare_outputs(original: Original, runtime: Runtime) -> LargestDifference:
    """Returns the largest difference of the outputs of a runtime from those of the model, on the texts of `samples`."""
    difference, names = LargestDifference(), output_names(original.model.labels)
    for rows in samples(original):
        difference.add(rows, name_outputs(runtime(rows.inputs), names))
    return difference


def name_outputs(found: Arrays, names: tuple[str, ...]) -> Arrays:
    """Returns the outputs of a runtime by name. A program of torch names its outputs by number."""
    return {names[int(name)] if name.isdecimal() else name: values for name, values in found.items()}


def check(difference: LargestDifference, config: ExportConfig, tolerance: float, title: str) -> None:
    """Raises DataError if the difference exceeds the tolerance."""
    share = config.precision != "float32"
    if not (difference.relative if share else difference.scaled) <= tolerance:
        largest = max(magnitude for _, magnitude in difference.outputs.values())
        raise DataError(
            f"{title} computes other outputs: they differ by up to {difference.absolute:.1e}, and the largest "
            f"magnitude is {largest:.1e}; nothing was written."
        )


def write_surroundings(original: Original, folder: Path, readme: str) -> None:
    """Writes the files of a model folder besides the weights: config.json, the tokenizer, files of
    sentence-transformers, README.md and the hashes."""
    settings = layout.config_of(original.model) | dict(original.extra)
    (folder / layout.CONFIG).write_text(json_text(settings, indent=2) + "\n", encoding="utf-8")
    original.write_tokenizer(folder)
    write_files(folder, {**original.files, "README.md": readme})
    write_sums(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which exporters and runtimes print no warnings about themselves."""
    names = ("torch", "torch.onnx", "torch.export", "torch._inductor", "onnxscript", "onnx_ir", "nncf", "openvino")
    loggers = {name: logging.getLogger(name) for name in names}
    levels = {name: logger.level for name, logger in loggers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers.values():
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for name, level in levels.items():
                loggers[name].setLevel(level)
