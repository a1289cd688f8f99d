"""The settings that pre-training and fine-tuning share."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from lambert.core.errors import UsageError
from lambert.core.settings import check
from lambert.distributed.exchange.methods import ExchangeConfig
from lambert.distributed.group import TIMEOUT_SECONDS
from lambert.engine.compiler import Setting
from lambert.engine.guard import GuardConfig
from lambert.optim.config import OptimConfig


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
    """The same bits on any number of ranks that divides `deterministic_parts`: sums are a tree over fixed parts of each
    global batch. It costs smaller micro-batches and that gradients are not sent while the backward pass still runs."""
    deterministic_parts: int = 8
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
    keep_checkpoints: int = 2
    """Newest checkpoints kept."""

    def __post_init__(self) -> None:
        check(
            self, "train.",
            batch_size="[1, 16777216]", keep_checkpoints="[1, inf)", steps="(0, inf)", epochs="(0, 1e9]",
            deterministic_parts="[1, inf)", timeout="(0, 1e9]", threads="[0, 1024]",
        )  # fmt: skip
        if self.deterministic_parts & (self.deterministic_parts - 1):
            raise UsageError(f"train.deterministic_parts = {self.deterministic_parts} must be a power of two.")

    def updates(self, sequences: int) -> int:
        """Updates of the run, with `sequences` in an epoch."""
        ends = [] if self.steps is None else [self.steps]
        if self.epochs is not None:
            ends.append(math.ceil(self.epochs * sequences / self.batch_size))
        if self.open_question:
            raise UsageError(self.open_question)
        return min(ends)

    @property
    def open_question(self) -> str:
        """What must still be set, as a sentence; empty where nothing is."""
        if self.steps is None and self.epochs is None:
            return "How long to train? Set train.steps or train.epochs."
        return ""

    def check_ranks(self, ranks: int, done: int = 0) -> None:
        """Raises UsageError where so many ranks cannot share the global batch evenly, with the nearest that can. Of a
        run that has `done` updates only where it is deterministic: others may go on with the ranks that are left."""
        if done and not self.deterministic:
            return
        whole, what = (
            (self.deterministic_parts, "deterministic_parts") if self.deterministic else (self.batch_size, "batch_size")
        )
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
    console: bool | None = None
    """Show progress; not set: the command line shows it, the library does not."""
    seconds: float = 10.0
    """Between two lines of progress where the output is no terminal."""

    def __post_init__(self) -> None:
        check(self, "log.", every="[1, inf)")


class RunConfig(Protocol):
    """What pretrain's and finetune's settings have in common."""

    @property
    def out(self) -> Path: ...
    @property
    def restart_damaged(self) -> bool: ...
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


def check_together(config: RunConfig) -> None:
    """Raises UsageError where settings of different tables contradict each other."""
    options = config.train
    if options.deterministic and config.exchange.sync_every > 1:
        raise UsageError(
            "train.deterministic = true needs exchange.sync_every = 1: what ranks learn by local steps depends on "
            "how many they are. Set one or the other."
        )
    if options.deterministic and config.exchange.method not in ("float32", "auto"):
        raise UsageError(
            f"train.deterministic = true sums gradients in float32, in an order of its own, and not by exchange.method "
            f"= {config.exchange.method!r}: set one or the other."
        )
    if options.precision == "float16" and config.exchange.sync_every > 1:
        raise UsageError(
            "exchange.sync_every > 1 needs another train.precision than float16: each rank would skip updates and "
            "scale its loss as its own gradients ask for. Take bfloat16."
        )
    if config.guard.action == "roll back" and not options.save_every:
        raise UsageError("guard.action = 'roll back' needs checkpoints to go back to: set train.save_every.")
