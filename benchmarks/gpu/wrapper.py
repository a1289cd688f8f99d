"""What the exchange costs where there is nobody to exchange with: a group of one rank beside no group at all.

    python -m benchmarks.gpu.wrapper --out FILE [--device cuda] [--size base] [--compile] [--methods float32 int8]

The same BERT, batches of full sequences and fused optimizer, without dropout, by several ways: `alone`, as in a run of
one process; each of the --methods in a group of one rank, whose hooks, thread and collectives (NCCL on a GPU) do all
that they do for many ranks (methods with error feedback do nothing for one); `ddp`, torch's DistributedDataParallel
around the same net (gradients as views of buckets, static graph), with gradients clipped by torch and the same
optimizer. Sides take their rounds in turn, after untimed updates; the device is waited for at the end of a round.
`over` is a side's time over that of `alone`, less 1. A line of JSON a side: medians over the rounds, with ranges.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from benchmarks.support.experiment import record
from benchmarks.support.ranks import fresh, updates
from benchmarks.support.training import MANY, train_on, train_with_ddp
from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange import build
from lambert.distributed.failure_detector import FailureDetector
from lambert.distributed.group import Group
from lambert.engine.compiler import compile_blocks
from lambert.engine.device import device_named

EXACT = "float32", "bfloat16", "float16"


def group(device: torch.device, folder: str) -> Group:
    """A group of this process alone."""
    store = torch.distributed.FileStore(str(Path(folder) / "store"), 1)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(
        backend, store=store, rank=0, world_size=1, device_id=device if device.type == "cuda" else None
    )
    return Group(0, 1, 0, 1, device, "one rank", detector=FailureDetector(store, 0, 1))


def own(args: argparse.Namespace, world: World, method: Any) -> Generator[Any]:
    net, optimizer = place(args, world.device)
    exchange = build(net, world, ExchangeConfig(method=method), updates=MANY)
    source = updates(args, world, args.aggregate)
    return train_on(net, optimizer, source, world, args.precision, exchange=exchange)


def ddp(args: argparse.Namespace, world: World) -> Generator[Any]:
    return train_with_ddp(*place(args, world.device), updates(args, world, args.aggregate), world, args.precision)


def place(args: argparse.Namespace, device: torch.device) -> tuple[Any, torch.optim.Optimizer]:
    """A net and its optimizer on the device."""
    net, optimizer = fresh(args)
    net.to(device)  # in place: the optimizer's parameters stay these
    if args.compile:
        compile_blocks(net.encoder.blocks)
    return net, optimizer


def rounds(args: argparse.Namespace, world: Group) -> Iterator[dict[str, Any]]:
    apart = World(device=world.device)
    sides = {"alone": own(args, apart, "float32")} | {name: own(args, world, name) for name in args.methods}
    sides["ddp"] = ddp(args, world)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for steps in sides.values():
        deque(islice(steps, args.warm_up), maxlen=0)
    for _ in range(args.rounds):
        gc.collect()
        for name, steps in sides.items():
            _wait(world.device)
            began = time.perf_counter()
            deque(islice(steps, args.updates), maxlen=0)
            _wait(world.device)
            times[name].append((time.perf_counter() - began) / args.updates)
    for steps in sides.values():
        steps.close()
    for name, seconds in times.items():
        over = [one / base - 1 for one, base in zip(seconds, times["alone"], strict=True)]
        yield {
            "side": name, "seconds": statistics.median(seconds), "seconds_range": [min(seconds), max(seconds)],
            "over": statistics.median(over), "over_range": [min(over), max(over)],
        }  # fmt: skip


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file of JSON lines, appended to")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=10, help="of each side in a round")
    parser.add_argument("--warm-up", type=int, default=6, help="updates that are not timed")
    parser.add_argument("--size", default="base", choices=("tiny", "mini", "small", "medium", "base", "large"))
    parser.add_argument("--sequences", type=int, default=64, help="of a micro-batch")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--aggregate", type=int, default=1, help="micro-batches of an update")
    parser.add_argument("--optimizer", default="lamb", choices=("lamb", "adamw"))
    parser.add_argument("--precision", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--methods", nargs="*", default=["float32"], choices=EXACT)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, group(device_named(args.device, 0), folder) as world:
        card = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"
        for row in rounds(args, world):
            settings = {name: value for name, value in vars(args).items() if name not in ("out", "methods", "device")}
            record(args.out, row | settings | {"device": card, "torch": torch.__version__})


if __name__ == "__main__":
    main()
