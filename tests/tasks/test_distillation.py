"""Learning from a teacher: the loss, the order of the labels, and whole runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import one_line

from lambert.core.batch import Batch, SoftTarget, Target
from lambert.core.errors import UsageError
from lambert.model.config import EncoderConfig
from lambert.model.objectives import Label
from lambert.tasks import TaskConfig
from lambert.tasks.config import DistilConfig
from lambert.tasks.distillation import check_teacher, teacher_of

Lambert = Callable[..., Any]
CONFIG = DistilConfig(teacher=Path("teacher"), share=0.7, temperature=3.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_that_of_hinton(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    logits_NL, theirs_NL = (torch.randn(5, 4, generator=generator, requires_grad=True) for _ in range(2))
    labels_N = torch.tensor([0, 3, 1, 1, 2])
    weights_N = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.25]) if weighted else None
    teacher = teacher_of([*theirs_NL.softmax(1).detach().double().numpy()], "abcd", "abcd", CONFIG)
    target = teacher.target(Target(torch.arange(5), labels_N, weights_N), np.arange(5))
    assert isinstance(target, SoftTarget)
    head = Label(EncoderConfig(vocabulary=10), 4)
    loss = head.loss(logits_NL, target, Batch.of([[1]] * 5))
    soft_N = -((theirs_NL / 3).softmax(1).detach() * (logits_NL / 3).log_softmax(1)).sum(1)
    hard_N = -logits_NL.log_softmax(1)[torch.arange(5), labels_N]
    expected_N = 0.7 * 9 * soft_N + 0.3 * hard_N
    expected = (expected_N * (torch.ones(5) if weights_N is None else weights_N)).sum()
    torch.testing.assert_close(loss, expected)
    gradients = (torch.autograd.grad(value, logits_NL, retain_graph=True)[0] for value in (loss, expected))
    torch.testing.assert_close(*gradients)


def test_labels_may_have_another_order() -> None:
    teacher = teacher_of([np.array([0.1, 0.2, 0.7])], ["c", "a", "b"], ["a", "b", "c"], CONFIG)
    assert teacher.values_N.tolist() == [[0.7, 0.1, 0.2]]


def test_values_are_mixed() -> None:
    target = Target(torch.arange(2), torch.tensor([1.0, 3.0]))
    found = teacher_of([2.0, 0.0], (), (), CONFIG).target(target, np.array([1, 0]))
    torch.testing.assert_close(found.labels_N, torch.tensor([0.3, 0.7 * 2 + 0.3 * 3]))


@pytest.mark.parametrize(
    ("own", "teacher", "message"),
    [
        (TaskConfig(name="tag"), TaskConfig(name="tag"), "is for classify, multilabel, regress, not for 'tag'"),
        (TaskConfig(), TaskConfig(name="regress"), "was fine-tuned for the task 'regress', not 'classify'"),
        (TaskConfig(labels=("a", "b")), TaskConfig(labels=("a", "c")), "same labels: 'b' differs"),
    ],
)
def test_a_teacher_of_something_else_is_refused(own: TaskConfig, teacher: TaskConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_teacher(own, teacher)


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_a_student_learns_from_a_teacher(
    task: str, tuned: Callable[[str], Path], labelled: Callable[[str, str], Path], pretrained: Path, tmp_path: Path,
    lambert: Lambert,
) -> None:  # fmt: skip
    flags = {"data": labelled(task, "train"), "init": pretrained, "task__name": task, "task__max_length": 64}
    flags |= {"train__steps": 2, "train__batch_size": 8, "distil__teacher": tuned(task)}
    done = lambert("finetune", out=tmp_path / "run", **flags)
    assert done.code == 0, done.err
    assert f"teacher  {tuned(task)}, {'accuracy' if task == 'classify' else 'pearson'}" in done.out


def test_a_teacher_of_another_task_is_one_line(
    tuned: Callable[[str], Path], labelled: Callable[[str, str], Path], pretrained: Path, tmp_path: Path,
    lambert: Lambert,
) -> None:  # fmt: skip
    flags = {"data": labelled("classify", "train"), "init": pretrained, "distil__teacher": tuned("regress")}
    one_line(lambert("finetune", out=tmp_path / "run", train__steps=1, **flags), 2, "fine-tuned for the task 'regress'")
