"""Settings that fine-tuning chooses on dev and keeps in the model folder, for evaluate and predict."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

Lambert = Callable[..., Any]
Labelled = Callable[[str, str], Path]
FLAGS = {
    "optim__name": "adamw", "optim__lr": 3e-3, "train__batch_size": 8, "train__steps": 8, "train__threads": 1,
    "task__max_length": 64, "train__save_every": 50,
}  # fmt: skip


def lines(called: Any) -> list[dict[str, Any]]:
    assert called.code == 0, called.err
    return [json.loads(line) for line in called.out.splitlines()]


def version_2(path: Path, out: Path) -> Path:
    """The file with a question without an answer beside each pair of questions."""
    root = json.loads(path.read_text())
    for number, paragraph in enumerate(root["data"][0]["paragraphs"]):
        question = {"id": f"n{number}", "question": "the bird walked", "answers": [], "is_impossible": True}
        paragraph["qas"].append(question)
    out.write_text(json.dumps(root | {"version": "v2.0"}))
    return out


def test_the_threshold_of_no_answer(pretrained: Path, labelled: Labelled, tmp_path: Path, lambert: Lambert) -> None:
    data, dev = (version_2(labelled("squad", part), tmp_path / f"{part}.json") for part in ("train", "dev"))
    flags = {**FLAGS, "task__name": "squad", "task__squad__max_query": 16, "task__squad__null_threshold": "best"}
    refused = lambert("finetune", data=data, init=pretrained, out=tmp_path / "run", **flags)
    one_line(refused, 2, 'task.squad.null_threshold = "best" is chosen on dev: name the dev file')
    out = tmp_path / "run"
    assert lambert("finetune", data=data, dev=dev, init=pretrained, out=out, **flags).code == 0
    scores = json.loads((out / "scores.json").read_text())
    kept = json.loads((out / "model" / "config.json").read_text())["lambert"]["task"]["squad"]["null_threshold"]
    assert kept == scores["best_f1_threshold"]
    assert scores["f1"] == pytest.approx(scores["best_f1"])
    (again,) = lines(lambert("evaluate", "--json", model=out, data=dev))
    assert again == pytest.approx(scores, rel=1e-5, abs=1e-4)
    paragraphs = json.loads(dev.read_text())["data"][0]["paragraphs"]
    rows = [{"question": q["question"], "context": p["context"]} for p in paragraphs for q in p["qas"]]
    asked = "".join(json.dumps(row) + "\n" for row in rows)
    found = lines(lambert("predict", model=out, stdin=asked))
    assert [not row["answer"] for row in found] == [row["null_odds"] > kept + 1e-4 for row in found]
    other = sorted(row["null_odds"] for row in found)[3]
    found = lines(lambert("predict", model=out, null_threshold=other, stdin=asked))
    assert sum(bool(row["answer"]) for row in found) == sum(row["null_odds"] <= other for row in found)
    (scored,) = lines(lambert("evaluate", "--json", model=out, data=dev, null_threshold=-1e6))
    assert scored["no_answer_f1"] == 100.0
    assert scored["has_answer_f1"] == 0.0


def test_the_temperature(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    draw, texts = random.Random(7), {"a": "the old king", "b": "a green bird"}
    for part, noise in (("train", 0.0), ("dev", 0.3)):  # with wrong labels on dev, the model is too sure
        labels = [label if draw.random() >= noise else "ab"[label == "a"] for label in "ab" * 30]
        rows = [f"{texts[text]}\t{label}\n" for text, label in zip("ab" * 30, labels, strict=True)]
        (tmp_path / f"{part}.tsv").write_text("text\tlabel\n" + "".join(rows))
    flags = {**FLAGS, "optim__lr": 5e-3, "train__steps": 60, "task__temperature": "best"}
    flags |= {"init": pretrained, "data": tmp_path / "train.tsv", "out": tmp_path / "run"}
    one_line(lambert("finetune", **flags), 2, 'task.temperature = "best" is chosen on dev: name the dev file')
    dev, out = tmp_path / "dev.tsv", tmp_path / "run"
    assert lambert("finetune", dev=dev, **flags).code == 0
    scores = json.loads((out / "scores.json").read_text())
    config = json.loads((out / "model" / "config.json").read_text())
    heat = config["lambert"]["task"]["temperature"]
    assert heat == scores["temperature"] > 1.2
    (again,) = lines(lambert("evaluate", "--json", model=out, data=dev))
    assert again == pytest.approx(scores, rel=1e-5, abs=1e-5)
    kept = [json.loads(line) for line in (out / "examples.jsonl").read_text().splitlines()[1:]]
    assert sum(row["loss"] for row in kept) / len(kept) == pytest.approx(scores["loss"])
    asked = '{"text": "the old king"}\n'
    (found,) = lines(lambert("predict", model=out, stdin=asked))
    other = shutil.copytree(out / "model", tmp_path / "other")
    config["lambert"]["task"]["temperature"] = 1.0
    (other / "config.json").write_text(json.dumps(config))
    (other / "SHA256SUMS").unlink()
    (raw,) = lines(lambert("predict", model=other, stdin=asked))
    powers = {label: chance ** (1 / heat) for label, chance in raw["probabilities"].items()}
    expected = {label: power / sum(powers.values()) for label, power in powers.items()}
    assert found["probabilities"] == pytest.approx(expected, rel=1e-5)
    assert found["probability"] == max(found["probabilities"].values()) < raw["probability"]
    (hot,) = lines(lambert("evaluate", "--json", model=other, data=dev))
    assert hot["temperature"] == pytest.approx(heat, rel=1e-4)
    assert hot["accuracy"] == scores["accuracy"]
    assert hot["loss"] > scores["loss"]


def test_a_threshold_of_no_answer_for_another_task(tuned: Callable[[str], Path], lambert: Lambert) -> None:
    refused = lambert("predict", model=tuned("classify"), null_threshold=0.5, stdin='{"text": "the bird"}\n')
    one_line(refused, 2, "null_threshold is for squad, not for 'classify', the task of ")
