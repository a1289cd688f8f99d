"""The NomicBERT family (Nussbaum et al., "Nomic Embed", 2024): gte's blocks without biases, gated with silu.

The names of tensors are those of the models' first releases, which transformers 5 reads and writes too. The keys of
config.json are read in the form of these releases and of transformers, and written in the form of transformers.

Source: Nussbaum et al., 2024, section 3.1; transformers, NomicBertLayer.
"""

from dataclasses import replace
from functools import partial

from torch import nn

from lambert.model import gte
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.config_keys import architectures
from lambert.model.gte import GTE, GteBlock, GteCosts, GteEncoder
from lambert.model.objectives import MaskedLanguageModel
from lambert.model.tensor_names import TensorNames


class NomicBlock(GteBlock):
    """Maps states [T, D] to states [T, D]."""

    products = (("attention_in",), ("attention_out",), ("up", "gate"), ("down",))
    attention_biased = down_biased = inner_dropped = False
    sizes = 32, 64

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.activation = "silu"

    def make_units(self, width: int, inner: int) -> None:
        self.up, self.gate = (nn.Linear(width, inner, bias=False) for _ in range(2))


class NomicEncoder(GteEncoder):
    """The encoder of Nussbaum et al., 2024."""

    block_type = NomicBlock


NAMES = TensorNames(
    prefix="nomic_bert.",
    former="bert.",
    encoder={
        "words": "embeddings.word_embeddings",
        "types": "embeddings.token_type_embeddings",
        "norm": "emb_ln",
    },
    layers="encoder.layers.",
    block={
        "attention_in": "attn.Wqkv",
        "attention_out": "attn.out_proj",
        "attention_norm": "norm1",
        "up": "mlp.fc11",
        "gate": "mlp.fc12",
        "down": "mlp.fc2",
        "norm": "norm2",
    },
    pooler="nomic_bert.pooler.dense",
    heads={
        "mlm.dense": "cls.predictions.transform.dense",
        "mlm.norm": "cls.predictions.transform.layer_norm",
        "mlm.bias": "cls.predictions.bias",
    },
    decoder="cls.predictions.decoder",
)
ARCHITECTURES = {
    **architectures("NomicBert"),
    "NomicBertForPreTraining": ("mlm",),  # read only: a name of the first releases
}
THETA = 1000.0
KEYS = replace(
    gte.KEYS,
    fields={name: key for name, key in gte.KEYS.fields.items() if name != "activation"},
    defaults={
        **gte.KEYS.defaults, "vocabulary": 30_528, "positions": 2048, "segment_types": 2, "dropout": 0.0, "pad": 0,
    },
    values={},
    fixed={
        "tie_word_embeddings": True, "hidden_act": "silu", "activation_function": "swiglu", "causal": False,
        "prenorm": False, "parallel_block": False, "use_rms_norm": False, "qkv_proj_bias": False,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    },
    written={**gte.KEYS.written, "hidden_act": "silu"},
    older={
        "n_layer": "num_hidden_layers", "n_embd": "hidden_size", "n_head": "num_attention_heads",
        "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
        "resid_pdrop": "hidden_dropout_prob", "attn_pdrop": "attention_probs_dropout_prob",
        "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
    },
    read=partial(gte.rotary, default=THETA),
)  # fmt: skip
NOMIC_BERT = replace(
    GTE,
    title="NomicBERT",
    encoder=NomicEncoder,
    heads={"mlm": partial(MaskedLanguageModel, activation="silu")},
    segments=True,
    defaults={"dropout": 0.0, "attention_dropout": 0.0, "modern": ModernConfig(theta=THETA)},
    determine=lambda config: config,
    names=NAMES,
    keys=KEYS,
    architectures=ARCHITECTURES,
    costs=GteCosts(NomicBlock),
)
