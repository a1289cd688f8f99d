"""The labels of a file, and the training loss with class weights and label smoothing, which is torch's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from lambert.core.batch import Target, exact_weights
from lambert.core.errors import DataError, UsageError
from lambert.core.world import World
from lambert.data.stream import stream
from lambert.engine.loop import evaluate, train
from lambert.engine.precision import Precision
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.tasks import TaskConfig, learn
from lambert.tasks.labels import LabelLoss, learn_labels

Build = Callable[[list[str]], Tokenizer]
WORDS = ["good", "bad", "film", "so"]
ROWS = [
    ("good", "pos"), ("good film", "pos"), ("good good good", "pos"), ("so so so so so", "mid"), ("bad", "neg"),
    ("good film good film", "pos"), ("so film", "mid"),
]  # fmt: skip


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS))
    return tmp_path / "x.tsv"


def gradients(source: Any, model: Any, micro_tokens: int) -> tuple[float, list[torch.Tensor]]:
    """The loss and the gradients of one update over all examples, in micro-batches."""
    torch.set_num_threads(1)
    batches = stream(source, batch_size=source.size(0), micro_tokens=micro_tokens, seed=1, stop=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    precision = Precision("float32", torch.device("cpu"))
    (step,) = train(
        model, optimizer, batches, schedule=lambda _: 0.0, max_grad_norm=0.0, precision=precision, world=World(),
        seed=0, start=0, steps=1,
    )  # fmt: skip
    return step.loss, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(
    ("class_weights", "smoothing"), [((), 0.2), ((0.5, 2.0, 3.25), 0.0), ("balanced", 0.0), ("balanced", 0.1)]
)
def test_the_loss_is_that_of_torch_over_any_micro_batches(
    words: Tokenizer, path: Path, class_weights: Any, smoothing: float
) -> None:
    task, data = learn(TaskConfig(class_weights=class_weights, label_smoothing=smoothing), words, path)
    assert task.config.labels == ("mid", "neg", "pos")
    config = EncoderConfig(
        vocabulary=9, hidden=32, intermediate=64, positions=16, dropout=0.0, attention_dropout=0.0, init_range=0.2
    )
    model = weights.draw(config, {"label": 3}, seed=3)
    everything = np.arange(len(ROWS))
    logits_NL = model.outputs(data.collate(np.zeros_like(everything), everything))["label"]
    # scikit-learn's compute_class_weight("balanced") for 2, 1 and 4 examples: 7 / (3 x count)
    given = {"balanced": [7 / 6, 7 / 3, 7 / 12], (): [1.0, 1.0, 1.0]}.get(class_weights, class_weights)
    truth_N = torch.tensor([2, 2, 2, 0, 1, 2, 0])
    mean = torch.nn.functional.cross_entropy(logits_NL, truth_N, weight=torch.tensor(given), label_smoothing=smoothing)
    mean.backward()
    theirs = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    expected = pytest.approx(mean.item(), rel=1e-5)
    for micro_tokens in (1000, 12, 1):
        loss, ours = gradients(data, model, micro_tokens)
        assert loss == expected
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    dev = task.read(path)  # is scored without weights
    batches = [dev.collate(np.zeros(1, np.int64), np.array([index])) for index in everything]
    found = evaluate(model, batches, Precision("float32", torch.device("cpu")), World())
    assert found["label"] == pytest.approx(torch.nn.functional.cross_entropy(logits_NL, truth_N).item(), rel=1e-5)
    whole = [data.collate(everything, everything)]
    weighed = evaluate(model, whole, Precision("float32", torch.device("cpu")), World())
    assert weighed["label"] == expected
    assert weighed["label_accuracy"] == found["label_accuracy"]


def test_tags_have_the_same_loss(words: Tokenizer, tmp_path: Path) -> None:
    rows = [{"tokens": ["good", "film"], "tags": ["A", "O"]}, {"tokens": ["so", "bad"], "tags": ["O", "O"]}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TaskConfig(name="tag", class_weights="balanced", label_smoothing=0.1)
    task, data = learn(config, words, tmp_path / "x.jsonl")
    model = weights.draw(
        EncoderConfig(vocabulary=9, hidden=32, intermediate=64, positions=16, init_range=0.2), {"tag": 2}, seed=3
    ).eval()
    batch = data.collate(np.zeros(2, np.int64), np.arange(2))
    target, logits_TL = batch.targets["tag"], model.outputs(batch)["tag"]
    expected = torch.nn.functional.cross_entropy(
        logits_TL[target.at_N], torch.tensor([0, 1, 1, 1]), weight=torch.tensor([2.0, 2 / 3]), label_smoothing=0.1
    )
    torch.testing.assert_close(model(batch)[0] / target.count, expected)
    assert task.read(tmp_path / "x.jsonl").collate(np.zeros(1, np.int64), np.arange(1)).targets["tag"].weights_N is None
    with pytest.raises(UsageError, match="class_weights has 3 weights, and there are 2 labels"):
        learn(TaskConfig(name="tag", class_weights=(1.0, 1.0, 1.0)), words, tmp_path / "x.jsonl")


def test_sums_of_weights_do_not_depend_on_their_order() -> None:
    draws = np.random.default_rng(1).lognormal(0, 3, 10_000)
    found = exact_weights(draws)
    torch.testing.assert_close(found.double(), torch.from_numpy(draws), rtol=1e-5, atol=2**-24)
    at_N = torch.arange(len(found))
    parts = [Target(part, part, found[part]).count for part in torch.randperm(len(found)).split(7)]
    assert sum(parts) == Target(at_N, at_N, found).count


def test_labels_of_numbers_and_text_are_refused() -> None:
    assert learn_labels([("x:1", "10"), ("x:2", "9")]) == ("9", "10")
    assert learn_labels([("x:1", "b"), ("x:2", "a"), ("x:3", "b")]) == ("a", "b")
    with pytest.raises(DataError, match=r"^x:2: label 'label' is not a whole number, and label '1' \(x:1\) is one\."):
        learn_labels([("x:1", "1"), ("x:2", "label"), ("x:3", "0"), ("x:4", "no")])


def test_many_fractions_are_no_labels() -> None:
    """Steps of a scale may be."""
    numbers = [(f"x:{n}", f"{n / 8:.3f}") for n in range(11)]
    assert len(learn_labels(numbers[:10])) == 10
    with pytest.raises(
        DataError, match=r'^x:0: label \'0\.000\' and 10 others are numbers and not whole.* task\.name = "regress"'
    ):
        learn_labels(numbers)
    assert len(learn_labels([*numbers, ("x:11", "high")])) == 12
    with pytest.raises(DataError, match="and 10 others are numbers and not whole"):
        learn_labels([*numbers, ("x:11", "N/A"), ("x:12", "nan")])  # missing values


def test_class_weights_that_do_not_fit(words: Tokenizer, path: Path) -> None:
    with pytest.raises(UsageError, match=r"class_weights has 2 weights, and there are 3 labels: .* mid, neg, pos"):
        learn(TaskConfig(class_weights=(1.0, 2.0)), words, path)
    with pytest.raises(UsageError, match=r"task\.class_weights = \(1\.0, -2\.0\) must be at least 0\.001"):
        TaskConfig(class_weights=(1.0, -2.0))
    with pytest.raises(UsageError, match=r"task\.class_weights = 'balanced' is for classify and tag, not for 'squad'"):
        TaskConfig(name="squad", class_weights="balanced")
    with pytest.raises(UsageError, match=r"label_smoothing = 1\.0 must be"):
        TaskConfig(label_smoothing=1.0)
    with pytest.raises(DataError, match=r"x\.tsv has no example with the label 'new'"):
        learn(TaskConfig(class_weights="balanced", labels=("mid", "neg", "new", "pos")), words, path)


def test_a_label_without_a_row_is_noted(words: Tokenizer, path: Path) -> None:
    task, data = learn(TaskConfig(), words, path)
    assert data.notes == ()
    dev = path.with_name("dev.tsv")
    dev.write_text("text\tlabel\ngood\tpos\n")
    assert task.read(dev).notes == (f"note: no row of {dev} has the labels 'mid', 'neg'.",)


def test_plain_cross_entropy_has_no_weights() -> None:
    assert LabelLoss.of(TaskConfig(labels=("a", "b")), np.array([0, 1]), Path("x")) is None


def test_weighted_losses_are_summed_in_float32() -> None:
    losses_N, weights_N = torch.tensor([1.001, 2.003, 3.007]), exact_weights([1.0, 0.3, 0.5])
    target = Target(torch.arange(3), torch.zeros(3, dtype=torch.int64), weights_N)
    with torch.autocast("cpu", torch.bfloat16):
        found = target.total(losses_N)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(losses_N.double() @ weights_N.double()), rel=1e-6)
