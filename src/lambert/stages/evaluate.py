"""`lambert evaluate`: a fine-tuned model and labelled data to the official scores and a predictions file."""

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from lambert.core.errors import UsageError
from lambert.engine.cluster.dist import World
from lambert.engine.progress import progress
from lambert.engine.signals import polite
from lambert.stages.inference import InferenceConfig, compare_ranks, load_task, outputs, ready


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Scores of a model on a labelled file."""

    model: Path
    """Run folder of `lambert finetune`, its model folder, or a Hugging Face folder with a task head."""
    data: Path
    """Labelled file."""
    task: str = ""
    """classify, regress, squad or tag; empty: the task that the model folder describes."""
    predictions: Path | None = None
    """File to write: for SQuAD the official JSON (and beside it the n-best answers), else JSON lines or .tsv."""
    json: bool = False
    """Print the scores as one line of JSON."""
    inference: InferenceConfig = field(default_factory=InferenceConfig)


def run(config: EvaluateConfig) -> None:
    """Prints the scores and writes the predictions; of several ranks the first does. Raises SavedAndStopped after a
    signal."""
    with polite(" before the end; nothing was written"):
        _score(config)


def _score(config: EvaluateConfig) -> None:
    with World.detect(config.inference.device) as world:
        with world.together("reading the model and the data"):
            model, task = load_task(config.model, config.task)
            if task.config.name == "mask":
                raise UsageError(
                    f"{config.model} is not fine-tuned: `lambert finetune` gives it a task to be scored on."
                )
            data = task.read(config.data)
            model, precision = ready(model, config.inference.precision, world.device)
        compare_ranks(world, config.model, config.data)
        with progress(data.size(0), "evaluate", unit="sequences", quiet=config.json or not world.is_first) as bar:
            found = outputs(model, data, precision, world, config.inference.micro_tokens, bar.advance)
            if not world.is_first:
                deque(found, maxlen=0)
                return
            predictions = task.predictions(data, found)
    scores = task.score(data, predictions)
    if config.predictions is not None:
        for path in task.write(config.predictions, data, predictions):
            if not config.json:
                print(f"predictions  {path}")
    if config.json:
        print(json.dumps(scores))
        return
    for name, value in scores.items():
        if not name.endswith("_se"):
            error = f" ± {scores[f'{name}_se']:.4f}" if f"{name}_se" in scores else ""
            print(f"{name:20s} {value:.4f}{error}")
