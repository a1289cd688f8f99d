"""Prepares models for inference on a CPU: weights are fused, rounded and laid out for the kernels once.

The compiled kernels of `lambert.native` compute the blocks where they are available, with states in bfloat16. All other
products are oneDNN's, through the operators of torch's compiler, with states in bfloat16 for bfloat16 weights and
float32 for int8 weights.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lambert.core.errors import MachineError, UsageError
from lambert.model.block import Block
from lambert.model.heads import Model
from lambert.model.packed import NativeProduct, Product
from lambert.native import library

Kind = Literal["bfloat16", "int8"]
_ZERO = 128
"""Zero point of the unsigned 8-bit activations."""
_ROWS = 128
"""Rows quantized together, so that their float32 copies fit the second-level cache."""


class Packed(Product):
    """A product in bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16), None)
        self.bias = None if bias is None else bias.to(torch.bfloat16)

    def forward(self, states_TD: Tensor, gelu: str = "") -> Tensor:
        activation = "gelu" if gelu else "none"
        out: Tensor = torch.ops.mkldnn._linear_pointwise(states_TD, self.weight, self.bias, activation, [], gelu)
        return out


class Int8(Product):
    """An 8-bit product with output of type `dtype`.

    The quantization is symmetric, with one scale per output channel of the weights and one per token of the states (Yao
    et al., "ZeroQuant", 2022, section 4.1). The scale of a token depends on that token only, so results do not depend
    on the rest of the batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.scale_N = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        whole_ND = (weight / self.scale_N[:, None]).round()
        self.weight = torch.ops.onednn.qlinear_prepack(whole_ND.to(torch.int8), None)
        self.zeros_N = torch.zeros(len(weight), dtype=torch.int32)
        self.shift_N = -_ZERO * self.scale_N * whole_ND.sum(1)
        self.half_D = torch.full((weight.shape[1],), _ZERO + 0.5)  # + 0.5 rounds: the conversion to integers truncates
        self.bias = torch.zeros(len(weight), dtype=dtype) if bias is None else bias.to(dtype)
        self.dtype = dtype

    def forward(self, states_TD: Tensor, gelu: str = "") -> Tensor:
        # The scale is rounded to bfloat16 for the division and for the multiplication.
        step_T1 = (_largest(states_TD) / 127).clamp_(min=1e-30).to(torch.bfloat16).float()
        bytes_TD = torch.empty(states_TD.shape, dtype=torch.uint8)
        parts = (torch.split(tensor, _ROWS) for tensor in (bytes_TD, states_TD, step_T1.reciprocal()))
        for target, part, inverse in zip(*parts, strict=True):
            target.copy_(torch.addcmul(self.half_D, part, inverse))
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            bytes_TD, 1.0, 0, self.weight, self.scale_N, self.zeros_N, self.shift_N, 1.0, 0, self.dtype, "none", [], ""
        )
        torch.addcmul(self.bias, out, step_T1.to(self.dtype), out=out)
        return nn.functional.gelu(out, approximate=gelu) if gelu else out


def _largest(states_TD: Tensor) -> Tensor:
    """Returns the largest magnitude of each row, float32 [T, 1]."""
    if states_TD.dtype == torch.bfloat16:  # bits without the sign have the same order as magnitudes
        bits_T1 = states_TD.view(torch.int16).bitwise_and(0x7FFF).amax(-1, keepdim=True)
        return bits_T1.view(torch.bfloat16).float()
    return states_TD.abs().amax(-1, keepdim=True)


def _convert(kind: Kind, layers: Sequence[nn.Linear], dtype: torch.dtype) -> Product:
    """Returns layers that read the same states as a product by oneDNN; `dtype` is that of the output of int8."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    weight, bias = torch.cat([*(layer.weight for layer in layers)]), torch.cat([*biases]) if biases else None
    return Packed(weight, bias) if kind == "bfloat16" else Int8(weight, bias, dtype)


def check(kind: Kind) -> None:
    """Raises MachineError if this processor or this build of torch cannot compute exact products of this kind.

    The test uses the largest bytes and both output types of int8: processors without 8-bit dot products saturate at 16
    bits, with torch 2.13 on AVX2 only if the output is float32.
    """
    width, ones = 64, torch.ones(64, 64)
    try:
        if kind == "bfloat16":
            found = Packed(ones, ones[0])(ones.to(torch.bfloat16))
            right = bool((found == width + 1).all())
        else:
            wanted = {torch.float32: 127 * width + 1, torch.bfloat16: 127 * width}  # the same, rounded
            right = all(bool((Int8(ones, ones[0], dtype=dtype)(127 * ones) == x).all()) for dtype, x in wanted.items())
    except (RuntimeError, AttributeError):  # the kernel or the operator does not exist
        right = False
    if not right:
        raise MachineError(f"This processor (or this build of torch) has no fast {kind} products: use float32.")


@torch.no_grad()
def for_cpu(model: Model, kind: Kind) -> Model:
    """Converts the model in place for inference on a CPU, and returns it. It can no longer be trained.

    Embeddings, heads and norms become bfloat16, or float32 with int8 weights; norms that the compiled kernels read stay
    float32. Raises as `check` does, and UsageError for blocks that are no `Block`.
    """
    check(kind)
    encoder: Any = model.encoder
    blocks = [block for block in encoder.blocks if isinstance(block, Block)]
    if model.config.custom_block or len(blocks) < len(encoder.blocks):
        other = type(encoder.blocks[0]).__name__
        raise UsageError(f"{kind} needs blocks derived from lambert.model.block.Block, not {other}: use float32.")
    native = library() is not None and all(block.has_kernels(kind) for block in blocks)

    def make(names: Sequence[str], layers: list[nn.Linear]) -> Product:
        dtype = torch.float32 if names[0] in ("attention_out", "down") else torch.bfloat16
        return NativeProduct(kind, *layers) if native else _convert(kind, layers, dtype)

    for block in blocks:
        block.replace_layers(make)
    encoder.converted = True
    kept = encoder.kernel_parameters() if native else []
    values = [parameter.data for parameter in kept]
    model.eval().to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
    for parameter, value in zip(kept, values, strict=True):
        parameter.data = value
    return model
