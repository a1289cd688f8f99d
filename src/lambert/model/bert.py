"""The BERT family (Devlin et al., 2018): its block and encoder, its model folder, as Hugging Face writes it, and its
costs."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.core.registry import Kind, lookup
from lambert.model.block import saved_by_kernels
from lambert.model.chain import apply
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import COMMON, ConfigKeys, architectures
from lambert.model.costs import Costs
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.encoder import Encoder
from lambert.model.family import Family
from lambert.model.linear import in_product_dtype, project
from lambert.model.packed import Gradients, norm_of
from lambert.model.post_norm import PostNormBlock
from lambert.model.tensor_names import TensorNames
from lambert.ops.choice import choose
from lambert.ops.drop import Drop
from lambert.ops.reference import Norm, Ops


class BertBlock(PostNormBlock):
    """Maps states [T, D] to states [T, D] (Devlin et al., 2018, section 3)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        width = config.hidden
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.up = nn.Linear(width, config.intermediate)
        self.down = nn.Linear(config.intermediate, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)


KIND = Kind((EncoderConfig,), base=nn.Module, methods={"forward": 2})


class BertEncoder(Encoder):
    """The encoder of Devlin et al., 2018, section 3 and figure 2, with BERT's blocks or blocks from outside Lambert.

    RoBERTa's and DistilBERT's encoders are the same, with other tables; in ELECTRA's small models the tables are
    narrower than the states, and the layer `widen` is between them (Clark et al., 2020, section 3.1).
    """

    block_type: type[nn.Module] = BertBlock
    """Class of the blocks of the family."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        width = config.table_width
        self.words = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.positions + config.position_offset, width)
        self.types = nn.Embedding(config.segment_types, width) if config.segment_types else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.widen = nn.Linear(width, config.hidden) if width != config.hidden else None
        block = self.block_type
        if config.custom_block:
            block = lookup({}, config.block, "model.block", KIND)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.layers))

    def indices(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the rows of the three tables that the tokens read, each [T]."""
        offset, several = self.config.position_offset, self.config.segment_types > 1
        positions_T = batch.positions_T + offset if offset else batch.positions_T
        return batch.ids_T, positions_T, batch.types_T if several else torch.zeros_like(batch.types_T)

    def embed(self, batch: Batch) -> Tensor:
        embedded_TD = self._embed(batch)
        return embedded_TD if self.widen is None else project(embedded_TD, self.widen, compute=batch.compute)

    def _embed(self, batch: Batch) -> Tensor:
        """Returns the embeddings in the width of the tables."""
        table_VD = self.words.weight
        ops = choose(table_VD) if table_VD.dtype == torch.float32 and self.config.table_width % 32 == 0 else None
        if ops is not None:
            return _embed_by(ops, self, batch)
        ids_T, positions_T, types_T = self.indices(batch)
        embedded_TD = embed(ids_T, self.words, batch.compute)
        embedded_TD = embedded_TD + embed(positions_T, self.positions, batch.compute)
        if self.types is not None:
            embedded_TD = embedded_TD + embed(types_T, self.types, batch.compute)
        embedded_TD = self.norm(embedded_TD)
        return dropout(in_product_dtype(embedded_TD), self.config.dropout, self.training)


