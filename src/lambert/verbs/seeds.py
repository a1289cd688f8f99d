"""Several runs that differ in the seed, and the scores over all of them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from lambert.core.errors import UsageError
from lambert.core.files import json_text, write_atomic
from lambert.distributed.launch_environment import process_info
from lambert.engine.progress import COUNTS, score_text
from lambert.runs.folder import CONFIG
from lambert.runs.result import Result, Say
from lambert.tasks.reading.cache import FOLDER
from lambert.verbs.settings.finetune import FinetuneConfig

SEEDS = "seeds.json"


def run_seeds(config: FinetuneConfig, run: Callable[[FinetuneConfig, Say], Result], say: Say) -> Result:
    """Calls `run` for each seed, in out/seed-N, and writes out/seeds.json. Finished runs are not repeated. The result
    has the means of the scores. With several ranks only the first writes the file, speaks and has scores.

    Raises UsageError if `out` is itself a run folder.
    """
    if (config.out / CONFIG).exists():
        raise UsageError(f"{config.out} holds a run of one seed. Choose another out for several seeds.")
    first, found = process_info().rank == 0, []
    config = replace(config, cache=config.cache or config.out / FOLDER)
    for seed in config.seeds:
        if first:
            say(f"seed {seed}")
        found.append(run(replace(config, seed=seed, seeds=(), out=config.out / f"seed-{seed}"), say).scores)
    if not first:
        return Result(config.out)
    scores = over_seeds(found)
    if scores:
        write_atomic(config.out / SEEDS, json_text({"seeds": list(config.seeds), "scores": scores}, indent=1) + "\n")
    for line in _lines(scores, config):
        say(line)
    say(f"models  {', '.join(str(config.out / f'seed-{seed}' / 'model') for seed in config.seeds)}")
    return Result(config.out, {name: of["mean"] for name, of in scores.items()})


def over_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Returns for each score its `mean` over the seeds and its `values`; with two seeds or more `deviation` (divided by
    n - 1) and `mean_se`, the standard error of the mean, deviation / sqrt(n); and, if the score has a standard error
    over the examples, `examples_se`: the root mean square of NAME_se."""
    names = [name for name in scores[0] if not name.endswith("_se") or name.removesuffix("_se") not in scores[0]]
    return {name: _summary(name, scores) for name in names if all(name in one for one in scores)}


def _summary(name: str, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    values = [one[name] for one in scores]
    found: dict[str, Any] = {"mean": fmean(values), "values": values}
    if len(values) > 1:
        found |= {"deviation": stdev(values), "mean_se": stdev(values) / math.sqrt(len(values))}
    errors = [one[f"{name}_se"] for one in scores if f"{name}_se" in one]
    return {**found, "examples_se": math.sqrt(fmean(error**2 for error in errors))} if errors else found


def _lines(scores: Mapping[str, Mapping[str, Any]], config: FinetuneConfig) -> Iterator[str]:
    """Yields the table of the scores over the seeds."""
    if not scores:
        yield f"{len(config.seeds)} seeds in {config.out}; without dev there are no scores"
        return
    columns = {"mean": "mean", "deviation": "deviation", "mean_se": "error of mean", "examples_se": "error of examples"}
    count = f"{len(config.seeds)} seed{'s' * (len(config.seeds) > 1)}"
    yield f"{count:20s}" + "".join(f" {label:>17s}" for label in columns.values())
    for name, of in scores.items():
        if name.endswith(COUNTS):
            continue
        cells = [score_text(name, of[key]) if key in of else "" for key in columns]
        yield f"{name:20s}" + "".join(f" {cell:>17s}" for cell in cells)
