"""How long an update of the training loop takes without reading of data: forward, backward, clipping and optimizer.

    python -m benchmarks.training_steps.updates [--sizes tiny mini] [--source DIR ...] [--rounds 4] [--updates 100]

Prints a line of JSON for each measurement. All updates of a run have the same batch of `bench`'s random ids, without
padding: 8 sequences of 64 tokens for tiny, of 128 for the others; LAMB, dropout 0.1, bfloat16, labels of masked tokens
and of next sentences; GOMP_SPINCOUNT is that of runs. Several `--source` are compared, in turn in each round: source
folders of this and of other commits, each with its compiled kernels. `--busy` starts a process beside each run that
computes without end.
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
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
SIZES: dict[str, tuple[dict[str, Any], int, int]] = {
    "tiny": ({"layers": 2, "hidden": 128, "heads": 2, "intermediate": 512}, 8, 64),
    "mini": ({"layers": 4, "hidden": 256, "heads": 4, "intermediate": 1024}, 8, 128),
    "base": ({"layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072}, 8, 128),
}
"""Shape, sequences, and tokens of each."""
WARM = 5
"""Updates that are not counted."""
BUSY = [sys.executable, "-c", "while True: pass"]


def measure(size: str, updates: int) -> dict[str, float]:
    """Milliseconds of an update in this process: the fastest, the median, and the slowest of nine tenths."""
    import numpy as np

    from lambert.core.world import World
    from lambert.engine.loop import train
    from lambert.engine.precision import Precision
    from lambert.measure.batches import draw_batch
    from lambert.model import weights
    from lambert.model.config import EncoderConfig
    from lambert.optim import optimizers
    from lambert.optim.config import OptimConfig

    shape, sequences, length = SIZES[size]
    config = EncoderConfig(**shape, vocabulary=30_522, positions=512, dropout=0.1, attention_dropout=0.1)
    batch = draw_batch(config, np.array([length] * sequences), 0, ("mlm", "nsp"))
    net = weights.fresh(config, {"mlm": 0, "nsp": 0})

    counts = {name: target.count for name, target in batch.targets.items()}
    update: Any = SimpleNamespace(  # what the loop reads of an update
        shares=[[(0, batch)]], counts=counts, loads=[batch.tokens], sequences=sequences, wait_seconds=0.0
    )
    steps = train(
        net,
        optimizers.build(net, OptimConfig(name="lamb", lr=1e-4, warmup_ratio=0.0)),
        itertools.repeat(update),
        schedule=lambda step: 1e-4,
        max_grad_norm=1.0,
        precision=Precision("bfloat16"),
        world=World(),
        seed=0,
        start=0,
        steps=WARM + updates,
    )
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
    return {name: round(1000 * value, 2) for name, value in found.items()}


def measure_apart(size: str, source: Path, updates: int, *, busy: bool) -> dict[str, float]:
    """The same in a process of its own, of the package in `source`."""
    command = [sys.executable, "-P", __file__, "--measure", size, "--updates", str(updates)]
    environment = {"GOMP_SPINCOUNT": "1000"} | os.environ | {"PYTHONPATH": str(source.absolute())}
    other = subprocess.Popen(BUSY) if busy else None
    try:
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    finally:
        if other:
            other.kill()
            other.wait()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "mini"])
    parser.add_argument("--source", nargs="+", type=Path, default=[ROOT / "src"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--measure", choices=SIZES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.updates)))
        return
    for number in range(options.rounds):
        for size, source in itertools.product(options.sizes, options.source):
            row: dict[str, Any] = {"round": number, "size": size, "source": source.absolute().parent.name}
            row["busy"] = options.busy
            row |= measure_apart(size, source, options.updates, busy=options.busy)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
