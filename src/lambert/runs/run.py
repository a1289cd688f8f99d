"""The state of a run: frozen in parts, built, saved to checkpoints, resumed and rolled back."""

import logging
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import torch

from lambert.core.errors import DataError, DivergedError, UsageError
from lambert.core.world import World
from lambert.distributed import exchange as exchanges
from lambert.distributed.exchange import Exchange
from lambert.engine import checkpoint
from lambert.engine.guard import Guard
from lambert.engine.log import RunLog
from lambert.engine.precision import Precision, resolve_precision
from lambert.model.heads import Model
from lambert.optim.optimizers import build
from lambert.runs.best import Best
from lambert.runs.config import RunConfig
from lambert.runs.defaults import Freeze
from lambert.runs.microbatch import MicrobatchSize

_log = logging.getLogger("lambert.run")


@dataclass(frozen=True, slots=True)
class Run:
    """The state of a run that training changes and checkpoints hold. All ranks must call every method."""

    config: RunConfig
    world: World
    model: Model
    optimizer: torch.optim.Optimizer
    precision: Precision
    guard: Guard
    microbatch: MicrobatchSize
    saver: checkpoint.Saver
    exchange: Exchange
    best: Best

    @classmethod
    def begin(cls, config: RunConfig, model: Model, world: World, steps: int) -> "Run":
        """Returns the state of a run of `steps` updates before its first update, with equal weights on all ranks."""
        options = config.train
        model.to(world.device)
        world.broadcast(model.parameters())
        name = resolve_precision(options.precision, world)
        precision = Precision(name, world.device, one_layout=options.deterministic)
        microbatch = MicrobatchSize(options.micro_tokens, deterministic=options.deterministic)
        saver = checkpoint.Saver(config.out, keep=options.keep_checkpoints, world=world)
        exchange = exchanges.build(model, world, config.exchange, updates=steps, deterministic=options.deterministic)
        guard = Guard(config.guard, lambda: precision.scale)
        optimizer = build(model, config.optim)
        if options.shard_optimizer:
            from lambert.distributed.sharding import shard

            optimizer = shard(optimizer, exchange, world)
        best = Best(config.out, options.keep_best, options.patience, world)
        return cls(config, world, model, optimizer, precision, guard, microbatch, saver, exchange, best)

    def resume(self) -> tuple[int, dict[str, Any]]:
        """Loads the newest checkpoint and finds the best weights. Returns the number of updates done and the state of
        the log, or 0 and an empty mapping if there is no checkpoint.

        Raises DataError if all checkpoints are damaged, unless `restart_damaged` is set, or if the best weights are.
        """
        try:
            found = self.saver.latest()
        except DataError:
            if not self.config.restart_damaged:
                raise
            found = None
            if self.world.is_first:
                _log.warning(
                    "All checkpoints are damaged. The run starts again from the beginning, because --restart-damaged "
                    "is set."
                )
        if found is None:
            self.best.begin(0, {})
            return 0, {}
        kept = found.restore(self.model, self.optimizer, self.precision)
        self.guard.load(kept["guard"])
        self.microbatch.load(kept["budget"])
        self.best.begin(found.step, kept.get("best", {}))
        self._resume_exchange(found)
        return found.step, kept["log"]

    def _resume_exchange(self, found: checkpoint.Checkpoint) -> None:
        """Restores the method that `auto` chose, if the number of ranks is the same, and the residuals, if they are of
        the same method and of the same kind: of gradients, or of weights with local steps."""
        method, ranks, local = found.values["extra"]["exchange"]
        if not self.exchange.decided and ranks == self.world.size:
            self.exchange.use(method)
            self.exchange.decided = True
        alike = (method, local) == (self.exchange.method, self.exchange.local)
        self.exchange.load(found.exchange() if alike else {})

    def take_moments(self, run: Path) -> None:
        """Loads the weights and the optimizer moments of another run, without its optimizer options and loss scale."""
        found = checkpoint.latest(run, world=self.world)
        if found is None:
            raise UsageError(f"{run} has no checkpoint to take the optimizer's moments from.")
        options = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        found.restore(self.model, self.optimizer, Precision(self.precision.name, self.world.device))
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)

    def check_disk_space(self, steps: int) -> None:
        """Raises MachineError if the disk has no room for the checkpoints that will exist at once in a run of `steps`
        updates, and for the model."""
        options = self.config.train
        saves = steps // options.save_every + 2 if options.save_every else 2  # at the end, and one more if stopped
        moments = 2 + self.exchange.residuals_per_weight
        checkpoint.check_disk_space(
            self.config.out, self.model, moments=moments, keep=options.keep_checkpoints, saves=saves,
            copies=2 if self.best.name else 0,
        )  # fmt: skip

    def save(self, done: int, log: RunLog, *, final: bool = False) -> None:
        """Saves a checkpoint after `done` updates. A failure is an error only for a `final` checkpoint."""
        self.exchange.average_residuals(self.optimizer)
        states = {"log": log.state(), "guard": self.guard.state(), "budget": self.microbatch.state()}
        states["best"] = self.best.state()
        seconds = self.saver.save(
            done, model=self.model, optimizer=self.optimizer, precision=self.precision, exchange=self.exchange.state(),
            extra=states | {"exchange": (self.exchange.method, self.world.size, self.exchange.local)}, final=final,
        )  # fmt: skip
        log.add_pause(seconds)

    def roll_back(self, log: RunLog) -> int:
        """Restores the last healthy checkpoint and lowers the learning rate. Returns its number of updates."""
        # The loss of an update is that of the weights before the update, so it confirms the previous checkpoint only.
        found = self.saver.latest(at_most=self.guard.healthy - 1)
        if found is None:
            raise DivergedError(
                f"Training diverged after update {self.guard.healthy:,}, before the first checkpoint to roll back to. "
                "Try a smaller optim.lr, or a smaller train.save_every."
            )
        kept = found.restore(self.model, self.optimizer, self.precision)
        self.guard.roll_back(kept["guard"])
        self.best.load(kept.get("best", {}))
        self._resume_exchange(found)
        log.rewind(found.step, kept["log"])
        log.note(f"diverged: back to update {found.step:,}, learning rate times {self.guard.lr_scale:g}")
        return found.step


