"""A run: what training changes and a checkpoint holds, put together, saved, resumed and rolled back."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lambert.core.errors import DataError, DivergedError, UsageError
from lambert.core.world import World
from lambert.distributed import exchange as exchanges
from lambert.distributed.exchange import Exchange
from lambert.distributed.sharding import shard
from lambert.engine import checkpoint
from lambert.engine.guard import Guard
from lambert.engine.log import RunLog
from lambert.engine.precision import Precision
from lambert.model.heads import Model
from lambert.optim.optimizers import build
from lambert.runs.config import RunConfig
from lambert.runs.microbatch import MicrobatchSize

_log = logging.getLogger("lambert.run")


@dataclass(frozen=True, slots=True)
class Run:
    """What training changes and a checkpoint holds, and the folder that it is kept in. All ranks call all of it."""

    config: RunConfig
    world: World
    model: Model
    optimizer: torch.optim.Optimizer
    precision: Precision
    guard: Guard
    microbatch: MicrobatchSize
    saver: checkpoint.Saver
    exchange: Exchange

    @classmethod
    def begin(cls, config: RunConfig, model: Model, world: World, steps: int) -> "Run":
        """The run of `steps` updates before its first, with the same weights on every rank."""
        options = config.train
        model.to(world.device)
        world.broadcast(model.parameters())
        precision = Precision(options.precision, world.device, one_layout=options.deterministic)
        guard = Guard(config.guard, lambda: precision.scale)
        microbatch = MicrobatchSize(options.micro_tokens, deterministic=options.deterministic)
        saver = checkpoint.Saver(config.out, keep=options.keep_checkpoints, world=world)
        exchange = exchanges.build(model, world, config.exchange, updates=steps, deterministic=options.deterministic)
        optimizer = build(model, config.optim)
        if options.shard_optimizer:
            optimizer = shard(optimizer, exchange, world)
        return cls(config, world, model, optimizer, precision, guard, microbatch, saver, exchange)

    def resume(self) -> tuple[int, dict[str, Any]]:
        """Goes on from the newest checkpoint: the updates done, and the log's state; 0 and nothing without one.

        Raises DataError where there are only damaged ones, unless the settings ask for a new beginning.
        """
        try:
            found = self.saver.latest()
        except DataError:
            if not self.config.restart_damaged:
                raise
            if self.world.is_first:
                _log.warning("The run begins anew, as --restart-damaged asks: all its checkpoints are damaged.")
            return 0, {}
        if found is None:
            return 0, {}
        kept = found.restore(self.model, self.optimizer, self.precision)
        self.guard.load(kept["guard"])
        self.microbatch.load(kept["budget"])
        self._resume_exchange(found)
        return found.step, kept["log"]

    def _resume_exchange(self, found: checkpoint.Checkpoint) -> None:
        """Gradients travel as they did, where the recipe leaves it open and there are as many ranks; what was held back
        goes on, where the method is the same and it is of the same: of gradients, or with local steps of weights."""
        method, ranks, local = found.values["extra"]["exchange"]
        if not self.exchange.decided and ranks == self.world.size:
            self.exchange.use(method)
            self.exchange.decided = True
        alike = (method, local) == (self.exchange.method, self.exchange.local)
        self.exchange.load(found.exchange() if alike else {})

    def take_moments(self, run: Path) -> None:
        """Takes over the weights and the optimizer's moments of another run, and neither its options nor its loss
        scale."""
        found = checkpoint.latest(run, world=self.world)
        if found is None:
            raise UsageError(f"{run} has no checkpoint to take the optimizer's moments from.")
        options = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        found.restore(self.model, self.optimizer, Precision(self.config.train.precision, self.world.device))
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)

    def save(self, done: int, log: RunLog, *, final: bool = False) -> None:
        """Saves a checkpoint after `done` updates; one that fails is fatal only where it is the `final` one."""
        self.exchange.average_residuals(self.optimizer)
        states = {"log": log.state(), "guard": self.guard.state(), "budget": self.microbatch.state()}
        pause = self.saver.save(
            done, model=self.model, optimizer=self.optimizer, precision=self.precision, exchange=self.exchange.state(),
            extra=states | {"exchange": (self.exchange.method, self.world.size, self.exchange.local)}, final=final,
        )  # fmt: skip
        log.paused(pause.seconds)

    def roll_back(self, log: RunLog) -> int:
        """Goes back to before the trouble and lowers the learning rate. Gives the updates done then."""
        # The loss of an update is that of the weights before it: it vouches for the checkpoint before, not for its own.
        found = self.saver.latest(at_most=self.guard.healthy - 1)
        if found is None:
            raise DivergedError(
                f"Diverged after update {self.guard.healthy:,}, before the first checkpoint to roll back to. "
                "Try a smaller optim.lr, or a smaller train.save_every."
            )
        kept = found.restore(self.model, self.optimizer, self.precision)
        self.guard.rolled_back(kept["guard"])
        self._resume_exchange(found)
        log.rewind(found.step, kept["log"])
        log.note(f"diverged: back to update {found.step:,}, learning rate times {self.guard.lr_scale:g}")
        return found.step
