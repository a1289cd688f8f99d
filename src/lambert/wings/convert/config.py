"""The settings of `lambert export`, and the libraries with which `lambert import` compares."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lambert.inference.config import Precisions

Against = Literal["", "transformers", "sentence-transformers"]


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
    """Names, package.module:name, of code from outside that the model folder may import (docs/security.md)."""
    precision: Precisions = "float32"
    """bfloat16: weights of half the size (hf, sentence-transformers). int8: products of 8-bit numbers (onnx,
    openvino)."""
    calibration: Path | None = None
    """Text file, one text a line (a tab between the texts of a pair), from which openvino's int8 learns the ranges of
    activations. Unset: a few sentences in several languages; texts of your domain are better."""
