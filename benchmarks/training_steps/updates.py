"""How long an update of the training loop takes without reading of data: forward, backward, clipping and optimizer.

    python -m benchmarks.training_steps.updates [--sizes tiny mini] [--source DIR ...] [--rounds 4] [--updates 100]

Prints a line of JSON for each measurement. All updates of a run have the same batch of `bench`'s random ids, without
padding: 8 sequences of 64 tokens for tiny, of 128 or 512 for the others; LAMB, dropout 0.1, bfloat16, labels of
masked tokens and, of BERT, of next sentences; the variables of the environment are those of runs. Several `--source`
are compared, in turn in each round: source folders of this and of other commits, each with its compiled kernels.
`--busy` starts a process beside each run that computes without end. `--kernels` adds the milliseconds of an update in
each compiled kernel, the products also by their sizes [rows, inputs, outputs] and with their rate in GFLOP/s; passes
are then computed without programs.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lambert.engine import process

ROOT = Path(__file__).parents[2]
SIZES: dict[str, tuple[dict[str, Any], int, int]] = {
    "tiny": ({"layers": 2, "hidden": 128, "heads": 2, "intermediate": 512}, 8, 64),
    "mini": ({"layers": 4, "hidden": 256, "heads": 4, "intermediate": 1024}, 8, 128),
    "mini-512": ({"layers": 4, "hidden": 256, "heads": 4, "intermediate": 1024}, 8, 512),
    "modernbert-mini": ({}, 8, 512),
    "base": ({"layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072}, 8, 128),
}
"""Shape, sequences, and tokens of each. Without a shape, it is ModernBERT's, that of `bench`."""
WARM = 5
"""Updates that are not counted."""
BUSY = [sys.executable, "-c", "while True: pass"]


def time_kernels(spent: dict[str, list[float]]) -> None:
    """From now on, the seconds of each call of a compiled kernel are added to `spent`, by name and sizes."""
    from lambert.ops import native

    call = native._call

    def timed(name: str, *arguments: Any) -> None:
        began = time.perf_counter()
        call(name, *arguments)
        seconds = time.perf_counter() - began
        if name in ("linear", "linear_input"):
            name += f" {[*arguments[-4:-1]]}"
        elif name == "linear_weights":
            (rows, outputs), inputs = arguments[0].shape, arguments[1].shape[1]
            name += f" {[rows, inputs, outputs]}"
        spent.setdefault(name, []).append(seconds)

    native._call = timed


def kernels_of(spent: dict[str, list[float]], updates: int) -> dict[str, Any]:
    """Milliseconds of an update in each kernel, and the rate of products, the largest first."""
    found: dict[str, Any] = {}
    for name, seconds in sorted(spent.items(), key=lambda item: -sum(item[1])):
        found[name] = [round(1000 * sum(seconds) / updates, 3)]
        if "[" in name:
            rows, inputs, outputs = json.loads(name[name.index("[") :])
            found[name].append(round(2e-9 * rows * inputs * outputs / statistics.median(seconds)))
    return found


def passes_of(net: Any) -> dict[str, Any]:
    """The passes of the net as an argument of the loop, if this commit has any."""
    try:
        from lambert.model.passes import find_passes
    except ImportError:
        return {}
    return {"passes": find_passes(net)}


def measure(size: str, updates: int, *, kernels: bool = False) -> dict[str, Any]:
    """Milliseconds of an update in this process: the fastest, the median, and the slowest of nine tenths; and those of
    the kernels."""
    import numpy as np

    from benchmarks.support.training import as_update, build_optimizer, train_on
    from lambert.core.world import World
    from lambert.measure.batches import draw_batch
    from lambert.model import weights
    from lambert.model.config import MODERN_SIZES, EncoderConfig

    shape, sequences, length = SIZES[size]
    config = EncoderConfig(
        **(shape or MODERN_SIZES["mini"]), vocabulary=30_522, positions=512, dropout=0.1, attention_dropout=0.1
    )
    objectives = ("mlm", "nsp") if shape else ("mlm",)
    batch = draw_batch(config, np.array([length] * sequences), 0, objectives)
    net = weights.draw(config, dict.fromkeys(objectives, 0))
    data = itertools.repeat(as_update(batch))
    options = {} if kernels else passes_of(net)  # a program calls the kernels where nobody times them
    steps = train_on(net, build_optimizer(net), data, World(), steps=WARM + updates, **options)
    spent: dict[str, list[float]] = {}
    if kernels:
        time_kernels(spent)
    seconds, last = [], time.perf_counter()
    for _ in steps:
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    ordered = sorted(seconds[WARM:])
    found = {
        "fastest": ordered[0],
        "median": statistics.median(ordered),
        "ninety": ordered[len(ordered) * 9 // 10],
    }
    rounded = {name: round(1000 * value, 2) for name, value in found.items()}
    return rounded | ({"kernels": kernels_of(spent, WARM + updates)} if kernels else {})


def measure_apart(size: str, source: Path, updates: int, *, busy: bool, kernels: bool) -> dict[str, Any]:
    """The same in a process of its own, of the package in `source`."""
    command = [sys.executable, "-P", __file__, "--measure", size, "--updates", str(updates)]
    command += ["--kernels"] * kernels
    environment = (
        process.variables() | os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (source.absolute(), ROOT)))}
    )
    other = subprocess.Popen(BUSY) if busy else None
    try:
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    finally:
        if other:
            other.kill()
            other.wait()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "mini"])
    parser.add_argument("--source", nargs="+", type=Path, default=[ROOT / "src"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--measure", choices=SIZES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.updates, kernels=options.kernels)))
        return
    for number in range(options.rounds):
        for size, source in itertools.product(options.sizes, options.source):
            row: dict[str, Any] = {"round": number, "size": size, "source": source.absolute().parent.name}
            row["busy"] = options.busy
            row |= measure_apart(size, source, options.updates, busy=options.busy, kernels=options.kernels)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
