"""The planner as a Python function (`lambert.library` describes what all of them have in common)."""

from pathlib import Path
from typing import Any

from lambert.library import call_settings, report_stops
from lambert.wings.plan import verb as planning
from lambert.wings.plan.result import Plan


def plan(recipe: str | Path, **settings: Any) -> Plan:
    """Predicts the time, memory, energy and cost of a run of pretrain or finetune, as `lambert plan`. Nothing is
    started.

    Args:
        recipe: The TOML file of the run.
        settings: Settings of the command, such as `device="H100"`, `devices=8` and `set=["train.batch_size=512"]`.
    """
    with report_stops():
        return planning.run(call_settings("plan", recipe, settings))
