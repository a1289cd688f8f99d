"""`lambert plan`: predicts the time, memory and cost of a run before it is started."""

import json
from collections.abc import Sequence
from math import inf, prod
from statistics import fmean

import numpy as np

from lambert.core.errors import UsageError
from lambert.core.files import write_atomic
from lambert.engine.progress import aside
from lambert.planning.memory import checkpoint_state
from lambert.runs.result import Say, silent
from lambert.wings.plan.costs.choices import COUNTS, Option, list_choices, select_efficient
from lambert.wings.plan.costs.devices import DEVICES, Device, count_nodes
from lambert.wings.plan.costs.simulation import (
    SimulatedRun,
    compute_daly_interval,
    compute_useful_share,
    shorten,
    simulate_often,
)
from lambert.wings.plan.costs.stragglers import Lateness
from lambert.wings.plan.costs.work import shapes_of
from lambert.wings.plan.plot import check_plot, draw
from lambert.wings.plan.recipe import Planned, parse_overrides, read_run
from lambert.wings.plan.result import Plan, build_row
from lambert.wings.plan.scripts import SCRIPTS
from lambert.wings.plan.settings import AUTO, PlanConfig
from lambert.wings.plan.table import explain_memory, format_estimate, format_plan

METHODS = ("bfloat16", "int8")
"""Methods of exchange in the table of choices, besides that of the recipe."""


def run(config: PlanConfig, say: Say = silent) -> Plan:
    """Predicts the run of a recipe, shows the prediction and returns it. If a script is printed, which may be
    redirected to a file, the prediction goes to standard error.

    Raises UsageError if the run does not fit into the memory of the devices, or if no choice is within the limits.
    """
    if config.plot is not None:
        check_plot(config.plot)
    plan = read_run(config)
    if config.devices:
        plan.config.train.check_ranks(config.devices)
    devices = {name: _find_device(name, plan, config) for name in config.names}
    for device in devices.values():
        _check_nodes(config, plan, device)
    counts = (config.devices,) if config.devices else tuple(n * (config.nodes or 1) for n in COUNTS)
    prices = {devices[name].name: usd for name, usd in config.prices.items()}
    found = list_choices(
        plan.work, plan.sequences, [*devices.values()], prices, counts=counts, nodes=config.nodes or 0,
        network=config.link, methods=METHODS,
    )  # fmt: skip
    if not found:
        raise UsageError(
            f"No number of devices suits train.batch_size = {plan.work.batch_size} and nodes = {config.nodes}: "
            "name another number of nodes."
        )
    if not any(choice.fits for choice in found):
        raise UsageError(explain_memory(config, plan, found))
    table = select_efficient(found)
    chosen = _choose(config, plan, found)
    result = Plan(
        verb=plan.verb,
        updates=plan.updates,
        sequences=plan.sequences,
        tokens=round(plan.sequences * plan.work.mean),
        operations=chosen.step.operations * plan.sequences / plan.work.batch_size,
        assumed=plan.assumed,
        cost_unit="USD" if prices else "device-hours",
        chosen=build_row(chosen),
        efficient=[build_row(choice) for choice in table],
        failures=None if config.failures is None else _simulate_failures(config, plan, chosen),
        script=_build_script(config, plan, chosen) if config.cluster else "",
    )
    if config.plot is not None:
        write_atomic(config.plot, draw(config, found, table, chosen, result.cost_unit))
    if config.json:
        for line in json.dumps(result.as_dict(), indent=1).split("\n"):
            say(line)
    else:
        beside = aside if result.script and say is not silent else say
        for line in format_plan(config, plan, chosen, table, result):
            beside(line)
        for line in result.script.split("\n") if result.script else ():
            say(line)
    return result


def _find_device(name: str, plan: Planned, config: PlanConfig) -> Device:
    if name in config.files:
        return config.files[name].device(name)
    if name != AUTO:
        return DEVICES[name]
    from lambert.wings.plan.calibration import measure_device

    return measure_device(plan.work, config.seconds)


def _check_nodes(config: PlanConfig, plan: Planned, device: Device) -> None:
    """Raises UsageError if the fewest nodes cannot share the number of devices evenly, or if there is a link between
    nodes and only one node."""
    count = config.devices
    if count is None or config.nodes:
        return
    nodes = count_nodes(device, count)
    if count % nodes:
        batch = plan.work.batch_size
        even = [n for n in range(1, batch + 1) if batch % n == 0 and n % count_nodes(device, n) == 0]
        near = [*[n for n in even if n < count][-1:], *[n for n in even if n > count][:1]]
        raise UsageError(
            f"devices = {count}: {nodes} machines of {device.per_node} {device.name} cannot share them evenly. Take "
            f"{' or '.join(map(str, near))}, or name the number of machines (nodes)."
        )
    if nodes == 1 and config.link:
        raise UsageError(
            f"link = {config.link!r} needs several machines, and devices = {count} are in one: omit it, or set the "
            "number of machines (nodes)."
        )