def freeze(model: Model, what: Freeze) -> str:
    """Freezes the embeddings, the embeddings and the `what` lowest blocks, or the whole encoder. The heads and the
    pooler are trained.

    Frozen parameters have no gradient and no moments, and the backward pass ends above them. Their dropout stays on.

    Returns a line for the user, empty if nothing is frozen. Raises UsageError if there are fewer blocks.
    """
    if what == 0:
        return ""
    blocks, count = model.encoder.blocks, 0 if isinstance(what, str) else what
    if count > len(blocks):
        raise UsageError(
            f"train.freeze = {count}, but the encoder has {len(blocks)} blocks: use at most {len(blocks)}, or encoder."
        )
    embeddings = takewhile(lambda named: not named[0].startswith("blocks."), model.encoder.named_parameters())
    parts = chain((parameter for _, parameter in embeddings), blocks[:count].parameters())
    for parameter in model.encoder.parameters() if what == "encoder" else parts:
        parameter.requires_grad_(False)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained = sum(size for size, trainable in sizes if trainable)
    names = {"encoder": "the encoder is", "embeddings": "the embeddings are"}
    text = names[what] if isinstance(what, str) else f"the embeddings and {count} of {len(blocks)} blocks are"
    return f"{text} frozen: {trained:,} of {sum(size for size, _ in sizes):,} weights are trained"


def frozen_blocks(model: Model) -> int:
    """Returns the number of blocks without trained parameters."""
    return sum(not any(parameter.requires_grad for parameter in block.parameters()) for block in model.encoder.blocks)
