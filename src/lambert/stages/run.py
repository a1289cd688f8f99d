"""The settings that pre-training and fine-tuning share, and the run folder: whose it is, and what is kept in it."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from lambert.core import config as settings
from lambert.core.errors import DivergedError, UsageError
from lambert.core.files import write_whole
from lambert.core.shards import sha256
from lambert.corpus import tokenizer as tokenizers
from lambert.engine import checkpoint, lock
from lambert.engine import exchange as exchanges
from lambert.engine.cluster import agreement
from lambert.engine.cluster.dist import TIMEOUT_SECONDS, World
from lambert.engine.compiler import Setting
from lambert.engine.exchange import Exchange
from lambert.engine.exchange.methods import ExchangeConfig
from lambert.engine.guard import Guard, GuardConfig
from lambert.engine.log import RunLog
from lambert.engine.precision import Precision
from lambert.engine.sharding import shard
from lambert.model.heads import Model
from lambert.optim.config import OptimConfig
from lambert.optim.optimizers import build
from lambert.stages.budget import Budget


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How much is trained, how, and how often it is scored and saved."""

    batch_size: int = 256
    """Sequences of one update, over all micro-batches and devices together."""
    steps: int | None = None
    """Updates of the run; with epochs too, whichever ends first."""
    epochs: float | None = None
    """Passes over the training data."""
    micro_tokens: int = 0
    """Most tokens computed at once on a device; bounds the memory. 0: found from the memory available, and kept when
    the run is continued. It changes a result by rounding, and with dropout by the masks, which are drawn for each
    micro-batch."""
    precision: Literal["float32", "bfloat16", "float16", "float8"] = "float32"
    """Of the matrix products; weights, moments and summed gradients are always float32. float16 scales the loss; float8
    is bfloat16 with float8 products in the blocks, on GPUs of compute capability 8.9 or more."""
    compile: Setting = "auto"
    """torch.compile around the blocks; auto: on GPUs alone. It changes a result by rounding, and with dropout by the
    masks. Where it fails, the run is eager and says so."""
    device: str = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:N or mps."""
    threads: int = 0
    """Threads of a process on a CPU; 0: what OMP_NUM_THREADS says, or one a core, of several ranks as few as any has;
    in a deterministic run one."""
    deterministic: bool = False
    """The same bits on any number of ranks that divides `shares`: sums are a tree over fixed parts of each global
    batch. It costs smaller micro-batches and that gradients are not sent while the backward pass still runs."""
    shares: int = 8
    """Parts of a global batch in a deterministic run, a power of two: the most ranks that it can have."""
    shard_optimizer: bool = False
    """Each rank keeps the optimizer's moments of its share of the parameters only: less memory on each, the same bits,
    and updated weights travel. Checkpoints hold all of them as ever."""
    timeout: float = TIMEOUT_SECONDS
    """Seconds that ranks wait for one that hangs, before all of them leave."""
    compare_every: int = 1000
    """Updates between comparisons of the ranks' weights, which must be the same bits; 0: never."""
    evaluate_every: int = 0
    """Updates between scores on held-out data; 0: at the end only."""
    evaluate_sequences: int = 2048
    """Held-out sequences that pre-training is scored on, spread evenly; 0: all."""
    save_every: int = 0
    """Updates between checkpoints; 0: when stopped and at the end."""
    keep: int = 2
    """Newest checkpoints kept."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "keep"):
            if getattr(self, name) < 1:
                raise UsageError(f"train.{name} = {getattr(self, name)} must be at least 1.")
        if self.timeout <= 0:
            raise UsageError(f"train.timeout = {self.timeout} must be above 0 seconds.")
        if self.shares < 1 or self.shares & (self.shares - 1):
            raise UsageError(f"train.shares = {self.shares} must be a power of two.")
        for name in ("steps", "epochs"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise UsageError(f"train.{name} = {getattr(self, name)} must be above 0.")
        for name in ("micro_tokens", "evaluate_every", "evaluate_sequences", "save_every", "threads", "compare_every"):
            if getattr(self, name) < 0:
                raise UsageError(f"train.{name} = {getattr(self, name)} must not be negative.")

    def updates(self, sequences: int) -> int:
        """Updates of the run, with `sequences` in an epoch."""
        ends = [] if self.steps is None else [self.steps]
        if self.epochs is not None:
            ends.append(math.ceil(self.epochs * sequences / self.batch_size))
        if not ends:
            raise UsageError("How long to train? Set train.steps or train.epochs.")
        return min(ends)

    def check_ranks(self, ranks: int, done: int = 0) -> None:
        """Raises UsageError where so many ranks cannot share the global batch evenly, with the nearest that can. Of a
        run that has `done` updates only where it is deterministic: others may go on with the ranks that are left."""
        if done and not self.deterministic:
            return
        whole, what = (self.shares, "shares") if self.deterministic else (self.batch_size, "batch_size")
        if whole % ranks:
            fitting = [n for n in range(1, whole + 1) if whole % n == 0]
            below, above = max(n for n in fitting if n < ranks or n == 1), [n for n in fitting if n > ranks][:1]
            sizes = [ranks * (whole // ranks), ranks * (whole // ranks + 1)]
            other = "" if self.deterministic else f", or a batch_size of {' or '.join(str(n) for n in sizes if n)}"
            raise UsageError(
                f"{ranks} ranks cannot share train.{what} = {whole} evenly: start "
                f"{' or '.join(map(str, [below, *above]))}{other}."
            )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is written down and shown. metrics.jsonl and log.txt are always written."""

    every: int = 10
    """Updates between rows of metrics.jsonl."""
    tensorboard: bool = False
    """Also write events for TensorBoard."""
    console: bool = True
    """Show progress."""
    seconds: float = 10.0
    """Between two lines of progress where the output is no terminal."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"log.every = {self.every} must be at least 1.")


class RunConfig(Protocol):
    """What pretrain's and finetune's settings have in common."""

    @property
    def out(self) -> Path: ...
    @property
    def seed(self) -> int: ...
    @property
    def optim(self) -> OptimConfig: ...
    @property
    def train(self) -> TrainConfig: ...
    @property
    def exchange(self) -> ExchangeConfig: ...
    @property
    def guard(self) -> GuardConfig: ...
    @property
    def log(self) -> LogConfig: ...


CONFIG = "config.toml"
FREE = (
    "out",
    "log.",
    "guard.",
    "train.micro_tokens",
    "train.compile",
    "train.device",
    "train.shard_optimizer",
    "train.timeout",
    "train.compare_every",
    "exchange.",
    "train.save_every",
    "train.evaluate_",
    "train.keep",
)
"""Settings that may change when a run is continued: none of them moves what is learnt beyond rounding, the draw of
dropout's masks, and how the gradients travel on the network there is now."""
BEGUN = ("metrics.jsonl", "checkpoints", "model")
"""What a run leaves: a folder without any of them holds no run yet, only the settings of one that never began."""


