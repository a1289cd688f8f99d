"""The weights with the best held-out score of a run, and the end of a run whose score no longer improves.

    best/
        model.safetensors  manifest.json

The manifest has the update, the scores, and the SHA-256 of the weights. The folder is replaced as a whole. It may be of
a later update than the newest checkpoint: a run that was killed after the evaluation computes the same updates again.
"""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from lambert.core.contents import sha256
from lambert.core.errors import DataError, UsageError
from lambert.core.files import atomic_folder, delete_folder, read_file
from lambert.core.registry import nearest
from lambert.core.world import World
from lambert.engine import archive, state
from lambert.engine.checkpoint import Checkpoint

FOLDER = "best"
_MANIFEST = "manifest.json"
_LOWER = ("loss", "mse", "mae", "mlm", "nsp", "perplexity", "error", "ece")
"""Endings of the names of scores of which lower is better: losses and errors. `mlm` and `nsp` are the losses of
pre-training. Of all other scores higher is better."""

_log = logging.getLogger("lambert.best")


def is_better(name: str, value: float, than: float) -> bool:
    """Returns whether `value` is a better score `name` than `than`. NaN is better than nothing."""
    if math.isnan(value) or math.isnan(than):
        return math.isnan(than) and not math.isnan(value)
    return value < than if lower_is_better(name) else value > than


def lower_is_better(name: str) -> bool:
    """Returns whether smaller values of the score `name` are better."""
    return name.endswith(_LOWER)


class Best:
    """Keeps the best weights of the run in the folder `run`, if there is a `name` (train.keep_best), and decides by
    `patience` (train.patience) when the run ends early. The first of several equal scores is the best.

    The first rank reads, writes and decides. All ranks must call every method together.
    """

    def __init__(self, run: Path, name: str, patience: int, world: World) -> None:
        self.name = name
        """Name of the score; empty: nothing is kept."""
        self.step = 0
        """The update of the best weights; 0 before the first evaluation."""
        self.scored = 0
        """The update of the last evaluation."""
        self._folder, self._patience, self._world = run / FOLDER, patience, world
        self._scores: dict[str, float] = {}
        self._waited = 0

    def begin(self, done: int, saved: Mapping[str, Any]) -> None:
        """Finds the best weights of a run that continues after `done` updates from a checkpoint with the state `saved`.
        A run that starts from the beginning removes those of an earlier attempt. Raises DataError if they are
        damaged."""
        if not self.name:
            return
        if self._world.is_first and not done and self._folder.exists():
            delete_folder(self._folder)
        self.step, self._scores = self._world.run_on_first(self._read)
        self.load(saved)

    def state(self) -> dict[str, int]:
        """Returns plain values for the checkpoint."""
        return {"scored": self.scored, "waited": self._waited}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self.scored, self._waited = saved.get("scored", 0), saved.get("waited", 0)

    def check(self, scores: Mapping[str, float]) -> None:
        """Raises UsageError if `scores` do not contain the score that `train.keep_best` names."""
        if self.name not in scores:
            known = [name for name in scores if not name.endswith("_se")]
            raise UsageError(
                f"train.keep_best = {self.name!r} is not a score of this run, which has {', '.join(known) or 'none'}."
                f"{nearest(self.name, known)}"
            )

    def offer(self, step: int, scores: Mapping[str, float], model: nn.Module) -> None:
        """Called after the evaluation of update `step`: keeps the weights if their score is the best so far. Does
        nothing without scores."""
        if not self.name or not scores:
            return
        self.check(scores)
        scores = self._world.run_on_first(lambda: dict(scores))  # ranks may differ by rounding
        before, self.scored = self.scored, step
        if is_better(self.name, scores[self.name], self._scores.get(self.name, math.nan)):
            failure = self._world.run_on_first(lambda: self._write(step, scores, model))
            if not failure:
                self.step, self._scores, self._waited = step, dict(scores), 0
                return
            if self._world.is_first:
                _log.warning("%s", failure)
        # Up to `self.step` the run computes updates again whose outcome is known: the score will improve.
        self._waited = 0 if step <= self.step else self._waited + (step > before)

    @property
    def exhausted(self) -> bool:
        """Whether the run ends early: the last `train.patience` evaluations brought no improvement."""
        return 0 < self._patience <= self._waited

    @property
    def reason(self) -> str:
        """Says why the run ends early."""
        value = self._scores.get(self.name, math.nan)
        return (
            f"{self.name} has not improved in {self._waited} evaluations since update {self.step:,} ({value:.4g}); "
            f"train.patience = {self._patience}"
        )

    def take(self, scores: Mapping[str, float], model: nn.Module) -> tuple[dict[str, float], str]:
        """Restores the best weights in `model`; `scores` are those after the last update.

        Returns the scores of the best weights with two more, `best_update` and `final_NAME`, and a line for the user.
        Returns `scores` and an empty line if nothing was kept.
        """
        if not self.name or not self.step:
            return dict(scores), ""
        if self.step != self.scored:
            with self._world.fail_together("reading the best weights"):
                if self._world.is_first:
                    self._read()  # checks the weights
                    Checkpoint(self._folder, self.step, {}).restore_model(model)
            self._world.broadcast(state.tensors(model).values())
        final = scores[self.name]
        line = f"best {self.name} {self._scores[self.name]:.4g} after update {self.step:,}"
        if self.step != self.scored:
            line += f" ({final:.4g} after the last, {self.scored:,})"
        numbers = {"best_update": float(self.step), f"final_{self.name}": final}
        return self._scores | numbers, f"{line}: model/ has these weights"

    def _read(self) -> tuple[int, dict[str, float]]:
        """Returns the update and the scores of the weights on the disk. Raises DataError if they are damaged."""
        if not self._folder.exists():
            return 0, {}
        try:
            found = json.loads(read_file(self._folder / _MANIFEST).decode())
            step, scores, expected = int(found["step"]), dict(found["scores"]), found["sha256"]
            float(scores[self.name])
            problem = "" if sha256(self._folder / archive.MODEL) == expected else "its weights have another SHA-256"
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            raise DataError(
                f"{self._folder}, the best weights so far, is damaged ({problem}). Restore it from a copy, or delete "
                "it: the run then keeps the best weights of its later evaluations."
            )
        return step, scores

    def _write(self, step: int, scores: Mapping[str, float], model: nn.Module) -> str:
        """Replaces the weights on the disk. Returns why they could not be written, or ""."""
        try:
            with atomic_folder(self._folder, replace=True) as aside:
                host = {name: tensor.cpu().contiguous() for name, tensor in state.tensors(model).items()}
                archive.write_tensors(aside / archive.MODEL, host)
                manifest = {"step": step, "scores": scores, "sha256": sha256(aside / archive.MODEL)}
                (aside / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        except (OSError, SafetensorError) as error:
            return (
                f"{self._folder} could not be written ({error}): the best weights are still those of update "
                f"{self.step:,}. {archive.disk_remedy(error)}."
            )
        return ""
