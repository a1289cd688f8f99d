"""Writes checkpoints of TensorFlow 1 with protobuf, TensorBoard's CRC-32C and pyarrow's Snappy."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from safetensors.torch import load_file
from tensorboard.compat.proto import tensor_shape_pb2, types_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from torch import Tensor

TYPES = {
    torch.float32: types_pb2.DT_FLOAT, torch.float16: types_pb2.DT_HALF, torch.bfloat16: types_pb2.DT_BFLOAT16,
    torch.float64: types_pb2.DT_DOUBLE, torch.int64: types_pb2.DT_INT64,
}  # fmt: skip
GOOGLE_KEYS = (
    "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range",
    "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size",
    "vocab_size",
)  # fmt: skip


def _messages() -> tuple[Any, Any]:
    """The classes of BundleHeaderProto and BundleEntryProto (tensor_bundle.proto)."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tensor_bundle.proto", package="bundle", syntax="proto3")
    file.dependency.append(tensor_shape_pb2.DESCRIPTOR.name)
    header, entry = file.message_type.add(name="Header"), file.message_type.add(name="Entry")
    for number, name in enumerate(("num_shards", "endianness"), 1):
        header.field.add(name=name, number=number, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    types = {
        "dtype": kinds.TYPE_INT32, "shape": kinds.TYPE_MESSAGE, "shard_id": kinds.TYPE_INT32,
        "offset": kinds.TYPE_INT64, "size": kinds.TYPE_INT64, "crc32c": kinds.TYPE_FIXED32, "slices": kinds.TYPE_BYTES,
    }  # fmt: skip
    for number, (name, kind) in enumerate(types.items(), 1):
        label = kinds.LABEL_REPEATED if name == "slices" else kinds.LABEL_OPTIONAL
        field = entry.field.add(name=name, number=number, type=kind, label=label)
        if name == "shape":
            field.type_name = f".{tensor_shape_pb2.TensorShapeProto.DESCRIPTOR.full_name}"
    pool = descriptor_pool.Default()
    pool.Add(file)
    header, entry = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bundle.{n}")) for n in ("Header", "Entry")
    )
    return header, entry


HEADER, ENTRY = _messages()


def number(value: int) -> bytes:
    """An integer of variable length."""
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def block(items: list[tuple[bytes, bytes]], restart: int = 16) -> bytes:
    """A block of a table, in which every `restart`th key is whole."""
    out, restarts, last = b"", [], b""
    for place, (key, value) in enumerate(items):
        if place % restart == 0:
            restarts.append(len(out))
            last = b""
        shared = next(count for count in range(len(key), -1, -1) if last.startswith(key[:count]))
        out += number(shared) + number(len(key) - shared) + number(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return out + b"".join(place.to_bytes(4, "little") for place in [*restarts, len(restarts)])


def table(path: Path, values: Mapping[str, bytes], *, per_block: int = 100, snappy: bool = False) -> None:
    """A table as LevelDB writes it, with at most `per_block` keys in a block."""
    out = bytearray()

    def add(content: bytes) -> bytes:
        kind = b"\1" if snappy else b"\0"
        stored = (pyarrow.Codec("snappy").compress(content, asbytes=True) if snappy else content) + kind
        place = number(len(out)) + number(len(stored) - 1)
        out.extend(stored + masked_crc32c(stored).to_bytes(4, "little"))
        return place

    items = sorted((key.encode(), value) for key, value in values.items())
    parts = [items[start : start + per_block] for start in range(0, len(items), per_block)]
    places = [(part[-1][0], add(block(part))) for part in parts]
    footer = add(block([])) + add(block(places, restart=1))
    out.extend(footer.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little"))
    path.write_bytes(out)


def entry(tensor: Tensor, data: bytes, **changes: Any) -> Any:
    """The entry of a tensor with these bytes."""
    shape = tensor_shape_pb2.TensorShapeProto(dim=[{"size": size} for size in tensor.shape])
    values = {"dtype": TYPES[tensor.dtype], "shape": shape, "size": len(data), "crc32c": masked_crc32c(data)}
    return ENTRY(**(values | changes))


def write(
    prefix: Path,
    tensors: Mapping[str, Tensor],
    *,
    shards: int = 1,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    header: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """A checkpoint, its tensors divided among `shards` data files in turn. `entries` has other values of the entries of
    tensors by their names, `options` are those of `table`."""
    values = {"": HEADER(**({"num_shards": shards} | dict(header or {}))).SerializeToString()}
    contents = [b""] * shards
    for place, (name, tensor) in enumerate(sorted(tensors.items())):
        raw = tensor.contiguous().view(torch.int16) if tensor.itemsize == 2 else tensor.contiguous()
        data, shard = np.ascontiguousarray(raw.numpy()).tobytes(), place % shards
        changes = {"shard_id": shard, "offset": len(contents[shard])} | dict((entries or {}).get(name, {}))
        values[name] = entry(tensor, data, **changes).SerializeToString()
        contents[shard] += data
    for shard, content in enumerate(contents):
        Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    table(Path(f"{prefix}.index"), values, **options)


def google_name(name: str) -> str:
    """The name of google-research/bert for a tensor of a model folder."""
    special = {
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
        "classifier.weight": "output_weights",
        "classifier.bias": "output_bias",
        "qa_outputs.weight": "cls/squad/output_weights",
        "qa_outputs.bias": "cls/squad/output_bias",
    }
    if name in special:
        return special[name]
    *scopes, kind = re.sub(r"layer\.(\d+)", r"layer_\1", name).split(".")
    if scopes[-1].endswith("_embeddings"):
        return "/".join(scopes)
    norm = scopes[-1] == "LayerNorm"
    return "/".join([*scopes, {"weight": "gamma" if norm else "kernel", "bias": "beta" if norm else "bias"}[kind]])


def google_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a model folder as google-research/bert stores them."""
    named = {google_name(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    return {name: tensor.T if name.endswith("/kernel") else tensor for name, tensor in named.items()}


def google_folder(
    model: Path, out: Path, name: str = "bert_model.ckpt", *, more: Mapping[str, Tensor] | None = None, **options: Any
) -> Path:
    """Writes a model folder as Google's: bert_config.json, vocab.txt and a checkpoint, with `more` variables."""
    out.mkdir(parents=True)
    config = json.loads((model / "config.json").read_text())
    (out / "bert_config.json").write_text(json.dumps({key: config[key] for key in GOOGLE_KEYS}))
    shutil.copy(model / "vocab.txt", out)
    write(out / name, google_tensors(model) | dict(more or {}), **options)
    return out
