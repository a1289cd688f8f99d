"""Training steps: pre-training (15% masked tokens, next sentences) and question answering (answer spans), beside
transformers' models with the same weights and sequences."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.world import World
from lambert.measure import batches as drawn
from lambert.measure.training import Pass, Step, need_compiler, own_step, training_step
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of, predicts_next
from lambert.planning import operations as flops
from lambert.wings.bench import batches
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.work import Work, import_peer, sides


def pretrain(config: BenchConfig, world: World) -> Work:
    """Forward and backward pass with the losses of masked tokens and, if the family has it, of next sentences."""
    return _build_training(config, world, ("mlm", "nsp") if predicts_next(batches.encoder_of(config)) else ("mlm",))


def finetune(config: BenchConfig, world: World) -> Work:
    """Forward and backward pass with the loss of answer spans, as for SQuAD."""
    return _build_training(config, world, ("span",))


def _build_training(config: BenchConfig, world: World, heads: tuple[str, ...]) -> Work:
    encoder = batches.encoder_of(config)
    lengths_S = batches.draw_lengths(config)
    batch = drawn.draw_batch(encoder, lengths_S, config.seed, heads).to(world.device)
    kind, _ = layout.architecture(encoder, heads)
    return Work(
        sides(config, lambda: _own(config, encoder, batch, world), PEERS, config, encoder, batch, world, kind),
        tokens=config.accumulate * batch.tokens,
        sequences=config.accumulate * batch.sequences,
        padded=config.accumulate * batch.sequences * batches.width_of(config, batch),
        operations=config.accumulate * flops.count_training(encoder, lengths_S.tolist(), drawn.counts(batch)),
        shapes=drawn.with_gradients(drawn.layer_shapes(encoder, batch.tokens)),
    )


def _own(config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World) -> Step:
    return own_step(encoder, batch, world, _pass_of(config), compile=config.compile)


def _pass_of(config: BenchConfig) -> Pass:
    return Pass(config.precision, config.accumulate, optimizer=config.optimizer)


def _transformers(
    config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World, kind: str, *, compile: bool = False
) -> Step:
    model = peer_model(tuple(batch.targets), encoder).train().to(world.device)
    called = compile_model(model, world.device) if compile else model
    inputs = peer_inputs(batch, batches.width_of(config, batch), segments=family_of(encoder).segments)
    return training_step(_pass_of(config), model, lambda: called(**inputs).loss, world, model.zero_grad)


PEERS: Mapping[str, Callable[..., Step]] = {
    "transformers": _transformers,
    "transformers-compiled": partial(_transformers, compile=True),
}
"""Functions (config, encoder, batch, world, kind) that build a training step; `kind` is the class of the
transformers model."""


def peer_model(heads: tuple[str, ...], encoder: EncoderConfig) -> Any:
    """Returns transformers' model with these heads, with sdpa attention and the weights of Lambert's side. Raises
    UsageError if transformers is not installed."""
    transformers = import_peer("transformers", "transformers", "lambert-bert[hf]")
    own = weights.draw(encoder, dict.fromkeys(heads, 0))
    settings = transformers.AutoConfig.for_model(**layout.config_of(own), attn_implementation="sdpa")
    model = getattr(transformers, layout.architecture(encoder, heads)[0])(settings)
    model.load_state_dict(weights.state(own), strict=False)
    return model


def compile_model(model: nn.Module, device: torch.device) -> Callable[..., Any]:
    """Returns the model under torch.compile, which compiles in the first call. Raises MachineError without a
    compiler."""
    need_compiler("peer = transformers-compiled", device)
    called: Callable[..., Any] = torch.compile(model)
    return called


def peer_inputs(batch: Batch, width: int, *, segments: bool = True) -> dict[str, Tensor]:
    """Returns the batch and its labels as inputs of a transformers model; -100 marks tokens without a label."""
    inputs = batches.pad(batch, width, segments=segments)
    if "mlm" in batch.targets:
        mlm = batch.targets["mlm"]
        labels_T = torch.full_like(batch.ids_T, -100)
        labels_T[mlm.at_N] = mlm.labels_N
        inputs["labels"] = batches.rows(batch, labels_T, width, -100)
    if "nsp" in batch.targets:
        inputs["next_sentence_label"] = batch.targets["nsp"].labels_N
    if "span" in batch.targets:
        inputs["start_positions"], inputs["end_positions"] = batch.targets["span"].labels_N.unbind(1)
    return inputs