def seen(model: Model, tokenizer: Any, files: Mapping[str, Path]) -> dict[str, object]:
    """What of that which a rank has read must be the same on all, for `open_run`; `files` by what they are."""
    shape = {f"the model's {name}": value for name, value in dataclasses.asdict(model.config).items()}
    hashes = {name: sha256(path) for name, path in files.items()}
    return shape | hashes | {"the tokenizer": tokenizers.fingerprint(tokenizer)}


@contextmanager
def open_run(config: RunConfig, world: World, data: Mapping[str, object]) -> Iterator[None]:
    """Holds the run folder and writes config.toml, or compares it where the run goes on.

    Raises UsageError, on all ranks, where the folder is in use, belongs to a run with other settings, or holds
    something else; and where ranks differ in settings, `data` (see `seen`), code or libraries.
    """
    agreement.compare(world, settings.dotted(settings.as_dict(config)) | dict(data) | agreement.software())
    problem = world.broadcast_text(_foreign(config) if world.is_first else "")
    if problem:
        raise UsageError(problem)
    with lock.hold(config.out, world):
        if world.is_first:
            write_whole(config.out / CONFIG, settings.text(config))
        yield


def _foreign(config: RunConfig) -> str:
    """Why the run folder is not this run's, or nothing."""
    path = config.out / CONFIG
    if path.is_file() and not any((config.out / name).exists() for name in BEGUN):
        return ""
    if path.is_file():
        before, now = settings.dotted(settings.read(path)), settings.dotted(settings.as_dict(config))
        changed = [n for n in sorted(before | now) if before.get(n) != now.get(n) and not n.startswith(FREE)]
        if changed:
            listed = "; ".join(f"{n} {before.get(n, 'not set')} -> {now.get(n, 'not set')}" for n in changed[:5])
            more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
            return f"{config.out} holds a run with other settings: {listed}{more}. Restore them, or choose another out."
    elif config.out.is_dir() and any(p.name != "lock.json" for p in config.out.iterdir()):
        return f"{config.out} holds something that is no run (no {CONFIG}). Choose another out."
    elif config.out.exists() and not config.out.is_dir():
        return f"{config.out} is a file. Choose another out."
    return ""


@dataclass(frozen=True, slots=True)
class Run:
    """What training changes and a checkpoint holds, and the folder that it is kept in. All ranks call all of it."""

    config: RunConfig
    world: World
    model: Model
    optimizer: torch.optim.Optimizer
    precision: Precision
    guard: Guard
    budget: Budget
    saver: checkpoint.Saver
    exchange: Exchange

    @classmethod
    def begin(cls, config: RunConfig, model: Model, world: World, steps: int) -> "Run":
        """The run of `steps` updates before its first, with the same weights on every rank.

        Raises UsageError where settings contradict each other."""
        options = config.train
        if options.deterministic and config.exchange.sync_every > 1:
            raise UsageError(
                "train.deterministic = true needs exchange.sync_every = 1: what ranks learn by local steps depends on "
                "how many they are. Set one or the other."
            )
        if options.precision == "float16" and config.exchange.sync_every > 1:
            raise UsageError(
                "exchange.sync_every > 1 needs another train.precision than float16: each rank would skip updates and "
                "scale its loss as its own gradients ask for. Take bfloat16."
            )
        model.to(world.device)
        world.broadcast(model.parameters())
        precision = Precision(options.precision, world.device)
        guard = Guard(config.guard, lambda: precision.scale)
        budget = Budget(options.micro_tokens, deterministic=options.deterministic)
        saver = checkpoint.Saver(config.out, keep=options.keep, world=world)
        exchange = exchanges.build(model, world, config.exchange, updates=steps, deterministic=options.deterministic)
        optimizer = build(model, config.optim)
        if options.shard_optimizer:
            optimizer = shard(optimizer, exchange, world)
        return cls(config, world, model, optimizer, precision, guard, budget, saver, exchange)

    def resume(self) -> tuple[int, dict[str, Any]]:
        """Goes on from the newest checkpoint: the updates done, and the log's state; 0 and nothing without one."""
        found = self.saver.latest()
        if found is None:
            return 0, {}
        kept = found.restore(self.model, self.optimizer, self.precision)
        self.guard.load(kept["guard"])
        self.budget.load(kept["budget"])
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
        self.exchange.settle(self.optimizer)
        states = {"log": log.state(), "guard": self.guard.state(), "budget": self.budget.state()}
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
