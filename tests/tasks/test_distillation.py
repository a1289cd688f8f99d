"""Learning from the predictions of a teacher: the losses, the order of labels, other tokenizers, and whole runs."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import one_line
from tokenizers import Tokenizer, normalizers

from lambert.core.batch import Batch, SoftTarget, Target
from lambert.core.errors import UsageError
from lambert.inference.outputs import load_task
from lambert.inference.text_model import load
from lambert.model.config import EncoderConfig
from lambert.model.objectives import Choice as ChoiceHead
from lambert.model.objectives import Label, Span
from lambert.runs.config import DistilConfig
from lambert.tasks import Columns, TaskConfig
from lambert.tasks.distillation import SpanTeacher, Teacher, check_teacher, teacher_of
from lambert.tasks.sentences.choice import Choice
from lambert.tasks.tag.tag import Tag

Lambert = Callable[..., Any]
SHARE, WARM = 0.7, 3.0


def one_of(labels: str, name: str = "classify") -> TaskConfig:
    return TaskConfig(name=name, labels=tuple(labels))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_that_of_hinton(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    logits_NL, theirs_NL = (torch.randn(5, 4, generator=generator, requires_grad=True) for _ in range(2))
    labels_N = torch.tensor([0, 3, 1, 1, 2])
    weights_N = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.25]) if weighted else None
    teacher = teacher_of(theirs_NL.softmax(1).detach().double().numpy(), one_of("abcd"), "abcd", SHARE, WARM)
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


def test_the_loss_of_choices_is_that_of_each_example(
    wordpiece: Callable[[list[str]], Tokenizer], tmp_path: Path
) -> None:
    """Of examples with different numbers of choices, chosen out of order."""
    generator, counts, labels = torch.Generator().manual_seed(3), (2, 4, 3), (1, 3, 0)
    path = tmp_path / "train.jsonl"
    rows = [{"text": "a", "choices": ["b"] * n, "label": label} for n, label in zip(counts, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task, data = Choice.learn(TaskConfig(name="choice", max_length=16), wordpiece(["[UNK]", "[CLS]", "[SEP]"]), path)
    theirs = [torch.randn(n, generator=generator, dtype=torch.float64) for n in counts]
    soft_NC = task.soft(data, [{"choice": torch.cat(theirs)[:, None]}])
    data.teacher = teacher_of(soft_NC, task.config, (), SHARE, WARM)
    for chosen in ([1, 0, 2], [2, 0]):
        batch = data.collate(np.zeros(len(chosen), np.int64), np.array(chosen))
        logits_S1 = torch.randn(batch.sequences, 1, generator=generator, requires_grad=True)
        loss = ChoiceHead(EncoderConfig(vocabulary=10), 0).loss(logits_S1, batch.targets["choice"], batch)
        expected = torch.zeros(())
        for example, own_C in zip(chosen, logits_S1[:, 0].split([counts[n] for n in chosen]), strict=True):
            soft = -((theirs[example].float() / WARM).softmax(0) * (own_C / WARM).log_softmax(0)).sum()
            expected = expected + SHARE * WARM**2 * soft - (1 - SHARE) * own_C.log_softmax(0)[labels[example]]
        torch.testing.assert_close(loss, expected)
        gradients = (torch.autograd.grad(value, logits_S1, retain_graph=True)[0] for value in (loss, expected))
        torch.testing.assert_close(*gradients)


def test_smoothed_labels_keep_the_temperature() -> None:
    masses_NL = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    target = Teacher(np.array([[0.8, 0.2], [0.5, 0.5]]), SHARE, 2.0).target(
        Target(torch.arange(2), masses_NL), np.arange(2)
    )
    assert isinstance(target, SoftTarget)
    roots = np.sqrt([0.8, 0.2])
    np.testing.assert_allclose(target.soft_NL[0], roots / roots.sum(), rtol=1e-6)
    assert target.labels_N is masses_NL


def test_the_loss_of_spans_is_that_of_each_window() -> None:
    """Of windows of different lengths, chosen out of order."""
    generator = torch.Generator().manual_seed(2)
    lengths = np.array([5, 9, 3, 9])
    theirs_T2 = torch.randn(int(lengths.sum()), 2, generator=generator)
    teacher = SpanTeacher.of(theirs_T2.double().numpy(), lengths, SHARE, WARM)
    chosen = np.array([3, 0, 2])
    labels_N2 = torch.tensor([[8, 8], [0, 0], [1, 2]])
    target = teacher.target(Target(torch.arange(3), labels_N2), chosen)
    batch = Batch.of([[1] * int(lengths[window]) for window in chosen])
    logits_T2 = torch.randn(batch.tokens, 2, generator=generator, requires_grad=True)
    loss = Span(EncoderConfig(vocabulary=10), 0).loss(logits_T2, target, batch)

    expected = torch.zeros(())
    windows = theirs_T2.split(lengths.tolist())
    for window, (low, high), labels_2 in zip(chosen, pairwise(batch.bounds_S1.tolist()), labels_N2, strict=True):
        for side in range(2):
            own_M, theirs_M = logits_T2[low:high, side], windows[window][:, side]
            soft = -((theirs_M / WARM).softmax(0) * (own_M / WARM).log_softmax(0)).sum()
            hard = -own_M.log_softmax(0)[labels_2[side]]
            expected = expected + (SHARE * WARM**2 * soft + (1 - SHARE) * hard) / 2
    torch.testing.assert_close(loss, expected)
    gradients = (torch.autograd.grad(value, logits_T2, retain_graph=True)[0] for value in (loss, expected))
    torch.testing.assert_close(*gradients)


def test_words_are_learnt_from_a_teacher_with_another_tokenizer(
    wordpiece: Callable[[list[str]], Tokenizer], tmp_path: Path
) -> None:
    """The teacher's pieces are letters, and its windows others; the student has whole words. One word has no piece in
    the teacher's vocabulary."""
    sentences = [["an", "ant", "sat"], ["tan"], ["at", "\u0301", "an", "ant"]]
    tags = [["O", "X", "O"], ["X"], ["O", "X", "O", "X"]]
    path = tmp_path / "train.jsonl"
    rows = zip(sentences, tags, strict=True)
    path.write_text("".join(json.dumps({"tokens": words, "tags": found}) + "\n" for words, found in rows))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*special, *"ants", *(f"##{letter}" for letter in "ants")]
    own_pieces = wordpiece([*special, "an", "ant", "sat", "tan", "at", "\u0301"])
    own_pieces.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    student, data = Tag.learn(TaskConfig(name="tag", max_length=64), own_pieces, path)
    teacher = Tag(TaskConfig(name="tag", max_length=8, labels=("X", "O"), tag=student.config.tag), wordpiece(letters))
    theirs = teacher.read(path)
    assert theirs.size(0) > data.size(0) == 3

    def outputs() -> Any:  # each token's logits name its piece
        for number in range(theirs.size(0)):
            batch = theirs.collate(np.zeros(1, dtype=np.int64), np.array([number]))
            yield {"tag": torch.stack([batch.ids_T.float(), -batch.ids_T.float()], 1) / 10}

    soft_WL = teacher.soft(theirs, outputs())
    firsts = [letters.index(word[0]) / 10 if word[0] in letters else None for words in sentences for word in words]
    assert np.isnan(soft_WL[5]).all()
    data.teacher = teacher_of(soft_WL, student.config, teacher.config.labels, 1.0, 1.0)
    target = data.collate(np.zeros(2, dtype=np.int64), np.array([2, 0])).targets["tag"]
    assert isinstance(target, SoftTarget)
    own = [4, 5, 6, 7, 0, 1, 2]
    assert target.labels_N.tolist() == [student.config.labels.index([t for s in tags for t in s][word]) for word in own]
    for word, soft_L, label in zip(own, target.soft_NL, target.labels_N.tolist(), strict=True):
        if firsts[word] is None:
            assert soft_L.tolist() == [float(label == number) for number in range(2)]
        else:  # O, X of the student are the columns 1, 0 of the teacher
            expected = torch.tensor([-firsts[word], firsts[word]], dtype=torch.float64).softmax(0).float()
            torch.testing.assert_close(soft_L, expected)


