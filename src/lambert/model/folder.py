"""`config.json` of a model folder, read and written."""

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lambert.core.errors import DataError, UsageError, quote
from lambert.core.files import is_name, json_object, read_file
from lambert.core.modules import encoder_path, modules_of
from lambert.core.registry import check_named, nearest
from lambert.core.unsupported import NOT_DOWNLOADED, refuse_model
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import check_fixed
from lambert.model.families import DEFAULT, FAMILIES, family_of
from lambert.model.family import Family
from lambert.model.files import tensorflow_prefixes
from lambert.model.heads import Model
from lambert.model.labels import check_rows, check_values, default_names, label_keys, label_names, list_ignored_ids

CONFIG = "config.json"
GOOGLE_CONFIG = "bert_config.json"
BLOCK = "lambert_block"
"""Key of config.json for a block from outside Lambert."""
OWN_TYPE = "lambert"
"""The model_type of a folder with such blocks. AutoModel refuses it; otherwise it would create fresh layers."""
_TELLING = {"mlm": "heads.mlm.bias", "nsp": "heads.nsp.classifier.weight", "span": "heads.span.classifier.weight"}
"""The parameter of each head by which a folder without `architectures` shows that it has the head."""

LABELLED_HEADS = ("label", "multilabel", "value", "tag")
"""Heads with a row for each label; `value` has one."""
_PROBLEMS = {"value": "regression", "multilabel": "multi_label_classification"}
"""problem_type of config.json of the heads that share an architecture with `label`."""

BY_PIECE = ("encoder.words.weight", "heads.mlm.bias", "heads.mlm.decoder")
"""Parameters with a row or a value for each piece of the vocabulary."""
_BLOCKS = (8, 64, 128)
"""Numbers of rows to a multiple of which other programs pad these parameters."""
_SPARE = 40
"""Rows without a piece that a table may have otherwise: the multilingual MiniLM has 35."""

_ELSEWHERE = {
    "albert": "Its layers share their weights, which no family here does: take a BERT or DistilBERT.",
    "new": "Its blocks are those of the family 'gte' of transformers, with other positions in its config.json: take "
    "the same model in that form, such as alibaba-nlp-community/gte-multilingual-base.",
}
"""Advice for families that Lambert does not have, by model_type."""
_FIXED = {"is_causal": False}
"""Keys of config.json, in every family, of which one value is supported."""
_DROPOUTS = {"classifier_dropout": "heads", "embedding_dropout": "embeddings", "embd_pdrop": "embeddings"}
"""Keys of config.json for separate dropouts, which Lambert does not have, and where they apply."""

_SAVED = re.compile(r"saved after update ([\d,]+ of [\d,]+)")
"""A line of log.txt about a run that was stopped."""


def architecture(config: EncoderConfig, heads: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Returns Hugging Face's name of a model with these heads, and the heads of that name (`label` also for `value` and
    `multilabel`)."""
    has = {"label" if name in _PROBLEMS else name for name in heads}
    return next((name, its) for name, its in family_of(config).architectures.items() if has.issuperset(its))


def unknown_to_transformers(config: EncoderConfig, heads: Collection[str]) -> str:
    """Returns the name that config.json gives a model with these heads if transformers has no class of that name; else
    an empty text."""
    name, its = architecture(config, heads)
    return name if family_of(config).own_heads.intersection(its) else ""


def own_head(head: str, heads: Collection[str]) -> str:
    """Returns the name that a head of an architecture has among these heads of a model, such as `value` for
    `label`."""
    return next((name for name in _PROBLEMS if head == "label" and name in heads), head)


def config_of(model: Model) -> dict[str, Any]:
    """Returns the contents of the model's config.json."""
    config = model.config
    out: dict[str, Any] = {"architectures": [architecture(config, model.labels)[0]]}
    out |= {"model_type": OWN_TYPE if config.custom_block else config.block} | family_of(config).keys.to_json(config)
    if config.custom_block:
        out[BLOCK] = config.block
    out["dtype"] = str(model.encoder.words.weight.dtype).removeprefix("torch.")
    counted = (model.labels.get(name) for name in ("label", "multilabel", "tag"))
    labels = 1 if "value" in model.labels else next(filter(None, counted), 0)
    if labels:
        out |= label_keys(default_names(labels))
    problem = next((problem for head, problem in _PROBLEMS.items() if head in model.labels), "")
    return out | ({"problem_type": problem} if problem else {})


