"""What several ranks cost and give: two ranks of one thread each, on cores of their own, gradients summed by gloo.

    python -m benchmarks.two_ranks.run WORK --out log.jsonl [--rounds 5] [--size mini] [--aggregate 4]

WORK is one of these; all train a BERT with lambert's own loop on drawn batches of full sequences, no dropout:

- `together`: two ranks that train together beside two that train alone at the same moment. `efficiency` is the
  sequences a second of the first, by each of --methods, over the sum of those of the two; an update is of --aggregate
  micro-batches a rank.
- `hidden`: how much of the exchange the backward pass hides, with and without the token table sent ahead of its last
  rows, in float32 and int8; micro-batches are not aggregated. Against `alone_seconds`, which the same buckets take with
  nothing else under way: `hidden` is the share that the last rank to end its backward pass does not wait for, `bound`
  that of a wire that costs no core anything, from the moments at which a backward pass alone has the buckets ready.
  `slower_seconds` is what the update really takes beyond one without an exchange: here a core does both.
- `ddp`: the same net, batches and optimizer under torch's DistributedDataParallel (gradients as views of buckets of 5
  or 25 MB, static graph, no_sync), beside lambert's exchange. `ratio` is its seconds over lambert's.
- `safety`: what checks cost: every rank's gradients looked through for what is not finite (`faults`, by its processor
  time within updates), and, each timed on its own, what ranks report (`report`: losses, faults, that none was out of
  memory, nor asked to stop), `guard` and `stragglers`, and weights compared every 1,000 updates (`weights`). `share` is
  their sum over the time of an update.
- `horovod`: lambert.horovod's DistributedOptimizer beside DistributedDataParallel (as in `ddp`), on 110 M floats in 200
  tensors of linear layers. `ratio` is its seconds over DDP's; the larger of the two counts.
- `restart`: `lambert launch -np 2 pretrain` of a small BERT, saved every 20 updates; a rank, the last and the first in
  turn, is killed, and the launcher starts the group anew. `seconds` are from `kill -9` to the first row of
  metrics.jsonl that a new process writes, of which `started_seconds` until that was started; `lost` updates are done
  again.

Sides take their rounds in turn, each after untimed updates; a line of JSON a round and one of medians, with ranges.
"""

import argparse
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.experiment import record, software
from benchmarks.support.ranks import Side, everyones, fresh, run, seconds_of, updates
from benchmarks.support.restart import restart
from benchmarks.support.training import MANY, train_with_ddp
from benchmarks.two_ranks.hidden import hidden
from lambert.core.world import World
from lambert.distributed.agreement import compare_weights
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.detection import detect
from lambert.distributed.exchange.overlapped import DistributedExchange
from lambert.distributed.group import Group
from lambert.distributed.stragglers import Stragglers
from lambert.engine.gradients import Bucket
from lambert.engine.guard import Guard, GuardConfig

COMPARED_EVERY = 1000
Row = dict[str, Any]


def together(args: argparse.Namespace, world: Group) -> Iterator[Row]:
    alone = Side(args, World(), args.aggregate)
    sides = {name: Side(args, world, args.aggregate, partial(_by, world, name)) for name in args.methods}
    sequences = args.aggregate * args.sequences
    for number in range(args.rounds):
        apart = everyones(seconds_of(lambda: alone.take(args.updates), world), world)
        speeds = [args.updates * sequences / seconds for seconds in apart]
        for name, both in sides.items():
            _, seconds = both.timed(args.updates, world)
            speed = world.size * sequences / seconds
            yield {
                "round": number, "aggregate": args.aggregate, "method": name, "sequences_per_second": speed,
                "alone": speeds, "efficiency": speed / sum(speeds),
            }  # fmt: skip
    for side in (alone, *sides.values()):
        side.close()


def _by(world: Group, method: Any, net: nn.Module) -> DistributedExchange:
    return DistributedExchange(net, world, ExchangeConfig(method=method), updates=MANY)


def ddp(args: argparse.Namespace, world: Group) -> Iterator[Row]:
    own = Side(args, world, args.aggregate)
    sides = {}
    for megabytes in (5, 25):
        source = updates(args, world, args.aggregate)
        steps = train_with_ddp(*fresh(args), source, world, args.precision, bucket_cap_mb=megabytes)
        sides[megabytes] = partial(next, steps)
    for step in sides.values():
        seconds_of(step, world, args.warm_up)
    for number in range(args.rounds):
        _, ours = own.timed(args.updates, world)
        for megabytes, step in sides.items():
            theirs = max(everyones(seconds_of(step, world, args.updates), world))
            yield {
                "round": number, "aggregate": args.aggregate, "bucket_mb": megabytes, "seconds": ours,
                "ddp_seconds": theirs, "ratio": theirs / ours,
            }  # fmt: skip
    own.close()


class Timed(DistributedExchange):
    """Notes the processor time that it takes to look through gradients."""

    spent = 0.0

    def record_norms(self, bucket: Bucket) -> None:
        began = time.thread_time()
        super().record_norms(bucket)
        self.spent += time.thread_time() - began


