"""The fastest passes of two versions of Lambert, in processes that take turns.

    python -m benchmarks.versions.parts BEFORE AFTER --rounds 4 --out benchmarks/versions/parts.jsonl

Each process builds encoders with random weights and times passes over one batch: inference of BERT base in int8 and in
bfloat16, and the forward and backward passes of a mini and of a tiny encoder in bfloat16. The fastest pass of a
version is compared with that of the other: on a shared machine medians vary by more than the versions differ.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.support.experiment import append

THREADS = 2
SHAPES = {
    "base": {"layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072},
    "mini": {"layers": 4, "hidden": 256, "heads": 4, "intermediate": 1024},
    "tiny": {"layers": 2, "hidden": 128, "heads": 2, "intermediate": 512},
}
PASSES = {"inference base, int8": 12, "inference base, bfloat16": 12, "step mini": 25, "step tiny": 150}
"""Timed passes of a process."""


def time_parts() -> dict[str, float]:
    """Returns the fastest seconds of each part in this process."""
    import torch

    from lambert.core.batch import flat_batch
    from lambert.inference.cpu import for_cpu
    from lambert.model import weights
    from lambert.model.config import EncoderConfig

    def build(size: str, sequences: int, length: int) -> tuple[object, object]:
        import numpy as np

        config = EncoderConfig(**SHAPES[size], vocabulary=30522, positions=512)  # type: ignore[arg-type]
        tokens = sequences * length
        ids_T = np.random.default_rng(0).integers(5, 30000, tokens)
        lengths_S = np.full(sequences, length)
        return weights.draw(config, {"span": 0}), flat_batch(ids_T, np.zeros_like(ids_T), lengths_S, {})

    def train(size: str, sequences: int, length: int) -> Callable[[], None]:
        model, batch = build(size, sequences, length)

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16):
                states_TD = model.train().encoder(batch)  # type: ignore[attr-defined]
            states_TD.sum().backward()

        return step

    def infer(kind: str) -> Callable[[], None]:
        model, batch = build("base", 16, 128)
        ready = for_cpu(model, kind)  # type: ignore[arg-type]

        def step() -> None:
            with torch.no_grad():
                ready.encoder(batch)

        return step

    torch.set_num_threads(THREADS)
    parts = {
        "inference base, int8": infer("int8"), "inference base, bfloat16": infer("bfloat16"),
        "step mini": train("mini", 4, 512), "step tiny": train("tiny", 8, 64),
    }  # fmt: skip
    found = {}
    for name, step in parts.items():
        seconds = []
        for _ in range(PASSES[name] + 2):
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
        found[name] = min(seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="*", help="BEFORE and AFTER; none: times the version on the path")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not args.trees:
        print(json.dumps(time_parts()))
        return
    found: list[list[dict[str, float]]] = [[] for _ in args.trees]
    for number in range(args.rounds):
        for side in range(len(args.trees)) if number % 2 == 0 else reversed(range(len(args.trees))):
            environment = {**os.environ, "PYTHONPATH": f"{args.trees[side].resolve()}/src:{Path.cwd()}"}
            command = [sys.executable, "-P", "-m", "benchmarks.versions.parts"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[side].append(json.loads(done.stdout))
    for name in PASSES:
        fastest = [min(one[name] for one in side) for side in found]
        print(f"{name:30} {' '.join(f'{1000 * value:9.2f} ms' for value in fastest)}  {fastest[0] / fastest[-1]:.3f}")
        if args.out:
            append(args.out, {"row": name, "seconds": [[one[name] for one in side] for side in found]})


if __name__ == "__main__":
    main()