def test_labels_may_have_another_order() -> None:
    teacher = teacher_of(np.array([[0.1, 0.2, 0.7]]), one_of("cab"), ["a", "b", "c"], SHARE, WARM)
    assert teacher.values_N.tolist() == [[0.7, 0.1, 0.2]]


def test_values_are_mixed() -> None:
    target = Target(torch.arange(2), torch.tensor([1.0, 3.0]))
    found = teacher_of(np.array([2.0, 0.0]), TaskConfig(name="regress"), (), SHARE, WARM).target(
        target, np.array([1, 0])
    )
    torch.testing.assert_close(found.labels_N, torch.tensor([0.3, 0.7 * 2 + 0.3 * 3]))


@pytest.mark.parametrize(
    ("own", "teacher", "message"),
    [
        (
            TaskConfig(name="embed"),
            TaskConfig(name="embed"),
            r"tag, squad, not for 'embed': set distil.share .* scores of pairs instead \(docs/vectors.md\)",
        ),
        (TaskConfig(), TaskConfig(name="regress"), "was fine-tuned for the task 'regress', not 'classify'"),
        (TaskConfig(labels=("a", "b")), TaskConfig(labels=("a", "c")), "same labels: 'b' differs"),
        (TaskConfig(columns=Columns(text_b="b")), TaskConfig(long_text="mean"), "reads single texts .* has pairs"),
    ],
)
def test_a_teacher_of_something_else_is_refused(own: TaskConfig, teacher: TaskConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_teacher(own, teacher)


def test_relations_need_a_teacher() -> None:
    with pytest.raises(UsageError, match=r"distil.relations = 1 needs distil.teacher"):
        DistilConfig(relations=1)


@pytest.fixture
def flags(
    tuned: Callable[[str], Path], labelled: Callable[[str, str], Path], pretrained: Path
) -> Callable[[str], dict[str, object]]:
    def of(task: str) -> dict[str, object]:
        found = {"data": labelled(task, "train"), "init": pretrained, "task__name": task, "task__max_length": 64}
        found |= {"train__steps": 2, "train__batch_size": 8, "distil__teacher": tuned(task)}
        return found | ({"task__squad__max_query": 16, "task__squad__stride": 16} if task == "squad" else {})

    return of


@pytest.mark.parametrize(
    ("task", "score"),
    [
        ("classify", "accuracy"),
        ("regress", "pearson"),
        ("choice", "accuracy"),
        ("tag", "f1"),
        ("squad", "exact_match"),
    ],
)
def test_a_student_learns_from_a_teacher(
    task: str, score: str, flags: Callable[[str], dict[str, object]], tmp_path: Path, lambert: Lambert
) -> None:
    done = lambert("finetune", out=tmp_path / "run", **flags(task), distil__relations=1, log__every=1)
    assert done.code == 0, done.err
    assert f"teacher  {flags(task)['distil__teacher']}, {score}" in done.out
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    objective = {"classify": "label", "regress": "value", "choice": "choice", "tag": "tag", "squad": "span"}[task]
    assert {f"loss/{objective}", "loss/relations"} <= rows[0].keys()
    assert lambert("evaluate", model=tmp_path / "run", data=flags(task)["data"]).code == 0


def test_a_teacher_of_another_task_is_one_line(
    flags: Callable[[str], dict[str, object]], tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    found = flags("classify") | {"distil__teacher": tuned("regress")}
    one_line(lambert("finetune", out=tmp_path / "run", **found), 2, "fine-tuned for the task 'regress'")
    done = lambert("finetune", out=tmp_path / "run", **found, distil__share=0, distil__relations=1)
    assert done.code == 0, done.err


def test_a_teacher_reads_the_training_file_by_the_columns_of_the_student(
    flags: Callable[[str], dict[str, object]], tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """The teacher's own file had no header, a template, groups and another separator."""
    folder = tmp_path / "teacher"
    shutil.copytree(tuned("classify") / "model", folder)
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    own = {"text": "{1}: {2}", "label": "3", "group": "4", "separator": "|", "choices": ["5", "6"], "header": False}
    config["lambert"]["task"]["columns"] = own
    (folder / "config.json").write_text(json.dumps(config))
    found = flags("classify") | {"distil__teacher": folder}
    done = lambert("finetune", out=tmp_path / "run", **found)
    assert done.code == 0, done.err
    accuracy = load(tuned("classify")).evaluate(str(found["data"]))["accuracy"]
    assert f"teacher  {folder}, accuracy {accuracy:.4f} on the training file" in done.out
    assert load_task(folder, "", (), Columns()).task.config.columns == Columns()


def test_answers_need_the_same_tokens(
    flags: Callable[[str], dict[str, object]], tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """A teacher with another vocabulary can teach words and texts, but not the start and the end of an answer."""
    for task in ("squad", "tag"):
        folder = tmp_path / task
        shutil.copytree(tuned(task) / "model", folder)
        (folder / "SHA256SUMS").unlink(missing_ok=True)
        path = folder / "tokenizer.json"
        path.write_text(path.read_text().replace('"[unused0]"', '"[unusedX]"').replace('"##a"', '"##A"'))
    found = flags("squad") | {"distil__teacher": tmp_path / "squad"}
    one_line(lambert("finetune", out=tmp_path / "run", **found), 2, "so the start and the end of an answer are other")
    assert not (tmp_path / "run").exists()
    done = lambert("finetune", out=tmp_path / "run", **flags("tag") | {"distil__teacher": tmp_path / "tag"})
    assert done.code == 0, done.err
