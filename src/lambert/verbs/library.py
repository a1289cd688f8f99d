"""The verbs outside `lambert.wings` as Python functions, with the conventions of `lambert.library`."""

import os
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from lambert.core.files import as_path
from lambert.engine.device import keep_current_gpu
from lambert.engine.step import Step
from lambert.library import call_settings, find_training_verb, lines, remove_unused_rows, report_stops
from lambert.runs.config import RunConfig
from lambert.runs.result import Result
from lambert.text.memory import data_path, is_rows
from lambert.verb import load, record_of
from lambert.verbs import compare as comparison
from lambert.verbs import evaluate as evaluation
from lambert.verbs import finetune as finetuning
from lambert.verbs import pretrain as pretraining
from lambert.verbs import sweep as sweeping
from lambert.verbs import verify as verification
from lambert.verbs.compare import CompareConfig
from lambert.verbs.settings.evaluate import EvaluateConfig
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.settings.pretrain import PretrainConfig
from lambert.verbs.settings.sweep import SweepConfig
from lambert.verbs.settings.verify import VerifyConfig
from lambert.verbs.verify.comparison import Verified


def pretrain(recipe: str | Path | PretrainConfig | None = None, **settings: Any) -> Result:
    """Trains an encoder on the shards of a corpus, as `lambert pretrain`. Repeating the call continues the run. The
    result has the held-out scores.

    After SIGINT (Ctrl-C), SIGTERM, SIGUSR1 or SIGHUP the run is saved and SavedAndStopped is raised, which ends a
    script with 128 + the number of the signal.
    """
    with report_stops():
        config = call_settings("pretrain", recipe, settings)
        return pretraining.run(config, lines(config.log.console))


def finetune(recipe: str | Path | FinetuneConfig | None = None, **settings: Any) -> Result:
    """Trains an encoder on labelled data, as `lambert finetune`. Repeating the call continues the run. The result has
    the scores on `dev`.

    `data` and `dev` may be rows instead of files: a table of pandas, polars, pyarrow or Hugging Face's datasets, a list
    of dicts, or a dict of columns. They are written beside the run folder `out`, as OUT-data.jsonl or OUT-data.arrow,
    so that the run can be repeated from its config.toml. Signals are handled as in `pretrain`.
    """
    with report_stops(), remove_unused_rows("finetune", recipe, settings):
        config = call_settings("finetune", recipe, settings)
        return finetuning.run(config, lines(config.log.console))


def sweep(recipe: str | Path | SweepConfig | None = None, /, **settings: Any) -> Result:
    """Searches for the best settings of a training run, as `lambert sweep`. Repeating the call continues the sweep. The
    result has the best value; best.toml in its folder has the best settings.

    `space` has the settings to vary, as in the table [sweep.space] of a recipe; `base` has the settings of the verb,
    whose `data` and `dev` may be rows as in `finetune`.
    Signals are handled as in `pretrain`.
    """
    with report_stops(dotted=False):  # the space has dotted names
        return sweeping.run(call_settings("sweep", recipe, settings), lines())


def evaluate(recipe: str | Path | EvaluateConfig | None = None, **settings: Any) -> Result:
    """Scores a fine-tuned model on labelled data, as `lambert evaluate`. With `predictions`, also writes that file.
    `data` may be rows as in `finetune`."""
    with ExitStack() as stack:
        stack.enter_context(report_stops())
        if is_rows(data := settings.get("data")):
            path = stack.enter_context(data_path(data))
            found = evaluation.run(call_settings("evaluate", recipe, {**settings, "data": path}), lines())
            return replace(found, notes=tuple(line.replace(str(path), "data") for line in found.notes))
        return evaluation.run(call_settings("evaluate", recipe, settings), lines())


def compare(*runs: str | os.PathLike[str], gold: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Compares the scores of the first fine-tuned model with those of each other one, as `lambert compare`. Returns
    what `--json` prints (docs/compare.md).

    Args:
        runs: Run folders or the Results of runs, folders of several seeds, or files of scored examples; with `gold`,
            the labelled file, also files of predictions of other systems.
    """
    labelled = None if gold is None else as_path(gold, "gold")
    return comparison.run(CompareConfig(tuple(as_path(run, "A run") for run in runs), labelled))


def updates(
    recipe: str | Path | PretrainConfig | FinetuneConfig | None = None, **settings: Any
) -> Generator[Step, None, None]:
    """Yields every update of a run: pre-training if the settings have `corpus`, fine-tuning if they have `data`. A Step
    has `scores` if held-out scores were computed; the last Step has the final scores.

    Leaving the loop by `break`, or closing the generator, saves a checkpoint after the update that was yielded last;
    the same call continues from it. A run that is complete yields nothing. Between two updates the process has the
    number of threads, the random state and the determinism that it had before. Ctrl-C raises KeyboardInterrupt, and the
    updates since the last checkpoint are lost (see `train__save_every`).

    Raises UsageError at the call if a setting is wrong.
    """
    verb = find_training_verb(recipe, settings, "updates")
    with report_stops(), remove_unused_rows(verb, recipe, settings):
        config = call_settings(verb, recipe, settings)
    return _updates(config)


def verify(
    recipe: str | Path | PretrainConfig | FinetuneConfig, *, updates: int = 0, out: str | Path | None = None,
    run: str | Path | None = None, **settings: Any,
) -> Verified:  # fmt: skip
    """Runs the first updates of a recipe and compares them with its table [expect], as `lambert verify`. The result
    says whether the run is `on_curve`, with the `rows` of the comparison and the likely causes (`differences`).

    Args:
        recipe: A recipe with [expect], or a settings dataclass with `expect`.
        updates: How many; 0: up to the last band within the first 100 updates or the first hundredth of the run.
        out: Run folder of these updates; None: a temporary one.
        run: A run folder that is compared instead; nothing is run.
        settings: Settings that override the recipe.
    """
    own, compared = (None if given is None else as_path(given, name) for name, given in (("out", out), ("run", run)))
    config = call_settings(find_training_verb(recipe, settings, "verify"), recipe, {"out": "run", **settings})
    name = Path(recipe) if isinstance(recipe, str | Path) else Path("the recipe")
    with report_stops():
        return verification.verify_run(VerifyConfig(name, tuple(settings), updates, own, compared), config)


def _updates(config: RunConfig) -> Generator[Step, None, None]:
    with keep_current_gpu():
        yield from load(record_of(type(config)).updates)(config)