def _embed_by(ops: Ops, encoder: BertEncoder, batch: Batch) -> Tensor:
    """Computes `encoder.embed(batch)` in the dtype of the back-end."""
    words_VD = encoder.words.weight
    types = encoder.types.weight if encoder.types is not None else words_VD.new_zeros(1, words_VD.shape[1])
    tables = words_VD, encoder.positions.weight, types
    out_TD: Tensor = apply(_Embedding, ops, encoder, batch, *tables, encoder.norm.weight, encoder.norm.bias)
    return out_TD


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ops: Ops, encoder: BertEncoder, batch: Batch, *parameters: Tensor) -> Tensor:
        indices = encoder.indices(batch)
        drop = Drop.of(encoder.config.dropout, encoder.training, batch.ids_T.device)
        out_TD, saved = ops.embed_norm(indices, parameters[:3], norm_of(encoder.norm), drop)
        ctx.save_for_backward(*indices, *saved)
        ctx.ops, ctx.parameters, ctx.drop, ctx.sink = ops, parameters, drop, batch.compute.gradients
        return out_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        saved, (*tables, weight, bias) = ctx.saved_tensors, ctx.parameters
        grads, norm = Gradients(ctx.ops, ctx.sink), Norm(weight, bias, 0.0)
        grad_TD, *sums = ctx.ops.embed_norm_backward(grad_TD.contiguous(), saved[3:], norm, ctx.drop)
        for parameter, sum_D in zip((weight, bias), sums, strict=True):
            grads.add(parameter, sum_D)
        for table, ids_T in zip(tables, saved, strict=False):
            if table.requires_grad:
                found = ctx.sink.add_rows(table, ids_T, grad_TD)
                if found is not None:
                    grads.returned[id(table)] = found
        return None, None, None, *grads.of(ctx.parameters)


NAMES = TensorNames(
    prefix="bert.",
    encoder={
        "words": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
    },
    layers="encoder.layer.",
    block={
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "attention_out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norm": "output.LayerNorm",
    },
    pooler="bert.pooler.dense",
    heads={
        "mlm.dense": "cls.predictions.transform.dense",
        "mlm.norm": "cls.predictions.transform.LayerNorm",
        "mlm.bias": "cls.predictions.bias",
        "nsp.classifier": "cls.seq_relationship",
    },
    decoder="cls.predictions.decoder",
)
ARCHITECTURES = {
    "BertForPreTraining": ("mlm", "nsp"),
    "BertForNextSentencePrediction": ("nsp",),
    **architectures("Bert"),
}
KEYS = ConfigKeys(
    fields=COMMON
    | {
        "segment_types": "type_vocab_size", "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob", "norm_eps": "layer_norm_eps", "activation": "hidden_act",
    },
    # As in transformers.BertConfig. Google's code has 16 segment types by default, but none of its checkpoints has 16.
    defaults={
        "segment_types": 2, "dropout": 0.1, "attention_dropout": 0.1, "norm_eps": 1e-12, "init_range": 0.02,
        "activation": "gelu", "pad": 0,
    },
    fixed={
        "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    written={
        "tie_word_embeddings": True, "classifier_dropout": None, "position_embedding_type": "absolute",
        "use_cache": True,
    },
)  # fmt: skip


class BertCosts(Costs):
    """The costs of BERT's encoder, and of those that have its blocks."""

    gated = False

    def weight_count(self, config: EncoderConfig) -> int:
        rows = config.vocabulary + config.positions + config.position_offset + config.segment_types
        width = config.table_width
        tables = (rows + 2) * width + (width + 1) * config.hidden * bool(config.embedding)
        block = self.linear_weights(config, (True,) * 4) + 4 * config.hidden
        return tables + config.layers * block * (not config.custom_block)

    def operations(self, config: EncoderConfig, lengths: Collection[int]) -> int:
        return super().operations(config, lengths) + 2 * config.embedding * config.hidden * sum(lengths)

    def saved_values(self, config: EncoderConfig) -> int:
        # Query, key, value and attention output; the feed-forward layer before and after its activation; dropout masks.
        return (4 + 2 * bool(config.dropout)) * config.hidden + 2 * config.intermediate

    def saved_per_token(
        self, config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int, *, native: bool
    ) -> int:
        if not native:
            return super().saved_per_token(config, dtype, device, longest, native=False)
        return saved_by_kernels(config, dtype, 2)


BERT = Family(
    title="BERT",
    encoder=BertEncoder,
    names=NAMES,
    keys=KEYS,
    architectures=ARCHITECTURES,
    costs=BertCosts(),
    kernels_lack=BertBlock.find_unsupported,
)
