"""The files of a model folder that sentence-transformers reads: which vector a text has, and which score a pair.

Folders of all its versions are read. Vectors are written in the form that all versions read, if it can express them.

Source: sentence-transformers 6.2, and what its versions since 2021 write.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from lambert.core.errors import DataError, UsageError, quote
from lambert.core.files import json_object, json_text, read_file
from lambert.core.modules import MODULES, TRANSFORMER, root, transformer_settings
from lambert.model import files as tensor_files
from lambert.model.pooling import split_modes
from lambert.model.vector_layers import ACTIVATIONS, Dense, Normalize, activation_named
from lambert.tasks.config import POOLINGS, EmbedConfig, TaskConfig
from lambert.tasks.vectors.similarity import SIMILARITIES

SETTINGS = "config_sentence_transformers.json"
FORMER_ACTIVATION = "sbert_ce_default_activation_function"
"""Key of config.json that names the activation of a CrossEncoder's scores in versions before 4."""
_TYPE = "sentence_transformers.models."
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Keys of the module Pooling up to version 5.3, by mode."""
_OLDEST = ("cls", "max", "mean", "mean_sqrt_len_tokens")
"""Modes that all versions have."""
_OF_DOCUMENTS = ("document", "passage", "corpus")
"""Names of the prompt of documents, in the order in which sentence-transformers looks for them."""
_DEFAULT = "default_prompt_name"
_VECTOR = "sentence_embedding"
_UNUSED = ("query_length", "document_length", "query_expansion", "config_args", "config_kwargs", "tokenizer_args",
           "processor_kwargs")  # fmt: skip
"""Keys of the module Transformer that change what a text means, and that Lambert does not have."""
_HARMLESS = {"torch_dtype", "dtype", "attn_implementation", "add_pooling_layer", "trust_remote_code", "revision"}
"""Keys of model_args on which vectors do not depend, or not in float32."""

Contents = str | bytes


@dataclass(frozen=True, slots=True)
class Module:
    """A module of modules.json: the name of its class, its folder, and the settings there."""

    kind: str
    folder: Path
    settings: Mapping[str, Any]


def files(config: TaskConfig, width: int, layers: Sequence[nn.Module] = ()) -> dict[str, Contents]:
    """Returns the files of a model with states of `width` components and these layers after its pooling, by name."""
    embed = config.embed
    kinds: list[tuple[str, dict[str, Any], nn.Module | None]] = [("Pooling", _pooling(embed, width), None)]
    kinds += [_describe_layer(layer) for layer in layers]
    if embed.unit():
        kinds.append(("Normalize", {}, None))
    modules, found = [{"idx": 0, "name": "0", "path": "", "type": f"{_TYPE}Transformer"}], {}
    for number, (kind, settings, layer) in enumerate(kinds, 1):
        path = f"{number}_{kind}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": _TYPE + kind})
        if settings:
            found[f"{path}/config.json"] = _text(settings)
        if layer is not None:
            found[f"{path}/model.safetensors"] = safetensors.torch.save(_tensors(layer))
    prompts = {name: text for name, text in embed.named_prompts().items() if text or name not in ("query", "document")}
    if embed.default_prompt:
        prompts.setdefault(embed.default_prompt, "")
    settings = {
        "__version__": {}, "prompts": prompts, _DEFAULT: embed.default_prompt or None,
        "similarity_fn_name": embed.similarity_name,
    }  # fmt: skip
    if embed.truncate_dim:
        settings["truncate_dim"] = embed.truncate_dim
    return {
        MODULES: _text(modules),
        **found,
        TRANSFORMER[0]: _text({"max_seq_length": config.max_length, "do_lower_case": False}),
        SETTINGS: _text(settings),
    }


def _text(value: Any) -> str:
    return json_text(value, indent=2) + "\n"


def _pooling(embed: EmbedConfig, width: int) -> dict[str, Any]:
    """Returns the settings of the module Pooling, in the form of version 2 if it can express them."""
    modes = split_modes(embed.pooling)
    if [mode for mode in POOLINGS if mode in modes] != [*modes]:  # in another order than flags have
        return {"embedding_dimension": width, "pooling_mode": [*modes], "include_prompt": embed.include_prompt}
    named = _FLAGS if set(modes) - set(_OLDEST) else {mode: _FLAGS[mode] for mode in _OLDEST}
    found: dict[str, Any] = {"word_embedding_dimension": width} | {key: mode in modes for mode, key in named.items()}
    return found if embed.include_prompt else {**found, "include_prompt": False}


def _describe_layer(layer: nn.Module) -> tuple[str, dict[str, Any], nn.Module | None]:
    """Returns the class, the settings and, if it has weights, the layer itself."""
    if isinstance(layer, Normalize):
        return "Normalize", {}, None
    if isinstance(layer, nn.LayerNorm):
        return "LayerNorm", {"dimension": layer.normalized_shape[0]}, layer
    assert isinstance(layer, Dense)
    kind, linear = type(layer.activation), layer.linear
    settings: dict[str, Any] = {
        "in_features": linear.in_features, "out_features": linear.out_features, "bias": linear.bias is not None,
        "activation_function": f"{kind.__module__}.{kind.__name__}",
    }  # fmt: skip
    return "Dense", settings | ({"use_residual": True} if layer.residual is not None else {}), layer


def _tensors(layer: nn.Module) -> dict[str, Tensor]:
    prefix = "norm." if isinstance(layer, nn.LayerNorm) else ""
    return {prefix + name: tensor.detach().float().contiguous() for name, tensor in layer.named_parameters()}


def similarity_name(folder: Path) -> str:
    """Returns the name of the similarity of vectors that a model folder asks for, as sentence-transformers reads it:
    cosine if it says nothing. Raises DataError for an unknown one."""
    top = root(folder)
    return "cosine" if top is None else _similarity(_settings(top / SETTINGS), top / SETTINGS)


def _similarity(settings: Mapping[str, Any], path: Path) -> Any:
    found = settings.get("similarity_fn_name") or "cosine"
    if found not in SIMILARITIES:
        raise DataError(f"{path} has similarity_fn_name = {quote(found)}; known: {', '.join(SIMILARITIES)}.")
    return found


def is_cross_encoder(folder: Path) -> bool:
    """Returns whether a model folder is one of sentence-transformers' CrossEncoder, which scores pairs of texts. Raises
    DataError if it has modules that Lambert does not have, or a prompt before pairs."""
    top = root(folder)
    if top is None:
        return False
    settings = _settings(top / SETTINGS)
    kinds, kind = [module.kind for module in _modules(top)], settings.get("model_type")
    if kind == "CrossEncoder" and kinds != ["Transformer"]:
        raise DataError(
            f"{top / MODULES} has the modules {', '.join(kinds)}: of a CrossEncoder, only Transformer is read."
        )
    if kinds != ["Transformer"]:
        return False
    default = settings.get(_DEFAULT)
    if _prompts(settings, top / SETTINGS).get(str(default)):
        raise DataError(f"{top / SETTINGS} has {_DEFAULT} = {quote(default)}: prompts before pairs are not supported.")
    return kind == "CrossEncoder" or transformer_settings(folder).get("transformer_task") == "sequence-classification"


def activation_of(folder: Path, settings: Mapping[str, Any]) -> str:
    """Returns the activation of the scores of a CrossEncoder, a key of `ACTIVATIONS`; empty if its folder names none.

    Args:
        folder: The model folder.
        settings: Contents of its config.json.
    """
    own = settings.get("sentence_transformers")
    top = root(folder)
    known = _settings(top / SETTINGS) if top else {}  # without modules.json, the file is not read
    marks = [
        known.get("activation_fn"), own.get("activation_fn") if isinstance(own, Mapping) else None,
        settings.get(FORMER_ACTIVATION),
    ]  # fmt: skip
    named = next((mark for mark in marks if isinstance(mark, str) and mark), "")
    if not named:
        return ""
    if not named.startswith("torch."):
        raise DataError(
            f"{folder} names the activation {quote(named)} of its scores, which is code from outside torch: remove "
            "activation_fn to have the default."
        )
    try:
        return type(activation_named(named)).__name__
    except ValueError as error:
        raise DataError(f"{folder} names an activation_fn of its scores that is not supported: {error}.") from error


def config_keys(activation: str) -> dict[str, Any]:
    """Returns the keys of config.json by which CrossEncoder knows the activation of its scores."""
    kind = ACTIVATIONS[activation]
    return {"sentence_transformers": {"activation_fn": f"{kind.__module__}.{kind.__name__}"}}


def read_task(folder: Path) -> TaskConfig:
    """Returns the task of a foreign folder of sentence-transformers. Raises DataError for what is unsupported."""
    return _vectors(folder)[0]


def layers(folder: Path, pooled: int) -> list[nn.Module]:
    """Returns the layers between pooling and division by length; none for a folder without modules.json. Raises
    DataError if one of them cannot take what `pooled` components become before it."""
    found = [] if root(folder) is None else _vectors(folder)[1]
    rows_1P = torch.zeros(1, pooled)
    for layer in found:
        try:
            rows_1P = layer(rows_1P)
        except RuntimeError as error:
            raise DataError(
                f"{folder}: the module {type(layer).__name__} after Pooling cannot take vectors of {rows_1P.shape[1]} "
                f"components ({error}): the folder is damaged, or task.embed.pooling is not its own."
            ) from error
    return found


def _vectors(folder: Path) -> tuple[TaskConfig, list[nn.Module]]:
    top = root(folder)
    assert top is not None, folder
    modules = _modules(top)
    kinds = [module.kind for module in modules]
    settings = _settings(top / SETTINGS)
    kind = settings.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer" or kinds[:2] != ["Transformer", "Pooling"]:
        of = "" if kind == "SentenceTransformer" else f" of a {kind}"
        raise DataError(
            f"{top / MODULES} has the modules {', '.join(kinds)}{of}: vectors are read from Transformer and Pooling, "
            "which Dense, LayerNorm and Normalize may follow."
        )
    after = [_layer(module) for module in modules[2:]]
    normalize = bool(after) and isinstance(after[-1], Normalize)
    pooling = modules[1].settings
    prompts = _prompts(settings, top / SETTINGS)
    width = settings.get("truncate_dim") or 0
    if type(width) is not int or width < 0:
        raise DataError(f"{top / SETTINGS} has truncate_dim = {quote(width)}; it must be a whole number.")
    default = settings.get(_DEFAULT) or ""
    try:
        embed = EmbedConfig(
            similarity=_similarity(settings, top / SETTINGS),
            pooling=_modes(pooling, modules[1].folder),
            normalize=normalize,
            prompt=prompts.get("query", ""),
            prompt_b=next((prompts[name] for name in _OF_DOCUMENTS if name in prompts), ""),
            prompts=tuple(f"{name}={text}" for name, text in prompts.items() if name not in ("query", "document")),
            default_prompt=str(default),
            include_prompt=pooling.get("include_prompt", True) is not False,
            truncate_dim=width,
        )
        config = TaskConfig(name="embed", max_length=length(folder), embed=embed)
    except UsageError as error:
        raise DataError(f"{top}: {error}") from error
    return config, after[: len(after) - normalize]


def length(folder: Path) -> int:
    """Returns the number of tokens to which sentence-transformers and transformers cut a text, special tokens included;
    0 if the folder has no limit but that of the encoder's positions."""
    own = transformer_settings(folder)
    text = own.get("processing_kwargs", {}).get("text", {}) if isinstance(own.get("processing_kwargs"), Mapping) else {}
    tokenizer = _settings(folder / "tokenizer_config.json")
    limit = tokenizer.get("model_max_length", tokenizer.get("max_len"))
    found = [text.get("max_length") if isinstance(text, Mapping) else None, own.get("max_seq_length"), limit]
    return next((int(number) for number in found if isinstance(number, int | float) and 0 < number < 2**31), 0)


