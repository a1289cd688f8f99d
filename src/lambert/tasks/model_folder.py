"""The task of a model folder: as Lambert stored it, or as sentence-transformers and transformers use the folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.tasks import sentence_transformers
from lambert.tasks.config import TaskConfig
from lambert.tasks.task import described

CONFIG = "config.json"
_CUT = ("classify", "multilabel", "regress", "choice", "embed")
"""Tasks whose texts sentence-transformers or transformers cuts at the limit of the tokenizer."""


def task_of(folder: Path, settings: Mapping[str, Any], name: str = "") -> TaskConfig:
    """Returns the task of a model folder.

    Args:
        folder: The model folder.
        settings: Contents of its config.json.
        name: The expected task; empty: that of the folder.

    Raises:
        UsageError: The folder is of another task than `name`.
        DataError: The description is damaged, or of something that Lambert does not have.
    """
    config = described(settings, name, folder / CONFIG)
    if settings.get("lambert"):
        return config
    pairs = sentence_transformers.is_cross_encoder(folder)
    if sentence_transformers.root(folder) and not pairs and name in ("", "embed"):
        return sentence_transformers.described(folder)
    if config.name not in _CUT:
        return config
    try:
        config = replace(config, max_length=sentence_transformers.length(folder))
        if config.name in ("choice", "embed"):
            return config
        named = sentence_transformers.activation_of(folder, settings)
        config = replace(config, activation=_activation(config, folder, named, crosses=pairs))
        optional = not pairs and not named
        return replace(config, columns=replace(config.columns, text_b="text_b", text_b_optional=optional))
    except UsageError as error:
        raise DataError(f"{folder}: {error}") from error


def _activation(config: TaskConfig, folder: Path, named: str, *, crosses: bool) -> str:
    """Returns the activation of the scores of pairs. Raises DataError for one that the task does not have.

    Args:
        named: That which the folder names, or "".
        crosses: Whether the folder is that of a CrossEncoder.
    """
    if config.name == "regress":
        return (named or ("Sigmoid" if crosses else "")).removeprefix("Identity")
    if named in ("", "Identity", "Softmax") or (config.name, named) == ("multilabel", "Sigmoid"):
        return ""  # the probabilities are the softmax of the outputs, or of several labels their sigmoid
    raise DataError(
        f"{folder} is a CrossEncoder of {len(config.labels)} labels with the activation {named}; with several labels, "
        "only Identity and Softmax are supported."
    )
