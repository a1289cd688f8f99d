"""The settings of `lambert import` and `lambert export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lambert.wings.convert.config import Against, ExportConfig

__all__ = ["ExportConfig", "ImportConfig"]


@dataclass(frozen=True, slots=True)
class ImportConfig:
    """Converts a Hugging Face folder, or a checkpoint of Google's BERT, to a model folder. The weights are safetensors,
    a pytorch_model.bin, which is read without running code from it, or a checkpoint of TensorFlow 1."""

    source: Annotated[Path, Parameter(name="--from")]
    """Folder with config.json, the weights, and vocab.txt or tokenizer.json; or with bert_config.json, vocab.txt and a
    checkpoint of TensorFlow. Of several checkpoints, name one: FOLDER/model.ckpt-1000."""
    out: Path | None = None
    """Model folder to write; it must not exist. Unset: the folder is only checked."""
    check: Path | None = None
    """Texts on which Lambert is compared with the library that made the folder, which runs in a process of its own:
    token ids, lengths, prompts, labels and outputs. If they differ, nothing is written. A text in each line, or rows
    (JSON lines, CSV, TSV, Parquet) with text and text_b. The first 1,000 are read."""
    against: Against = ""
    """Library of `check`: transformers or sentence-transformers. Empty: the one that made the folder."""
    lowercase: bool | None = None
    """Whether the vocabulary is uncased. Unset: as the tokenizer settings of the folder say; for a vocab.txt without
    settings, whether its pieces have no capitals."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside that the model folder may import (docs/security.md)."""
