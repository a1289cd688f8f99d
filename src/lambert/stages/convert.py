"""`lambert import` and `lambert export`: model folders in and out, each verified by its outputs before it appears."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from lambert.core.errors import DataError, UsageError
from lambert.core.registry import lookup
from lambert.corpus import tokenizer as tokenizers
from lambert.model import folder as layout
from lambert.model import weights
from lambert.stages.publish import publish


@dataclass(frozen=True, slots=True)
class ImportConfig:
    """A Hugging Face folder (safetensors, or pytorch_model.bin read without running code) to a model folder."""

    source: Annotated[Path, Parameter(name="--from")]
    """Folder with config.json, the weights, and vocab.txt or tokenizer.json."""
    out: Path
    """Model folder to write; it must not exist."""
    lowercase: bool | None = None
    """Whether the vocabulary is uncased; not set: as the folder's tokenizer settings say."""


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """A model folder to another format."""

    model: Path
    """Model folder."""
    out: Path
    """Folder to write; it must not exist."""
    format: str = "hf"
    """hf: config.json, model.safetensors and tokenizer files, as transformers' AutoModel reads them."""


KEPT = ("id2label", "label2id", "problem_type", "lambert")
"""Keys of config.json that say what the head means: they are handed on."""


def run_import(config: ImportConfig) -> None:
    """Reads, writes aside, verifies, renames."""
    if not config.source.is_dir():
        raise DataError(f"No such folder: {config.source}.")
    if config.out.exists() and (not config.out.is_dir() or any(config.out.iterdir())):
        raise UsageError(f"{config.out} exists already. Choose another --out, or remove it.")
    tokenizer = tokenizers.load(config.source, lowercase=config.lowercase)
    tokenizers.specials(tokenizer)  # for its error: without [MASK] and its like the folder is of no use later
    model, report = weights.load_with_report(config.source, vocabulary=tokenizer.get_vocab_size())
    for what, names in (("fresh, not in the file", report.missing), ("left aside", report.unexpected)):
        if names:
            print(f"{what}: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}")
    kept = layout.read_config(config.source)
    extra: dict[str, Any] = {name: kept[name] for name in KEPT if name in kept}
    print(publish(model, tokenizer, config.out, extra, compare=True))
    print(f"model  {config.out}")


def run_export(config: ExportConfig) -> None:
    """Writes `config.model` in `config.format`, verified."""
    lookup(FORMATS, config.format, "--format")(config)


def _hugging_face(config: ExportConfig) -> None:
    run_import(ImportConfig(source=config.model, out=config.out))


FORMATS: dict[str, Callable[[ExportConfig], None]] = {"hf": _hugging_face}
