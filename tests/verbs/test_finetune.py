"""Fine-tuning on every task: scores, the model folder, from scratch, and what is refused before the first update."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from commands import last_line, one_line
from safetensors.torch import load_file

from lambert.core import settings
from lambert.runs import defaults

Lambert = Callable[..., Any]

TASKS = ["classify", "pair", "regress", "squad", "tag"]


def scores(run: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((run / "scores.json").read_text())
    return found


@pytest.mark.parametrize("task", TASKS)
def test_a_task_end_to_end(task: str, tuned: Callable[[str], Path], labelled: Callable[[str, str], Path]) -> None:
    run = tuned(task)
    assert {path.name for path in run.iterdir()} >= {"config.toml", "metrics.jsonl", "checkpoints", "model"}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    objective = {"classify": "label", "pair": "label", "regress": "value", "squad": "span", "tag": "tag"}[task]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert all(f"loss/{objective}" in row for row in rows if "loss" in row)
    assert fmean(losses[-5:]) < fmean(losses[:5])
    held_out = [row for row in rows if "loss" not in row]
    assert held_out[-1] == {"step": rows[-1]["step"], **{f"heldout/{k}": v for k, v in scores(run).items()}}
    assert {"accuracy", "mse", "exact_match"} & set(scores(run))
    kept = json.loads((run / "model" / "config.json").read_text())
    assert kept["lambert"]["task"]["max_length"] == 64
    assert (run / "model" / "tokenizer.json").is_file()


def test_what_can_be_learnt_is_learnt(tuned: Callable[[str], Path]) -> None:
    assert scores(tuned("classify"))["accuracy"] > 0.9
    assert scores(tuned("tag"))["accuracy"] > 0.9


@pytest.mark.parametrize("scored", [True, False])
def test_weights_that_are_not_usable_are_a_divergence(
    scored: bool, pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """Too few updates for the guard, which waits for several bad ones."""
    dev = {"dev": labelled("classify", "dev")} if scored else {}
    done = lambert(
        "finetune", init=pretrained, data=labelled("classify", "train"), out=tmp_path / "run", task__max_length=64,
        optim__lr=1e6, optim__warmup_ratio=0, train__steps=4, train__precision="float32", **dev,
    )  # fmt: skip
    last_line(done, 5, "Training diverged: ", "is not finite", "Try a smaller optim.lr")
    assert not (tmp_path / "run/model").exists()


def test_what_was_left_out_is_said(
    pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    path = tmp_path / "train.json"
    root = json.loads(labelled("squad", "train").read_text())
    paragraph = root["data"][0]["paragraphs"][0]
    paragraph["qas"][0]["answers"][0]["text"] = "nowhere to be found"
    paragraph["qas"][1]["answers"][0]["answer_start"] += 3
    path.write_text(json.dumps(root))
    flags = {"task__name": "squad", "task__max_length": 64, "task__squad__max_query": 16, "train__steps": 1}
    done = lambert("finetune", data=path, init=pretrained, out=tmp_path / "run", **flags)
    assert done.code == 0, done.err
    assert "1 question was left out, because the answer is not in the paragraph" in done.out
    assert "1 offset corrected" in done.out
    lost = "data[0].paragraphs[0].qas[0]: the answer 'nowhere to be found' is not in its paragraph"
    assert f"left out: {path}: {lost}" in done.out
    assert f"left out: {path}: {lost}" in (tmp_path / "run" / "log.txt").read_text()
    flags["task__squad__bad_answers"] = "stop"
    one_line(lambert("finetune", data=path, init=pretrained, out=tmp_path / "other", **flags), 3, lost)


def test_restart_damaged_is_another_beginning(
    pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    flags = {"data": labelled("classify", "train"), "init": pretrained, "task__max_length": 64, "train__steps": 1}
    flags |= {"train__batch_size": 4, "optim__lr": 1e-30}
    for name, more in (("on", []), ("scratch", ["--random-init"])):
        done = lambert("finetune", *more, out=tmp_path / name, **flags)
        assert done.code == 0, done.err
    word = "bert.embeddings.word_embeddings.weight"
    before, on, scratch = (
        load_file(run / "model" / "model.safetensors") for run in (pretrained, tmp_path / "on", tmp_path / "scratch")
    )
    assert before[word].equal(on[word])
    assert not before[word].equal(scratch[word])
    assert on["classifier.weight"].equal(scratch["classifier.weight"])
    assert not set(on) & {"cls.predictions.bias", "cls.seq_relationship.weight"}


def test_it_continues(
    tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(tuned("classify"), run)
    done = lambert("finetune", run / "config.toml", "--out", run)
    assert (done.code, done.err) == (0, "")
    assert "already" in done.out
    shutil.rmtree(run / "checkpoints" / max(path.name for path in (run / "checkpoints").iterdir()))
    shutil.rmtree(run / "model")
    assert lambert("finetune", run / "config.toml", "--out", run).code == 0
    assert scores(run) == scores(tuned("classify"))
    one_line(lambert("finetune", run / "config.toml", "--out", run, "--task.max-length", 32), 2, "task.max_length 64")


def test_the_default_length_adapts_to_the_encoder(
    pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    done = lambert("finetune", data=labelled("classify", "train"), init=pretrained, out=tmp_path, train__steps=1)
    assert done.code == 0, done.err
    chosen = "determined from the model and the data: task.max_length = 64"
    assert chosen in done.out
    assert (tmp_path / "log.txt").read_text().count(chosen) == 1
    assert json.loads((tmp_path / "model" / "config.json").read_text())["lambert"]["task"]["max_length"] == 64


@pytest.mark.parametrize(
    ("data", "dev", "change", "code", "parts"),
    [
        (
            "text\tlabel\nthe stone\ta\nthe river\tb\n",
            "text\tlabel\nthe bird\tc\n",
            {},
            3,
            ["dev.tsv:2", "'c'", "a, b"],
        ),
        ("text\tlabel\nthe stone\ta\nthe river\n", "", {}, 3, ["data.tsv:3", "has 1 cell where the first line has 2"]),
        ("text\tlabel\nthe stone\ta\tx\n", "", {}, 3, ["data.tsv:2", "has 3 cells where the first line has 2"]),
        ("text\tlable\nthe stone\ta\n", "", {}, 3, ["data.tsv:1", "task.columns.label", "Did you mean 'lable'?"]),
        (
            "sentence\tclass\nthe stone\ta\n",
            "",
            {},
            3,
            ["data.tsv:1: no columns 'text' (task.columns.text) and 'label' (task.columns.label).", "sentence, class."],
        ),
        ("text\tlabel\nthe stone\ta\nthe river\ta\n", "", {}, 3, ["data.tsv", "at least two labels"]),
        (
            "text\tlabel\nthe stone\t2\nthe river\t2\n",
            "",
            {"task__name": "regress"},
            3,
            ["data.tsv: every value (column 'label') is 2.", "at least two different ones"],
        ),
        ("text\tlabel\n", "", {}, 3, ["data.tsv", "no rows"]),
        (
            "text\tlabel\nthe stone\ta\nx\tb\n",
            "",
            {"task__max_length": 128},
            2,
            ["task.max_length = 128", "64 positions"],
        ),
        ("text\tlabel\nthe stone\ta\nx\tb\n", "", {"task__name": "clasify"}, 2, ["task.name", "classify"]),
        ("text\tlabel\nthe stone\ta\nx\tb\n", "", {"task__name": "mask"}, 2, ["only predicts"]),
        ("text\tlabel\nthe stone\ta\nx\tb\n", "", {"task__name": "regress"}, 3, ["data.tsv:2", "not a finite number"]),
        ("text\tlabel\nthe stone\ta\nx\tb\n", "", {"init": "nowhere"}, 3, ["No such model folder: nowhere"]),
        ("text\tlabel\nthe stone\ta\nx\tb\n", "", {"data": "nowhere.tsv"}, 3, ["nowhere.tsv"]),
    ],
)
def test_refused_before_the_first_update(
    data: str, dev: str, change: dict[str, object], code: int, parts: list[str], pretrained: Path, tmp_path: Path,
    lambert: Lambert,
) -> None:  # fmt: skip
    (tmp_path / "data.tsv").write_text(data)
    (tmp_path / "dev.tsv").write_text(dev)
    chosen = {"data": tmp_path / "data.tsv", "init": pretrained, "task__max_length": 64, "train__steps": 1, **change}
    if dev:
        chosen["dev"] = tmp_path / "dev.tsv"
    one_line(lambert("finetune", out=tmp_path / "run", **chosen), code, *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("init", ["run", "run/model"])
def test_the_run_in_init_is_no_place_for_another(init: str, tmp_path: Path, lambert: Lambert) -> None:
    called = lambert("finetune", init=tmp_path / init, data=tmp_path / "data.tsv", out=tmp_path / "run")
    one_line(called, 2, f"{tmp_path / 'run'} is the run given in init. Choose another --out.")


def test_another_family_is_refused_before_its_tokenizer_is_read(tmp_path: Path, lambert: Lambert) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    (tmp_path / "tokenizer.json").touch()
    called = lambert("finetune", init=tmp_path, data=tmp_path / "data.tsv", out=tmp_path / "run")
    one_line(called, 3, "has model_type = 'deberta-v2'", "Take a model of one of these families: bert,")


def test_what_is_left_open_is_found_recorded_and_found_again(
    pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(defaults, "LEAST_UPDATES", 12)
    flags = {"init": pretrained, "data": labelled("classify", "train"), "out": tmp_path / "run"}
    first = lambert("finetune", **flags)
    assert first.code == 0, first.err
    assert "task.max_length = 64, optim.lr = 0.001, train.steps = 12" in first.out
    config = settings.read(tmp_path / "run" / "config.toml")
    assert (config["task"]["max_length"], config["optim"]["lr"], config["train"]["steps"]) == (64, 1e-3, 12)
    assert (config["optim"]["name"], config["train"]["batch_size"]) == ("adamw", 32)
    kept = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert kept["lambert"]["task"]["max_length"] == 64
    again = lambert("finetune", **flags)
    assert "has all its 12 updates already" in again.out
    other = lambert("finetune", tmp_path / "run" / "config.toml", out=tmp_path / "other")
    assert other.code == 0, other.err
    ours, theirs = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "other"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_named_task_of_a_data_set_on_disk(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    """The run stores the ordinary task, and the same command continues it."""
    arrow = pytest.importorskip("pyarrow")
    rows = [{"sentence": "a good film", "label": 1, "idx": 0}, {"sentence": "bad", "label": 0, "idx": 1}] * 2
    table = arrow.Table.from_pylist(rows)
    for split in ("train", "validation"):
        (tmp_path / "sst2" / split).mkdir(parents=True)
        path = tmp_path / "sst2" / split / "data.arrow"
        with path.open("wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        (tmp_path / "sst2" / split / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (tmp_path / "sst2" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    flags = {"data": tmp_path / "sst2", "init": pretrained, "out": tmp_path / "run", "task__name": "glue/sst2"}
    flags |= {"train__steps": 1, "train__batch_size": 4, "train__keep_best": "accuracy", "train__evaluate_every": 1}
    done = lambert("finetune", **flags)
    assert done.code == 0, done.err
    assert next(iter(scores(tmp_path / "run"))) == "accuracy"
    stored = settings.read(tmp_path / "run" / "config.toml")
    assert stored["dev"] == str(tmp_path / "sst2" / "validation")
    assert (stored["task"]["name"], stored["task"]["labels"]) == ("classify", ["negative", "positive"])
    assert stored["task"]["columns"]["text"] == "sentence"
    assert "already" in lambert("finetune", **flags).out
    found = lambert("evaluate", model=tmp_path / "run", data=tmp_path / "sst2" / "validation")
    assert "\naccuracy " in found.out, "both splits have the same rows, of which a note says that they were trained on"
    one_line(lambert("evaluate", model=tmp_path / "run", data=tmp_path / "sst2"), 3, "has the splits train, validation")


@pytest.mark.parametrize("task", ["pair", "squad", "tag"])
def test_kept_features_change_no_result(
    task: str, tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    recipe, folder, found = tuned(task) / "config.toml", tmp_path / "kept", []
    for number, more in enumerate((["--cache", folder], ["--cache", folder], [])):
        out = tmp_path / str(number)
        done = lambert("finetune", recipe, "--out", out, "--train.steps", 5, "--train.evaluate-every", 2, *more)
        assert done.code == 0, done.err
        assert done.out.count(f"features are read from {folder}") == 2 * (number == 1)
        found.append(
            [(out / name).read_bytes() for name in ("model/model.safetensors", "scores.json", "examples.jsonl")]
        )
    assert found[0] == found[1] == found[2]
    assert (
        lambert("finetune", recipe, "--out", tmp_path / "0", "--train.steps", 5, "--train.evaluate-every", 2).code == 0
    )
    one_line(
        lambert("finetune", recipe, "--out", tmp_path / "x", "--cache", recipe),
        2,
        "cannot be written",
        "Choose another cache",
    )