def model_folder(path: Path) -> Path:
    """Returns the model folder `path`, or that of the run folder `path`. Raises DataError if there is none."""
    folder = path / "model" if (path / "model").is_dir() else path
    folder = folder / encoder_path(folder)
    if tensorflow_prefixes(folder):
        raise DataError(
            f"{folder} is a TensorFlow checkpoint. Convert it first: lambert import --from {folder} --out FOLDER, and "
            "give that folder."
        )
    refuse_model(folder)
    _refuse_unfinished(path.parent if path.name == "model" and not path.exists() else path)
    if not folder.is_dir():
        raise DataError(f"No such model folder: {path}. {NOT_DOWNLOADED}")
    return folder


def _refuse_unfinished(run: Path) -> None:
    """Raises DataError if `run` is a run folder without a model."""
    if (run / "model").is_dir() or (run / CONFIG).is_file() or not (run / "config.toml").is_file():
        return
    log = run / "log.txt"
    places = _SAVED.findall(read_file(log).decode(errors="replace")) if log.is_file() else []
    saved = f" It was saved after update {places[-1]}." if places else ""
    raise DataError(f"{run} is a run that has no model yet.{saved} Repeat the call that began the run to finish it.")


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the contents of config.json, or of Google's bert_config.json if there is none. Raises DataError."""
    return json_object(_config_file(folder))


def _config_file(folder: Path) -> Path:
    path = next((folder / name for name in (CONFIG, GOOGLE_CONFIG) if (folder / name).is_file()), None)
    if path is None:
        seed = min(folder.glob("seed-*"), default=None)
        hint = f" It holds the runs of several seeds: give one, such as {seed}." if seed else ""
        if modules := modules_of(folder):
            hint = (
                f" It is a model of sentence-transformers with {', '.join(modules)}: only models whose first module is "
                "Transformer, an encoder, are read."
            )
        elif inner := _find_inner(folder):
            hint = f" Give the model folder in it: {inner}."
        raise DataError(f"No model at {folder} (no {CONFIG} or {GOOGLE_CONFIG}).{hint}")
    return path


def _find_inner(folder: Path) -> Path | None:
    """Returns the model folder in a folder of the Hub's cache or of transformers' Trainer: the snapshot that is in use,
    or the last checkpoint. None if there is none."""
    main = folder / "refs" / "main"
    used = read_file(main).decode(errors="replace").strip() if main.is_file() else ""
    snapshots = sorted(folder.glob(f"snapshots/{used if is_name(used) else '*'}/{CONFIG}"))
    saved = {path: path.parent.name.removeprefix("checkpoint-") for path in folder.glob(f"checkpoint-*/{CONFIG}")}
    checkpoints = sorted((path for path in saved if saved[path].isdecimal()), key=lambda path: int(saved[path]))
    return next((paths[-1].parent for paths in (snapshots, checkpoints) if paths), None)


def check_named_file(settings: Mapping[str, Any], weights: Path) -> None:
    """Raises DataError if config.json names another file than `weights` as that of the model's weights."""
    named = settings.get("transformers_weights") or weights.name
    if named != weights.name:
        raise DataError(
            f"{weights.with_name(CONFIG)} has transformers_weights = {quote(named)}, the file that transformers reads, "
            f"and Lambert reads {weights.name}. Leave only the right file, under that name, and remove the key."
        )


def check_family(settings: Mapping[str, Any], folder: Path) -> Family:
    """Returns the family of the model that config.json describes. Raises DataError for a family that Lambert does not
    have."""
    known = [OWN_TYPE] if BLOCK in settings else [*FAMILIES]
    if "model_type" not in settings and BLOCK not in settings:
        _check_default(settings, folder)
    found = settings.get("model_type", OWN_TYPE if BLOCK in settings else DEFAULT)
    if found not in known:
        close = difflib.get_close_matches(str(found), known, n=1, cutoff=0.75)
        others = f"Take a model of one of these families: {', '.join(known)}."
        hint = _ELSEWHERE.get(str(found), f"Did you mean {close[0]!r}?" if close else others)
        raise DataError(
            f"{_config_file(folder)} has model_type = {quote(found)}, a family that Lambert does not have. {hint}"
        )
    return FAMILIES[DEFAULT if found == OWN_TYPE else found]


