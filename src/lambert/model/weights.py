"""Weights by the names of Hugging Face, fresh ones from a seed, and the model folder on disk.

What a folder holds is compared with what its config.json says, by names and shapes, before a model is made.
"""

import dataclasses
import json
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lambert.core.contents import check_sums
from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.files import replace_files
from lambert.core.randomness import Stream, key
from lambert.model import files
from lambert.model import folder as layout
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model

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

_POOLER = "bert.pooler.dense.weight"
"""Is in a file that has a pooler."""


@dataclass(frozen=True, slots=True)
class Report:
    """What did not meet when weights were read, by the names of Hugging Face."""

    missing: tuple[str, ...]
    """In the model and not in the file: these stay fresh."""
    unexpected: tuple[str, ...]
    """In the file and not in the model: these were left aside."""
    untied: tuple[str, ...] = ()
    """In the file as a copy of another tensor, and not equal to it: these were left aside, the other is used."""

    def lines(self) -> list[str]:
        """What did not meet by name, a line for each kind."""
        told = {"fresh, not in the file": self.missing, "left aside": self.unexpected}
        return [
            f"{what}: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}" for what, names in told.items() if names
        ]

    def warnings(self) -> list[str]:
        """What a user should know of who expects the file's own outputs, a line each."""
        fresh = _POOLER in self.missing
        return [
            f"warning: {name} differs from {layout.TIED[name]}, to which it is tied: it was left aside."
            for name in self.untied
        ] + ["note: the pooler is fresh, because the encoder's folder has none."] * fresh


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
        else:
            _check_shape(theirs, tensor, tuple(parameter.shape), source)
            parameter.copy_(tensor)
    return Report(tuple(missing), tuple(sorted(found)))


def modern_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under today's names: gamma and beta renamed, the prefix of backbone-only files added, the copies that a
    tied decoder leaves and the numbers of positions dropped."""
    renamed = _renamed(tensors)
    for copy, original in layout.TIED.items():
        if copy in renamed:
            renamed.setdefault(original, renamed[copy])
    return {name: tensor for name, tensor in renamed.items() if not _IGNORED.match(name)}


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in tensors.items():
        modern = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        renamed[re.sub(r"^(?=(embeddings|encoder|pooler)\.)", "bert.", modern)] = tensor
    return renamed


def fresh(config: EncoderConfig, heads: Mapping[str, int], seed: int = 0) -> Model:
    """A model with fresh weights: normal with standard deviation `init_range`, truncated at two of them; biases 0,
    norms 1 (google-research/bert, create_initializer). Each tensor depends on the seed and its own name alone. Raises
    UsageError where the deviation is 0."""
    if not config.init_range:
        raise UsageError(
            "model.init_range = 0 makes all units of a layer equal, and training keeps them equal: set it above 0."
        )
    model = _built(config, heads)
    initialise(model, seed)
    return model


class _Unfilled(TorchFunctionMode):
    """Within it `torch.nn.init` leaves parameters as they are. Drawn on the meta device, they would make torch import
    its compiler, which takes longer than reading a model."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensor = args[0] if args else (kwargs or {}).get("tensor")
        if getattr(function, "__module__", "") == nn.init.__name__ and isinstance(tensor, nn.Parameter):
            return tensor
        return function(*args, **(kwargs or {}))


def _built(config: EncoderConfig, heads: Mapping[str, int], pooler: bool = False) -> Model:
    """A model whose parameters are still to be filled. Torch's random state stays as it was."""
    random = torch.random.get_rng_state()
    try:
        with _Unfilled():
            return Model(config, heads, pooler)
    finally:
        torch.random.set_rng_state(random)


@torch.no_grad()
def initialise(model: Model, seed: int, names: Collection[str] | None = None) -> None:
    """Fills the model as `fresh` does; with `names`, those of Hugging Face, only these tensors."""
    std = model.config.init_range
    for name, parameter in model.named_parameters():
        theirs = hugging_face_name(name)
        if names is not None and theirs not in names:
            continue
        if name.endswith("bias") or (std == 0 and parameter.ndim > 1):
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
        folder / files.WEIGHTS: safetensors.torch.save(state(model), metadata={"format": "pt"}),
        folder / layout.CONFIG: (json.dumps(config, indent=2) + "\n").encode(),
    }
    try:
        replace_files(contents)
    except OSError as error:
        raise MachineError(f"{folder} cannot be written: {error.strerror or error}.") from error


