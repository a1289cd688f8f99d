"""What a run logs: quantities of its updates, and lines and warnings for the user."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.optim import Optimizer

from lambert import native
from lambert.core.world import World
from lambert.data.stream import GlobalBatch
from lambert.engine import ceiling
from lambert.engine.compiler import Compilation
from lambert.engine.graphs import graphs_problem
from lambert.engine.log import Monitor, RunLog
from lambert.engine.precision import PRECISIONS
from lambert.model import attention
from lambert.model.families import family_of
from lambert.model.heads import Model
from lambert.model.relations import RelationTeacher
from lambert.ops import choice
from lambert.optim.lamb import Lamb
from lambert.planning import operations
from lambert.runs.config import TrainConfig
from lambert.runs.run import Run, frozen_blocks

FEW_UPDATES = 100
"""Fewer updates cause a warning. The published recipes have from 8,599 (You et al. 2020) to 1,000,000."""
LONG_PLATEAU = 2000
"""Updates on the plateau after which a run warns. The demo's encoder leaves the plateau within 2,000 (docs/log.md)."""
ABOVE, BELOW = 1.1, 0.88
"""Bounds of the plateau, as multiples of the unigram entropy. On the plateau the held-out loss was 5.55 to 5.8 nats at
an entropy of 6.23 (docs/log.md). It is below the entropy because words repeat within a document."""
_SMOOTHING = 0.9
"""Weight of the previous value in the exponential mean of the loss."""


def open_log(
    run: Run, steps: int, done: int, logged: Mapping[str, Any], peak: ceiling.Ceiling | None,
    compilation: Compilation, unigram_entropy: float | None, *, quiet: bool,
) -> RunLog:  # fmt: skip
    """Returns the log of a run of `steps` updates that continues after `done` of them with the state `logged`. The
    setting log.console overrides `quiet`."""
    config, optim = run.config, run.config.optim
    monitor = create_plateau_monitor(
        unigram_entropy, lr=optim.lr, eps=optim.eps, init_range=run.model.config.init_range
    )
    facts = {
        "micro_tokens": run.microbatch.tokens, "precision": run.precision.name, "compiled": compilation.active,
        "compile_seconds": round(compilation.seconds, 3),
    }  # fmt: skip
    return RunLog(
        config.out, steps=steps, start=done, state=logged, description=config.out.name,
        peak_flops=None if peak is None else peak.best,
        world=run.world, every=config.log.every, seconds=config.log.seconds, trackers=config.log.trackers,
        quiet=quiet if config.log.console is None else not config.log.console,
        facts=facts, monitor=monitor, price=config.log.price, measure=partial(trust_summary, run.optimizer),
    )  # fmt: skip


def describe_ranks(world: World, method: str) -> str:
    """Returns a line about a run of several ranks: their number, how it was determined, and the exchange method."""
    if world.size == 1:
        return ""
    return f"{world.size} ranks, {world.local_size} a machine ({world.reason}), gradients by {method}"


def model_notes(compilation: Compilation, model: Model, precision: str, world: World) -> Iterator[str]:
    """Yields lines for the user about how the model is computed."""
    yield f"products in {precision}"
    if compilation.active:
        yield f"blocks compiled in {compilation.seconds:,.0f} s"
    elif compilation.problem:
        yield f"blocks are not compiled, so the run is slower: {compilation.problem}"
    if world.device.type == "cpu" and precision == "bfloat16":
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            yield "this processor has no bfloat16 instructions, and emulation is slow: set train.precision = auto"
        lacking = "" if model.config.custom_block else family_of(model.config).kernels_lack(model.config)
        if native.library() is None and native.advice():
            yield f"torch's own kernels are used, which are slower: {native.reason()}. {native.advice()}"
        elif native.library() is not None and lacking:
            yield (
                f"torch's own kernels compute the blocks, which are slower: the compiled ones do not support {lacking}"
            )
    if problem := choice.triton_problem(world.device):
        yield f"LAMBERT_TRITON=1 has no effect: {problem}"
    if problem := graphs_problem(world):
        yield f"LAMBERT_GRAPHS=1 has no effect: {problem}"
    width = model.config.hidden // model.config.heads
    kernel = attention.kernel(world.device, PRECISIONS[precision], width)
    if world.device.type != "cpu" and kernel != "flash":
        yield (
            f"attention uses the {kernel} kernel, which is slower. Flash attention needs bfloat16 or float16 (now "
            f"{precision}), a head width that is a multiple of 8 up to 256 (now {width}), and a GPU of compute "
            "capability 8.0 or more"
        )


