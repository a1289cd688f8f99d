"""`lambert bench`: the speed of each kind of work, its share of this device's ceilings, and the speed of its peers.

Read in this order: settings, work, batches, then a kind of work, such as training; then side_process and environments.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import torch

from lambert.core.files import check_replaceable, json_text
from lambert.core.settings import as_dict
from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.engine import process
from lambert.engine.precision import resolve_precision
from lambert.measure.ceilings import Rates
from lambert.runs.result import Say, silent
from lambert.wings.bench import environments
from lambert.wings.bench.environments import Trial
from lambert.wings.bench.profile import costs_table
from lambert.wings.bench.settings import BenchConfig, BenchPrecision
from lambert.wings.bench.side_process import CEILINGS, SideProcess
from lambert.wings.bench.table import table
from lambert.wings.bench.work import OWN, Times, Work, describe_machine, figures
from lambert.wings.bench.works import work_of

TRIAL_ROUNDS = 3
"""Rounds of a peer in each of the environments that are tried."""


def run(config: BenchConfig, say: Say = silent) -> None:
    """Measures, and prints a table or one JSON object."""
    config = config.resolve()
    if config.profile:
        check_replaceable(config.profile, lambda beginning: b'"traceEvents"' in beginning, "bench")
    if config.threads:
        torch.set_num_threads(config.threads)
    world = detect(config.device)
    config = replace(config, precision=cast(BenchPrecision, resolve_precision(config.precision, world)))
    if config.profile:
        with SideProcess(config, OWN, environments.of(process.variables())) as side:
            costs = side.ask("profile")
        for line in [json_text(costs)] if config.json else costs_table(costs):
            say(line)
        return
    if config.work == "run":
        from lambert.wings.bench import runs

        result = runs.measure(config, world)
    else:
        result = measure(config, work_of(config, world), world)
    for line in [json_text(result)] if config.json else table(config, result):
        say(line)


def measure(config: BenchConfig, work: Work, world: World) -> dict[str, Any]:
    """Returns everything that is measured, as plain values."""
    alike = replace(config, device=str(world.device), threads=torch.get_num_threads())
    own = process.variables()
    trials = {OWN: Trial(own)} | {name: _trial(alike, name) for name in work.sides if name != OWN}
    with ExitStack() as stack:
        measuring = stack.enter_context(SideProcess(alike, CEILINGS, environments.of(own)))
        started = {
            name: stack.enter_context(SideProcess(alike, name, environments.of(trial.variables)))
            for name, trial in trials.items()
        }
        rates: list[Rates] = []
        times = time_rounds(started, config.rounds, between=lambda: rates.append(measuring.ceilings()))
    ceilings = rates[-1]
    found = figures(work, times, ceilings.product, ceilings.shaped)
    for name, side in found.items():
        side |= {"memory_mb": times[name].memory_mb, **trials[name].as_json()}
    return {
        "settings": as_dict(config),
        "unit": work.unit,
        work.unit: work.tokens,
        f"padded_{work.unit}": work.padded or None,
        "sequences": work.sequences or None,
        "gflop": round(work.operations / 1e9, 3) if work.operations else None,
        **describe_machine(alike, ceilings),
        "sides": found,
    }


def time_rounds(
    sides: Mapping[str, SideProcess], rounds: int, between: Callable[[], None] = lambda: None
) -> dict[str, Times]:
    """Builds every side, then runs `rounds` of each in alternation. `between` is called before these rounds and after
    each of them."""
    times = {name: side.build() for name, side in sides.items()}
    between()
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].rounds.append(side.round())
        between()
    return times


def _trial(config: BenchConfig, name: str) -> Trial:
    """Returns the environment in which rounds of a peer take the least time."""

    def seconds(variables: environments.Variables) -> float:
        with SideProcess(config, name, environments.of(variables)) as side:
            side.build()
            return min(side.round() for _ in range(TRIAL_ROUNDS))

    return environments.find_fastest(seconds, environments.candidates(config.device), rounds=1)
