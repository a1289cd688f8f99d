"""The section about a sweep."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from run_folders import Outline

from lambert.core.errors import DataError
from lambert.verbs.report import ReportConfig, run, sweep


def trial(number: int, value: float | None, state: str = "complete", **values: Any) -> dict[str, Any]:
    return {
        "number": number, "state": state, "value": value, "values": values, "deviation": 0.01, "note": "",
        "seconds": 60.0, "updates": 5,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        trial(0, 0.5, **{"optim.lr": 1e-5, "optim.name": "lamb"}),
        trial(1, 0.9, **{"optim.lr": 1e-3, "optim.name": "adamw"}),
        trial(2, None, "failed", **{"optim.lr": 1e-2, "optim.name": "<b>"}),
        trial(3, 0.7, **{"optim.lr": 1e-4, "optim.name": "adamw"}),
    ]
    space = {"optim.lr": {"log": True, "choices": []}, "optim.name": {"log": False, "choices": ["adamw", "lamb"]}}
    content = {
        "metric": "accuracy", "direction": "maximize", "verdict": "trial 1 is ahead of trial 3.", "space": space,
        "importances": {"optim.lr": 0.9, "optim.name": 0.1}, "trials": rows,
    }  # fmt: skip
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    return tmp_path


def test_the_page_has_trials_importances_and_charts(folder: Path) -> None:
    page = run(ReportConfig((folder,))).read_text()
    assert page.count("<svg") == 2
    assert "trial 1 is ahead of trial 3." in page
    assert "90%" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$\\frac$", "$x$", "{{ 7 * 7 }}", "]]>", "&lt;"])
def test_a_sweep_of_hostile_names_is_text_on_the_page(name: str, tmp_path: Path) -> None:
    rows = [trial(0, 0.5, **{name: "a", "other": name}), trial(1, 0.7, **{name: "b", "other": "c"})]
    for one in rows:
        one["note"] = one["state"] if one["number"] else name
    content = {
        "metric": name, "direction": "maximize", "verdict": name, "trials": rows, "importances": {name: 1.0},
        "space": {name: {"choices": ["a", "b"]}, "other": {"choices": [name, "c"]}},
    }  # fmt: skip
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    page = Outline(run(ReportConfig((tmp_path,))).read_text())
    assert "script" not in page.tags
    assert page.tags.count("svg") == 2
    assert page.text.count(name) >= 6
    assert "http" not in "".join(page.links)


def test_trials_are_ranked(folder: Path) -> None:
    table = sweep.read(folder, "s").trials
    assert [row[0] for row in table["rows"]] == ["1", "3", "0", "2"]
    path = folder / "sweep.json"
    path.write_text(path.read_text().replace("maximize", "minimize"))
    assert [row[0] for row in sweep.read(folder, "s").trials["rows"]] == ["0", "3", "1", "2"]


def test_places_on_an_axis() -> None:
    places, ends = sweep._places([1e-5, 1e-4, 1e-3], {"log": True})
    assert places == pytest.approx([0.0, 0.5, 1.0])
    assert ends == ("1.0e-05", "1.0e-03")
    assert sweep._places([8, 16, 32], {})[0] == pytest.approx([0.0, 8 / 24, 1.0])
    assert sweep._places(["lamb", "adamw", "lamb"], {})[0] == [1.0, 0.0, 1.0]
    assert sweep._places([3, 3], {})[0] == [0.5, 0.5]


@pytest.mark.parametrize("text", ["{", "[]", '{"trials": 3}', json.dumps({"trials": [{"value": math.pi}]})])
def test_a_damaged_file_is_one_line(text: str, folder: Path) -> None:
    (folder / "sweep.json").write_text(text)
    with pytest.raises(DataError, match="is damaged"):
        run(ReportConfig((folder,)))
