"""`lambert compare`: what it says about runs, seeds and files, and what it refuses."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line

import lambert as library
from lambert.tasks.scores import examples
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.formulas import Formula
from lambert.verbs.compare import _value

Lambert = Callable[..., Any]
FORMULAS = {"accuracy": Formula("mean", ("correct",)), "loss": Formula("mean", ("loss",), lower_is_better=True)}


def written(path: Path, right: Sequence[bool], **more: Any) -> Path:
    rows = [
        {"text": "x", "tokens": 3, "truth": "a", "prediction": "ba"[yes], "correct": int(yes), "loss": 1.0 - yes / 2}
        for yes in right
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"task": "classify", "data": "dev.tsv", "data_sha256": "0" * 64} | more
    return examples.write(path, Examples(rows, more.pop("formulas", FORMULAS), **kept))


def shares(*shares: float, size: int = 400, seed: int = 0) -> list[list[bool]]:
    draws = np.random.default_rng(seed).random(size)
    return [(draws < share).tolist() for share in shares]


def test_a_better_system_is_named_with_its_interval(tmp_path: Path, lambert: Lambert) -> None:
    right, better = shares(0.6, 0.7)
    first, second = written(tmp_path / "a.jsonl", right), written(tmp_path / "b.jsonl", better)
    done = lambert("compare", first, second)
    assert (done.code, done.err) == (0, "")
    gain = np.mean(better) - np.mean(right)
    assert f"B is better in accuracy by {gain:.4f} (" in done.out
    only = sum(b and not a for a, b in zip(right, better, strict=True))
    assert f"McNemar's exact test, accuracy: only A correct 0, only B correct {only}, p < 0.001" in done.out
    assert "Without several seeds of A, B" in done.out
    turned = lambert("compare", second, first, "--json")
    found = json.loads(turned.out)
    (pair,) = found["comparisons"]
    assert pair["verdict"].startswith(f"A is better in accuracy by {gain:.4f} (")
    assert pair["scores"]["accuracy"]["difference"] == pytest.approx(-gain)
    assert pair["scores"]["loss"]["difference"] == pytest.approx(gain / 2)
    assert pair["scores"]["accuracy"]["p"] == pair["scores"]["accuracy"]["p_holm"] < 0.05
    assert found == library.compare(second, first)


def test_without_a_difference_the_smallest_visible_one_is_named(tmp_path: Path, lambert: Lambert) -> None:
    rows = [shares(0.6, seed=1)[0], shares(0.6, seed=2)[0]]
    files = [written(tmp_path / f"{number}.jsonl", right) for number, right in enumerate(rows)]
    found = json.loads(lambert("compare", *files, "--json").out)["comparisons"][0]
    gains = np.subtract(rows[1], rows[0], dtype=float)
    seen = 2.8016 * gains.std() / 20
    assert found["scores"]["accuracy"]["detectable"] == pytest.approx(seen, rel=0.05)
    assert found["verdict"].startswith("No difference in accuracy is shown: the interval contains 0. With these")
    same = json.loads(lambert("compare", files[0], files[0], "--json").out)["comparisons"][0]
    assert same["verdict"] == "No difference in accuracy is shown: the scores are equal in every resample."


def test_several_comparisons_are_corrected(tmp_path: Path, lambert: Lambert) -> None:
    files = [written(tmp_path / f"{n}.jsonl", right) for n, right in enumerate(shares(0.6, 0.61, 0.62, 0.63))]
    shown = lambert("compare", *files).out
    assert shown.count(" against A") == 3
    assert "corrected for the 3 comparisons" in shown
    pairs = json.loads(lambert("compare", *files, "--json").out)["comparisons"]
    values = [pair["scores"]["accuracy"]["p"] for pair in pairs]
    largest = max(values)
    corrected = {pair["scores"]["accuracy"]["p"]: pair["scores"]["accuracy"]["p_holm"] for pair in pairs}
    assert corrected[min(values)] == pytest.approx(min(1.0, 3 * min(values)))
    assert corrected[largest] >= largest


def test_seeds_of_a_folder_and_their_recipes(tmp_path: Path, lambert: Lambert) -> None:
    for side, rate in (("a", 0.001), ("b", 0.002)):
        for seed, right in enumerate(shares(0.6, 0.62, 0.58), 8):  # seed-10 comes after seed-9
            out = tmp_path / side / f"seed-{seed}"
            written(out / "examples.jsonl", right)
            (out / "config.toml").write_text(f"seed = {seed}\nout = '{out}'\n[optim]\nlr = {rate}\n")
    found = json.loads(lambert("compare", tmp_path / "a", tmp_path / "b", "--json").out)
    assert [one["seeds"] for one in found["systems"]] == [3, 3]
    (pair,) = found["comparisons"]
    assert pair["settings"] == {"optim.lr": [0.001, 0.002]}
    assert pair["mcnemar"] == {}
    accuracy = pair["scores"]["accuracy"]
    assert accuracy["low"] < accuracy["difference"] == 0.0 < accuracy["high"]
    shown = lambert("compare", tmp_path / "a", tmp_path / "b").out
    assert "settings that differ: optim.lr 0.001 -> 0.002" in shown
    assert "Without several seeds" not in shown


@pytest.mark.parametrize(
    ("value", "text"), [(None, "not set"), ("", "not set"), (0, "0"), (False, "False"), ("f1", "f1")]
)
def test_settings_that_are_not_set_are_visible(value: Any, text: str) -> None:
    assert _value(value) == text


def test_runs_of_finetune(tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert) -> None:
    shutil.copytree(tuned("tag"), tmp_path / "other", ignore=shutil.ignore_patterns("checkpoints", "model"))
    found = library.compare(tuned("tag"), tmp_path / "other")
    assert found["comparisons"][0]["scores"]["f1"]["difference"] == 0.0
    assert found["task"] == "tag"
    other = written(tmp_path / "classify.jsonl", [True])
    one_line(lambert("compare", tuned("tag"), other), 3, "'tag'", "'classify'")


@pytest.mark.parametrize("task", ["classify", "pair", "regress", "squad", "tag"])
def test_predictions_of_another_system(
    task: str, tuned: Callable[[str], Path], labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """A run differs in nothing from its own predictions, in no form in which they are written."""
    run, gold = tuned(task), labelled(task, "dev")
    endings = {"squad": ["json"], "tag": ["jsonl"]}.get(task, ["jsonl", "tsv"])
    for ending in endings:
        path = tmp_path / f"predictions.{ending}"
        assert lambert("evaluate", model=run, data=gold, predictions=path).code == 0
        (pair,) = library.compare(run, path, gold=gold)["comparisons"]
        names = {*json.loads((run / "examples.jsonl").read_text().partition("\n")[0])["scores"]} - {"loss"}
        assert {*pair["scores"]} == names
        assert all(abs(found["difference"]) < 1e-9 for found in pair["scores"].values())
        assert all(test["only_first"] == test["only_second"] == 0 for test in pair["mcnemar"].values())
    if task in ("squad", "tag"):
        shown = lambert("compare", path, path, "--gold", gold)
        assert (shown.code, f"task {task}" in shown.out) == ((0, True) if task == "squad" else (2, False))
    else:
        one_line(lambert("compare", path, path, "--gold", gold), 2, "name also a run")
    one_line(lambert("compare", run, path), 3, "name the labelled file as --gold")


def test_predictions_in_another_order_and_for_another_file(
    tuned: Callable[[str], Path], labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    run, gold, path = tuned("classify"), labelled("classify", "dev"), tmp_path / "predictions.tsv"
    truth = [json.loads(line)["truth"] for line in (run / "examples.jsonl").read_text().splitlines()[1:]]
    rows = [f"{number}\t{label}\n" for number, label in enumerate(truth)]
    path.write_text("index\tprediction\n" + "".join(rows[::-1]))
    (pair,) = library.compare(run, path, gold=gold)["comparisons"]
    assert pair["scores"]["accuracy"]["second"] == 1.0
    other = labelled("classify", "train")
    one_line(lambert("compare", run, path, "--gold", other), 3, "was scored on", "name the same file as --gold")
    path.write_text("".join(rows[1:]))
    one_line(lambert("compare", path, run, "--gold", gold), 3, "no prediction for the id '0'", "Each example needs one")


def test_labels_in_another_order_are_compared_by_name(tmp_path: Path, lambert: Lambert) -> None:
    files = []
    for name, truth in (("a", ["joy", "fear"]), ("b", ["fear", "joy"])):
        row = {"text": "x", "truth": truth, "prediction": ["joy"], "correct": 0}
        row |= {"labels_correct": 1, "labels_true": 2, "labels_predicted": 1}
        formulas = {"f1_micro": Formula("f1_of_sums", ("labels_correct", "labels_true", "labels_predicted"))}
        files.append(examples.write(tmp_path / name, Examples([row] * 3, formulas, "multilabel", "dev", "0")))
    assert library.compare(*files)["comparisons"][0]["scores"]["f1_micro"]["difference"] == 0.0
    files[1].write_text(files[1].read_text().replace('"truth": ["fear", "joy"]', '"truth": ["fear", "hope"]'))
    one_line(lambert("compare", *files), 3, "has different labels")


def test_what_is_refused(tmp_path: Path, lambert: Lambert) -> None:
    fine = written(tmp_path / "fine.jsonl", [True, False])
    one_line(lambert("compare", fine), 2, "two runs or more")
    one_line(lambert("compare"), 2, "compare requires a RUN folder")
    other = written(tmp_path / "other.jsonl", [True, False], data="test.tsv", data_sha256="1" * 64)
    one_line(
        lambert("compare", fine, other), 3, "dev.tsv (SHA-256 000000000000)", "test.tsv (111111111111)", "evaluate"
    )
    one_line(lambert("compare", fine, written(tmp_path / "long.jsonl", [True] * 3)), 3, "has 2 scored", "has 3")
    one_line(lambert("compare", fine, tmp_path / "nowhere"), 3, "nowhere does not exist")
    one_line(lambert("compare", fine, tmp_path), 3, "is neither a run folder")
    changed = tmp_path / "truth.jsonl"
    changed.write_text(fine.read_text().replace('"truth": "a", "prediction": "b"', '"truth": "c", "prediction": "b"'))
    one_line(lambert("compare", fine, changed), 3, "Example 2 of dev.tsv has different labels")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("seed = 1\n")
    one_line(lambert("compare", fine, run), 3, "is not finished")
    (run / "model").mkdir()
    one_line(lambert("compare", fine, run), 3, "no examples.jsonl", "lambert evaluate --model", "--examples")
    shutil.move(run, tmp_path / "seeds" / "seed-1")
    one_line(lambert("compare", fine, tmp_path / "seeds"), 3, "seed-1 has no examples.jsonl")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda text: "", "not a file of scored examples"),
        (lambda text: "{", "name the labelled file as --gold"),
        (lambda text: text + "{", "not JSON lines"),
        (lambda text: '{"a": 1}\n', "not a file of scored examples"),
        (lambda text: text.replace(": 1,", ": 7,", 1), "format 7"),
        (lambda text: text.rpartition("{")[0], "its first line says 2"),
        (lambda text: text.replace('"mean"', '"sum"', 1), "'sum' is unknown"),
        (lambda text: text.replace('"correct": 1', '"right": 1'), "'correct' is missing"),
        (lambda text: text.replace('"correct": 1', '"correct": null'), "not a finite number"),
        (lambda text: text.replace('"correct": 1', '"correct": "x"'), "not a number"),
        (lambda text: text.replace('"kind"', '"kinds"', 1), "kinds is unknown"),
        (lambda text: text.replace('{"text"', '[{"text"').replace("}\n", "}]\n"), "JSON"),
    ],
)
def test_a_damaged_file_is_one_line(change: Any, part: str, tmp_path: Path, lambert: Lambert) -> None:
    fine = written(tmp_path / "fine.jsonl", [True, False])
    bad = tmp_path / "bad.jsonl"
    bad.write_text(change(fine.read_text()))
    one_line(lambert("compare", fine, bad), 3, str(bad), part)
