"""The task of a model folder: as Lambert stored it, or as sentence-transformers and transformers use the folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.core.modules import root
from lambert.model import folder as layout
from lambert.model.config import EncoderConfig
from lambert.model.labels import label_keys, label_names
from lambert.model.pooling import pooled_width
from lambert.tasks.config import TaskConfig
from lambert.tasks.task import own_class, parse_task
from lambert.tasks.vectors import sentence_transformers

CONFIG = "config.json"
_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
KEPT = ("problem_type", "lambert", sentence_transformers.FORMER_ACTIVATION, *_IDS)
"""Keys of config.json that describe the head, and ids of special tokens. They are copied."""


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
    config = parse_task(settings, name, folder / CONFIG)
    if settings.get("lambert"):
        return config
    pairs = sentence_transformers.is_cross_encoder(folder)
    if root(folder) and not pairs and (not name or own_class(name).computes_vectors):
        return sentence_transformers.read_task(folder)
    kind = own_class(config.name)
    if not kind.cut_by_tokenizer:
        return config
    try:
        config = replace(config, max_length=sentence_transformers.length(folder))
        if not kind.cross_encoder:
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
    if not config.labels:  # a value, whose activation is a setting
        return (named or ("Sigmoid" if crosses else "")).removeprefix("Identity")
    own = "Sigmoid" if own_class(config.name).head == "multilabel" else "Softmax"
    if named in ("", "Identity", own):
        return ""  # the probabilities are the softmax of the outputs, or of several labels their sigmoid
    raise DataError(
        f"{folder} is a CrossEncoder of {len(config.labels)} labels with the activation {named}; of such a model, only "
        f"Identity and {own} are supported."
    )


def read_extras(folder: Path, encoder: EncoderConfig) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    """Returns what a copy of a model folder has beside encoder and tokenizer: keys of config.json, without ids of
    special tokens that the encoder lacks, and the files of sentence-transformers. Raises DataError for a damaged
    key."""
    found = layout.read_config(folder)
    path = folder / layout.CONFIG
    extra = {name: found[name] for name in KEPT if found.get(name) is not None}
    _check_extras(extra, path)
    extra = {n: value for n, value in extra.items() if n not in _IDS or layout.names_pieces(value, encoder.vocabulary)}
    if layout.find_task_head(found, layout.check_family(found, folder)) in layout.LABELLED_HEADS:
        extra |= label_keys(label_names(found, path))
    task = task_of(folder, found)
    named = sentence_transformers.activation_of(folder, found) if own_class(task.name).cross_encoder else ""
    if activation := named or task.activation:
        extra |= sentence_transformers.config_keys(activation)
    if root(folder) is None or sentence_transformers.is_cross_encoder(folder):
        return extra, {}
    config = sentence_transformers.read_task(folder)
    config = replace(config, max_length=min(config.max_length or encoder.positions, encoder.positions))
    layers = sentence_transformers.layers(folder, pooled_width(encoder.hidden, config.embed.pooling))
    return extra, sentence_transformers.files(config, encoder.hidden, layers)


def _check_extras(extras: Mapping[str, Any], path: Path) -> None:
    """Raises DataError if a copied key has a form that other programs could not read."""
    kind = extras.get("problem_type", "")
    forms = {
        **{name: isinstance(extras.get(name, 0), int | list) for name in _IDS},
        "problem_type": kind in ("", "regression", "single_label_classification", "multi_label_classification"),
    }
    for name, right in forms.items():
        if not right:
            raise DataError(f"{path} has {name} in another form than Hugging Face's. Correct or remove it.")