def _check_default(settings: Mapping[str, Any], folder: Path) -> None:
    """Raises DataError if the architecture of a config.json without a model_type is of another family than BERT."""
    named = settings.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    others = [name for name, family in FAMILIES.items() if isinstance(first, str) and first in family.architectures]
    if others and DEFAULT not in others:
        raise DataError(
            f"{_config_file(folder)} has no model_type, and names the architecture {first!r}. "
            f'Add "model_type": "{others[0]}" to it.'
        )


def encoder_config(settings: Mapping[str, Any], folder: Path, code: Collection[str] = ()) -> EncoderConfig:
    """Returns the settings of the encoder that config.json describes.

    Args:
        settings: Contents of config.json.
        folder: The model folder, for errors.
        code: Names of the code from outside Lambert that the folder may ask for.

    Raises DataError for an encoder that Lambert does not have, UsageError for a block that is not in `code`.
    """
    path = _config_file(folder)
    family = check_family(settings, folder)
    check_fixed(settings, _FIXED, path)
    if settings.get("quantization_config"):
        raise DataError(
            f"{path} has quantization_config = {quote(settings['quantization_config'])}: quantized weights are not "
            "read. Take the same model with its weights in float32, float16 or bfloat16."
        )
    block = _block(settings[BLOCK], path, code) if BLOCK in settings else settings.get("model_type", DEFAULT)
    try:
        return dataclasses.replace(family.keys.from_json(settings, path), block=block)
    except UsageError as error:
        raise DataError(f"{path}: {error}") from error


def list_ignored(settings: Mapping[str, Any], config: EncoderConfig) -> list[str]:
    """Returns a line for each setting of config.json that is ignored: code (`auto_map`), a label2id that contradicts
    the labels, special tokens beyond the vocabulary, and separate dropouts of embeddings and heads."""
    code = f"note: config.json has auto_map, code that is not run: the model is read as a plain {config.block!r}."
    return (
        [code] * ("auto_map" in settings)
        + list_ignored_ids(settings)
        + _list_ignored_tokens(settings, config.vocabulary)
        + [
            f"note: config.json has {key} = {quote(value)}, which is ignored: {what} use the dropout of the layers, "
            f"{config.dropout:g}."
            for key, what in _DROPOUTS.items()
            if isinstance(value := settings.get(key), int | float) and value != config.dropout
        ]
    )


def _list_ignored_tokens(settings: Mapping[str, Any], vocabulary: int) -> list[str]:
    """Returns a line if config.json has special tokens beyond the vocabulary."""
    found = {key: value for key, value in settings.items() if key.endswith("_token_id") and key != "pad_token_id"}
    beyond = [f"{key} = {quote(value)}" for key, value in found.items() if not names_pieces(value, vocabulary)]
    return (
        [f"note: config.json has {', '.join(beyond)}, which are ignored: the model has {vocabulary:,} pieces."]
        if beyond
        else []
    )


def names_pieces(value: Any, vocabulary: int) -> bool:
    """Returns whether the value of a key such as eos_token_id is null, the number of a piece, or a list of such
    numbers."""
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    return all(type(number) is int and 0 <= number < vocabulary for number in numbers)


def _block(name: object, path: Path, code: Collection[str]) -> str:
    if not isinstance(name, str):
        raise DataError(f"{path} has {BLOCK} = {quote(name)}; it must be a name.")
    check_named(name, code, BLOCK, path)
    if ":" not in name and name != DEFAULT:
        raise DataError(f"{path} has {BLOCK} = {name!r}, which is unknown.{nearest(name, [DEFAULT])}")
    return name