def load(
    folder: Path,
    heads: Mapping[str, int] | None = None,
    vocabulary: int | None = None,
    seed: int = 0,
    code: Collection[str] = (),
    pooler: bool = False,
) -> Model:
    """The model in a folder; see `load_with_report`."""
    return load_with_report(folder, heads, vocabulary, seed, code, pooler)[0]


def load_with_report(
    folder: Path,
    heads: Mapping[str, int] | None = None,
    vocabulary: int | None = None,
    seed: int = 0,
    code: Collection[str] = (),
    pooler: bool = False,
) -> tuple[Model, Report]:
    """The model in a Hugging Face folder with `heads` (by default those of the folder), and what did not meet.

    With `pooler` the model has the pooler of the file, where there is one, even if no head reads it. Heads and a pooler
    that the file lacks, and heads with another number of labels, are fresh from `seed`; a lacking tensor of the encoder
    is a DataError. With `vocabulary`, the tokenizer's number of pieces, rows that only pad the table to a multiple of
    64 are dropped, and any other difference is a DataError. `code` has the names of what the folder may import; another
    is a UsageError.
    """
    folder = Path(folder)
    stored, path = files.read(folder)
    settings = layout.read_config(folder)
    config = layout.encoder_config(settings, folder, code)
    untied, tensors = _untied(stored), modern_names(stored)
    if vocabulary is not None:
        config = layout.with_vocabulary(config, vocabulary, tensors, path)
    heads = layout.heads_of(settings, tensors, folder) if heads is None else heads
    pooler = pooler and _POOLER in tensors
    _check_sizes(config, heads, tensors, path, pooler)
    model = _built(config, heads, pooler)
    found = _without_other_heads(tensors, model)
    used = {hugging_face_name(name) for name, _ in model.named_parameters()}
    files.check_finite(((name, tensor) for name, tensor in found.items() if name in used), path)
    report = dataclasses.replace(assign(model, found, str(path)), untied=untied)
    _check_lacking(report.missing, path)
    initialise(model, seed, report.missing)  # after reading: drawing what the file holds would take most of the time
    check_sums(folder)  # last: an error above says more
    return model, report


def _check_lacking(missing: Collection[str], path: Path) -> None:
    lacking = [n for n in missing if n.startswith("bert.") and not n.startswith("bert.pooler.")]
    if lacking:
        raise DataError(f"{path} lacks {lacking[0]} and {len(lacking) - 1} more tensors of the encoder.")


_LAYER = re.compile(r"bert\.encoder\.(?:layer|blocks)\.(\d+)\.")


def _check_sizes(
    config: EncoderConfig, heads: Mapping[str, int], tensors: Mapping[str, Tensor], path: Path, pooler: bool
) -> None:
    """Raises DataError where the tensors are not those of such a model. Nothing is allocated for it: sizes that
    config.json makes up cost neither memory nor time."""
    layers = len({found[1] for name in tensors if (found := _LAYER.match(name))})
    if config.layers > layers:
        raise DataError(
            f"{path} lacks bert.encoder.layer.{layers}: config.json has num_hidden_layers = {config.layers}."
        )
    embeddings = {"word": config.vocabulary, "position": config.positions, "token_type": config.segment_types}
    own: dict[str, tuple[int, ...]]
    own = {f"bert.embeddings.{name}_embeddings.weight": (rows, config.hidden) for name, rows in embeddings.items()}
    if config.block == "bert":  # a block from outside may not like to be made without memory
        with torch.device("meta"):
            model = _built(config, heads, pooler)
        own |= {hugging_face_name(name): tuple(parameter.shape) for name, parameter in model.named_parameters()}
    _check_lacking([name for name in own if name not in tensors], path)
    for name, shape in own.items():
        if name in tensors and not name.startswith("classifier."):
            _check_shape(name, tensors[name], shape, str(path))


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], source: str) -> None:
    if tuple(tensor.shape) != shape:
        shapes = f"{list(tensor.shape)} in {source}, {list(shape)} in the model"
        raise DataError(f"The shape of {name} is {shapes}. Check config.json and the recipe's model.")


def _untied(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The copies that a tied decoder leaves in a file and that are not equal to what they are copies of."""
    modern = _renamed(tensors)
    return tuple(
        copy
        for copy, original in layout.TIED.items()
        if copy in modern and original in modern and not torch.equal(modern[copy], modern[original])
    )


def _without_other_heads(tensors: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """Without the label and tag heads of another number of labels than the model's: they belong to another task."""
    own = {hugging_face_name(name): parameter.shape for name, parameter in model.named_parameters()}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith("classifier.") or own.get(name, tensor.shape) == tensor.shape
    }
