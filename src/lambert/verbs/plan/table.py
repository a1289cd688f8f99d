"""The prediction as lines and as a JSON object."""

from collections.abc import Sequence
from typing import Any

from lambert.planning.choices import Choice
from lambert.verbs.plan.recipe import Planned

_ADVICE = {
    "arithmetic": "the products. A lower train.precision, a faster device or more devices help",
    "memory": "memory traffic between the products. A device with faster memory or more devices help",
    "kernels": "starting kernels. A larger train.micro_tokens helps",
    "exchange": "the network. A faster link, a larger train.batch_size or another exchange.method help",
    "waiting": "waiting: too few micro-batches for the devices. A smaller train.micro_tokens or fewer devices help",
}


def duration(seconds: float) -> str:
    """Returns a duration in words."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= 100):
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.3g} s"


def limit(choice: Choice) -> str:
    """Returns the largest part of an update and the setting that changes it."""
    parts = choice.step.parts
    largest = max(parts, key=lambda name: parts[name])
    if largest == "waiting" and choice.step.busy > 0.95:
        return "waiting for the slowest device. Fewer devices or a larger train.batch_size help"
    return _ADVICE[largest]


def memory_advice(choice: Choice) -> str:
    """Returns the error for a run that does not fit, with what would."""
    device, step, work = choice.cluster.device, choice.step, choice.work
    over = step.bytes - device.memory
    if step.micro_tokens > work.longest:
        what = f"Lower train.micro_tokens to {max(work.longest, step.micro_tokens // 2):,}"
    elif not work.shard_optimizer and choice.cluster.devices > 1:
        what = "Set train.shard_optimizer = true"
    else:
        what = "Take a smaller model or shorter sequences"
    return (
        f"The run does not fit: it needs {step.bytes / 1e9:,.1f} GB a device and a {device.name} has "
        f"{device.memory / 1e9:,.1f}, {over / 1e9:,.1f} GB too few. {what}, or take a device with more memory."
    )


def record(plan: Planned, chosen: Choice, table: Sequence[Choice], *, priced: bool) -> dict[str, Any]:
    """Returns the prediction as plain values."""
    return {
        "verb": plan.verb,
        "updates": plan.updates,
        "sequences": plan.sequences,
        "tokens": round(plan.sequences * plan.work.mean),
        "operations": chosen.step.operations * plan.sequences / plan.work.batch_size,
        "assumed": list(plan.assumed),
        "cost_unit": "USD" if priced else "device-hours",
        "chosen": _plain(chosen),
        "efficient": [_plain(choice) for choice in table],
    }


def _plain(choice: Choice) -> dict[str, Any]:
    machines, step = choice.cluster, choice.step
    hours = choice.seconds / 3600 * machines.devices
    return {
        "device": machines.device.name,
        "devices": machines.devices,
        "nodes": machines.nodes,
        "link": machines.network.name,
        "method": choice.work.method,
        "precision": choice.work.precision,
        "micro_tokens": step.micro_tokens,
        "update_seconds": step.seconds,
        "parts": step.parts,
        "sequences_per_second": choice.work.batch_size / step.seconds,
        "tokens_per_second": choice.work.batch_size * choice.work.mean / step.seconds,
        "share_of_peak": step.operations
        / step.seconds
        / machines.devices
        / machines.device.rate(choice.work.precision),
        "memory_bytes": step.bytes,
        "sent_bytes": step.sent,
        "exchange_seconds": step.sending,
        "seconds": choice.seconds,
        "device_hours": hours,
        "kilowatt_hours": hours * machines.device.watts / 1000,
        "cost": choice.cost,
        "limit": limit(choice),
    }


def lines(plan: Planned, chosen: Choice, table: Sequence[Choice], result: dict[str, Any]) -> list[str]:
    """Returns the lines that the command prints."""
    found, step, device = result["chosen"], chosen.step, chosen.cluster.device
    unit = result["cost_unit"]
    shown = [
        f"{plan.verb}: {plan.updates:,} updates of {plan.work.batch_size:,} sequences of {plan.work.mean:,.0f} tokens "
        f"(mean), {result['operations']:.3g} operations",
        *(f"assumed: {text}" for text in plan.assumed),
        f"{chosen.cluster.name}: {duration(chosen.seconds)}, {chosen.cost:,.4g} {unit}"
        + (f", {found['kilowatt_hours']:,.3g} kWh at most" if device.watts else ""),
        f"speed    {found['sequences_per_second']:,.4g} sequences/s, {found['tokens_per_second']:,.4g} tokens/s, "
        f"{found['share_of_peak']:.0%} of the {'measured' if device.measured else 'published'} peak in "
        f"{chosen.work.precision}",
        f"update   {duration(step.seconds)}: " + ", ".join(
            f"{name} {part / step.seconds:.0%}" for name, part in step.parts.items() if part > 0.0005 * step.seconds
        ),
        f"memory   {step.bytes / 1e9:,.1f} of {device.memory / 1e9:,.1f} GB a device, micro-batches of up to "
        f"{step.micro_tokens:,} tokens, {step.rounds:,} an update",
    ]  # fmt: skip
    if chosen.cluster.devices > 1:
        links = ", ".join(link.name for link in (chosen.cluster.inside, chosen.cluster.network) if link.name != "none")
        shown.append(
            f"network  {step.sent / 1e6:,.0f} MB an update from each device over {links} as {chosen.work.method}, "
            f"{duration(step.sending)}, of which {duration(step.exchange)} are not hidden"
        )
    shown.append(f"limit    {found['limit']}")
    if "failures" in result:
        shown += _failures(result["failures"])
    shown += _choices(plan, table, chosen, unit)
    if "script" in result:
        shown += ["", result["script"]]
    return shown


def _failures(found: dict[str, float]) -> list[str]:
    return [
        f"failures {found['failures']:,.0f} in a simulation (a machine fails once in {found['machine_hours']:g} h): "
        f"{found['useful_share']:.1%} of the time is useful (closed form {found['useful_share_closed_form']:.1%}), "
        f"{duration(found['seconds'])} in all",
        f"         checkpoints of {duration(found['checkpoint_seconds'])} every {duration(found['interval_seconds'])}; "
        f"best every {duration(found['best_interval_seconds'])}: train.save_every = {found['best_save_every']:,}",
    ]


def _choices(plan: Planned, table: Sequence[Choice], chosen: Choice, unit: str) -> list[str]:
    head = f"{'devices':>24}  {'exchange':9} {'micro tokens':>12} {'update':>10} {'run':>11} {unit:>13} {'memory':>9}  "
    rows = ["", "efficient choices: no other is both faster and cheaper", head.rstrip()]
    for one in table:
        mark = " <- chosen" if one is chosen else ""
        method = one.work.method + "*" * (one.work.method != plan.work.method) if one.cluster.devices > 1 else "-"
        rows.append(
            f"{one.cluster.name:>24}  {method:9} "
            f"{one.step.micro_tokens:>12,} {duration(one.step.seconds):>10} {duration(one.seconds):>11} "
            f"{one.cost:>13,.4g} {one.step.bytes / 1e9:>6,.1f} GB{mark}"
        )
    if any(one.work.method != plan.work.method for one in table):
        rows.append("* sends rounded gradients, which the recipe does not: exchange.method (docs/cluster.md)")
    return rows
