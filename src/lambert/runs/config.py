"""The settings that pre-training and fine-tuning share."""

import math
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

from lambert.core.errors import UsageError
from lambert.core.settings import check
from lambert.data.batch_sizes import BatchSizes
from lambert.distributed.config import TIMEOUT_SECONDS, ExchangeConfig
from lambert.engine.guard import GuardConfig
from lambert.engine.trackers import check_trackers
from lambert.optim.config import OptimConfig
from lambert.runs.expect import ExpectConfig


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The length of a run, how it computes, and how often it is scored and saved."""

    batch_size: int = 256
    """Sequences of one update, over all micro-batches and devices together."""
    first_batch_size: int = 0
    """Sequences of the first update, a divisor of batch_size; the number grows by it until it is batch_size. In
    ModernBERT's training (Warner et al., 2024) it grew by one sequence at a time. 0: all updates have batch_size."""
    ramp_steps: int = 0
    """Updates over which the number of sequences grows from first_batch_size."""
    steps: int | None = None
    """Number of updates of the run. If epochs is set too, the run ends at whichever comes first."""
    epochs: float | None = None
    """Passes over the training data."""
    micro_tokens: int = 0
    """Maximum tokens of a micro-batch on a device; bounds the memory. A longer sequence is a micro-batch of its own. 0:
    determined from the available memory and kept when the run continues. It changes results by rounding and, with
    dropout, by the dropout masks, which are drawn for each micro-batch."""
    precision: Literal["auto", "float32", "bfloat16", "float16", "float8"] = "float32"
    """Precision of the matrix products; weights, moments and summed gradients are always float32. auto: bfloat16 on
    devices with instructions for its products, else float32. float16 scales the loss; float8 is bfloat16 with float8
    products in the blocks, on GPUs of compute capability 8.9 or more."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the blocks with torch.compile; auto: on GPUs only. It changes results by rounding and, with dropout, by
    the dropout masks. If compiling fails, the run warns and continues in eager mode."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:N or mps."""
    threads: int = 0
    """Threads of each process on a CPU. 0: OMP_NUM_THREADS if set, else one per core (all ranks use the smallest of
    their numbers); 1 in a deterministic run."""
    deterministic: bool = False
    """Compute the same bits on any number of ranks that divides `deterministic_parts`: gradients are summed in a tree
    over fixed parts of each global batch. The cost: micro-batches are smaller, and gradients are sent only after the
    backward pass."""
    deterministic_parts: int = 8
    """Parts of a global batch in a deterministic run, a power of two; the maximum number of ranks."""
    shard_optimizer: bool = False
    """Each rank keeps the optimizer moments of its share of the parameters only. This takes less memory and computes
    the same bits, but updated weights must be sent. Checkpoints hold all moments."""
    timeout: float = TIMEOUT_SECONDS
    """Seconds that ranks wait for a rank that does not respond, before all ranks exit."""
    compare_every: int = 1000
    """Updates between comparisons of the ranks' weights, which must be equal bit for bit. 0: never."""
    evaluate_every: int = 0
    """Updates between evaluations on held-out data. 0: only at the end."""
    evaluate_sequences: int = 2048
    """Number of held-out sequences in an evaluation of pre-training, spread evenly over the data. 0: all."""
    keep_best: str = ""
    """Name of a held-out score, such as accuracy: the weights with the best score are kept, and model/ is published
    from them. For losses and mse, lower is better. Empty: model/ has the weights after the last update."""
    patience: int = 0
    """Evaluations without improvement of keep_best after which the run ends. The learning rate follows the schedule of
    the whole run until then. 0: the run does not end early."""
    save_every: int = 0
    """Updates between checkpoints. 0: only when the run is stopped and at the end."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep."""

    def __post_init__(self) -> None:
        check(
            self, "train.",
            batch_size="[1, 16777216]", keep_checkpoints="[1, inf)", steps="(0, inf)", epochs="(0, 1e9]",
            deterministic_parts="[1, inf)", timeout="(0, 1e9]", threads="[0, 1024]",
        )  # fmt: skip
        if self.deterministic_parts & (self.deterministic_parts - 1):
            raise UsageError(f"train.deterministic_parts = {self.deterministic_parts} must be a power of two.")
        if bool(self.first_batch_size) != bool(self.ramp_steps):
            raise UsageError("train.first_batch_size and train.ramp_steps need each other: set both, or neither.")
        if self.first_batch_size and self.batch_size % self.first_batch_size:
            raise UsageError(
                f"train.first_batch_size = {self.first_batch_size} must divide train.batch_size = {self.batch_size}."
            )
        if self.keep_best and not self.evaluate_every:
            raise UsageError(
                f"train.keep_best = {self.keep_best!r} needs train.evaluate_every, the number of updates between "
                "evaluations. Set it."
            )
        if self.patience and not self.keep_best:
            raise UsageError(
                f"train.patience = {self.patience} needs train.keep_best, the score that is to improve. Set it."
            )

    def updates(self, sequences: int) -> int:
        """Returns the number of updates of a run with `sequences` sequences per epoch."""
        ends = [] if self.steps is None else [self.steps]
        if self.epochs is not None:
            ends.append(self.sizes.updates(math.ceil(self.epochs * sequences)))
        if self.open_question:
            raise UsageError(self.open_question)
        return min(ends)

    @property
    def sizes(self) -> BatchSizes:
        """The sequences of each update."""
        return BatchSizes(self.batch_size, self.first_batch_size, self.ramp_steps)

    @property
    def open_question(self) -> str:
        """A sentence that names the missing setting; empty if none is missing."""
        if self.steps is None and self.epochs is None:
            return "How long to train? Set train.steps or train.epochs."
        return ""

    def check_ranks(self, ranks: int, done: int = 0) -> None:
        """Raises UsageError if the ranks cannot share the global batch evenly, and names the nearest numbers of ranks
        that can. A run that continues after `done` updates is checked only if it is deterministic, because other runs
        may continue with the remaining ranks."""
        if done and not self.deterministic:
            return
        what = "first_batch_size" if self.first_batch_size else "batch_size"
        what = "deterministic_parts" if self.deterministic else what
        whole: int = getattr(self, what)
        if whole % ranks:
            fitting = [n for n in range(1, whole + 1) if whole % n == 0]
            below, above = max(n for n in fitting if n < ranks or n == 1), [n for n in fitting if n > ranks][:1]
            sizes = [ranks * (whole // ranks), ranks * (whole // ranks + 1)]
            fitting_sizes = [n for n in sizes if n and (what == "batch_size" or self.batch_size % n == 0)]
            none = self.deterministic or not fitting_sizes
            other = "" if none else f", or a {what} of {' or '.join(map(str, fitting_sizes))}"
            raise UsageError(
                f"{ranks} ranks cannot share train.{what} = {whole} evenly: start "
                f"{' or '.join(map(str, [below, *above]))}{other}."
            )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What a run logs and shows. metrics.jsonl and log.txt are always written."""

    every: int = 10
    """Updates between rows of metrics.jsonl."""
    trackers: tuple[str, ...] = ()
    """Programs that also get the rows, in files of the run folder: tensorboard, mlflow and wandb (Weights & Biases,
    offline)."""
    price: float = 0.0
    """Price of an hour of one device (of one process), in any currency: the log and the report show the cost so far."""
    console: bool | None = None
    """Show progress. Unset: the command line and a notebook show it, a script does not."""
    seconds: float = 10.0
    """Seconds between two lines of progress if the output is not a terminal."""

    def __post_init__(self) -> None:
        check(self, "log.", every="[1, inf)")
        check_trackers(self.trackers)


@dataclass(frozen=True, slots=True)
class RelationConfig:
    """Learning the self-attention relations of a teacher (Wang et al., "MiniLMv2", 2021)."""

    teacher: Path | None = None
    """Run folder or model folder of the teacher."""
    relations: float = 1.0
    """Factor of the loss of the self-attention relations of a teacher with the same vocabulary. 0: none."""
    relation_heads: int = 0
    """Number of relation heads, into which queries, keys and values are divided; must divide the widths of teacher and
    student. 0: the largest number up to the teacher's attention heads that does."""
    teacher_layer: int = 0
    """Block of the teacher, from 1, whose relations the last block of the student learns. 0: the last."""
    student_layers: int = 0
    """Number of blocks of `init` that the student has, evenly spaced from the first to the last (Sanh et al.,
    "DistilBERT", 2019). 0: all."""

    def __post_init__(self) -> None:
        check(self, "distil.")


@dataclass(frozen=True, slots=True)
class DistilConfig(RelationConfig):
    """Learning from a teacher: its predictions, if it was fine-tuned on the same task (classify, multilabel, regress,
    choice, tag or squad), and its self-attention relations."""

    relations: float = 0.0
    """Factor of the loss of the self-attention relations of a teacher with the same vocabulary. 0: none."""
    share: float = 0.9
    """Share of the teacher's predictions in the loss; the rest is that of the labels. 0: the teacher may be of any
    task."""
    temperature: float = 2.0
    """classify, choice, tag, squad: the logits of teacher and student are divided by it before the softmax."""

    def __post_init__(self) -> None:
        check(self, "distil.", share="[0, 1]", temperature="(0, inf)")
        if self.relations and self.teacher is None:
            raise UsageError(f"distil.relations = {self.relations:g} needs distil.teacher, the model to learn from.")


class RunConfig(Protocol):
    """What the settings of all verbs that train have in common. They are dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def init(self) -> Path | None: ...
    @property
    def random_init(self) -> bool: ...
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
    @property
    def expect(self) -> ExpectConfig | None: ...
    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the held-out scores; none if the data determine them."""

    def resolve(self) -> Self:
        """Returns the settings as a run records them, as far as they follow from other settings."""


def check_together(config: RunConfig) -> None:
    """Raises UsageError if settings of different tables contradict each other, also if `init` is in `out`."""
    options, out = config.train, config.out
    if config.init is not None and config.init.resolve() in (out.resolve(), (out / "model").resolve()):
        raise UsageError(f"{out} is the run given in init. Choose another --out.")
    if options.deterministic and config.exchange.sync_every > 1:
        raise UsageError(
            "train.deterministic = true needs exchange.sync_every = 1: the result of local steps depends on the "
            "number of ranks. Set one or the other."
        )
    if options.deterministic and config.exchange.method not in ("float32", "auto"):
        raise UsageError(
            f"train.deterministic = true sums gradients in float32 in a fixed order and does not use exchange.method = "
            f"{config.exchange.method!r}: set one or the other."
        )
    if options.precision == "float16" and config.exchange.sync_every > 1:
        raise UsageError(
            "exchange.sync_every > 1 is not supported with train.precision = float16: each rank would choose its own "
            "loss scale and skip its own updates. Use bfloat16."
        )
    if config.guard.action == "roll back" and not options.save_every:
        raise UsageError("guard.action = 'roll back' needs checkpoints to go back to: set train.save_every.")
