"""The same search by `lambert sweep` and by Ray Tune, on this machine: time of the whole command, and of its trials.

    python -m benchmarks.sweeps.run --init MODEL --data train.tsv --dev dev.tsv --trials 12 --jobs 2 --rounds 3

Both sides sample with Optuna's TPE, prune by successive halving every `--every` updates, run `--jobs` trials at a time
with one thread each, and call the same `lambert.updates`. Ray Tune (`pip install 'ray[tune]' optuna`) starts its own
local cluster, as on a cluster it would have one already; `cluster_seconds` is that part. Prints a line of JSON for each
side and round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RATES = (1e-5, 1e-2)


def ours(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """`lambert sweep` as a command."""
    recipe = out / "sweep.toml"
    out.mkdir()
    recipe.write_text(
        f'data = "{args.data}"\ndev = "{args.dev}"\ninit = "{args.init}"\n[train]\nsteps = {args.steps}\n'
        f"evaluate_every = {args.every}\nbatch_size = {args.batch_size}\nthreads = 1\n"
        f'[sweep]\nout = "{out / "sweep"}"\ntrials = {args.trials}\njobs = {args.jobs}\npruner = "asha"\n'
        f'[sweep.space]\n"optim.lr" = {{low = {RATES[0]}, high = {RATES[1]}, log = true}}\n',
        encoding="utf-8",
    )
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-m", "lambert", "sweep", str(recipe)], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    found = json.loads((out / "sweep/sweep.json").read_text(encoding="utf-8"))
    values = [row["value"] for row in found["trials"] if row["state"] == "complete"]
    return {"seconds": round(seconds, 1), "best": max(values), "complete": len(values)}


def trial(config: dict[str, Any]) -> None:
    """A trial of Ray Tune."""
    import torch
    from ray import tune

    import lambert

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"init": config["init"], "data": config["data"], "dev": config["dev"], "out": f"{folder}/run"}
        for step in lambert.updates(
            **settings, optim__lr=config["lr"], train__steps=config["steps"], train__evaluate_every=config["every"],
            train__batch_size=config["batch_size"], train__threads=1,
        ):  # fmt: skip
            if step.scores:
                tune.report({"accuracy": step.scores["accuracy"]})


def theirs(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Ray Tune in a process of its own."""
    begin = time.perf_counter()
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in vars(args).items() if name not in ("ray", "rounds")
    ]
    command = [sys.executable, __file__, *flags, f"--ray={out}"]
    environment = {**os.environ, "RAY_AIR_NEW_OUTPUT": "0", "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"seconds": round(time.perf_counter() - begin, 1), **found}


def ray_tune(args: argparse.Namespace) -> dict[str, Any]:
    """The search by Ray Tune."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    begin = time.perf_counter()
    ray.init(num_cpus=args.jobs, include_dashboard=False, log_to_driver=False)
    started = time.perf_counter() - begin
    fixed = {name: str(Path(getattr(args, name)).resolve()) for name in ("init", "data", "dev")}
    fixed |= {name: getattr(args, name) for name in ("steps", "every", "batch_size")}
    search = ConcurrencyLimiter(OptunaSearch(), args.jobs)
    settings = tune.TuneConfig(
        metric="accuracy", mode="max", num_samples=args.trials, search_alg=search,
        scheduler=ASHAScheduler(max_t=args.steps // args.every, grace_period=1, reduction_factor=3),
    )  # fmt: skip
    space = {"lr": tune.loguniform(*RATES), **fixed}
    results = tune.Tuner(
        trial, param_space=space, tune_config=settings, run_config=tune.RunConfig(storage_path=str(args.ray), verbose=0)
    ).fit()
    reported = [result.metrics for result in results if result.metrics]
    complete = sum(row["training_iteration"] == args.steps // args.every for row in reported)
    best = max(float(row["accuracy"]) for row in reported)
    return {"best": best, "complete": complete, "cluster_seconds": round(started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("init", "data", "dev"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ray:
        print(json.dumps(ray_tune(args)))
        return
    seconds: dict[str, list[float]] = {}
    for number in range(args.rounds):
        for side, work in (("lambert sweep", ours), ("Ray Tune", theirs)):
            with tempfile.TemporaryDirectory() as folder:
                found = work(args, Path(folder) / "work")
            seconds.setdefault(side, []).append(found["seconds"])
            print(json.dumps({"side": side, "round": number, **found}), flush=True)
    print(json.dumps({side: statistics.median(values) for side, values in seconds.items()}))


if __name__ == "__main__":
    main()