def safety(args: argparse.Namespace, world: Group) -> Iterator[Row]:
    side = Side(args, world, exchange_of=lambda net: Timed(net, world, ExchangeConfig()))
    exchange, guard, slow = side.exchange, Guard(GuardConfig()), Stragglers()
    assert isinstance(exchange, Timed)
    losses_SK = torch.zeros(1, len(side.net.objectives))

    for number in range(args.rounds):
        exchange.spent = 0.0
        steps, seconds = side.timed(args.updates, world)
        found = {
            "faults": exchange.spent / args.updates,
            "report": seconds_of(partial(exchange.report, losses_SK, 0.1, [False, False]), world, 20),
            "guard": seconds_of(partial(deque, map(guard.watch, steps), 0), world) / len(steps),
            "stragglers": seconds_of(partial(deque, map(slow.watch, steps), 0), world) / len(steps),
            "weights": seconds_of(partial(compare_weights, world, side.net, 0), world) / COMPARED_EVERY,
        }
        costs = {name: max(everyones(cost, world)) for name, cost in found.items()}
        yield {
            "round": number, "update_seconds": seconds, **{f"{name}_seconds": cost for name, cost in costs.items()},
            "share": sum(costs.values()) / seconds,
        }  # fmt: skip
    side.close()


class Deep(nn.Module):
    """110 M floats in 200 tensors."""

    def __init__(self, layers: int = 100, width: int = 1048) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.width = width

    def forward(self, states_TD: Tensor) -> Tensor:
        for layer in self.layers:
            states_TD = torch.add(states_TD, layer(states_TD).relu(), alpha=0.1)
        return states_TD


def horovod(args: argparse.Namespace, world: Group) -> Iterator[Row]:
    import lambert.horovod as hvd

    hvd.init()
    net, buckets_mb = Deep(), (5, 25)
    rows_TD = torch.randn(args.rows, net.width, generator=torch.Generator().manual_seed(world.rank))

    def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(rows_TD).square().mean().backward()
        optimizer.step()

    own = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1e-4), net.named_parameters())
    sides = [partial(step, net, own)]
    for megabytes in buckets_mb:
        other = Deep()
        wrapped = DistributedDataParallel(
            other, bucket_cap_mb=megabytes, gradient_as_bucket_view=True, static_graph=True
        )
        sides.append(partial(step, wrapped, torch.optim.SGD(other.parameters(), lr=1e-4)))
    for work in sides:
        seconds_of(work, world, args.warm_up)
    for number in range(args.rounds):
        ours, *others = (max(everyones(seconds_of(work, world, args.updates), world)) for work in sides)
        for megabytes, seconds in zip(buckets_mb, others, strict=True):
            yield {
                "round": number, "rows": args.rows, "bucket_mb": megabytes, "seconds": ours, "ddp_seconds": seconds,
                "ratio": ours / seconds,
            }  # fmt: skip
    hvd.shutdown()


WORKS: dict[str, Callable[[argparse.Namespace, Group], Iterator[Row]]] = {
    "together": together, "hidden": hidden, "ddp": ddp, "safety": safety, "horovod": horovod,
}  # fmt: skip
"""What two ranks measure; every rank goes through the same rounds."""
SETTINGS = ("method", "table_ahead", "bucket_mb", "aggregate", "rows")
"""What tells apart the sides of a work."""


def say(args: argparse.Namespace, rows: Iterable[Row], settings: Row) -> None:
    """A line for each of the rows as it comes, and at last the medians of each side, with what was set."""
    found = []
    for row in rows:
        found.append(row)
        _write({"work": args.work} | row, args.out)
    for row in _medians(found):
        _write({"work": args.work, "rounds": args.rounds} | settings | row | software(), args.out)


def _medians(rows: Sequence[Row]) -> Iterator[Row]:
    """Of each side: its settings, and of every figure the median and the range over the rounds."""
    by_side: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        by_side.setdefault(tuple(row.get(name) for name in SETTINGS), []).append(row)
    for side in by_side.values():
        median: Row = {name: side[0][name] for name in SETTINGS if name in side[0]}
        for name in (name for name, value in side[0].items() if isinstance(value, float)):
            values = [row[name] for row in side]
            median |= {name: statistics.median(values), f"{name}_range": [min(values), max(values)]}
        yield median


def _write(row: Row, out: Path | None) -> None:
    record(out, {name: _round(value) for name, value in row.items()})


def _round(value: Any) -> Any:
    """Floats with five digits that count, in lists too."""
    if isinstance(value, list):
        return [_round(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def rank(args: argparse.Namespace) -> None:
    """One of the ranks; the first one speaks."""
    torch.set_num_threads(1)
    with detect("cpu") as world:
        assert isinstance(world, Group)
        rows = WORKS[args.work](args, world)
        if world.is_first:
            names = ("size", "sequences", "length", "optimizer", "precision") if args.work != "horovod" else ()
            say(args, rows, {name: getattr(args, name) for name in names})
        else:
            deque(rows, maxlen=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=(*WORKS, "restart"))
    parser.add_argument("--out", type=Path, help="file of JSON lines, appended to")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=6, help="of each side in a round")
    parser.add_argument("--warm-up", type=int, default=3, help="updates that are not timed")
    parser.add_argument("--size", default="mini", choices=("tiny", "mini", "small", "medium", "base"))
    parser.add_argument("--sequences", type=int, default=16, help="of a micro-batch")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--aggregate", type=int, default=1, help="micro-batches of a rank in an update: together, ddp")
    parser.add_argument("--optimizer", default="lamb", choices=("lamb", "adamw"))
    parser.add_argument("--precision", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--methods", nargs="+", default=["float32", "int8"], help="hidden, together")
    parser.add_argument("--compile", action="store_true", help="the kernels of int8, as in a long run: hidden")
    parser.add_argument("--rows", type=int, default=32, help="of the linear layers' batch: horovod")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and what was started goes with it
    if args.work == "restart":
        say(args, restart(args.rounds), {})
    else:
        run(rank, args)


if __name__ == "__main__":
    main()
