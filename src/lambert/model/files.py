"""Reads the tensors of a model folder: from one file of safetensors or PyTorch's own format, or several with an index.

No code from a file is executed, and no more memory is allocated than the size of the files: safetensors checks its
header against the file, and PyTorch's format is read with `weights_only` and checked for missing storage.
"""

import hashlib
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from lambert.core.contents import sha256
from lambert.core.errors import DataError
from lambert.core.files import is_name, json_object

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
_INDICES = (INDEX, PICKLED_INDEX)
EXPORTED = {"model.onnx": "ONNX", "openvino_model.xml": "OpenVINO", "model.pt2": "a program of torch"}
"""Files that `lambert export` writes, and their formats."""

Tensors = dict[str, Tensor]
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
"""The name, in messages of torch, of a function that a pickle calls without permission."""
_DAMAGE = (
    struct.error,
    safetensors.SafetensorError, pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, OSError,
    ValueError, TypeError, LookupError, AttributeError, OverflowError, MemoryError, AssertionError, NotImplementedError,
)  # fmt: skip
"""Exceptions of the libraries for damaged or malicious files. torch has no exception class of its own for them."""
_TENSORFLOW = re.compile(r"(.+)\.(index|meta|data-\d{5}-of-\d{5})")
"""The name of a file of a TensorFlow checkpoint: prefix and kind of file."""


def read(folder: Path) -> tuple[Tensors, Path]:
    """Returns the tensors of a model folder by their names in the file, and the path of the file or of the index.

    Raises DataError if there is no file, or if one is damaged.
    """
    path = weights_file(folder)
    read_tensors = _read_safetensors if path.name in (WEIGHTS, INDEX) else _read_pickle
    return _read_shards(path, read_tensors) if path.name in _INDICES else read_tensors(path), path


def weights_file(folder: Path) -> Path:
    """Returns the file of a model folder that holds or lists its weights. Raises DataError if there is none."""
    for name in (WEIGHTS, INDEX, PICKLED, PICKLED_INDEX):
        if (path := Path(folder) / name).is_file():
            return path
    if exported := next((name for name in EXPORTED if (Path(folder) / name).is_file()), None):
        raise DataError(
            f"{folder} is an export to {EXPORTED[exported]} ({exported}), for that runtime: give the model folder from "
            "which it was exported."
        )
    raise DataError(
        f"No weights in {folder}: neither {WEIGHTS} nor {INDEX} nor {PICKLED}, nor bert_model.ckpt.index. Fetch one of "
        "them."
    )


def fingerprint(folder: Path) -> str:
    """Returns the SHA-256 of the files from which `read` takes the tensors of a model folder."""
    path = weights_file(folder)
    names = set(json_object(path)["weight_map"].values()) if path.name in _INDICES else set()
    shards = [path.with_name(name) for name in sorted(names)]
    hashes = [sha256(file) for file in (path, *shards)]
    return hashlib.sha256("".join(hashes).encode()).hexdigest() if shards else hashes[0]


def check_finite(tensors: Iterable[tuple[str, Tensor]], path: Path) -> None:
    """Raises DataError for the first tensor that has a value that is NaN or infinite in float32, or that is not of
    floating point."""
    for name, tensor in tensors:
        if not tensor.is_floating_point():
            raise DataError(f"{path}: {name} is of {str(tensor.dtype)[6:]}, not of floating point.")
        wide = tensor if tensor.itemsize in (2, 4) else tensor.float()  # torch cannot sum float8
        if not torch.isfinite(wide.sum(dtype=torch.float32)):  # one pass without a copy; the sum may overflow
            count = int((~torch.isfinite(wide)).sum())
            if count:
                raise DataError(
                    f"{path}: {count:,} of {tensor.numel():,} values of {name} are NaN or infinite. Fetch it again, or "
                    "take an earlier checkpoint."
                )


def _read_safetensors(path: Path) -> Tensors:
    try:
        tensors: Tensors = safetensors.torch.load_file(path)
    except _DAMAGE as error:
        raise _describe_damage(path, error) from error
    return tensors


def _read_shards(path: Path, read_tensors: Callable[[Path], Tensors]) -> Tensors:
    places = json_object(path).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise DataError(f"{path} has no weight_map, a table from tensors to files.")
    wanted: dict[str, list[str]] = {}
    for name, shard in places.items():
        if not is_name(shard):
            raise DataError(f"{path}: the file of {name} is {shard!r}; it must be the name of a file beside it.")
        wanted.setdefault(shard, []).append(name)
    tensors: Tensors = {}
    for shard, names in wanted.items():
        file = path.with_name(shard)
        if not file.is_file():
            raise DataError(f"{path} names {shard}, which is missing. Fetch all files of the model.")
        found = read_tensors(file)
        if lacking := [name for name in names if name not in found]:
            raise DataError(f"{file} lacks {lacking[0]}, which {path.name} lists in it.")
        if beyond := [name for name in found if places.get(name) != shard]:
            raise DataError(f"{file} holds {beyond[0]}, which {path.name} does not list.")
        tensors |= found
    return tensors


def _read_pickle(path: Path) -> Tensors:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise DataError(f"{path} is compressed; PyTorch's own files are not. Save it again.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of unusual pickles before it refuses them
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except _DAMAGE as error:
        raise _describe_damage(path, error) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise DataError(f"{path} is not a state dict, a table from names to tensors.")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise DataError(f"{path}: {name} is not a plain tensor on the CPU. Write the file again.")
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise DataError(f"{path}: {name} claims {tensor.nbytes:,} bytes, more than the file holds for it.")
    return tensors


def _describe_damage(path: Path, error: BaseException) -> DataError:
    if not str(path).isascii() and "\\udc" in ascii(str(path)):
        return DataError(f"{path}: safetensors only opens files whose paths are UTF-8. Rename the folder.")
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, pickle.UnpicklingError):  # torch's message advises to load the file without protection
        name = _GLOBAL.search(str(error))
        reason = f"it calls {name[1]}, which no state dict needs" if name else "it is not a table of tensors"
    return DataError(f"{path} is cut short, damaged or unsafe ({reason[:120]}). Fetch or write it again.")


def tensorflow_prefixes(path: Path) -> list[Path]:
    """Returns the prefixes of the TensorFlow checkpoints that a path names: those in a folder without weights of
    Hugging Face, or the one of a prefix or of a file of a checkpoint."""
    if path.is_dir():
        if any((*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin"))):
            return []
        names = {match[1] for file in path.glob("*.ckpt*") if (match := _TENSORFLOW.fullmatch(file.name))}
        return [prefix for name in sorted(names, key=_update_of) if _has_parts(prefix := path / name)]
    if match := _TENSORFLOW.fullmatch(path.name):
        path = path.with_name(match[1])
    return [path] if path.name and _has_parts(path) else []


def _update_of(name: str) -> tuple[int, str]:
    """Returns the number of the update at the end of a prefix, such as model.ckpt-1000, and the prefix."""
    number = name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else -1), name


def _has_parts(prefix: Path) -> bool:
    """Returns whether there is an index or a data file with a prefix."""
    shards = prefix.parent.glob("*.data-*-of-*")
    return Path(f"{prefix}.index").is_file() or any(file.name.startswith(f"{prefix.name}.data-") for file in shards)
