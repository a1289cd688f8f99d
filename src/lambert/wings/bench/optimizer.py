"""Optimizer steps: LAMB beside torch's AdamW, on the parameters of a published size."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from lambert.core.world import World
from lambert.measure.training import Step
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.optim.config import OptimConfig
from lambert.optim.groups import decay_groups
from lambert.optim.optimizers import build
from lambert.planning.traffic import UPDATE_BYTES
from lambert.wings.bench import batches
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.work import OWN, Work, sides

TRAFFIC = {OWN: UPDATE_BYTES["lamb"], "adamw": UPDATE_BYTES["adamw"], "adamw-foreach": UPDATE_BYTES["adamw"]}
"""Minimum memory traffic of a step, in bytes per float32 parameter."""


def optimizer(config: BenchConfig, world: World) -> Work:
    """One update of every parameter of a pre-training model with constant gradients."""
    encoder = batches.encoder_of(config)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in Model(encoder, {"mlm": 0, "nsp": 0}).parameters())

    def more(side: str, seconds: float) -> dict[str, float]:
        found = {"milliseconds": 1e3 * seconds, "ns_per_parameter": 1e9 * seconds / count}
        if side in TRAFFIC:
            found["gb_per_second"] = TRAFFIC[side] * count / seconds / 1e9
        return found

    own = partial(_step, lambda model: build(model, OptimConfig(name="lamb")), encoder, world)
    return Work(sides(config, own, PEERS, encoder, world), tokens=count, unit="parameters", more=more)


def _adamw(encoder: EncoderConfig, world: World, *, fused: bool) -> Step:
    def make(model: Model) -> torch.optim.Optimizer:
        groups = [
            {"params": [parameter for _, parameter in group["params"]], "weight_decay": group["weight_decay"]}
            for group in decay_groups(model, OptimConfig().weight_decay)
        ]
        return torch.optim.AdamW(groups, lr=OptimConfig().lr, fused=fused, foreach=not fused)

    return _step(make, encoder, world)


PEERS: Mapping[str, Callable[..., Step]] = {
    "adamw": partial(_adamw, fused=True),
    "adamw-foreach": partial(_adamw, fused=False),
}
"""Functions (encoder, world) that build a step."""


def _step(make: Callable[[Model], torch.optim.Optimizer], encoder: EncoderConfig, world: World) -> Step:
    model = weights.draw(encoder, {"mlm": 0, "nsp": 0}).to(world.device)
    generator = torch.Generator(world.device).manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = 1e-3 * torch.randn(parameter.shape, device=world.device, generator=generator)
    updates = make(model)
    watched = next(parameter for parameter in model.parameters() if parameter.ndim == 1)

    def step() -> float:
        updates.step()
        return float(watched.detach()[0])  # waits for the device

    return step
