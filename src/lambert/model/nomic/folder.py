"""NomicBERT's model folder: names of tensors and keys of config.json.

The names are those of the models' first releases, which transformers 5 reads and writes too. Of config.json, the keys
of these releases are read as well as those of transformers, which are written.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, shown
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.family import check_fixed, numbers
from lambert.model.gte import folder as gte

LAYER = "nomic_bert.encoder.layers."
_OWN = rf"{LAYER}\1."
NAMES = (
    (r"encoder\.words\.", "nomic_bert.embeddings.word_embeddings."),
    (r"encoder\.types\.", "nomic_bert.embeddings.token_type_embeddings."),
    (r"encoder\.norm\.", "nomic_bert.emb_ln."),
    (r"encoder\.blocks\.(\d+)\.attention_in\.", f"{_OWN}attn.Wqkv."),
    (r"encoder\.blocks\.(\d+)\.attention_out\.", f"{_OWN}attn.out_proj."),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.", f"{_OWN}norm1."),
    (r"encoder\.blocks\.(\d+)\.up\.", f"{_OWN}mlp.fc11."),
    (r"encoder\.blocks\.(\d+)\.gate\.", f"{_OWN}mlp.fc12."),
    (r"encoder\.blocks\.(\d+)\.down\.", f"{_OWN}mlp.fc2."),
    (r"encoder\.blocks\.(\d+)\.norm\.", f"{_OWN}norm2."),
    (r"encoder\.blocks\.", LAYER),
    (r"pooler\.", "nomic_bert.pooler.dense."),
    (r"heads\.mlm\.dense\.", "cls.predictions.transform.dense."),
    (r"heads\.mlm\.norm\.", "cls.predictions.transform.layer_norm."),
    (r"heads\.mlm\.bias$", "cls.predictions.bias"),
    (r"heads\.(label|multilabel|value|choice|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
TIED = {
    "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "NomicBertForQuestionAnswering": ("span",),  # not in transformers
    "NomicBertForTokenClassification": ("tag",),
    "NomicBertForSequenceClassification": ("label",),
    "NomicBertForMultipleChoice": ("choice",),  # not in transformers
    "NomicBertForMaskedLM": ("mlm",),
    "NomicBertModel": (),
    "NomicBertForPreTraining": ("mlm",),  # read only: a name of the first releases
}
THETA = 1000.0
_OLDER = {
    "n_layer": "num_hidden_layers", "n_embd": "hidden_size", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob", "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}  # fmt: skip
"""Keys of the first releases, and those of transformers."""
_FIXED = {
    "tie_word_embeddings": True, "hidden_act": "silu", "activation_function": "swiglu", "causal": False,
    "prenorm": False, "parallel_block": False, "use_rms_norm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
}  # fmt: skip


def current_name(name: str) -> str:
    """Returns the name that files of today have for a tensor: another prefix is replaced, and the one that files
    without heads omit is added."""
    return re.sub(r"^(bert\.|(?=(embeddings|emb_ln|encoder|pooler)\.))", "nomic_bert.", name)


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    return {theirs: getattr(config, ours) for ours, theirs in gte.KEYS.items()} | {
        "hidden_act": "silu",
        "type_vocab_size": config.segment_types,
        **gte.rotary_json(config),
    }


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes. Raises as BERT's."""
    check_fixed(settings, _FIXED, path)
    settings = {_OLDER[name]: value for name, value in settings.items() if name in _OLDER} | dict(settings)
    types = settings.get("type_vocab_size", 2)
    if not isinstance(types, int) or isinstance(types, bool) or types < 1:
        raise DataError(f"{path} has type_vocab_size = {shown(types)}; it must be a whole number from 1.")
    defaults = gte.DEFAULTS | {"vocabulary": 30_528, "positions": 2048}
    return EncoderConfig(
        pad=bert.pad(settings, 0, path), segment_types=types, block="nomic_bert",
        modern=ModernConfig(theta=gte.theta(settings, THETA, path)), **numbers(settings, gte.KEYS, defaults, path),
    )  # fmt: skip
