"""Products of 8-bit numbers in ONNX, whose results do not depend on the rest of the batch.

Symmetric quantization, with one scale for each output channel of the weights and one for each token of the states (Yao
et al., "ZeroQuant", 2022, section 4.1). ONNX Runtime's own dynamic quantization has one scale for all tokens of the
batch, so that an answer depends on the texts beside it.
"""

import torch
from torch import Tensor, nn

from lambert.model.packed import Product
from lambert.model.padded import Joined
from lambert.wings.convert.padded import PaddedModel

_ZERO = 128
"""Zero point of the unsigned 8-bit states: processors multiply unsigned with signed bytes fastest."""


class Int8(Product):
    """Computes x W' + b by ONNX's MatMulInteger. It can be exported to ONNX only; torch computes zeros."""

    scale_F: Tensor
    whole_DF: Tensor
    zero: Tensor

    def __init__(self, product: Joined) -> None:
        super().__init__()
        assert product.weight is not None
        weight = product.weight.detach()
        scale_F = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        self.register_buffer("scale_F", scale_F)
        self.register_buffer("whole_DF", (weight / scale_F[:, None]).round().to(torch.int8).T.contiguous())
        self.register_buffer("zero", torch.tensor(_ZERO, dtype=torch.uint8))
        self.bias = product.bias

    def forward(self, states_TD: Tensor, gelu: str = "") -> Tensor:
        step_T1 = (states_TD.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
        bytes_TD = (states_TD / step_T1).round().to(torch.int32).add(_ZERO).to(torch.uint8)
        shape = (*states_TD.shape[:-1], self.whole_DF.shape[1])
        product: Tensor = torch.onnx.ops.symbolic(
            "MatMulInteger", (bytes_TD, self.whole_DF, self.zero), dtype=torch.int32, shape=shape, version=20
        )
        out_TF = product.float() * step_T1 * self.scale_F
        out_TF = out_TF if self.bias is None else out_TF + self.bias
        return nn.functional.gelu(out_TF, approximate=gelu) if gelu else out_TF


def quantize(padded: PaddedModel) -> None:
    """Replaces the linear layers of the blocks by 8-bit ones. Embeddings and heads stay in float32."""
    padded.encoder.replace_products(Int8)
