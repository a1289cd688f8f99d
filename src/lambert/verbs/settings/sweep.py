"""The settings of `lambert sweep`, and the parts of its recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from lambert.core.errors import UsageError
from lambert.core.settings import SEEDS, check


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """Search for the best settings of a training run. Repeating the command continues the sweep."""

    out: Path
    """Folder of the sweep: the run folders of the trials in trials/, sweep.json, best.toml, and the default storage."""
    recipe: Path | None = None
    """Recipe of pretrain or finetune, which the sweep varies. Settings beside the table [sweep] override it."""
    study: str = ""
    """Name of the study in the storage. Empty: the name of the folder `out`."""
    storage: str = ""
    """Where processes and machines share the study: the path of a journal file, or a URL such as sqlite:///FILE or
    postgresql://USER@HOST/NAME. Empty: study.journal in `out`."""
    sampler: str = "tpe"
    """How the settings of a trial are chosen: tpe, random, grid, cmaes, or "package.module:function"."""
    pruner: str = "median"
    """How weak trials are ended early: median, asha, hyperband, none, or "package.module:function". It compares the
    scores that the runs compute every `train.evaluate_every` updates."""
    metric: str = ""
    """Score on held-out data to optimize. Empty: the first of `task.metrics`, or that of the task: accuracy (classify,
    choice), f1_micro (multilabel), pearson (regress), f1 (squad), span_f1 (tag; f1 if the tags mark no spans), ndcg_10
    (embed; spearman if `dev` has scored pairs), mlm (pretrain), the first score of a task from outside."""
    direction: Literal["", "maximize", "minimize"] = ""
    """Empty: minimize for a loss or an error, otherwise maximize."""
    trials: int | None = None
    """Number of trials of the whole sweep, including those that fail."""
    minutes: float | None = None
    """Minutes of training, summed over all trials and processes. A trial that has started is finished."""
    updates: int | None = None
    """Updates, summed over all trials and their seeds. A trial that has started is finished."""
    seeds: tuple[int, ...] | None = None
    """Each configuration is run with each of these seeds, and its value is the mean. Unset: the seed of the recipe."""
    seed: int = 0
    """Seed of the sampler."""
    jobs: int = 1
    """Processes on this machine that run trials at the same time; they divide its cores and its GPUs."""
    space: Annotated[Mapping[str, Any], Parameter(parse=False)] = field(default_factory=dict)
    """The settings to vary, by dotted name: {low, high}, with `log` or `step`, or {choices}."""
    base: Annotated[Mapping[str, Any], Parameter(parse=False)] = field(default_factory=dict)
    """Settings of pretrain or finetune that override those of `recipe`."""

    def __post_init__(self) -> None:
        check(
            self, seed=SEEDS, seeds=SEEDS, trials="[1, inf)", minutes="(0, inf)", updates="[1, inf)", jobs="[1, 1024]"
        )  # fmt: skip
        if self.seeds is not None and not self.seeds:
            raise UsageError("seeds is empty: name at least one seed, or leave it out for the seed of the recipe.")
        if len(set(self.seeds or ())) < len(self.seeds or ()):
            raise UsageError(f"seeds = {list(self.seeds or ())} has a seed twice.")


def split(found: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the settings of the table [sweep] of a recipe, and `space` and `base`: the table [sweep.space], and the
    settings beside [sweep].

    Raises UsageError, which names the recipe as `where`, if it has no such table.
    """
    own = found.get("sweep")
    if not isinstance(own, Mapping):
        raise UsageError(f"{where} has no table [sweep]: it says what to vary (docs/sweep.md).")
    space = own.get("space", {})
    if not isinstance(space, Mapping):
        raise UsageError(f"{where}: sweep.space is a table of settings, not {space!r}.")
    if own.get("seeds") == []:  # which the parser of the command line takes for unset
        SweepConfig(Path(), seeds=())
    settings = {name: value for name, value in own.items() if name != "space"}
    return settings, {"space": space, "base": {name: value for name, value in found.items() if name != "sweep"}}
