"""Every verb reads labels by their names, and training keeps a head by the names of its labels."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

import lambert as library

Lambert = Callable[..., Any]
Tuned = Callable[[str], Path]
Labelled = Callable[[str, str], Path]
KEPT = {"train__steps": 1, "optim__lr": 1e-9, "task__max_length": 64, "train__batch_size": 8, "train__threads": 1}


def foreign(run: Path, out: Path, names: Sequence[str]) -> Path:
    """The model of a run as another program writes it, whose labels have these names."""
    shutil.copytree(run / "model", out)
    settings = json.loads((out / "config.json").read_text())
    for key in ("lambert", "label2id"):
        settings.pop(key)
    settings["id2label"] = {str(number): name for number, name in enumerate(names)}
    (out / "config.json").write_text(json.dumps(settings))
    (out / "SHA256SUMS").unlink()
    return out


def numbered(path: Path, out: Path, order: Sequence[str]) -> Path:
    """The table with numbers instead of its labels."""
    head, *rows = [line.split("\t") for line in path.read_text().splitlines()]
    lines = ["\t".join(head), *(f"{text}\t{order.index(label)}" for text, label in rows)]
    out.write_text("\n".join(lines) + "\n")
    return out


def test_numbers_of_a_foreign_model(tuned: Tuned, labelled: Labelled, tmp_path: Path, lambert: Lambert) -> None:
    dev, run = labelled("classify", "dev"), tuned("classify")
    right = json.loads(lambert("evaluate", model=run, data=dev, json=True).out)["accuracy"]
    assert right > 0.9
    model = foreign(run, tmp_path / "named", ("LAND", "Water"))
    said = lambert("evaluate", model=model, data=dev).out
    assert f"note: {dev}: labels are matched without regard to case: " in said
    other = numbered(dev, tmp_path / "x.tsv", ("water", "land"))
    found = json.loads(lambert("evaluate", model=model, data=other, json=True).out)
    assert found["accuracy"] == pytest.approx(1 - right)
    order = "label numbers are read in the order of the model's labels: 0 = LAND, 1 = Water"
    assert order in found["notes"][0]
    assert order in lambert("evaluate", model=model, data=other).out
    found = json.loads(
        lambert("evaluate", "--columns.label-names", "Water", "LAND", model=model, data=other, json=True).out
    )
    assert (found["accuracy"], "notes" in found) == (right, False)
    with pytest.warns(UserWarning, match=order):
        assert library.load(model).evaluate(other)["accuracy"] == pytest.approx(1 - right)
    assert order in library.evaluate(model=model, data=other).notes[0]
    unnamed = foreign(run, tmp_path / "unnamed", ("LABEL_0", "LABEL_1"))
    same = numbered(dev, tmp_path / "y.tsv", ("land", "water"))
    found = json.loads(lambert("evaluate", model=unnamed, data=same, json=True).out)
    assert (found["accuracy"], "notes" in found) == (right, False)
    one_line(lambert("evaluate", model=unnamed, data=same, task="tag"), 3, "its head predicts classes of texts")
    settings = json.loads((unnamed / "config.json").read_text())
    (unnamed / "config.json").write_text(json.dumps(settings | {"id2label": {"0": "a"}, "num_labels": 3}))
    for verb, flags in (("predict", {}), ("export", {"out": tmp_path / "o"}), ("evaluate", {"data": same})):
        one_line(
            lambert(verb, model=unnamed, **flags), 3, "describes 3 labels (id2label, num_labels), and the head has 2"
        )
    settings = json.loads((model / "config.json").read_text())
    ours = json.loads((run / "model" / "config.json").read_text())["lambert"]
    (model / "config.json").write_text(json.dumps(settings | {"lambert": ours}))
    one_line(lambert("predict", model=model), 3, "names other labels in id2label than in lambert.task.labels")


def test_numbers_of_a_data_set(tuned: Tuned, labelled: Labelled, tmp_path: Path, lambert: Lambert) -> None:
    """SST-2 says that 0 is negative; the model has the labels in the other order, in capitals."""
    run = tuned("classify")
    model = foreign(run, tmp_path / "model", ("POSITIVE", "NEGATIVE"))
    text = numbered(labelled("classify", "dev"), tmp_path / "x.tsv", ("water", "land")).read_text()
    (tmp_path / "x.tsv").write_text(text.replace("text", "sentence", 1))
    found = json.loads(lambert("evaluate", model=model, data=tmp_path / "x.tsv", task="glue/sst2", json=True).out)
    assert found["accuracy"] > 0.9
    assert "negative (0) = NEGATIVE" in found["notes"][0]


@pytest.mark.parametrize(
    ("task", "order"),
    [("classify", ("water", "land")), ("multilabel", ("water", "road", "land")), ("tag", ("thing", "O", "name"))],
)
def test_a_head_is_kept_in_another_order(
    task: str, order: Sequence[str], tuned: Tuned, labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    data, run = labelled(task, "dev"), tuned(task)
    before = json.loads((run / "scores.json").read_text())
    flags = {"data": data, "dev": data, "init": run, "task__name": task, **KEPT}
    done = lambert("finetune", "--task.labels", *order, out=tmp_path / "a", **flags)
    after = json.loads((tmp_path / "a" / "scores.json").read_text())
    name = next(iter(before))
    assert after[name] == pytest.approx(before[name])
    assert f"note: the head of {run / 'model'} is kept for the labels {', '.join(order)}; its rows are in" in done.out
    assert done.out.splitlines()[0] in (tmp_path / "a" / "log.txt").read_text()
    again = lambert("finetune", "--task.labels", "new", *order, out=tmp_path / "b", **flags)
    assert "it starts with random weights for new" in again.out


def test_dev_numbers_without_an_order_are_refused(
    tuned: Tuned, labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    data = labelled("classify", "train")
    dev = numbered(labelled("classify", "dev"), tmp_path / "dev.tsv", ("water", "land"))
    flags = {"data": data, "dev": dev, "init": tuned("classify"), **KEPT}
    done = lambert("finetune", out=tmp_path / "a", **flags)
    one_line(done, 3, f"{dev}: the labels are numbers, and those of {data} are names: land, water.")
    assert not (tmp_path / "a").exists()
    done = lambert("finetune", "--task.labels", "water", "land", out=tmp_path / "b", **flags)
    assert json.loads((tmp_path / "b" / "scores.json").read_text())["accuracy"] > 0.9
    numbers = json.loads(lambert("evaluate", model=tmp_path / "b", data=dev, json=True).out)
    assert (numbers["accuracy"] > 0.9, "notes" in numbers) == (True, False)  # the model folder keeps what was stated
