"""Learning from a teacher: a model that was fine-tuned on the same task, of any size and family.

Source: Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015, section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lambert.core.batch import Ints, SoftTarget, Target
from lambert.core.errors import UsageError
from lambert.tasks.config import DistilConfig, TaskConfig
from lambert.tasks.metrics import Floats

TASKS = ("classify", "multilabel", "regress")


@dataclass(frozen=True, slots=True)
class Teacher:
    """The predictions of a teacher for the examples of a training file."""

    values_N: Floats
    """Probabilities [N, L] of the student's labels, or values [N]."""
    config: DistilConfig

    def target(self, target: Target, examples_S: Ints) -> Target:
        """Returns the targets of sequences of these examples, with the teacher's predictions. Values and the
        probabilities of several labels are mixed with the true ones, in the proportion `config.share`."""
        found = self.values_N[examples_S]
        share, temperature = self.config.share, self.config.temperature
        if target.labels_N.dtype == torch.float32 and target.labels_N.shape == found.shape:
            mixed = share * torch.from_numpy(found.astype(np.float32)) + (1 - share) * target.labels_N
            return Target(target.at_N, mixed, target.weights_N)
        powers_SL = np.maximum(found, np.finfo(np.float64).tiny) ** (1 / temperature)
        soft_SL = torch.from_numpy((powers_SL / powers_SL.sum(1, keepdims=True)).astype(np.float32))
        return SoftTarget(
            target.at_N, target.labels_N, target.weights_N, soft_NL=soft_SL, share=share, temperature=temperature
        )


def check_teacher(config: TaskConfig, teacher: TaskConfig) -> None:
    """Raises UsageError if a model fine-tuned for `teacher` cannot teach the task `config`."""
    if config.name not in TASKS:
        raise UsageError(f"distil.teacher is for {', '.join(TASKS)}, not for {config.name!r}.")
    if teacher.name != config.name:
        raise UsageError(f"distil.teacher was fine-tuned for the task {teacher.name!r}, not {config.name!r}.")
    if missing := sorted({*config.labels} ^ {*teacher.labels}):
        raise UsageError(f"distil.teacher and the training file do not have the same labels: {missing[0]!r} differs.")


def teacher_of(
    predictions: Sequence[Any], labels: Sequence[str], theirs: Sequence[str], config: DistilConfig
) -> Teacher:
    """Returns the teacher with these predictions, whose labels are in the order `theirs`, for a student with the order
    `labels`."""
    values_N = np.array(predictions, dtype=np.float64)
    if labels:
        values_N = values_N[:, [theirs.index(label) for label in labels]]
    return Teacher(values_N, config)
