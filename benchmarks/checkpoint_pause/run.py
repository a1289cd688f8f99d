"""How long does a checkpoint in the background hold training up, and how much does it slow it down?

    python -m benchmarks.checkpoint_pause.run --out FOLDER [--size base] [--saves 4] [--steps 6] [--tokens 64]

A model of a published size over BERT's vocabulary with LAMB's two moments takes real training steps of --tokens tokens,
and is saved into FOLDER (which needs room for three checkpoints and is emptied at the end). One thread computes, one
writes.

A line of JSON for each save, with the pause, the bare copy of all tensors into memory that was touched before, made
right after it, and the time until the checkpoint was on the disk with nobody computing; one for the medians of the
saves after the first, which also pays for the pages that it touches; and one for the steps, alone and while a
checkpoint is written. Exits with 1 where the median pause is more than 0.3 s beyond the median copy.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from lambert.core.batch import Target, flat_batch
from lambert.engine import state
from lambert.engine.archive import FOLDER
from lambert.engine.checkpoint import Saver, Snapshot
from lambert.engine.precision import Precision
from lambert.model import weights
from lambert.model.config import SIZES, EncoderConfig
from lambert.optim.config import OptimConfig
from lambert.optim.optimizers import build

VOCABULARY = 30_522
GOAL_SECONDS = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="base", choices=SIZES)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6, help="alone; during each write as many as fit into it")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = weights.draw(EncoderConfig(vocabulary=VOCABULARY, **SIZES[args.size]), {"mlm": 0})
    optimizer, precision = build(model, OptimConfig()), Precision("float32")
    ids_T = np.random.default_rng(0).integers(1000, VOCABULARY, args.tokens)
    at_N = torch.arange(0, args.tokens, 7)
    targets = {"mlm": Target(at_N, torch.from_numpy(ids_T)[at_N])}
    batch = flat_batch(ids_T, np.zeros_like(ids_T), np.array([args.tokens]), targets)

    def step() -> float:
        begun = time.perf_counter()
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        return time.perf_counter() - begun

    def show(**row: object) -> None:
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)

    step()
    tensors = state.tensors(model) | state.moments(optimizer, model)[0]
    size = sum(tensor.nbytes for tensor in tensors.values())
    snapshot = Snapshot()
    snapshot.take(tensors)

    pauses, copies, during, number = [], [], [], 0
    with closing(Saver(args.out)) as saver:
        for _ in range(args.saves):
            number += 1
            begun = time.perf_counter()
            pauses.append(saver.save(number, model=model, optimizer=optimizer, precision=precision))
            if saver.flush():
                sys.exit(f"{args.out} could not be written")
            written = time.perf_counter()
            snapshot.take(tensors)
            copies.append(time.perf_counter() - written)
            show(
                what="save", number=number, bytes=size, pause_seconds=pauses[-1],
                bare_copy_seconds=copies[-1], until_on_disk_seconds=written - begun,
            )  # fmt: skip
        median_pause, median_copy = statistics.median(pauses[1:]), statistics.median(copies)
        show(what="pause", seconds=median_pause, beyond_copy_seconds=median_pause - median_copy)
        alone = [step() for _ in range(args.steps)]
        for _ in range(args.saves):
            number += 1
            saver.save(number, model=model, optimizer=optimizer, precision=precision)
            while not (args.out / FOLDER / f"step-{number:06d}").exists():
                during.append(step())
            saver.flush()
        alone += [step() for _ in range(args.steps)]
    slower = statistics.median(during) / statistics.median(alone) - 1
    show(
        what="steps", alone_seconds=statistics.median(alone), during_seconds=statistics.median(during),
        slower=slower, alone=len(alone), during=len(during),
    )  # fmt: skip
    shutil.rmtree(args.out / FOLDER)
    sys.exit(median_pause - median_copy > GOAL_SECONDS)


if __name__ == "__main__":
    main()