def trust_summary(optimizer: Optimizer) -> Mapping[str, float]:
    """Returns trust/GROUP_min, trust/GROUP_median and trust/GROUP_max: over the tensors with a trust ratio of the
    groups embeddings, blocks and heads, in the last update. Empty for other optimizers, and where the moments are
    sharded, because no rank has all ratios."""
    ratios: dict[str, list[float]] = {}
    if isinstance(optimizer, Lamb):
        for name, ratio in optimizer.trust_ratios(adapted=True).items():
            ratios.setdefault(_group(name), []).append(ratio)
    figures: Mapping[str, Callable[[list[float]], float]] = {"min": min, "median": median, "max": max}
    return {f"trust/{group}_{name}": of(found) for group, found in ratios.items() for name, of in figures.items()}


def count_operations(
    updates: Generator[GlobalBatch, None, None], model: Model, teacher: RelationTeacher | None, costs: deque[int]
) -> Iterator[GlobalBatch]:
    """Yields the updates, and appends the floating-point operations of this rank's share of each to `costs`."""
    frozen = frozen_blocks(model)
    with closing(updates):
        for update in updates:
            batches = [batch for _, batch in update.micro_batches]
            lengths = [length for batch in batches for length in batch.bounds_S1.diff().tolist()]
            names = [name for name in update.counts if name in model.labels]
            targets = {name: sum(len(batch.targets[name].at_N) for batch in batches) for name in names}
            cost = operations.count_training(model.config, lengths, targets, model.labels, frozen)
            if teacher is not None:
                cost += operations.relations(model.config, teacher.encoder.config, teacher.layer, lengths)
            costs.append(cost)
            yield update


def explain_few_updates(options: TrainConfig, sequences: int) -> str:
    """Returns a warning if a run with `sequences` sequences per epoch has few updates, else an empty string."""
    steps = options.updates(sequences)
    if steps < options.ramp_steps:
        return (
            f"warning: the run has {steps:,} updates, fewer than train.ramp_steps = {options.ramp_steps:,}: no update "
            f"has the whole batch of {options.batch_size:,} sequences. Lower train.ramp_steps"
        )
    if steps >= FEW_UPDATES:
        return ""
    raised = " and ".join(f"train.{name}" for name in ("steps", "epochs") if getattr(options, name) is not None)
    epoch = sequences / options.batch_size
    return (
        f"warning: the run has only {steps:,} updates. Raise {raised}, or lower train.batch_size: an epoch "
        f"of {sequences:,} sequences has {epoch:,.{0 if epoch >= 10 else 1}f} updates of {options.batch_size:,}"
    )


def explain_unigram_loss(losses: Mapping[str, float], manifest: Mapping[str, Any]) -> str:
    """Returns a warning if the final held-out masked-LM loss is near that of a unigram model, else an empty string.
    `manifest` is that of the corpus."""
    split = manifest["splits"]["heldout"]
    bar = split.get("unigram_cross_entropy") or split.get("unigram_entropy")
    if "mlm" not in losses or not bar or losses["mlm"] < BELOW * bar:
        return ""
    return (
        f"warning: the held-out masked-LM loss is {losses['mlm']:.2f} nats, that of a unigram model {bar:.2f}: the "
        "encoder hardly uses context yet. Train for more updates (train.steps, train.epochs), or change optim.lr and "
        "optim.warmup_ratio."
    )


def create_plateau_monitor(entropy: float | None, *, lr: float, eps: float, init_range: float) -> Monitor:
    """Returns a function of each row of metrics.jsonl. It returns a warning once, after LONG_PLATEAU updates on the
    plateau, and otherwise an empty string, and names the settings that may help. `entropy` is the unigram entropy
    of the corpus in nats, or None if unknown."""
    mean: float | None = None
    since: int | None = None
    ended = entropy is None

    def monitor(row: Mapping[str, Any]) -> str:
        nonlocal mean, since, ended
        loss = row.get("loss/mlm")
        if ended or loss is None or entropy is None:
            return ""
        mean = loss if mean is None else _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        if mean > ABOVE * entropy:
            since = None
            return ""
        if mean < BELOW * entropy:
            ended = True
            return ""
        since = row["step"] if since is None else since
        if row["step"] - since < LONG_PLATEAU:
            return ""
        ended = True
        return (
            f"the masked-LM loss has been near the unigram entropy of {entropy:.2f} nats for {LONG_PLATEAU:,} updates: "
            "the model has learnt little more than the frequencies of words. Settings that ended this in other runs: "
            f"half the optim.lr (now {lr:g}); model.init_range = 0.02 (now {init_range:.3g}) or, with two "
            f"layers, 1/sqrt(width); optim.eps = 1e-9 (now {eps:g}). See docs/numerics.md."
        )

    return monitor


def _group(name: str) -> str:
    """Returns the group of a parameter of a `Model`."""
    if ".blocks." in name:
        return "blocks"
    return "embeddings" if name.startswith("encoder.") else "heads"
