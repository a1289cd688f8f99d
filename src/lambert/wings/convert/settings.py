"""The settings of `lambert import` and `lambert export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from lambert.core.settings import check
from lambert.inference.config import Precisions

Against = Literal["", "transformers", "sentence-transformers"]


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
    """Names, package.module:name, of code from outside Lambert that the model folder may import (docs/security.md)."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """Converts a model folder to another format, and compares the outputs of both before the new folder appears."""

    model: Path
    """Run folder or model folder."""
    out: Path
    """Folder to write; it must not exist."""
    format: str = "hf"
    """hf: config.json, model.safetensors and tokenizer files, as transformers' AutoModel reads them.
    sentence-transformers: the same for a model of vectors, compared with that library. onnx: model.onnx, for ONNX
    Runtime and others. openvino: openvino_model.xml and .bin. torch: model.pt2, a program of torch.export. aoti:
    model.pt2 with machine code for this kind of processor, by AOTInductor."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside Lambert that the model folder may import (docs/security.md)."""
    precision: Precisions = "float32"
    """bfloat16: weights of half the size (hf, sentence-transformers). int8: products of 8-bit numbers (onnx,
    openvino)."""
    calibration: Path | None = None
    """File with a text in each line (a tab between the texts of a pair), from which openvino's int8 learns the ranges
    of activations. Unset: a few sentences in several languages; texts of your domain are better."""

    def __post_init__(self) -> None:
        check(self)