def heads_of(settings: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> dict[str, int]:
    """Returns the number of labels of each head of a folder: the heads of its architecture, or if config.json names
    none, those whose tensors it has. Raises DataError for an unknown architecture, and if config.json and the weights
    have different numbers of labels."""
    family, path = check_family(settings, folder), _config_file(folder)
    named = settings.get("architectures") or [None]
    if not isinstance(named, list):
        raise DataError(f"{path} has architectures = {quote(named)}; it must be a list of names.")
    if named[0] is None:
        return {head: 0 for head, name in _TELLING.items() if family.names.to_folder(name) in tensors}
    if not isinstance(named[0], str) or named[0] not in family.architectures:
        known = ", ".join(family.architectures)
        raise DataError(f"{path} names the architecture {quote(named[0])}; supported: {known}.")
    heads, own = family.architectures[named[0]], find_task_head(settings, family)
    if own not in LABELLED_HEADS:
        return dict.fromkeys(heads, 0)
    names = label_names(settings, path)
    check_rows(len(names), head_rows(own, tensors, family) or len(names), path)
    if own == "value":
        check_values(len(names), path)
        return {own: 0}
    return {own: len(names)}


def find_task_head(settings: Mapping[str, Any], family: Family) -> str:
    """Returns the name of the task's head in a folder with this config.json; empty if its architecture has none."""
    named = settings.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    own = next((head for head in family.architectures.get(first, ()) if head in ("label", "tag", "choice", "span")), "")
    problem, names = settings.get("problem_type"), settings.get("id2label")
    if own != "label" or problem == _PROBLEMS["multilabel"]:
        return "multilabel" if own == "label" else own
    count = settings.get("num_labels")
    one = count == 1 if count is not None else isinstance(names, dict) and len(names) == 1
    return "value" if one or problem == _PROBLEMS["value"] else own


def find_unnamed_head(settings: Mapping[str, Any], unused: Collection[str], folder: Path) -> str:
    """Returns an error message if the tensors of a folder that are `unused` have a head that its config.json does not
    name, and an empty text otherwise."""
    family = check_family(settings, folder)
    names = [family.names.to_folder(f"heads.{head}.classifier.weight") for head in LABELLED_HEADS]
    found = next((name for name in names if name in unused), "")
    if settings.get("architectures") or not found:
        return ""
    example = next(name for name, heads in family.architectures.items() if heads == ("label",))
    return (
        f"{_config_file(folder)} has no architectures, so the head in {found} is not known. Add the class that wrote "
        f'it, such as "architectures": ["{example}"].'
    )


def head_rows(head: str, tensors: Mapping[str, Tensor], family: Family) -> int:
    """Returns the number of rows of a head among the tensors of a folder; 0 if the folder lacks it."""
    weight = tensors.get(family.names.to_folder(f"heads.{head}.classifier.weight"))
    return len(weight) if weight is not None and weight.ndim == 2 else 0


def check_vocabulary(rows: int, vocabulary: int, path: Path) -> None:
    """Raises DataError if the table of words at `path`, of `rows` rows, does not fit a tokenizer of `vocabulary`
    pieces: it must have a row for each piece, and may have padding."""
    padded = {_round_up(vocabulary, block) for block in _BLOCKS}
    if rows not in padded and not 0 <= rows - vocabulary <= _SPARE:
        pieces = f"the tokenizer has {vocabulary} pieces, the table of words in {path} has {rows} rows"
        more = ", more than padding to a multiple of 8, 64 or 128 gives" if rows > vocabulary else ""
        raise DataError(
            f"The vocabulary does not match the weights: {pieces}{more}. Use the tokenizer they were trained with."
        )


def describe_spare_rows(rows: int, vocabulary: int) -> str:
    """Returns a line about rows of the table of words without a piece of the tokenizer; empty if they pad the table to
    a multiple of 64 or 128."""
    if rows == vocabulary or rows in (_round_up(vocabulary, block) for block in _BLOCKS[1:]):
        return ""
    return (
        f"note: the table of words has {rows:,} rows, and the tokenizer {vocabulary:,} pieces. If tokens were added to "
        "it, their files are missing (tokenizer.json, added_tokens.json or tokenizer_config.json)."
    )


def describe_spare_layers(layers: int, config: EncoderConfig) -> str:
    """Returns a line about layers of the weights beyond those of config.json; empty if there are none."""
    if layers <= config.layers:
        return ""
    key = family_of(config).keys.fields["layers"]
    return f"note: the weights have {layers} layers, and config.json {key} = {config.layers}: the others are not used."


def count_padding(larger: int, vocabulary: int, rows: int) -> int:
    """Returns the number of padding rows of a table for `larger` pieces. It follows the old table, of `rows` rows for
    `vocabulary` pieces: the same number of rows if they suffice, else a multiple of 128, 64 or 8, the largest that the
    old table has; no padding if that one has none."""
    if larger <= rows:
        return rows - larger
    block = max((block for block in _BLOCKS if rows == _round_up(vocabulary, block)), default=1)
    return 0 if rows == vocabulary else _round_up(larger, block) - larger


def _round_up(vocabulary: int, block: int) -> int:
    return -(-vocabulary // block) * block
