"""Predicts the time and memory of one update of training from the shapes of the work and the figures of the devices.

An update is a sum of

- arithmetic: the operations of the matrix products (`operations`) at a share of the device's peak;
- memory: the operations between the products (`traffic`) and the optimizer, at the bandwidth of the device's memory;
- kernels: the time to start and end each kernel, which short products do not hide;
- exchange: the part of the exchange of gradients that the backward pass does not hide (`communication`);
- waiting: ranks without a micro-batch in the last round, and the slowest rank (`stragglers`).

The constants are fitted to the rows of benchmarks/plan/rows.jsonl that are marked so; the README there compares the
others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch

from lambert.data.batch_sizes import even_count
from lambert.distributed.config import TRAITS
from lambert.planning import memory, micro_batches, operations, traffic
from lambert.wings.plan.costs.communication import find_exposed, predict_exchange
from lambert.wings.plan.costs.devices import Cluster, Device
from lambert.wings.plan.costs.stragglers import estimate_lateness
from lambert.wings.plan.costs.work import DTYPES, Workload, find_software, shapes_of

PRODUCTS = {"matrix": 0.63, "plain": 0.88, "measured": 0.79}
"""Efficiency of the blocks' large matrix products: on matrix units, without them, and for a measured peak."""
ATTENTION = 0.2
"""Share of the peak that the products of attention reach, whose inner width is that of a head, 64."""
MEMORY = 0.85
"""Share of the published bandwidth that long copies reach (H200: 4.23 of 4.8 TB/s, benchmarks/gpu)."""
KERNELS = 60
"""Number of kernels of a block in both passes."""
KERNEL_END = 2.5e-6
"""Additional seconds of a kernel, because its last wave of thread blocks does not fill the device."""
KERNEL_START = {"cuda": 8e-6, "tpu": 0.0, "cpu": 1.25e-4}
"""Seconds of the host to start a kernel. A CPU computes nothing meanwhile."""
TENSOR_STEP = 5e-6
"""Seconds of the optimizer for each parameter tensor in an update, on a GPU."""
_TENSORS = 16
"""Number of parameter tensors of a block."""


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """The seconds of one update, and its needs on each device."""

    arithmetic: float
    memory: float
    """Seconds of the traffic between the products, and of the optimizer."""
    kernels: float
    exchange: float
    """Seconds of the exchange that are not hidden."""
    idle: float
    """Mean seconds of waiting because a device has fewer micro-batches than others."""
    late: float
    """Seconds of waiting for the slowest device."""
    computing: float
    """Seconds in which a device with the most micro-batches computes them. They vary from device to device."""
    micro_tokens: int
    """Maximum tokens of a micro-batch."""
    rounds: int
    """Number of micro-batches of the rank that has the most."""
    busy: float
    """Share of rank-rounds that have a micro-batch to compute."""
    operations: float
    """Floating-point operations of the update, on all devices."""
    bytes: int
    """Memory of a device at the peak."""
    sent: int
    """Bytes that a rank sends."""
    sending: float
    """Seconds of the whole exchange."""

    @property
    def waiting(self) -> float:
        return self.idle + self.late

    @property
    def seconds(self) -> float:
        return self.arithmetic + self.memory + self.kernels + self.exchange + self.waiting

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the five parts, by name."""
        return {name: getattr(self, name) for name in ("arithmetic", "memory", "kernels", "exchange", "waiting")}


def predict(work: Workload, cluster: Cluster, shapes: Sequence[tuple[int, ...]] | None = None) -> UpdateCost:
    """Predicts the update of `work` on the devices. It may need more memory than a device has: compare `bytes`.

    Args:
        shapes: What `shapes_of` returns, if known.
    """
    device, shapes = cluster.device, shapes_of(work.config, work.targets, work.labels) if shapes is None else shapes
    weights = sum(map(prod, shapes))
    held = compute_resident_bytes(work, cluster, weights)
    per_token = _per_token(work, device)
    tokens = work.micro_tokens or determine_micro_tokens(work, cluster, held, per_token)
    tokens = max(tokens, work.longest)
    if work.own_shares:
        micro = cluster.devices * max(1, ceil(work.batch_size * work.mean / cluster.devices / tokens - 0.01))
    else:
        micro = even_count(ceil(work.batch_size * work.mean / tokens))
        micro = micro if micro < work.batch_size else work.batch_size
    rounds = ceil(micro / cluster.devices)
    sequences = work.batch_size / micro
    arithmetic, memory_, kernels, backward = predict_micro_batch(work, device, sequences, weights)
    shards = cluster.devices if work.shard_optimizer else 1
    update = traffic.update_bytes(work.optimizer, weights, shards) / _bandwidth(device)
    update += TENSOR_STEP * (work.config.layers * _TENSORS + 10) * (device.kind == "cuda")
    sent = predict_exchange(cluster, work.method, shapes, rank=work.rank, two_levels=work.two_levels,
                    bucket_mb=4.0 if device.kind == "cpu" else 25.0)  # fmt: skip
    table = work.config.vocabulary * work.config.table_width / weights
    software = find_software(work, device)
    hidden = backward if software.overlapped and work.sync_every == 1 else 0.0
    shown = sent.coding + find_exposed(sent.seconds, hidden, table if hidden else 1.0) if cluster.devices > 1 else 0.0
    busy = micro / (rounds * cluster.devices)
    mine = rounds * (arithmetic + memory_ + kernels)
    return UpdateCost(
        arithmetic=rounds * arithmetic * busy,
        memory=rounds * memory_ * busy + update,
        kernels=rounds * kernels * busy,
        exchange=shown / work.sync_every,
        idle=mine * (1 - busy),
        late=estimate_lateness(cluster.devices, mine, work.jitter, work.slow),
        computing=mine,
        micro_tokens=tokens,
        rounds=rounds,
        busy=busy,
        operations=work.batch_size * sum(_operations(work)),
        bytes=round(held + per_token * min(tokens, work.batch_size * work.mean)),
        sent=round(sent.sent / work.sync_every),
        sending=sent.seconds + sent.coding,
    )  # fmt: skip


def compute_resident_bytes(work: Workload, cluster: Cluster, weights: int) -> float:
    """Returns the bytes that a device holds besides its micro-batch: weights, gradients, moments, rounded weights,
    residuals of the exchange and, on a CPU, its share of the copy of a checkpoint in host memory."""
    device, on_host = cluster.device, cluster.device.kind == "cpu"
    processes, whole = cluster.each if on_host else 1, memory.training_state(weights)
    left = memory.room(
        processes * round(device.memory - torch.float32.itemsize * weights), weights, DTYPES[work.precision],
        residuals=int(TRAITS[work.method].residual and cluster.devices > 1),
        spared=whole - memory.training_state(weights, shards=cluster.devices if work.shard_optimizer else 1),
        processes=processes, copied=on_host,
    )  # fmt: skip
    return device.memory - left


def find_micro_tokens(work: Workload, cluster: Cluster, shapes: Sequence[tuple[int, ...]]) -> int:
    """Returns the tokens of the largest micro-batch that one rank alone would choose."""
    return _alone(
        work, cluster, compute_resident_bytes(work, cluster, sum(map(prod, shapes))), _per_token(work, cluster.device)
    )


def determine_micro_tokens(work: Workload, cluster: Cluster, held: float, per_token: int) -> int:
    """Returns the tokens of a micro-batch as `runs/microbatch.py` determines them."""
    tokens = _alone(work, cluster, held, per_token)
    if cluster.devices == 1:
        return tokens
    least = micro_batches.LEAST["cpu" if cluster.device.kind == "cpu" else "cuda"]
    return micro_batches.divide_update(tokens, least, work.batch_size * work.mean, work.longest, cluster.devices)


def _alone(work: Workload, cluster: Cluster, held: float, per_token: int) -> int:
    kind = "cpu" if cluster.device.kind == "cpu" else "cuda"
    fast = micro_batches.fastest(kind, compiled=_native(work, cluster.device))
    return micro_batches.largest(int(max(0.0, cluster.device.memory - held) // per_token), fast)


def predict_micro_batch(
    work: Workload, device: Device, sequences: float, weights: int
) -> tuple[float, float, float, float]:
    """Returns the seconds of one micro-batch (arithmetic, memory, kernels), and those of its backward pass."""
    config, software = work.config, find_software(work, device)
    size = DTYPES[work.precision].itemsize / 2
    linear, attention = _operations(work)
    share = PRODUCTS["measured" if device.measured else "matrix" if _matrix_units(device, work.precision) else "plain"]
    arithmetic = sequences * linear / (share * device.rate(work.precision))
    attending = "bfloat16" if work.precision == "float8" else work.precision
    arithmetic += sequences * attention / (ATTENTION * _attention_scale(device) * device.rate(attending))
    between = software.traffic * traffic.outputs_per_token(config) + software.scores * traffic.scores_per_token(
        config, sum(length**2 for length in work.lengths) / sum(work.lengths)
    )
    logits = work.targets.get("mlm", 0.0) * config.vocabulary * traffic.LOGIT_BYTES
    moved = sequences * size * (work.mean * between * (1 - work.frozen * 2 / 3 / config.layers) + logits)
    moved += traffic.ADDED_BYTES * weights
    memory_ = moved / _bandwidth(device)
    kernels = config.layers * KERNELS
    starting = kernels * KERNEL_START[device.kind]
    ending = kernels * KERNEL_END if device.kind != "cpu" else starting
    if device.kind == "cuda" and not software.graphs:
        work_s = arithmetic + memory_ + ending
        ending += starting if work.synchronised else max(0.0, starting - work_s)
    arithmetic, memory_, ending = (device.fitted * part for part in (arithmetic, memory_, ending))
    return arithmetic, memory_, ending, (arithmetic + memory_ + ending) * 2 / 3


def _operations(work: Workload) -> tuple[float, float]:
    """Returns the operations of a mean sequence in both passes: those proportional to the tokens, and those of
    attention."""
    many, config = len(work.lengths), work.config
    targets = {name: max(1, round(count * many)) for name, count in work.targets.items()}
    total = operations.count_training(config, work.lengths, targets, work.labels, work.frozen)
    # Sequences of one token have the same products but no attention.
    alone = operations.encoder_forward(config, [1] * sum(work.lengths))
    passes = 1 + 2 * (config.layers - work.frozen) / config.layers
    attention = passes * (operations.encoder_forward(config, work.lengths) - alone)
    return (total - attention) / many, attention / many


def _per_token(work: Workload, device: Device) -> int:
    kind = torch.device("cpu" if device.kind == "cpu" else "cuda")
    predicted = work.targets.get("mlm", 0.0) / work.mean
    return memory.bytes_per_token(
        work.config, DTYPES[work.precision], kind, longest=work.longest, predicted=predicted,
        native=_native(work, device),
    )  # fmt: skip


def _native(work: Workload, device: Device) -> bool:
    """Returns whether the compiled kernels for CPUs compute the blocks on this device."""
    return device.kind == "cpu" and device.native and DTYPES[work.precision] == torch.bfloat16


def _matrix_units(device: Device, precision: str) -> bool:
    return device.kind == "tpu" or (device.tensor_cores and precision != "float32")


def _attention_scale(device: Device) -> float:
    """Returns the share for attention. Without matrix units, its products reach the same share as others of their
    size."""
    return 1.0 if device.tensor_cores and not device.measured else 3.0


def _bandwidth(device: Device) -> float:
    return device.bandwidth * (1.0 if device.measured else MEMORY)
