"""What `config.json` of a Hugging Face folder says, in both directions."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lambert.core.errors import DataError, UsageError, shown
from lambert.core.registry import check_named, nearest
from lambert.core.unsupported import NOT_DOWNLOADED, refuse_model
from lambert.model.config import EncoderConfig
from lambert.model.encoder import BLOCKS
from lambert.model.files import json_object
from lambert.model.heads import Model

CONFIG = "config.json"
BLOCK = "lambert_block"
"""Key of config.json for a kind of layer that Hugging Face does not know."""
OWN_TYPE = "lambert"
"""The model_type of such a folder, so that AutoModel refuses it instead of putting fresh layers in their place."""

TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Copies that older files hold, and what they are copies of."""

# field of EncoderConfig, key of config.json
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "segment_types": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "init_range": "initializer_range",
}
# what transformers.BertConfig takes for keys that a file leaves out; Google's code would take 16 segment types, but
# none of its checkpoints has them
_DEFAULTS = {"segment_types": 2, "dropout": 0.1, "attention_dropout": 0.1, "norm_eps": 1e-12, "init_range": 0.02}
_MOST = 2**31 - 1
"""The largest whole number that a size may be; what is beyond the weights is found out by their shapes."""
_MOST_LABELS = 2**16
"""The most labels of a head that a folder has no weights for."""
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_WRITTEN_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}

# the first whose heads the model has is written
_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "BertForQuestionAnswering": ("span",),
    "BertForTokenClassification": ("tag",),
    "BertForSequenceClassification": ("label",),
    "BertForPreTraining": ("mlm", "nsp"),
    "BertForMaskedLM": ("mlm",),
    "BertForNextSentencePrediction": ("nsp",),
    "BertModel": (),
}


