"""Tables about pre-training on a prepared corpus: sequences, padding, updates and epochs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from lambert.core.batch import Ints
from lambert.core.errors import DataError
from lambert.core.shards import Split
from lambert.data.batch_sizes import BatchSizes
from lambert.data.config import PackingConfig
from lambert.data.packing import FullPlan, Outline
from lambert.data.pairs import PairPlan
from lambert.verbs.report.cells import table
from lambert.verbs.report.folders import RunContents
from lambert.wings.corpus.report.sample import SampledSplit

BATCH = 32
"""Sequences of a padded batch with which flat batches are compared (our choice; a common size on one device)."""
LAYOUTS = (("pairs", 128), ("pairs", 512), ("full", 128), ("full", 512))
"""Modes and lengths that the page shows for every corpus."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings that determine the number of epochs of a run."""

    name: str
    mode: str
    length: int
    sizes: BatchSizes
    steps: int


RECIPES = (
    Recipe("bert-base-128", "pairs", 128, BatchSizes(256), 900_000),
    Recipe("bert-base-512", "pairs", 512, BatchSizes(256), 100_000),
    Recipe("bert-large-128", "pairs", 128, BatchSizes(256), 900_000),
    Recipe("bert-large-512", "pairs", 512, BatchSizes(256), 100_000),
    Recipe("lamb-large-128", "pairs", 128, BatchSizes(65_536), 7_038),
    Recipe("lamb-large-512", "pairs", 512, BatchSizes(32_768), 1_563),
    Recipe("mini-laptop", "full", 128, BatchSizes(128), 1_200),
    Recipe("modernbert-base-1024", "full", 1024, BatchSizes(4608, 96, 21_200), 374_900),
    Recipe("modernbert-base-8192", "full", 8192, BatchSizes(576), 53_000),
    Recipe("modernbert-base-decay", "full", 8192, BatchSizes(576), 10_600),
    Recipe("modernbert-mini", "full", 512, BatchSizes(64), 2_000),
)
"""The recipes for pre-training in recipes/."""


class Packed:
    """The lengths of the sequences of an epoch, for each mode and length, from the plans of pre-training."""

    def __init__(self, sample: SampledSplit) -> None:
        self._outline, self._share = Outline(cast(Split, sample)), sample.share
        self._lengths: dict[tuple[str, int], Ints | str] = {}

    def lengths(self, mode: str, length: int) -> Ints | str:
        """Returns the tokens of each sequence of the sample, or why it cannot be packed."""
        if (mode, length) not in self._lengths:
            config = PackingConfig(mode=cast(Any, mode), sequence_length=length)
            try:
                plan: Any = (
                    FullPlan(self._outline, config) if mode == "full" else PairPlan(self._outline, config, 42, 0)
                )
                self._lengths[mode, length] = plan.rows(np.arange(plan.size)).lengths()
            except DataError as error:
                self._lengths[mode, length] = str(error)
        return self._lengths[mode, length]

    def sequences(self, mode: str, length: int) -> int:
        """Returns the number of sequences of an epoch of the whole split; 0 if it cannot be packed."""
        found = self.lengths(mode, length)
        return 0 if isinstance(found, str) else round(len(found) / self._share)

    def make_padding_table(self) -> dict[str, Any]:
        """Returns the table of the padding that flat batches avoid."""
        rows = []
        for mode, length in LAYOUTS:
            found = self.lengths(mode, length)
            if not isinstance(found, str):
                shares = [f"{share:.1%}" for share in measure_padding(found, length)]
                rows.append([mode, length, f"{self.sequences(mode, length):,}", f"{found.mean():,.1f}", *shares, "0%"])
        columns = ["Mode", "Length", "Sequences of an epoch", "Mean tokens", "To the length", f"In batches of {BATCH}",
                   "The same, sorted by length", "Flat batches"]  # fmt: skip
        note = (
            "Sequences as pre-training packs them. Padding would fill these shares of all positions if each sequence "
            f"were padded to the length, or to the longest of its batch of {BATCH}, shuffled or sorted by length. Flat "
            "batches contain no padding."
        )
        return table("Padding", columns, rows) | {"note": note}

    def make_epochs_table(self, runs: Iterable[RunContents]) -> dict[str, Any]:
        """Returns the table of the epochs of the recipes and of these runs."""
        rows = []
        for recipe in (*RECIPES, *(found for run in runs if (found := _read_recipe(run)))):
            if size := self.sequences(recipe.mode, recipe.length):
                epochs = recipe.sizes.before(recipe.steps) / size
                rows.append(
                    [recipe.name, recipe.mode, recipe.length, f"{recipe.sizes.last:,}", f"{recipe.steps:,}",
                     f"{size:,}", _format(size / recipe.sizes.last), _format(epochs)]
                )  # fmt: skip
        columns = ["Recipe", "Mode", "Length", "Batch", "Updates", "Sequences of an epoch", "Updates of an epoch",
                   "Epochs of the run"]  # fmt: skip
        note = "Sequences of the run / sequences of an epoch. The recipes are those of the folder recipes/."
        return table("Epochs of this corpus in a run", columns, rows) | {"note": note}


def measure_padding(lengths: Ints, length: int) -> tuple[float, float, float]:
    """Returns the share of padding in all positions if sequences with these lengths are padded to `length`, to the
    longest of each `BATCH` consecutive ones, and to the same after sorting by length."""
    real = int(lengths.sum())
    order = np.random.default_rng(0).permutation(len(lengths))
    batches = [_count_positions(lengths[order]), _count_positions(np.sort(lengths))]
    return cast(
        tuple[float, float, float], tuple(1 - real / positions for positions in (length * len(lengths), *batches))
    )


def _count_positions(lengths: Ints) -> int:
    """Returns the number of positions of consecutive batches, each padded to its longest sequence."""
    starts = np.arange(0, len(lengths), BATCH)
    sizes = np.diff(starts, append=len(lengths))
    return int((np.maximum.reduceat(lengths, starts) * sizes).sum())


def _format(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _read_recipe(run: RunContents) -> Recipe | None:
    names = ("packing.mode", "packing.sequence_length", "train.batch_size", "train.steps")
    mode, *values = (run.config.get(name) for name in names)
    if mode not in ("pairs", "balanced", "full") or not all(type(value) is int and value > 0 for value in values):
        return None
    length, last, steps = cast(list[int], values)
    first, ramp = (run.config.get(name, 0) for name in ("train.first_batch_size", "train.ramp_steps"))
    ramped = type(first) is int and type(ramp) is int and first > 0 and ramp > 0 and last % first == 0
    return Recipe(run.name, mode, length, BatchSizes(last, first, ramp) if ramped else BatchSizes(last), steps)
