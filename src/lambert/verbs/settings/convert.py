"""The settings of `lambert import` and `lambert export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


@dataclass(frozen=True, slots=True)
class ImportConfig:
    """Converts a Hugging Face folder to a model folder. The weights are safetensors, or a pytorch_model.bin, which is
    read without running code from it."""

    source: Annotated[Path, Parameter(name="--from")]
    """Folder with config.json, the weights, and vocab.txt or tokenizer.json."""
    out: Path
    """Model folder to write; it must not exist."""
    lowercase: bool | None = None
    """Whether the vocabulary is uncased. Unset: as the tokenizer settings of the folder say."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside that the model folder may import (docs/security.md)."""


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """Converts a model folder to another format."""

    model: Path
    """Run folder or model folder."""
    out: Path
    """Folder to write; it must not exist."""
    format: str = "hf"
    """hf: config.json, model.safetensors and tokenizer files, as transformers' AutoModel reads them."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside that the model folder may import (docs/security.md)."""