def config_of(model: Model) -> dict[str, Any]:
    """The model's config.json."""
    config = model.config
    has = {"label" if name == "value" else name for name in model.labels}
    architecture = next(name for name, needed in _ARCHITECTURES.items() if has.issuperset(needed))
    own = config.block != "bert"
    out: dict[str, Any] = {"architectures": [architecture], "model_type": OWN_TYPE if own else "bert"}
    out |= {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()}
    out |= {"hidden_act": _WRITTEN_ACTIVATIONS[config.activation], "pad_token_id": 0, "tie_word_embeddings": True}
    out |= {"classifier_dropout": None, "position_embedding_type": "absolute", "use_cache": True}
    if own:
        out[BLOCK] = config.block
    out["dtype"] = str(model.encoder.words.weight.dtype).removeprefix("torch.")
    labels = 1 if "value" in model.labels else model.labels.get("label") or model.labels.get("tag")
    if labels:
        out["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        out["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
    if "value" in model.labels:
        out["problem_type"] = "regression"
    return out


def model_folder(path: Path) -> Path:
    """Returns the model folder `path`, or that of the run folder `path`. Raises DataError if there is none."""
    folder = path / "model" if (path / "model").is_dir() else path
    refuse_model(folder)
    if not folder.is_dir():
        raise DataError(f"No such model folder: {path}. {NOT_DOWNLOADED}")
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it stands; Google's bert_config.json where there is no other. Raises DataError."""
    return json_object(_config_file(folder))


def _config_file(folder: Path) -> Path:
    path = next((folder / name for name in (CONFIG, "bert_config.json") if (folder / name).is_file()), None)
    if path is None:
        raise DataError(f"No model at {folder} (no {CONFIG}).")
    return path


def check_family(settings: Mapping[str, Any], folder: Path) -> None:
    """Raises DataError where config.json is of a model of another family than BERT, such as RoBERTa."""
    wanted = OWN_TYPE if BLOCK in settings else "bert"
    if (family := settings.get("model_type", wanted)) != wanted:
        raise DataError(
            f"{_config_file(folder)} has model_type = {shown(family)}; only {wanted!r} is supported. Take a BERT "
            "model: other families have other layers or tokenizers."
        )


def encoder_config(settings: Mapping[str, Any], folder: Path, code: Collection[str] = ()) -> EncoderConfig:
    """The encoder that the folder's config.json describes. Raises DataError for what is not a BERT encoder of ours,
    UsageError for a block from outside that is not in `code`."""
    path = _config_file(folder)
    check_family(settings, folder)
    for name, wanted in {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    }.items():
        if settings.get(name, wanted) != wanted:
            raise DataError(f"{path} has {name} = {shown(settings[name])}; only {wanted!r} is supported.")
    activation = settings.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise DataError(f"{path} has hidden_act = {shown(activation)}; supported: {', '.join(_ACTIVATIONS)}.")
    fields: dict[str, Any] = {"activation": _ACTIVATIONS[activation]}
    kinds = {field.name: field.type for field in dataclasses.fields(EncoderConfig)}
    if BLOCK in settings:
        fields["block"] = _block(settings[BLOCK], path, code)
    for ours, theirs in _KEYS.items():
        value = settings.get(theirs, _DEFAULTS.get(ours))
        whole = kinds[ours] is int
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise DataError(f"{path} has {theirs} = {shown(value)}; it must be a {'whole ' if whole else ''}number.")
        if not (1 if whole else 0) <= value <= (_MOST if whole else 1):
            limits = f"from 1 to {_MOST}" if whole else "from 0 to 1"
            raise DataError(f"{path} has {theirs} = {shown(value)}; it must be {limits}.")
        fields[ours] = value
    try:
        return EncoderConfig(**fields)
    except UsageError as error:
        raise DataError(f"{path}: {error}") from error


def _block(name: object, path: Path, code: Collection[str]) -> str:
    if not isinstance(name, str):
        raise DataError(f"{path} has {BLOCK} = {shown(name)}; it must be a name.")
    check_named(name, code, BLOCK, path)
    if ":" not in name and name not in BLOCKS:
        raise DataError(f"{path} has {BLOCK} = {name!r}, which is unknown.{nearest(name, BLOCKS)}")
    return name


def heads_of(settings: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> dict[str, int]:
    """The heads that a folder holds, with their numbers of labels: by its architecture, or by its tensors where it
    names none. Raises DataError for an architecture without a counterpart here."""
    named = settings.get("architectures") or [None]
    if not isinstance(named, list):
        raise DataError(f"{folder / CONFIG} has architectures = {shown(named)}; it must be a list of names.")
    if named[0] is None:
        present = {"mlm": "cls.predictions.bias", "nsp": "cls.seq_relationship.weight", "span": "qa_outputs.weight"}
        return {head: 0 for head, tensor in present.items() if tensor in tensors}
    if not isinstance(named[0], str) or named[0] not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise DataError(f"{folder / CONFIG} names the architecture {shown(named[0])}; supported: {known}.")
    heads = dict.fromkeys(_ARCHITECTURES[named[0]], 0)
    classifier = tensors.get("classifier.weight")
    labels = _labels(settings, folder) if classifier is None or classifier.ndim != 2 else len(classifier)
    if "label" in heads and (settings.get("problem_type") == "regression" or labels == 1):
        return {"value": 0}
    return {head: labels if head in ("label", "tag") else 0 for head in heads}


def _labels(settings: Mapping[str, Any], folder: Path) -> int:
    names, count = settings.get("id2label"), settings.get("num_labels", 2)
    count = len(names) if isinstance(names, dict) and names else count
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_LABELS:
        raise DataError(
            f"{folder / CONFIG} has num_labels = {shown(count)}; it must be a whole number from 1 to {_MOST_LABELS}."
        )
    return count


def with_vocabulary(config: EncoderConfig, vocabulary: int, tensors: dict[str, Tensor], path: Path) -> EncoderConfig:
    """The settings for a tokenizer of `vocabulary` pieces; cuts rows that pad the tables from `tensors`."""
    if config.vocabulary == vocabulary:
        return config
    if config.vocabulary not in {-(-vocabulary // block) * block for block in (8, 64, 128)}:
        pieces = f"the tokenizer has {vocabulary} pieces, {path} has {config.vocabulary}"
        raise DataError(
            f"The vocabulary does not match the weights: {pieces}. Use the tokenizer they were trained with."
        )
    for name in TIED.values():
        if name in tensors and tensors[name].shape[:1] == (config.vocabulary,):
            tensors[name] = tensors[name][:vocabulary]
    return dataclasses.replace(config, vocabulary=vocabulary)
