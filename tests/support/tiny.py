"""A net, its data and a whole run, as small as they can be. Run as a process of its own by the tests of faults."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forked import FORKS
from torch import Tensor, nn

from lambert.core.batch import Batch, Target, flat_batch
from lambert.core.errors import EXPLAINED
from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.detection import detect
from lambert.distributed.exchange import build
from lambert.engine import checkpoint, signals
from lambert.engine.log import RunLog
from lambert.engine.loop import train
from lambert.engine.precision import Precision
from lambert.engine.step import Step
from lambert.runs.folder import lock_run

VOCABULARY = 13
LENGTH = 6


class Tiny(nn.Module):
    """Predicts the next token (with a tied decoder), and from its mean state whether the sequence begins low."""

    objectives = ("mlm", "nsp")

    def __init__(self, dropout: float = 0.1, width: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.pieces = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.decoder = nn.Linear(width, VOCABULARY)
        self.nsp = nn.Linear(width, 2)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
        self.decoder.weight = self.pieces.weight

    def logits(self, batch: Batch) -> dict[str, Tensor]:
        states_TD = torch.tanh(self.dense(self.dropout(self.pieces(batch.ids_T))))
        means_SD = states_TD.view(batch.sequences, LENGTH, -1).mean(1)
        out = {}
        if "mlm" in batch.targets:
            out["mlm"] = self.decoder(states_TD[batch.targets["mlm"].at_N])
        if "nsp" in batch.targets:
            out["nsp"] = self.nsp(means_SD[batch.targets["nsp"].at_N])
        return out

    def forward(self, batch: Batch) -> Tensor:
        return self.score(batch)[0]

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, zero = self.logits(batch), self.pieces.weight.new_zeros(())
        sums, hits = [], []
        for name in self.objectives:
            if name not in logits:
                sums.append(zero)
                hits.append(zero)
                continue
            labels_N, wide = batch.targets[name].labels_N, torch.promote_types(logits[name].dtype, torch.float32)
            sums.append(nn.functional.cross_entropy(logits[name].to(wide), labels_N, reduction="sum"))
            hits.append((logits[name].argmax(-1) == labels_N).sum())
        return torch.stack(sums), torch.stack(hits)


@dataclass
class Share:
    shares: list[list[tuple[int, Batch]]]
    counts: dict[str, int]
    loads: list[int]
    sequences: int
    wait_seconds: float = 0.0


def batch_of(sequences: list[int]) -> Batch:
    """The sequences of these numbers; sequence n has n % 4 masked-LM targets and, where n % 3 > 0, a sentence label."""
    rows = [_sequence(n) for n in sequences]
    at = [i * LENGTH + j for i, n in enumerate(sequences) for j in range(n % 4)]
    ids = np.concatenate(rows)
    labelled = [i for i, n in enumerate(sequences) if n % 3]
    targets = {}
    if at:
        targets["mlm"] = Target(torch.tensor(at), torch.from_numpy(ids[np.array(at) + 1]))
    if labelled:
        lows = torch.tensor([int(rows[i][0] < VOCABULARY // 2) for i in labelled])
        targets["nsp"] = Target(torch.tensor(labelled), lows)
    return flat_batch(ids, np.zeros_like(ids), np.full(len(rows), LENGTH), targets)


def _sequence(number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A walk x -> 2 x + 1 that now and then jumps: there is something to learn."""
    generator = np.random.default_rng(number)
    tokens = generator.integers(0, VOCABULARY, LENGTH)
    for i in range(1, LENGTH):
        if generator.random() < 0.9:
            tokens[i] = (2 * tokens[i - 1] + 1) % VOCABULARY
    return tokens


def updates(start: int = 0, *, size: int = 16, micro: int = 4, rank: int = 0, world: int = 1) -> Iterator[Share]:
    """Global batches of `size` sequences from update `start`, in micro-batches of `micro`."""
    number = start
    while True:
        first = number * size
        parts = [batch_of(list(range(first + i, first + min(i + micro, size)))) for i in range(0, size, micro)]
        ranks = [[(i, part) for i, part in enumerate(parts) if i % world == r] for r in range(world)]
        mine = [part for _, part in ranks[rank]]
        counts = {name: sum(p.targets[name].count for p in mine if name in p.targets) for name in Tiny.objectives}
        yield Share([ranks[rank]], counts, [sum(p.tokens for _, p in theirs) for theirs in ranks], size)
        number += 1


def weights(net: nn.Module) -> Tensor:
    """All parameters of a net, concatenated."""
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def adamw(net: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1.0, weight_decay=0.01, **options)


def schedule(update: int) -> float:
    return 0.02 / (1 + update / 20)


def steps(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    precision: Precision,
    *,
    start: int = 0,
    stop: int,
    world: World | None = None,
    max_grad_norm: float = 1.0,
    micro: int = 4,
) -> Iterator[Step]:
    world = world or World()
    return train(
        net,
        optimizer,
        updates(start, micro=micro, rank=world.rank, world=world.size),
        schedule=schedule,
        max_grad_norm=max_grad_norm,
        precision=precision,
        world=world,
        seed=3,
        start=start,
        steps=stop,
        exchange=build(net, world, ExchangeConfig()),
    )


def run(folder: Path, *, stop: int = 20, save_every: int = 5, hook: Callable[[Step], None] | None = None) -> nn.Module:
    """Trains in `folder`, continuing where its newest checkpoint is, as a stage does."""
    world = detect("cpu")
    torch.set_num_threads(1)
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float32")
    with (
        signals.graceful_stop() as request,
        request.defer(),
        lock_run(folder, world),
        closing(checkpoint.Saver(folder, world=world)) as saver,
    ):
        found = saver.latest()
        extra = found.restore(net, optimizer, precision) if found else {}
        done = found.step if found else 0
        with RunLog(folder, steps=stop, start=done, every=1, state=extra.get("log"), quiet=True, world=world) as log:

            def save(step: Step, final: bool = False) -> None:
                saver.save(
                    step.index,
                    model=net,
                    optimizer=optimizer,
                    precision=precision,
                    extra={"log": log.state()},
                    final=final,
                )

            for step in steps(net, optimizer, precision, start=done, stop=stop, world=world):
                log.step(step)
                saver.report()
                if hook is not None:
                    hook(step)
                leaving = request.agree(world)
                if step.due(save_every) or leaving or step.index == stop:
                    save(step, final=leaving or step.index == stop)
                if leaving:
                    raise request.build_error(f"step {step.index} is saved in {folder}")
    return net


def leave(work: Callable[..., Any], *arguments: Any) -> None:
    """Ends this process as the command line would."""
    try:
        work(*arguments)
    except EXPLAINED as error:
        print(error, file=sys.stderr, flush=True)
        sys.stderr.flush()
        os._exit(error.exit_code)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(work: Callable[..., Any], *arguments: Any, rank: int = 0, world: int = 1, port: int = 0) -> Any:
    """`work(*arguments)` in a process of its own, as one rank of a world."""
    process = FORKS.Process(target=_ranked, args=(rank, world, port, work, arguments), daemon=True)
    process.start()
    return process


def _ranked(rank: int, world: int, port: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    leave(work, *arguments)
