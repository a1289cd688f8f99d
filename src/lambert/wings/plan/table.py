"""Formats the prediction as lines of text."""

from collections.abc import Collection, Mapping, Sequence
from math import inf

from lambert.wings.plan.costs.choices import Option, Remedy, find_remedy, list_clusters
from lambert.wings.plan.recipe import Planned
from lambert.wings.plan.result import Plan
from lambert.wings.plan.settings import PlanConfig


def format_estimate(seconds: float) -> str:
    """Returns a duration in words."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= 100):
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.3g} s"


def explain_memory(config: PlanConfig, plan: Planned, found: Sequence[Option], *others: str) -> str:
    """Returns the error for a run that does not fit, with flags with which it fits, or with the missing memory if there
    are none.

    Args:
        found: The choices that do not fit.
        others: Further flags with which it fits.
    """
    least = min(found, key=lambda choice: choice.step.bytes - choice.cluster.device.memory)
    device, step = least.cluster.device, least.step
    own = {(choice.cluster.device.name, choice.cluster.devices): choice.cluster for choice in found}
    changed = find_remedy(plan.work, sorted(own.values(), key=lambda machines: machines.devices))
    known = list_clusters(sorted({count for _, count in own}), config.nodes or 0, config.link)
    elsewhere = find_remedy(plan.work, known) if known else changed
    named = {name for name, _ in own}
    fitting = [" ".join(_list_flags(config, plan, one, named)) for one in (changed, elsewhere) if one.lacking <= 0]
    nearest = min(changed, elsewhere, key=lambda one: one.lacking)
    text = (
        f"The run does not fit: it needs {step.bytes / 1e9:,.1f} GB per device and the {device.name} has "
        f"{device.memory / 1e9:,.1f}, {(step.bytes - device.memory) / 1e9:,.1f} GB too few. "
    )
    if fitting or others:
        return f"{text}It fits with {' or with '.join(dict.fromkeys([*fitting, *others]))}."
    sharded = ", train.shard_optimizer = true" if nearest.work.shard_optimizer else ""
    return (
        f"{text}None of the changes tried makes it fit: on {nearest.cluster.name} with train.micro_tokens = "
        f"{nearest.step.micro_tokens:,}{sharded} a device still lacks {nearest.lacking / 1e9:,.1f} GB. Take a smaller "
        "model or shorter sequences."
    )


def _list_flags(config: PlanConfig, plan: Planned, changed: Remedy, named: Collection[str]) -> list[str]:
    """Returns the flags of `lambert plan` that make the change. `named` are the devices that the command names."""
    machines, work = changed.cluster, changed.work
    flags = [] if machines.device.name in named else [f"--device={machines.device.name}"]
    if machines.devices > 1 and not config.devices:
        flags.append(f"--devices={machines.devices}")
    if work.micro_tokens != plan.work.micro_tokens:
        flags.append(f"--set train.micro_tokens={work.micro_tokens}")
    if work.shard_optimizer != plan.work.shard_optimizer:
        flags.append("--set train.shard_optimizer=true")
    return flags


def format_plan(config: PlanConfig, plan: Planned, chosen: Option, table: Sequence[Option], result: Plan) -> list[str]:
    """Returns the lines of the prediction that the command prints."""
    found, step, device, unit = result.chosen, chosen.step, chosen.cluster.device, result.cost_unit
    shown = [
        f"{plan.verb}: {plan.updates:,} updates of {plan.work.batch_size:,} sequences of {plan.work.mean:,.0f} tokens "
        f"(mean), {result.operations:.3g} operations",
        *(f"assumed: {text}" for text in plan.assumed),
        f"{chosen.cluster.name}: {format_estimate(chosen.seconds)}, {chosen.cost:,.4g} {unit}"
        + (f", {found.kilowatt_hours:,.3g} kWh at most" if device.watts else ""),
        f"speed    {found.sequences_per_second:,.4g} sequences/s, {found.tokens_per_second:,.4g} tokens/s, "
        f"{found.share_of_peak:.0%} of the {'measured' if device.measured else 'published'} peak in "
        f"{chosen.work.precision}",
        f"update   {format_estimate(step.seconds)}: " + ", ".join(
            f"{name} {part / step.seconds:.0%}" for name, part in step.parts.items() if part > 0.0005 * step.seconds
        ),
        f"memory   {step.bytes / 1e9:,.1f} of {device.memory / 1e9:,.1f} GB per device, micro-batches of up to "
        f"{step.micro_tokens:,} tokens, {step.rounds:,} per update",
    ]  # fmt: skip
    if chosen.cluster.devices > 1:
        links = ", ".join(link.name for link in (chosen.cluster.inside, chosen.cluster.network) if link.name != "none")
        shown.append(
            f"network  {step.sent / 1e6:,.0f} MB per update from each device over {links} as {chosen.work.method}, "
            f"{format_estimate(step.sending)}, {format_estimate(step.exchange)} of it not overlapped with computation"
        )
    shown.append(f"limit    {found.limit}")
    if result.failures is not None:
        shown += _format_failures(result.failures)
    return shown + _format_choices(config, plan, table, chosen, unit)


def _format_failures(found: Mapping[str, float]) -> list[str]:
    waits = found["waiting_seconds"] > 0.0005 * found["seconds"]
    waiting = f", of which {format_estimate(found['waiting_seconds'])} wait for the slowest device" if waits else ""
    return [
        f"failures {found['failures']:,.3g}, the mean of {found['simulations']:,} simulated runs (a machine fails once "
        f"in {found['machine_hours']:g} h): {found['useful_share']:.1%} of the time is useful, in 98 of 100 runs "
        f"{found['useful_share_1_percent']:.1%} to {found['useful_share_99_percent']:.1%} (closed form "
        f"{found['useful_share_closed_form']:.1%}), {format_estimate(found['seconds'])} in all"
        f"{waiting}",
        f"         checkpoints of {format_estimate(found['checkpoint_seconds'])} every "
        f"{format_estimate(found['interval_seconds'])}; best every {format_estimate(found['best_interval_seconds'])}: "
        f"train.save_every = {found['best_save_every']:,}",
    ]


def _format_choices(
    config: PlanConfig, plan: Planned, table: Sequence[Option], chosen: Option, unit: str
) -> list[str]:  # fmt: skip
    head = f"{'devices':>24}  {'exchange':9} {'micro tokens':>12} {'update':>10} {'run':>11} {unit:>13} {'memory':>9}  "
    rows = ["", "efficient choices: no other is both faster and cheaper", head.rstrip()]
    shown = table if any(one is chosen for one in table) else sorted([*table, chosen], key=lambda one: one.seconds)
    for one in shown:
        over = {
            "budget": one.cost > (config.largest_cost or inf), "deadline": one.seconds > (config.longest_run or inf)
        }  # fmt: skip
        mark = " <- chosen" if one is chosen else "".join(f" over the {limit}" for limit in over if over[limit])
        method = one.work.method + "*" * (one.work.method != plan.work.method) if one.cluster.devices > 1 else "-"
        rows.append(
            f"{one.cluster.name:>24}  {method:9} "
            f"{one.step.micro_tokens:>12,} {format_estimate(one.step.seconds):>10} {format_estimate(one.seconds):>11} "
            f"{one.cost:>13,.4g} {one.step.bytes / 1e9:>6,.1f} GB{mark}"
        )
    if any(one.work.method != plan.work.method for one in table):
        rows.append("* sends rounded gradients, which the recipe does not: exchange.method (docs/cluster.md)")
    return rows
