"""Fine-tuning is the recipe that users of transformers know: on the same batches, transformers' model in a plain loop
with torch's AdamW has the same losses and ends with the same weights."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from lambert.core.batch import Batch
from lambert.data.stream import stream
from lambert.tasks import SquadConfig, TaskConfig, learn
from lambert.text.tokenizers import tokenizer as tokenizers

STEPS, WARMUP, SIZE, LR, SEED = 12, 3, 8, 3e-3, 5
EPS = 1e-4
"""Far above the rounding of gradients that are 0 (of the keys' biases; where a softmax over the tokens follows, of the
last normalization's and the head's too), which Adam divides by it and which differs between processors."""
MODELS = {
    "classify": transformers.AutoModelForSequenceClassification,
    "squad": transformers.AutoModelForQuestionAnswering,
    "tag": transformers.AutoModelForTokenClassification,
}


@pytest.fixture(params=MODELS)
def task(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def start(task: str, tuned: Callable[[str], Path], pretrained: Path, tmp_path: Path) -> Path:
    """A model folder of the pre-trained encoder, without dropout, with a new head for the labels of the task. Its
    rows are kept by the names of the labels."""
    found = json.loads((tuned(task) / "model/config.json").read_text())
    names = {key: found[key] for key in ("id2label", "label2id") if key in found} or {"num_labels": 2}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **names}
    torch.manual_seed(1)
    MODELS[task].from_pretrained(pretrained / "model", **off).save_pretrained(tmp_path / "start")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "start" / name).write_bytes((pretrained / "model" / name).read_bytes())
    return tmp_path / "start"


def rate(update: int) -> float:
    """The share of the learning rate: linear as in transformers, but the warm-up has no update with a rate of 0."""
    return min(1.0, (update + 1) / WARMUP) if update < WARMUP else (STEPS - update) / (STEPS - WARMUP)


def padded(batch: Batch, task: str) -> dict[str, Tensor]:
    """A flat batch as transformers takes it."""
    bounds = batch.bounds_S1.tolist()
    parts = [slice(begin, end) for begin, end in pairwise(bounds)]

    def rows(values_T: Tensor, empty: int = 0) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([values_T[part] for part in parts], True, empty)

    made = {
        "input_ids": rows(batch.ids_T),
        "token_type_ids": rows(batch.types_T),
        "attention_mask": rows(torch.ones_like(batch.ids_T)),
    }
    (target,) = batch.targets.values()
    if task == "tag":
        labels_T = torch.full_like(batch.ids_T, -100)
        labels_T[target.at_N] = target.labels_N
        return {**made, "labels": rows(labels_T, -100)}
    assert target.at_N.tolist() == [*range(len(parts))]
    if task == "squad":
        return {**made, "start_positions": target.labels_N[:, 0], "end_positions": target.labels_N[:, 1]}
    return {**made, "labels": target.labels_N}


def batches(task: str, data: Path, folder: Path) -> Iterator[Batch]:
    """The batches of the run."""
    config = TaskConfig(name=task, max_length=64, squad=SquadConfig(stride=16, max_query=16))
    _, source = learn(config, tokenizers.load(folder), data)
    for update in stream(source, batch_size=SIZE, micro_tokens=1 << 14, seed=SEED, stop=STEPS):
        ((_, batch),) = update.micro_batches
        yield batch


def span_loss(outputs: Any, inputs: dict[str, Tensor]) -> Tensor:
    """transformers' loss of answer spans over the tokens of the sequences alone. Its own has padding in the softmax
    too, so it depends on the longest sequence of the batch."""

    def loss(name: str) -> Tensor:
        logits = outputs[f"{name}_logits"].masked_fill(inputs["attention_mask"] == 0, -torch.inf)
        return torch.nn.functional.cross_entropy(logits, inputs[f"{name}_positions"])

    return (loss("start") + loss("end")) / 2


def by_transformers(task: str, folder: Path, data: Path) -> tuple[list[float], dict[str, Tensor]]:
    """The losses, and the weights after the last update."""
    model: Any = MODELS[task].from_pretrained(folder, attn_implementation="eager")
    weights = [*model.parameters()]
    groups = [{"params": [w for w in weights if (w.ndim > 1) == many], "weight_decay": 0.01 * many} for many in (1, 0)]
    optimizer = torch.optim.AdamW(groups, lr=LR, eps=EPS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    model.train()
    for batch in batches(task, data, folder):
        inputs = padded(batch, task)
        loss = span_loss(model(**inputs), inputs) if task == "squad" else model(**inputs).loss
        loss.backward()
        losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return losses, model.state_dict()


def test_losses_and_weights_are_those_of_transformers(
    task: str, start: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Callable[..., Any]
) -> None:
    data = labelled(task, "train")
    done = lambert(
        "finetune", init=start, data=data, out=tmp_path / "run", seed=SEED, task__name=task, task__max_length=64,
        optim__name="adamw", optim__lr=LR, optim__eps=EPS, optim__warmup_ratio=WARMUP / STEPS, train__steps=STEPS,
        train__batch_size=SIZE, train__precision="float32", train__threads=1, log__every=1,
        **({"task__squad__stride": 16, "task__squad__max_query": 16} if task == "squad" else {}),
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    expected, weights = by_transformers(task, start, data)
    assert [row["loss"] for row in rows if "loss" in row] == pytest.approx(expected, rel=1e-4)
    ours = MODELS[task].from_pretrained(tmp_path / "run/model").state_dict()
    before = MODELS[task].from_pretrained(start).state_dict()
    for name, value in weights.items():
        moved = (value - before[name]).abs().max()
        assert (ours[name] - value).abs().max() <= 1e-3 * moved + 5e-6, name
