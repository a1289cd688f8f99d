"""JSON lines in, JSON lines out."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line

from lambert import cli
from lambert.verbs import predict

Lambert = Callable[..., Any]
Labelled = Callable[[str, str], Path]


def rows_of(task: str, path: Path) -> list[dict[str, Any]]:
    """The rows of a labelled file as a user would ask them, without labels."""
    if task == "squad":
        paragraphs = json.loads(path.read_text())["data"][0]["paragraphs"]
        return [{"question": q["question"], "context": p["context"]} for p in paragraphs for q in p["qas"]]
    if task == "tag":
        return [{"tokens": json.loads(line)["tokens"]} for line in path.read_text().splitlines()]
    names, *lines = (line.split("\t") for line in path.read_text().splitlines())
    return [{name: cell for name, cell in zip(names, line, strict=True) if name != "label"} for line in lines]


def answers(called: Any) -> list[dict[str, Any]]:
    assert (called.code, called.err) == (0, "")
    return [json.loads(line) for line in called.out.splitlines()]


@pytest.mark.parametrize("task", ["classify", "pair", "regress", "squad", "tag"])
def test_answers_are_those_of_evaluate_in_order(
    task: str, tuned: Callable[[str], Path], labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    data, path = labelled(task, "dev"), tmp_path / "predictions.json"
    assert lambert("evaluate", model=tuned(task), data=data, predictions=path).code == 0
    lines = [json.dumps({"id": f"n{number}", **row}) + "\n" for number, row in enumerate(rows_of(task, data))]
    found = answers(lambert("predict", model=tuned(task), chunk=5, stdin="\n".join(lines)))
    assert [answer.pop("id") for answer in found] == [f"n{number}" for number in range(len(lines))]
    if task == "squad":
        assert [answer["answer"] for answer in found] == list(json.loads(path.read_text()).values())
        return
    expected = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            assert ours[key] == (pytest.approx(value, abs=1e-5) if isinstance(value, float | dict) else value)


@pytest.mark.parametrize("where", ["run", "model"])
def test_a_pretrained_model_fills_masks(where: str, pretrained: Path, lambert: Lambert) -> None:
    model = pretrained if where == "run" else pretrained / "model"
    text = json.dumps({"text": "the [MASK] found a [MASK] ."})
    (answer,) = answers(lambert("predict", model=model, stdin=text))
    assert [len(candidates) for candidates in answer["masks"]] == [5, 5]
    for candidates in answer["masks"]:
        chances = [candidate["probability"] for candidate in candidates]
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(chances) < 1


def test_a_table_with_another_column_of_texts(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    table = tmp_path / "new.csv"
    table.write_text("id,message\n7,the [MASK] found a stone\n")
    given = {"model": pretrained, "input": table}
    done = lambert("predict", **given, columns__text="message")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["masks"]) == 1
    one_line(lambert("predict", **given), 3, "no column 'text'", "Columns found: id, message.")
    table.write_text("id^message\n7^the [MASK] found a stone\n")
    one_line(lambert("predict", **given), 3, "Columns found: id^message; cells are separated by commas")


def test_vectors_of_a_pretrained_model(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    texts = tmp_path / "new.csv"
    texts.write_text("text\nthe king found a stone\n")
    given = {"model": pretrained, "input": texts, "out": tmp_path / "vectors.npy"}
    one_line(lambert("predict", **given), 2, "the task 'mask' has none: add --task embed.")
    assert not (tmp_path / "vectors.npy").exists()
    assert lambert("predict", **given, task="embed").code == 0
    assert np.load(tmp_path / "vectors.npy").shape == (1, 32)


def test_long_texts_are_cut_to_the_models_positions(pretrained: Path, lambert: Lambert) -> None:
    text = json.dumps({"text": "the [MASK] " + "found a stone " * 100})
    assert len(answers(lambert("predict", model=pretrained, stdin=text))) == 1


def test_no_lines_no_answers(tuned: Callable[[str], Path], lambert: Lambert) -> None:
    assert answers(lambert("predict", model=tuned("classify"), stdin="\n \n")) == []


BAD = pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("not json", "line 4 is not JSON"),
        ('["text"]', "line 4 is not a JSON object"),
        ('{"txt": "a"}', "line 4: 'text' is missing"),
        ('{"text": 3}', "line 4: 'text' holds 3, not text"),
        ('{"text": null}', "line 4: 'text' is null, not a text. Keys found: text."),
        ('{"text": "\\ud800"}', "line 4"),
    ],
)
GOOD = '{"text": "the king found a river", "id": %d}'


@BAD
def test_a_bad_line_is_one_error_in_its_place(
    bad: str, said: str, tuned: Callable[[str], Path], lambert: Lambert
) -> None:
    stdin = "\n".join([GOOD % 1, GOOD % 2, "", bad, GOOD % 3])
    ended = lambert("predict", model=tuned("classify"), chunk=2, stdin=stdin)
    one_line(ended, 3, f"1 of 4 rows has an error, which stands in place of a prediction; it is: {said}")
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert [row.get("id") for row in rows] == [1, 2, None, 3]
    assert [*rows[2]] == ["error"]
    assert rows[2]["error"].startswith(said)
    assert rows[1]["label"] == rows[3]["label"] == rows[0]["label"]


@BAD
def test_a_bad_line_ends_it_after_the_answers_before(
    bad: str, said: str, tuned: Callable[[str], Path], lambert: Lambert
) -> None:
    stdin = "\n".join([GOOD % 1, GOOD % 2, "", bad, GOOD % 3])
    ended = lambert("predict", model=tuned("classify"), chunk=2, errors="stop", stdin=stdin)
    one_line(ended, 3, said)
    assert [json.loads(line)["id"] for line in ended.out.splitlines()] == [1, 2]


@pytest.mark.parametrize("task", ["classify", "tag", "squad"])
@pytest.mark.parametrize("many", [1, 12])
def test_the_answers_beside_bad_rows_are_those_without_them(
    task: str, many: int, tuned: Callable[[str], Path], labelled: Labelled, lambert: Lambert
) -> None:
    rows = [{"id": number, **row} for number, row in enumerate(rows_of(task, labelled(task, "dev")))]
    expected = answers(lambert("predict", model=tuned(task), stdin="".join(json.dumps(row) + "\n" for row in rows)))
    lines = [json.dumps(row) for row in rows]
    for number in range(many):
        lines.insert(2 * number + 1, json.dumps({"id": f"bad {number}", "something": 3}))
    ended = lambert("predict", model=tuned(task), chunk=len(lines), stdin="\n".join(lines))
    one_line(ended, 3, f"{many} of {len(lines)} rows ha", "line 2: ")
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert [row["id"] for row in found] == [json.loads(line)["id"] for line in lines]
    wrong = [row for row in found if "error" in row]
    assert [row["id"] for row in wrong] == [f"bad {number}" for number in range(many)]
    assert [row["error"].partition(":")[0] for row in wrong] == [f"line {2 * number + 2}" for number in range(many)]
    for ours, theirs in zip([row for row in found if "error" not in row], expected, strict=True):
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            assert ours[key] == (pytest.approx(value, abs=1e-5) if isinstance(value, float | dict) else value)


def test_an_id_that_utf8_does_not_have_is_escaped(tuned: Callable[[str], Path], lambert: Lambert) -> None:
    (answer,) = answers(lambert("predict", model=tuned("classify"), stdin=r'{"id": "\ud800", "text": "a river"}'))
    assert answer["id"] == "\ud800"


def test_answers_come_before_the_input_ends(
    tuned: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    class Lines(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            if len(seen) == 4:
                return 0
            seen.append(len(capsys.readouterr().out.splitlines()))
            line = json.dumps({"text": "the bird found a garden", "id": len(seen)}).encode() + b"\n"
            buffer[: len(line)] = line
            return len(line)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Lines())))
    predict.run(predict.PredictConfig(tuned("classify"), chunk=1), say=print)
    assert seen == [0, 1, 1, 1]


def test_bytes_that_are_no_text(
    tuned: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b'{"text": "\xff"}\n'), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stream)
    with pytest.raises(SystemExit) as left:
        cli.main(["predict", "--model", str(tuned("classify"))])
    assert left.value.code == 3
    assert "not UTF-8" in capsys.readouterr().err


def test_lines_that_a_crash_took_along_are_not_passed_over(
    tuned: Callable[[str], Path], lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    refused = lambert("predict", model=tuned("classify"), stdin='{"text": "the river"}')
    assert (refused.code, refused.out, refused.err.count("\n")) == (3, "", 1)
    assert "with the lines that have no prediction" in refused.err


def test_settings_that_cannot_be(tuned: Callable[[str], Path], lambert: Lambert) -> None:
    assert "chunk = 0" in lambert("predict", model=tuned("classify"), chunk=0).err
    assert lambert("predict", model="nowhere").code == 3
    assert "No such model folder: nowhere" in lambert("predict", model="nowhere").err
    one_line(
        lambert("predict", model=tuned("classify"), out="v.npy"), 2, "'classify' has none: write .jsonl or .parquet."
    )
    wrong = lambert("predict", model=tuned("classify"), task="tag")
    assert wrong.code == 2
    assert "'classify'" in wrong.err
