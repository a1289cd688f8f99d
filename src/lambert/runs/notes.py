"""Lines for the user about how a run computes: its kernels, and its ranks."""

from collections.abc import Iterator

import torch

from lambert import native
from lambert.core.world import World
from lambert.engine.compiler import Compilation
from lambert.engine.exchange import Exchange
from lambert.engine.precision import PRECISIONS
from lambert.model import attention
from lambert.model.families import family_of
from lambert.model.heads import Model


def ranks(world: World, exchange: Exchange) -> Iterator[str]:
    """Yields a line about a run of several ranks: their number, how it was determined, and the exchange method."""
    if world.size > 1:
        yield f"{world.size} ranks, {world.local_size} a machine ({world.reason}), gradients by {exchange.method}"


def model_notes(compilation: Compilation, model: Model, precision: str, world: World) -> Iterator[str]:
    """Yields lines for the user about how the model is computed."""
    yield f"products in {precision}"
    if compilation.active:
        yield f"blocks compiled in {compilation.seconds:,.0f} s"
    elif compilation.problem:
        yield f"blocks are not compiled, the run is slower: {compilation.problem}"
    if world.device.type == "cpu" and precision == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        yield "this processor has no bfloat16 instructions, and emulation is slow: set train.precision = auto"
    if world.device.type == "cpu" and precision == "bfloat16" and native.library() is None and native.advice():
        yield f"torch's own kernels are used, which are slower: {native.reason()}. {native.advice()}"
    lacking = "" if model.config.custom_block else family_of(model.config).kernels_lack(model.config)
    if world.device.type == "cpu" and precision == "bfloat16" and native.library() is not None and lacking:
        yield f"torch's own kernels compute the blocks, which are slower: the compiled ones lack {lacking}"
    width = model.config.hidden // model.config.heads
    if world.device.type != "cpu" and attention.kernel(world.device, PRECISIONS[precision], width) != "flash":
        kernel = attention.kernel(world.device, PRECISIONS[precision], width)
        yield (
            f"attention uses the {kernel} kernel, which is slower. Flash attention needs bfloat16 or float16 (now "
            f"{precision}), a head width that is a multiple of 8 up to 256 (now {width}), and a GPU of compute "
            "capability 8.0 or more"
        )
