"""Weights by the names of Hugging Face, fresh ones from a seed, and the model folder on disk.

Nothing here runs code from a file: safetensors, or `pytorch_model.bin` read with `weights_only`.
"""

import json
import os
import pickle
import re
import warnings
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.randomness import Stream, key
from lambert.model import folder as layout
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model

WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"

# ours, theirs; tried in this order at the beginning of a name
_NAMES = (
    (r"encoder\.words\.", "bert.embeddings.word_embeddings."),
    (r"encoder\.positions\.", "bert.embeddings.position_embeddings."),
    (r"encoder\.types\.", "bert.embeddings.token_type_embeddings."),
    (r"encoder\.norm\.", "bert.embeddings.LayerNorm."),
    (r"encoder\.blocks\.(\d+)\.(query|key|value)\.", r"bert.encoder.layer.\1.attention.self.\2."),
    (r"encoder\.blocks\.(\d+)\.attention_out\.", r"bert.encoder.layer.\1.attention.output.dense."),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.", r"bert.encoder.layer.\1.attention.output.LayerNorm."),
    (r"encoder\.blocks\.(\d+)\.up\.", r"bert.encoder.layer.\1.intermediate.dense."),
    (r"encoder\.blocks\.(\d+)\.down\.", r"bert.encoder.layer.\1.output.dense."),
    (r"encoder\.blocks\.(\d+)\.norm\.", r"bert.encoder.layer.\1.output.LayerNorm."),
    (r"encoder\.blocks\.", "bert.encoder.blocks."),  # what a block of another kind has beside these
    (r"pooler\.", "bert.pooler.dense."),
    (r"heads\.mlm\.dense\.", "cls.predictions.transform.dense."),
    (r"heads\.mlm\.norm\.", "cls.predictions.transform.LayerNorm."),
    (r"heads\.mlm\.bias$", "cls.predictions.bias"),
    (r"heads\.nsp\.classifier\.", "cls.seq_relationship."),
    (r"heads\.(label|value|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
_IGNORED = re.compile(r"(bert\.)?embeddings\.(position_ids|token_type_ids)$|cls\.predictions\.decoder\.")


@dataclass(frozen=True, slots=True)
class Report:
    """What did not meet when weights were read, by the names of Hugging Face."""

    missing: tuple[str, ...]
    """In the model and not in the file: these stay fresh."""
    unexpected: tuple[str, ...]
    """In the file and not in the model: these were left aside."""


def hugging_face_name(name: str) -> str:
    """The name of one of our parameters in a Hugging Face file; a head from outside keeps its own."""
    for ours, theirs in _NAMES:
        if re.match(ours, name):
            return re.sub("^" + ours, theirs, name)
    return name


def state(model: Model) -> dict[str, Tensor]:
    """The model's tensors by the names of Hugging Face, detached, on the CPU. The tied decoder appears once, as the
    word embeddings. Raises UsageError for heads that would share a name."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        theirs = hugging_face_name(name)
        if theirs in tensors:
            raise UsageError(
                f"One folder holds one of the heads label, value and tag; the model has {[*model.labels]}."
            )
        tensors[theirs] = parameter.detach().cpu().contiguous()
    return tensors


@torch.no_grad()
def assign(model: Model, tensors: Mapping[str, Tensor], source: str = "the weights") -> Report:
    """Copies tensors by the names of Hugging Face, legacy names too, into the model.

    Raises DataError that names the tensor and both shapes where they differ. `source` names the file in errors.
    """
    found = modern_names(tensors)
    missing = []
    for name, parameter in model.named_parameters():
        theirs = hugging_face_name(name)
        tensor = found.pop(theirs, None)
        if tensor is None:
            missing.append(theirs)
        elif tensor.shape != parameter.shape:
            shapes = f"{list(tensor.shape)} in {source}, {list(parameter.shape)} in the model"
            raise DataError(f"The shape of {theirs} is {shapes}. Check config.json and the recipe's model.")
        else:
            parameter.copy_(tensor)
    return Report(tuple(missing), tuple(sorted(found)))


def modern_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under today's names: gamma and beta renamed, the prefix of backbone-only files added, the copies that a
    tied decoder leaves and the numbers of positions dropped."""
    renamed = {}
    for name, tensor in tensors.items():
        modern = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        renamed[re.sub(r"^(?=(embeddings|encoder|pooler)\.)", "bert.", modern)] = tensor
    for copy, original in layout.TIED.items():
        if copy in renamed:
            renamed.setdefault(original, renamed[copy])
    return {name: tensor for name, tensor in renamed.items() if not _IGNORED.match(name)}


def fresh(config: EncoderConfig, heads: Mapping[str, int], seed: int = 0) -> Model:
    """A model with fresh weights: normal with standard deviation `init_range`, truncated at two of them; biases 0,
    norms 1 (google-research/bert, create_initializer). Each tensor depends on the seed and its own name alone."""
    model = Model(config, heads)
    initialise(model, seed)
    return model


@torch.no_grad()
def initialise(model: Model, seed: int, names: Collection[str] | None = None) -> None:
    """Fills the model as `fresh` does; with `names`, those of Hugging Face, only these tensors."""
    std = model.config.init_range
    for name, parameter in model.named_parameters():
        theirs = hugging_face_name(name)
        if names is not None and theirs not in names:
            continue
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:  # the scale of a norm, whatever its class
            parameter.fill_(1.0)
        else:
            draw = key(seed, Stream.INIT, zlib.crc32(theirs.encode()))
            generator = torch.Generator().manual_seed(int(draw) >> 1)
            values = torch.empty(parameter.shape)
            nn.init.trunc_normal_(values, std=std, a=-2 * std, b=2 * std, generator=generator)
            parameter.copy_(values)


def save(model: Model, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
    """Writes `config.json` and `model.safetensors` so that `AutoModel.from_pretrained(folder)` reads them.

    `extra` is added to config.json, such as id2label. Both files are written aside, then renamed, config.json last: a
    full disk or an interrupted save leaves what was there, or no model, never half a file. Raises MachineError where
    the disk refuses.
    """
    folder = Path(folder)
    config = layout.config_of(model) | dict(extra or {})
    contents = {
        folder / WEIGHTS: safetensors.torch.save(state(model), metadata={"format": "pt"}),
        folder / layout.CONFIG: (json.dumps(config, indent=2) + "\n").encode(),
    }
    asides = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in contents.items():
            with asides[path].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, aside in asides.items():
            aside.replace(path)
    except OSError as error:
        raise MachineError(f"{folder} cannot be written: {error.strerror or error}.") from error
    finally:
        for aside in asides.values():
            aside.unlink(missing_ok=True)


def read(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a model folder by the names in the file, and the file. Raises DataError where there is none or it
    is damaged."""
    for name in (WEIGHTS, PICKLED):
        path = Path(folder) / name
        if not path.is_file():
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch remarks on unusual pickles before it refuses them
                tensors = (
                    safetensors.torch.load_file(path)
                    if name == WEIGHTS
                    else torch.load(path, map_location="cpu", weights_only=True)
                )
        except (
            safetensors.SafetensorError,
            pickle.UnpicklingError,
            RuntimeError,
            EOFError,
            OSError,
            ValueError,
        ) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DataError(
                f"{path} is cut short, damaged or unsafe ({reason[:120]}). Fetch or write it again."
            ) from error
        if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
            raise DataError(f"{path} holds no table of tensors. It must be the state of a model, by name.")
        return tensors, path
    raise DataError(f"No weights in {folder}: neither {WEIGHTS} nor {PICKLED}.")


def load(folder: Path, heads: Mapping[str, int] | None = None, vocabulary: int | None = None, seed: int = 0) -> Model:
    """The model in a folder; see `load_with_report`."""
    return load_with_report(folder, heads, vocabulary, seed)[0]


def load_with_report(
    folder: Path, heads: Mapping[str, int] | None = None, vocabulary: int | None = None, seed: int = 0
) -> tuple[Model, Report]:
    """The model in a Hugging Face folder with `heads` (by default those of the folder), and what did not meet.

    Heads and a pooler that the file lacks, and heads with another number of labels, are fresh from `seed`; a lacking
    tensor of the encoder is a DataError. With `vocabulary`, the tokenizer's number of pieces, rows that only pad the
    table to a multiple of 64 are dropped, and any other difference is a DataError.
    """
    folder = Path(folder)
    tensors, path = read(folder)
    tensors = modern_names(tensors)
    settings = layout.read_config(folder)
    config = layout.encoder_config(settings, folder / layout.CONFIG)
    if vocabulary is not None:
        config = layout.with_vocabulary(config, vocabulary, tensors, path)
    model = Model(config, layout.heads_of(settings, tensors, folder) if heads is None else heads)
    report = assign(model, _without_other_heads(tensors, model), str(path))
    lacking = [n for n in report.missing if n.startswith("bert.") and not n.startswith("bert.pooler.")]
    if lacking:
        raise DataError(f"{path} lacks {lacking[0]} and {len(lacking) - 1} more tensors of the encoder.")
    initialise(model, seed, report.missing)  # after reading: drawing what the file holds would take most of the time
    return model, report


def _without_other_heads(tensors: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """Without the label and tag heads of another number of labels than the model's: they belong to another task."""
    own = {hugging_face_name(name): parameter.shape for name, parameter in model.named_parameters()}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith("classifier.") or own.get(name, tensor.shape) == tensor.shape
    }