def _modules(top: Path) -> list[Module]:
    """Returns the modules of a folder. Raises DataError for a class that is not of sentence-transformers."""
    path = top / MODULES
    rows = _json(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is not a list of modules.")
    found = []
    for row in rows:
        name, own = str(row.get("type", "")), str(row.get("path", ""))
        if not name.startswith("sentence_transformers."):
            raise DataError(f"{path} has the module {name}, code from outside sentence-transformers, which is not run.")
        if Path(own).is_absolute() or ".." in Path(own).parts:
            raise DataError(f"{path} has the path {quote(own)}, which leaves the folder.")
        kind = name.rpartition(".")[2]
        settings = transformer_settings(top / own) if kind == "Transformer" else _settings(top / own / "config.json")
        found.append(Module(kind, top / own, settings))
    for module in found:
        if module.kind == "Transformer":
            _check_transformer(module)
    return found


def _check_transformer(module: Module) -> None:
    """Raises DataError for settings of the module Transformer that change what a text means."""
    used = [name for name in _UNUSED if module.settings.get(name)]
    for name in ("model_args", "model_kwargs"):
        given = module.settings.get(name)
        used += [f"{name}.{key}" for key in given if key not in _HARMLESS] if isinstance(given, Mapping) else []
    processing = module.settings.get("processing_kwargs") or {}
    texts = (processing.get("text") or {}) if isinstance(processing, Mapping) and {*processing} <= {"text"} else None
    if not isinstance(texts, Mapping) or {*texts} - {"max_length", "truncation", "padding"}:
        used.append("processing_kwargs")
    modality = module.settings.get("modality_config") or {}
    text = modality.get("text") if isinstance(modality, Mapping) else None
    output = text.get("method_output_name") if isinstance(text, Mapping) else None
    if modality and output not in ("last_hidden_state", ["last_hidden_state"], "logits", ["logits"]):
        used.append("modality_config")
    if used:
        raise DataError(
            f"{module.folder} has {used[0]} = {quote(_at(module.settings, used[0]))} in the module Transformer, which "
            "is not supported."
        )


def _at(settings: Mapping[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    return settings[first][rest] if rest else settings[first]


def _modes(settings: Mapping[str, Any], folder: Path) -> str:
    """Returns the pooling of the module Pooling: a list of modes since version 5.4; before that, one flag per mode;
    mean if none is set. Raises DataError for an unknown mode."""
    given = settings.get("pooling_mode", [mode for mode, key in _FLAGS.items() if settings.get(key)] or "mean")
    modes = [given] if isinstance(given, str) else given
    flags = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    unknown = [key for key in flags if key not in _FLAGS.values()]
    if unknown or not isinstance(modes, list) or not modes or not all(mode in POOLINGS for mode in modes):
        raise DataError(
            f"{folder} has the pooling {quote(unknown[0] if unknown else given)}; known: {', '.join(POOLINGS)}."
        )
    return "+".join(modes)


def _prompts(settings: Mapping[str, Any], path: Path) -> dict[str, str]:
    found = settings.get("prompts") or {}
    if not isinstance(found, dict) or not all(isinstance(text, str | None) for text in found.values()):
        raise DataError(f"{path} has prompts = {quote(found)}; they must be texts by name.")
    if wrong := next((name for name in found if "=" in name), None):
        raise DataError(f"{path} has a prompt with the name {quote(wrong)}: a name must not contain =.")
    return {name: text or "" for name, text in found.items()}


def _layer(module: Module) -> nn.Module:
    """Returns a module that follows Pooling. Raises DataError for one that Lambert does not have."""
    names = {module.settings.get(f"module_{side}_name") for side in ("input", "output")} - {None, _VECTOR}
    if module.kind in ("Dense", "Normalize") and names:
        raise DataError(
            f"{module.folder}: the module {module.kind} reads or writes {quote(names.pop())}; supported: {_VECTOR}."
        )
    makers: dict[str, Callable[[Module], nn.Module]] = {
        "Dense": _dense, "LayerNorm": _norm, "Normalize": lambda module: Normalize(),
    }  # fmt: skip
    if module.kind not in makers:
        path = module.folder.parent / MODULES
        if module.kind == "Dropout":
            raise DataError(
                f"{path} has the module Dropout, which only training reads and Lambert does not have: remove it."
            )
        raise DataError(
            f"{path} has the module {module.kind}, not supported after Pooling. Supported: {', '.join(makers)}."
        )
    return makers[module.kind](module)


def _norm(module: Module) -> nn.Module:
    width = _size(module, "dimension")
    return _load_weights(nn.LayerNorm(width), module, "norm.")


def _dense(module: Module) -> nn.Module:
    inputs, outputs = _size(module, "in_features"), _size(module, "out_features")
    linear = nn.Linear(inputs, outputs, bias=module.settings.get("bias", True) is not False)
    residual: nn.Module | None = None
    if module.settings.get("use_residual"):
        residual = nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs, bias=False)
    named = module.settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    if named == "torch.nn.modules.linear.Identity":
        named = "Identity"
    elif not isinstance(named, str) or not named.startswith("torch."):
        raise DataError(
            f"{module.folder}: the module Dense has the activation {quote(named)}, code from outside torch, in whose "
            "place sentence-transformers computes Tanh. Write torch.nn.modules.activation.Tanh in its config.json if "
            "that is meant."
        )
    try:
        return _load_weights(Dense(linear, activation_named(named), residual), module)
    except ValueError as error:
        raise DataError(f"{module.folder}: the module Dense: {error}.") from error


def _size(module: Module, key: str) -> int:
    found = module.settings.get(key)
    if type(found) is not int or not 0 < found < 2**20:
        raise DataError(f"{module.folder}: the module {module.kind} has {key} = {quote(found)}; it must be a size.")
    return found


def _load_weights(layer: nn.Module, module: Module, prefix: str = "") -> nn.Module:
    """Returns the layer with the weights in the module's folder. Raises DataError if they are not those of it."""
    tensors, path = tensor_files.read(module.folder)
    own = {prefix + name: parameter for name, parameter in layer.named_parameters()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wanted = {name: tuple(parameter.shape) for name, parameter in own.items()}
    if shapes != wanted:
        raise DataError(f"{path} has the weights {quote(shapes)}, and the module {module.kind} has {quote(wanted)}.")
    tensor_files.check_finite(tensors.items(), path)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])
    return layer.eval().requires_grad_(False)


def _settings(path: Path) -> Mapping[str, Any]:
    """Returns the object in a JSON file; an empty one if there is no file."""
    return json_object(path) if path.exists() else {}


def _json(path: Path) -> Any:
    try:
        return json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}.") from error
