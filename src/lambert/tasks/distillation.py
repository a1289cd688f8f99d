"""Learning from the predictions of a teacher: a model that was fine-tuned on the same task, of any size and family.

Source: Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015, section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lambert.core.batch import Ints, SoftTarget, Target
from lambert.core.errors import UsageError
from lambert.tasks.config import TaskConfig
from lambert.tasks.scores.metrics import Floats
from lambert.tasks.task import own_class


@dataclass(frozen=True, slots=True)
class Teacher:
    """The predictions of a teacher for the examples of a training file, or for its words."""

    values_N: Floats
    """Probabilities [N, L] of the student's labels or of choices, 0 beyond those of an example, or values [N]. A row of
    NaN has no prediction: there the label is learnt alone."""
    share: float
    """Share of the teacher in the loss."""
    temperature: float
    """What divides the logits; 0: the teacher's values are mixed with the true ones, in the proportion `share`. The
    loss of teacher and truth is that of their mean."""

    def target(self, target: Target, examples_S: Ints) -> Target:
        """Returns the targets of sequences of these examples, or of these words, with the teacher's predictions."""
        found, share = self.values_N[examples_S], self.share
        if not self.temperature:
            mixed = share * torch.from_numpy(found.astype(np.float32)) + (1 - share) * target.labels_N
            return Target(target.at_N, mixed, target.weights_N)
        powers_NL = found ** (1 / self.temperature)
        soft_NL = torch.from_numpy((powers_NL / powers_NL.sum(1, keepdims=True)).astype(np.float32))
        lacking_N = soft_NL.isnan().any(1)
        if lacking_N.any():
            soft_NL[lacking_N] = _masses(target.labels_N[lacking_N], soft_NL.shape[1])
        return _soften(target, soft_NL, share, self.temperature)


@dataclass(frozen=True, slots=True)
class SpanTeacher:
    """The predictions of a teacher for the windows of a training file."""

    soft_T2: npt.NDArray[np.float32]
    """Probabilities at `temperature` that the answer starts and ends at each token, within its window."""
    bounds_S1: Ints
    """Window s has the rows bounds[s] to bounds[s + 1]."""
    share: float
    """Share of the teacher in the loss."""
    temperature: float
    """What divides the logits."""

    @classmethod
    def of(cls, logits_T2: Floats, lengths_S: Ints, share: float, temperature: float) -> "SpanTeacher":
        """Returns the teacher with these logits of start and end for windows of these lengths."""
        bounds_S1 = np.concatenate([[0], np.cumsum(lengths_S)])
        warm_T2 = (logits_T2 / temperature).astype(np.float32)
        warm_T2 -= np.repeat(np.maximum.reduceat(warm_T2, bounds_S1[:-1]), lengths_S, axis=0)
        np.exp(warm_T2, out=warm_T2)
        warm_T2 /= np.repeat(np.add.reduceat(warm_T2, bounds_S1[:-1]), lengths_S, axis=0)
        return cls(warm_T2, bounds_S1, share, temperature)

    def target(self, target: Target, windows_S: Ints) -> Target:
        """Returns the targets of these windows with the teacher's predictions."""
        bounds = self.bounds_S1
        soft_T2 = np.concatenate([self.soft_T2[bounds[window] : bounds[window + 1]] for window in windows_S])
        return _soften(target, torch.from_numpy(soft_T2), self.share, self.temperature)


def _soften(target: Target, soft_NL: Tensor, share: float, temperature: float) -> SoftTarget:
    return SoftTarget(
        target.at_N, target.labels_N, target.weights_N, soft_NL=soft_NL, share=share, temperature=temperature
    )


def _masses(labels_N: Tensor, labels: int) -> Tensor:
    """Returns the masses of the classes [N, L] of labels, or of smoothed labels."""
    return labels_N if labels_N.ndim > 1 else torch.nn.functional.one_hot(labels_N, labels).float()


def check_teacher(config: TaskConfig, teacher: TaskConfig) -> None:
    """Raises UsageError if a model fine-tuned for `teacher` cannot teach the task `config`."""
    kind = own_class(config.name)
    if not kind.soft_targets:
        vectors = " A teacher of vectors gives scores of pairs instead (docs/vectors.md)." * kind.computes_vectors
        raise UsageError(
            "The predictions of distil.teacher are for classify, multilabel, regress, choice, tag, squad, not for "
            f"{config.name!r}: set distil.share = 0 to learn its self-attention relations only (distil.relations)."
            f"{vectors}"
        )
    if teacher.name != config.name:
        raise UsageError(f"distil.teacher was fine-tuned for the task {teacher.name!r}, not {config.name!r}.")
    if teacher.long_text != "cut" and config.columns.text_b:
        raise UsageError(
            f"distil.teacher reads single texts (its task.long_text is {teacher.long_text!r}), and the training file "
            "has pairs (task.columns.text_b): take a teacher that was fine-tuned on pairs."
        )
    if missing := sorted({*config.labels} ^ {*teacher.labels}):
        raise UsageError(f"distil.teacher and the training file do not have the same labels: {missing[0]!r} differs.")


def teacher_of(values: Floats, config: TaskConfig, theirs: Sequence[str], share: float, temperature: float) -> Teacher:
    """Returns the teacher of the task `config`, from values [N] or probabilities [N, L] of the labels `theirs`."""
    if config.labels:
        values = values[:, [theirs.index(label) for label in config.labels]]
    return Teacher(values, share, 0.0 if own_class(config.name).soft_targets == "mixed" else temperature)
