"""The files of a model folder that sentence-transformers reads: which vector a text has. They are written in the form
that all its versions read.

Source: sentence-transformers 6.2, models Transformer, Pooling and Normalize.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError
from lambert.core.files import json_text
from lambert.tasks.config import EmbedConfig, TaskConfig

MODULES = "modules.json"
_TYPE = "sentence_transformers.models."
_POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
_MODES = (*_POOLINGS.values(), "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens")


def files(config: TaskConfig, width: int) -> dict[str, str]:
    """Returns the files of a model with vectors of `width` components, by name."""
    embed = config.embed
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")][: 2 + embed.unit()]
    modules = [{"idx": i, "name": str(i), "path": p, "type": _TYPE + kind} for i, (p, kind) in enumerate(kinds)]
    chosen = _POOLINGS[embed.pooling or "mean"]
    pooling = {"word_embedding_dimension": width} | {mode: mode == chosen for mode in _MODES}
    prompts = {name: text for name, text in (("query", embed.prompt), ("document", embed.prompt_b)) if text}
    similarity = "dot" if embed.loss == "margin" else "cosine"
    settings = {
        "__version__": {}, "prompts": prompts, "default_prompt_name": None, "similarity_fn_name": similarity,
    }  # fmt: skip
    found: dict[str, Any] = {
        MODULES: modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": config.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": settings,
    }
    return {name: json_text(value, indent=2) + "\n" for name, value in found.items()}


def described(folder: Path) -> TaskConfig:
    """Returns the task of a folder of sentence-transformers that Lambert did not write. Raises DataError for modules
    that Lambert does not have."""
    modules = _json(folder / MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise DataError(f"{folder / MODULES} is not a list of modules.")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise DataError(
            f"{folder / MODULES} has the modules {', '.join(kinds)}: only Transformer, Pooling and Normalize are known."
        )
    pooling = _json(folder / str(modules[1].get("path", "")) / "config.json")
    modes = {mode for mode in _MODES if isinstance(pooling, Mapping) and pooling.get(mode)}
    if isinstance(pooling, Mapping) and isinstance(pooling.get("pooling_mode"), str):  # since version 5.3
        modes = {_POOLINGS.get(str(pooling["pooling_mode"]), str(pooling["pooling_mode"]))}
    names = {mode: name for name, mode in _POOLINGS.items()}
    if len(modes) != 1 or not modes <= set(names):
        found = ", ".join(sorted(modes)) or "no pooling"
        raise DataError(f"{folder} has {found} in the module Pooling: only mean and cls are known.")
    settings = _settings(folder / "config_sentence_transformers.json")
    prompts = settings.get("prompts")
    texts = {name: text for name, text in prompts.items() if isinstance(text, str)} if isinstance(prompts, dict) else {}
    embed = EmbedConfig(
        loss="margin" if settings.get("similarity_fn_name") == "dot" else "",  # so that inner products are compared
        pooling="cls" if names[modes.pop()] == "cls" else "mean",
        normalize="Normalize" in kinds,
        prompt=texts.get("query", ""),
        prompt_b=texts.get("document", texts.get("passage", "")),
    )
    length = _settings(folder / "sentence_bert_config.json").get("max_seq_length")
    return TaskConfig(name="embed", max_length=length if isinstance(length, int) else 0, embed=embed)


def _settings(path: Path) -> Mapping[str, Any]:
    """Returns the object in a JSON file; an empty one if there is no file."""
    found = _json(path) if path.exists() else {}
    return found if isinstance(found, Mapping) else {}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}.") from error
