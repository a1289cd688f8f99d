"""`lambert finetune`: an encoder and labelled data to a task model and its scores."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambert.corpus import tokenizer as tokenizers
from lambert.engine.cluster.dist import World
from lambert.engine.exchange.methods import ExchangeConfig
from lambert.engine.guard import GuardConfig
from lambert.engine.precision import Precision
from lambert.engine.signals import Asked, StopRequest, polite
from lambert.model import weights
from lambert.model.heads import Model
from lambert.optim.config import OptimConfig
from lambert.stages.config import LogConfig, TrainConfig
from lambert.stages.folder import open_run, seen
from lambert.stages.inference import check_positions, model_folder, outputs
from lambert.stages.publish import publish_run
from lambert.stages.training import fit, standing
from lambert.tasks import TaskConfig, learn


@dataclass(frozen=True, slots=True)
class FinetuneConfig:
    """Fine-tuning on labelled text. The same command again continues."""

    data: Path
    """Labelled training file: SQuAD JSON; TSV, CSV, JSON lines or Parquet with named columns."""
    out: Path
    """Run folder: settings, metrics, checkpoints, and the task model in model/."""
    init: Path
    """Model folder or run folder of the encoder to start from."""
    dev: Path | None = None
    """Labelled file to score during training and at its end."""
    scratch: bool = False
    """Keep only the shape and the vocabulary of `init` and begin with fresh weights: what is pre-training worth?"""
    from_scratch: bool = False
    """Begin anew where all checkpoints in `out` are damaged; otherwise that is refused, with a list of them."""
    seed: int = 42
    """Decides the fresh head, the order of the data and dropout."""
    task: TaskConfig = field(default_factory=TaskConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    log: LogConfig = field(default_factory=LogConfig)


def run(config: FinetuneConfig) -> None:
    """Trains, or goes on where the run folder was left, writes the task model into `out`/model and scores `dev`.

    Raises SavedAndStopped after a signal, wherever it comes.
    """
    with polite(standing(config.out)) as stop:
        _train(config, stop)


def _train(config: FinetuneConfig, stop: StopRequest) -> None:
    with World.detect(config.train.device, config.train.timeout) as world:
        with world.together("reading its data"):
            folder = model_folder(config.init)
            tokenizer = tokenizers.load(folder)
            task, data = learn(config.task, tokenizer, config.data)
            dev = task.read(config.dev) if config.dev else None
            heads = {task.head: task.labels}
            model = weights.load(folder, heads, tokenizer.get_vocab_size(), config.seed)
            check_positions(task.config.max_length, model)
            if config.scratch:
                model = weights.fresh(model.config, heads, config.seed)

        def check(sequences: int) -> None:
            if stop.agreed(world):  # a rank that left alone would be waited for
                stop.check()

        def score(model: Model, precision: Precision, micro_tokens: int) -> dict[str, float]:
            if dev is None:
                return {}
            try:
                found = outputs(model, dev, precision, world, micro_tokens, check)
                return task.score(dev, task.predictions(dev, found))
            except Asked:
                return {}

        if world.is_first:
            _say(config.data, data)
            if config.dev is not None:
                _say(config.dev, dev)
        files = {"the labelled data": config.data} | ({"the dev data": config.dev} if config.dev else {})
        with open_run(config, world, seen(model, tokenizer, files)):
            scores = fit(config, model, data, score, world, stop)
            if scores is not None and world.is_first:
                extra: dict[str, Any] = task.model_config()
                publish_run(config, model, tokenizer, extra, scores)


def _say(path: Path, data: Any) -> None:
    """What was read, cut and left out."""
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in data.counts.items() if count)
    print(f"{path}  {counts}")
