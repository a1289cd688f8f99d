"""The result of a plan: the chosen way to compute a run, and the efficient ones."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lambert.wings.plan.costs.choices import Option

_ADVICE = {
    "arithmetic": "the products. A lower train.precision, a faster device or more devices help",
    "memory": "memory traffic between the products. A device with faster memory or more devices help",
    "kernels": "starting kernels. A larger train.micro_tokens helps",
    "exchange": "the network. A faster link, a larger train.batch_size or another exchange.method help",
    "waiting": "waiting: too few micro-batches for the devices. A smaller train.micro_tokens or fewer devices help",
}


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to compute a run, with its prediction."""

    device: str
    devices: int
    nodes: int
    link: str
    """Link between the nodes; "none" for one node."""
    method: str
    """`exchange.method`."""
    precision: str
    micro_tokens: int
    """Maximum tokens of a micro-batch."""
    update_seconds: float
    parts: Mapping[str, float]
    """Seconds of an update by part: arithmetic, memory, kernels, exchange, waiting."""
    sequences_per_second: float
    tokens_per_second: float
    share_of_peak: float
    memory_bytes: int
    """Peak memory of one device."""
    sent_bytes: int
    """Bytes that one device sends in an update."""
    exchange_seconds: float
    """Seconds of the exchange in an update, including what the backward pass hides."""
    seconds: float
    """Seconds of the run."""
    device_hours: float
    kilowatt_hours: float
    """Energy of the run at the largest power of the devices."""
    cost: float
    """Cost of the run in the `cost_unit` of the plan."""
    limit: str
    """The largest part of an update, and the setting that shortens it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The prediction of a run before it is started."""

    verb: str
    """pretrain or finetune."""
    updates: int
    sequences: int
    """Number of sequences of all updates."""
    tokens: int
    operations: float
    """Floating-point operations of the run."""
    assumed: Sequence[str]
    """Assumptions about what neither the recipe nor its files contain."""
    cost_unit: str
    """USD, or device-hours without a price."""
    chosen: PlanRow
    """The recipe as it is, or the choice within `budget` and `deadline`."""
    efficient: Sequence[PlanRow]
    """The choices that no other beats in both time and cost, the fastest first."""
    failures: Mapping[str, float] | None = None
    """Result of the simulation, with `failures`."""
    script: str = ""
    """The script that starts the run, with `cluster`."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan as `lambert plan --json` prints it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


def build_row(choice: Option) -> PlanRow:
    """Returns a choice as a row."""
    machines, step, work = choice.cluster, choice.step, choice.work
    hours = choice.seconds / 3600 * machines.devices
    return PlanRow(
        device=machines.device.name,
        devices=machines.devices,
        nodes=machines.nodes,
        link=machines.network.name,
        method=work.method,
        precision=work.precision,
        micro_tokens=step.micro_tokens,
        update_seconds=step.seconds,
        parts=step.parts,
        sequences_per_second=work.batch_size / step.seconds,
        tokens_per_second=work.batch_size * work.mean / step.seconds,
        share_of_peak=step.operations / step.seconds / machines.devices / machines.device.rate(work.precision),
        memory_bytes=step.bytes,
        sent_bytes=step.sent,
        exchange_seconds=step.sending,
        seconds=choice.seconds,
        device_hours=hours,
        kilowatt_hours=hours * machines.device.watts / 1000,
        cost=choice.cost,
        limit=_explain_limit(choice),
    )


def _explain_limit(choice: Option) -> str:
    """Returns the largest part of an update and the setting that changes it."""
    parts = choice.step.parts
    largest = max(parts, key=lambda name: parts[name])
    if largest == "waiting" and choice.step.busy > 0.95:
        return "waiting for the slowest device. Fewer devices or a larger train.batch_size help"
    return _ADVICE[largest]
