"""Training by Lambert's loop on batches that were drawn before, and beside it by DistributedDataParallel.

Nothing of Lambert is imported with this module, so that the source folder of another commit can be measured.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

MANY = 10**6
"""Updates of a run that is long enough for compiled kernels to pay."""


def as_update(batch: Any) -> Any:
    """Returns what the loop reads of an update that is one micro-batch."""
    counts = {name: target.count for name, target in batch.targets.items()}
    return SimpleNamespace(
        shares=[[(0, batch)]], counts=counts, loads=[batch.tokens], sequences=batch.sequences, wait_seconds=0.0
    )


def build_optimizer(net: Any, name: str = "lamb") -> Any:
    """Returns the optimizer of a net."""
    from lambert.optim import optimizers
    from lambert.optim.config import OptimConfig

    return optimizers.build(net, OptimConfig(name=name, lr=1e-4, warmup_ratio=0.0))


def train_on(
    net: Any, optimizer: Any, updates: Iterable[Any], world: Any, precision: str = "bfloat16", *,
    lr: float = 1e-4, steps: int = MANY, **options: Any,
) -> Generator[Any]:  # fmt: skip
    """Returns the updates of Lambert's loop at a constant learning rate, with clipping."""
    from lambert.engine.loop import train
    from lambert.engine.precision import Precision

    return train(
        net, optimizer, updates, schedule=lambda update: lr, max_grad_norm=1.0,
        precision=Precision(precision, world.device), world=world, seed=0, start=0, steps=steps, **options,
    )  # fmt: skip


def train_with_ddp(
    net: Any, optimizer: Any, updates: Iterable[Any], world: Any, precision: str = "bfloat16", **buckets: Any
) -> Generator[None]:
    """Yields after each update of the same kind under torch's DistributedDataParallel, with gradients as views of
    buckets and a static graph: the mean of the same losses, clipped by torch, and the same optimizer."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from lambert.engine.device import on_device
    from lambert.engine.precision import Precision

    numbers = Precision(precision, world.device)
    wrapped = DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True, **buckets)
    for number, update in enumerate(updates):
        counts_K = on_device([update.counts[name] for name in net.objectives], world.device)
        optimizer.zero_grad()
        batches: Sequence[Any] = update.micro_batches
        for place, (_, batch) in enumerate(batches):
            # A static graph is learnt in the very first pass, which torch cannot do without a sync.
            with nullcontext() if place == len(batches) - 1 or number == 0 else wrapped.no_sync():
                with numbers.autocast():
                    sums_K = wrapped(world.put(batch).with_compute(numbers.compute))
                numbers.backward((sums_K / counts_K).sum())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        numbers.drop_rounded_weights()
        yield
