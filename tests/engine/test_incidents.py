import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lambert.core.batch import Ints
from lambert.core.world import World
from lambert.engine import guard
from lambert.engine.guard import Incidents


def samples(update: int) -> tuple[Ints, Ints]:
    """Three sequences an update, the last of update 1 from the next epoch."""
    return np.array([0, 0, update]), np.array([7, update, 9])


def step(index: int = 2, **values: Any) -> Any:
    return SimpleNamespace(
        **{"index": index, "loss": 9.0, "grad_norm": 3.0, "non_finite": None, "faults": {}, **values}
    )


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "incidents.jsonl").read_text().splitlines()]


def test_a_row_holds_the_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Incidents(tmp_path, samples, World(size=2))
    with caplog.at_level(logging.INFO):
        found.add(step(2), "spike")
        bad = step(1, loss=math.nan, grad_norm=math.inf, non_finite="dense.weight", faults={1: "dense.weight"})
        found.add(bad, "skipped")
    first, second = rows(tmp_path)
    assert first.pop("time") > 0
    assert first == {
        "step": 2, "what": "spike", "loss": 9.0, "grad_norm": 3.0, "parameter": None, "ranks": [],
        "sequences": [3, 5], "samples": [[0, [7, 1]], [1, [9]]],
    }  # fmt: skip
    assert (second["loss"], second["grad_norm"]) == (None, None)
    assert (second["parameter"], second["ranks"]) == ("dense.weight", [1])
    assert second["samples"] == [[0, [7, 0, 9]]]
    assert [record.getMessage() for record in caplog.records] == [
        "update 1 skipped: its gradient is not finite, first in dense.weight, on rank 1"
    ]


def test_it_is_bounded_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "MAX_ROWS", 4)
    for begun in (1, 4):  # a run, and the same continued
        found = Incidents(tmp_path, samples, World())
        for index in range(begun, begun + 3):
            found.add(step(index), "spike")
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]
    assert caplog.text.count("is full") == 1


def test_a_torn_row_stays_alone(tmp_path: Path) -> None:
    (tmp_path / "incidents.jsonl").write_text('{"step": 1}\n{"st')
    Incidents(tmp_path, samples, World()).add(step(3), "spike")
    lines = (tmp_path / "incidents.jsonl").read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"st']
    assert json.loads(lines[2])["step"] == 3


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    Incidents(tmp_path, samples, World(rank=1, size=2)).add(step(), "spike")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_ends_the_file_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Incidents(tmp_path / "absent", samples, World())
    found.add(step(), "spike")
    found.add(step(), "spike")
    assert caplog.text.count("cannot be written") == 1
