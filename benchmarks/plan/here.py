"""Plans of this machine beside runs on it: tokens per second of processor time, as Markdown rows.

    OMP_NUM_THREADS=1 python -m benchmarks.plan.here --corpus CORPUS RECIPE... [--updates 20] [--set NAME=VALUE]

Each recipe of pre-training is planned with `--device auto`, once with and once without the time of a micro-batch, then
its first updates are run, twice each. Times are those of the thread that trains, because other programs may share its
core. This is the time of a run only with one thread.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import lambert
from lambert.wings.plan import calibration

_FIRST = 2
"""Updates that are not counted: they include the first use of memory."""


def predict(recipe: Path, settings: list[str]) -> float:
    """Returns the tokens per second of a plan of this machine."""
    plan = lambert.plan(recipe, set=tuple(settings), seconds=30)
    return plan.tokens / plan.updates / plan.chosen.update_seconds


def measure(recipe: Path, settings: list[str], updates: int) -> float:
    """Returns the tokens per second of the median update of a run of so many."""
    given = {name.replace(".", "__"): value for name, _, value in (setting.partition("=") for setting in settings)}
    seconds, tokens = [], []
    with tempfile.TemporaryDirectory() as folder:
        began = time.thread_time()
        for step in lambert.updates(recipe, out=Path(folder) / "run", **given):
            seconds.append(time.thread_time() - began)
            tokens.append(step.tokens)
            began = time.thread_time()
            if len(seconds) == updates:
                break
    return statistics.median(tokens[_FIRST:]) / statistics.median(seconds[_FIRST:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE")
    parser.add_argument("--corpus", type=Path, required=True, help="written by lambert prepare")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="settings of the recipes")
    args = parser.parse_args()
    print("| recipe | settings | predicted | without the micro-batch | reached |")
    print("|---|---|---|---|---|")
    for recipe in args.recipes:
        settings = [f"corpus={args.corpus}", *args.set]
        for _ in range(2):
            with mock.patch.object(time, "perf_counter", time.thread_time):
                fitted = predict(recipe, settings)
                with mock.patch.object(calibration, "_fit", return_value=1.0):
                    constants = predict(recipe, settings)
            found = measure(recipe, settings, args.updates)
            cells = [f"{rate:,.0f} ({rate / found - 1:+.0%})" for rate in (fitted, constants)]
            print(f"| {recipe.name} | {' '.join(args.set)} | {' | '.join(cells)} | {found:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
