"""Encoders of a few blocks, one for each form of a block, and their states and gradients."""

from dataclasses import replace

import torch
from torch import Tensor

from lambert.core.batch import Batch
from lambert.model import weights
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.heads import Model

BERT = EncoderConfig(
    layers=2, hidden=128, heads=4, intermediate=160, vocabulary=200, positions=256, dropout=0.0, attention_dropout=0.0,
    norm_eps=1e-5, init_range=0.05,
)  # fmt: skip
MODERN = replace(
    BERT, layers=4, segment_types=0, block="modernbert", modern=ModernConfig(window=16, global_every=3)
)  # fmt: skip
BIASED = ModernConfig(window=16, global_every=2, attention_bias=True, mlp_bias=True, norm_bias=True)
CONFIGS = {
    "bert": BERT,
    "bert, tanh": replace(BERT, activation="gelu_tanh"),
    "gte": replace(BERT, block="gte", segment_types=1),
    "gte, tanh": replace(BERT, block="gte", segment_types=1, activation="gelu_tanh"),
    "nomic_bert": replace(BERT, block="nomic_bert", intermediate=192),
    "mpnet": replace(BERT, block="mpnet", segment_types=0, pad=1, position_offset=2),
    "from outside": replace(BERT, block="relu_squared:ReluSquaredBlock"),
    "modernbert": MODERN,
    "modernbert, tanh, biased": replace(MODERN, activation="gelu_tanh", modern=BIASED),
    "eurobert": replace(MODERN, block="eurobert", intermediate=192),
    "eurobert, shared keys": replace(
        MODERN, block="eurobert", intermediate=192, modern=ModernConfig(kv_heads=2, attention_bias=True, mlp_bias=True)
    ),
}
LENGTHS = [40, 1, 17, 129, 16, 64]


def build(config: EncoderConfig) -> Model:
    model = weights.draw(config, {"span": 0}, seed=3).train()
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    return model


def run(model: Model, batch: Batch, *, bfloat16: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """The states after the blocks and the gradients of a weighted sum of them, with the same keys of dropout."""
    model.zero_grad()
    torch.manual_seed(5)
    with torch.autocast(batch.ids_T.device.type, torch.bfloat16, enabled=bfloat16):
        states_TD = model.encoder(batch)
    slope = torch.randn(states_TD.shape, generator=torch.Generator().manual_seed(1)).to(states_TD.device)
    (states_TD * slope).sum().backward()
    return states_TD.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def compare(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]], share: float) -> None:
    assert (one[0] - other[0]).norm() < share * other[0].norm()
    assert one[1].keys() == other[1].keys()
    least = share / 20 * max(grad.norm() for grad in other[1].values())  # the gradient of the keys' bias is 0
    for name, grad in one[1].items():
        assert (grad - other[1][name]).norm() < 2.5 * share * other[1][name].norm() + least, name
