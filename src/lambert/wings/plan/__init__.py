"""Predicts the time, memory, energy and cost of a run before it is started."""

from lambert.verb import Verb

VERBS = (
    Verb(
        "plan",
        "Predicts time, memory and cost of a run before it starts.",
        "wings.plan.verb:run",
        "wings.plan.settings:PlanConfig",
        order=130,
        takes="recipe of a run",
        override="set",
        example="recipes/bert-base-128.toml --device A100-80GB --devices 8",
    ),
)

NAMES = {
    "wings.plan.library": ("plan",),
    "wings.plan.result": (
        "Plan",
        "PlanRow",
    ),
}
"""Public names of the package `lambert`, by module."""