def _is_own(plan: Planned, choice: Option) -> bool:
    """Returns whether a choice sends gradients by the recipe's method, or by one that it tolerates."""
    return choice.work.method in {plan.work.method, *plan.config.exchange.tolerates}


def _choose(config: PlanConfig, plan: Planned, found: Sequence[Option]) -> Option:
    """Returns the choice that is shown in full: within the budget the fastest, within the deadline the cheapest,
    otherwise the recipe as it is on the given number of devices, or on one."""
    own = [choice for choice in found if choice.fits and _is_own(plan, choice)]
    if not own:
        other = min((one for one in found if one.fits), key=lambda one: one.seconds).work.method
        large = [choice for choice in found if _is_own(plan, choice)]
        raise UsageError(explain_memory(config, plan, large, f"--set exchange.method={other}"))
    most, longest = config.largest_cost or inf, config.longest_run or inf
    if not (config.budget or config.deadline):
        recipe = plan.work.micro_tokens, plan.work.method
        as_is = [one for one in own if (one.work.micro_tokens, one.work.method) == recipe]
        return min(as_is or own, key=lambda one: (one.cluster.devices, one.seconds))
    kept = [choice for choice in own if choice.cost <= most and choice.seconds <= longest]
    if not kept:
        cheapest, fastest = min(own, key=lambda one: one.cost), min(own, key=lambda one: one.seconds)
        unit = "USD" if config.prices else "device-hours"
        raise UsageError(
            f"No choice is within {' and '.join(filter(None, (config.budget, config.deadline)))}: the cheapest is "
            f"{cheapest.cluster.name} with {cheapest.cost:,.0f} {unit} in {format_estimate(cheapest.seconds)}, the "
            f"fastest {fastest.cluster.name} with {fastest.cost:,.0f} {unit} in {format_estimate(fastest.seconds)}."
        )
    if config.deadline:
        return min(kept, key=lambda one: (one.cost, one.seconds))
    return min(kept, key=lambda one: (one.seconds, one.cost))


def _build_script(config: PlanConfig, plan: Planned, chosen: Option) -> str:
    flags = parse_overrides(config.set)
    if chosen.work.micro_tokens != plan.work.micro_tokens:
        flags.append(f"--train.micro-tokens={chosen.work.micro_tokens}")
    if chosen.work.method != plan.work.method:
        flags.append(f"--exchange.method={chosen.work.method}")
    return SCRIPTS[config.cluster](chosen, config, plan.verb, flags)


def _simulate_failures(config: PlanConfig, plan: Planned, chosen: Option) -> dict[str, float]:
    """Returns the effect of failures in seconds and shares: means and quantiles of simulations, and the closed form."""
    assert config.failures is not None
    weights = sum(map(prod, shapes_of(plan.work.config, plan.work.targets, plan.work.labels)))
    cost = checkpoint_state(weights) / (1e9 * config.disk)
    nodes, mtbf = chosen.cluster.nodes, 3600 * config.failures
    best = compute_daly_interval(mtbf / nodes, cost)
    interval = best if config.checkpoint is None else 60 * config.checkpoint
    step, work = chosen.step, chosen.work
    late = Lateness(chosen.cluster.devices, step.computing, work.jitter, work.slow)
    run = SimulatedRun(step.seconds - step.late, plan.updates, nodes, mtbf, interval, cost, config.restart, late)
    simulated = shorten(run)
    longer = run.updates / simulated.updates
    outcomes = simulate_often(simulated)
    mean = fmean(outcome.seconds for outcome in outcomes)
    useful = fmean(outcome.training for outcome in outcomes) / mean
    low, high = np.quantile([outcome.useful for outcome in outcomes], [0.01, 0.99]).tolist()
    return {
        "machine_hours": config.failures,
        "checkpoint_seconds": cost,
        "interval_seconds": interval,
        "best_interval_seconds": best,
        "best_save_every": max(1, round(best / step.seconds)),
        "simulations": len(outcomes),
        "useful_share": useful,
        "useful_share_1_percent": low,
        "useful_share_99_percent": high,
        "useful_share_closed_form": compute_useful_share(mtbf / nodes, interval, cost, config.restart),
        "failures": fmean(outcome.failures for outcome in outcomes) * longer,
        "lost_seconds": fmean(outcome.lost for outcome in outcomes) * longer,
        "waiting_seconds": fmean(outcome.waiting for outcome in outcomes) * longer,
        "seconds": chosen.seconds / useful,
    }
