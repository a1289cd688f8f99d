import json
import logging
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lambert.core.errors import MachineError
from lambert.core.world import World
from lambert.engine.log import RunLog


class FakeStep(SimpleNamespace):
    def due(self, every: int) -> bool:
        return every > 0 and self.index % every == 0


def step(index: int, loss: float = 2.0) -> Any:
    return FakeStep(
        index=index,
        losses={"mlm": loss - 0.5, "nsp": 0.5},
        loss=loss,
        lr=0.001,
        grad_norm=1.5,
        tokens=1000,
        sequences=10,
        seconds=0.5,
        wait_seconds=0.05,
        skipped=index == 3,
        imbalance=1.0,
        exchange_seconds=(0.0, 0.0),
    )


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def logged(run: Path, first: int, last: int, **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"steps": 10, "start": first - 1, "every": 2, "quiet": True}
    with RunLog(run, **(settings | options)) as log:
        for index in range(first, last + 1):
            log.step(step(index), flops=1e9)
            if index == 4:
                log.scores(index, {"mlm": 3.25, "nsp_accuracy": 0.5})
        return log.state()


def test_the_cost_goes_on_where_the_run_was_even_if_rows_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 3_600_000, 3600))  # an hour between any two looks
    monkeypatch.setattr("lambert.engine.log.time.monotonic", lambda: float(next(clock)))
    logged(tmp_path, 1, 4, price=1.5)
    costs = [row["cost"] for row in rows(tmp_path)]
    assert costs == sorted(costs)
    assert costs[0] > 0
    assert all(cost % 1.5 == 0 for cost in costs)
    assert f"cost so far: {costs[-1] + 1.5:,.2f}" in (tmp_path / "log.txt").read_text()
    logged(tmp_path, 3, 4, price=3.0)  # row 4 is written again, and the first time has been paid
    again = [row["cost"] for row in rows(tmp_path)]
    assert again[0] == costs[0]
    assert again[1] >= costs[-1] + 3.0
    assert (again[1] - costs[-1]) % 3 == 0


def test_a_row_has_what_is_measured_for_it(tmp_path: Path) -> None:
    counts = iter(range(10))
    logged(tmp_path, 1, 4, measure=lambda: {"trust/blocks_min": next(counts)})
    assert [row.get("trust/blocks_min") for row in rows(tmp_path)] == [0, 1, None]
    assert not any("cost" in row for row in rows(tmp_path))


def test_no_scores_leave_no_row(tmp_path: Path) -> None:
    with RunLog(tmp_path, steps=2, quiet=True) as log:
        log.scores(1, {})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_row_says_what_the_design_promises(tmp_path: Path) -> None:
    logged(tmp_path, 1, 4, peak_flops=1e10)
    first, second, scores = rows(tmp_path)
    assert first["step"] == 2
    assert second == {
        "step": 4,
        "time": second["time"],
        "sequences": 40,
        "tokens": 4000,
        "skipped": 1,
        "loss": 2.0,
        "loss/mlm": 1.5,
        "loss/nsp": 0.5,
        "lr": 0.001,
        "grad_norm": 1.5,
        "sequences_per_second": 20.0,
        "tokens_per_second": 2000.0,
        "utilisation": pytest.approx(0.2),
        "ceiling_gflops": 10.0,
        "wait_share": pytest.approx(0.1),
        "memory_mb": second["memory_mb"],
        "checkpoint_pause_seconds": 0.0,
    }
    assert 10 < second["memory_mb"] < 1_000_000
    assert scores == {"step": 4, "heldout/mlm": 3.25, "heldout/nsp_accuracy": 0.5}


def test_pauses_count_for_the_row_after(tmp_path: Path) -> None:
    with RunLog(tmp_path, steps=3, every=1, quiet=True) as log:
        log.step(step(1, 2.0))
        log.add_pause(0.25)
        log.add_pause(0.5)
        log.step(step(2, 2.0))
        log.step(step(3, 2.0))
    assert [row["checkpoint_pause_seconds"] for row in rows(tmp_path)] == [0.0, 0.75, 0.0]


def test_values_that_are_not_finite_or_not_known_are_null(tmp_path: Path) -> None:
    with RunLog(tmp_path, steps=2, every=1, quiet=True) as log:
        log.step(step(1, math.nan))
    (row,) = rows(tmp_path)
    assert row["loss"] is None
    assert row["utilisation"] is None


def test_a_continued_log_is_the_log_of_a_straight_run(tmp_path: Path) -> None:
    logged(tmp_path / "straight", 1, 10)
    state = logged(tmp_path / "resumed", 1, 5)
    logged(tmp_path / "resumed", 6, 9, state=state)
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "lo')
    logged(tmp_path / "resumed", 6, 10, state=state)
    straight, resumed = rows(tmp_path / "straight"), rows(tmp_path / "resumed")
    changing = {"time", "memory_mb", "sequences_per_second", "tokens_per_second", "wait_share"}
    assert [{k: row[k] for k in row.keys() - changing} for row in resumed] == [
        {k: row[k] for k in row.keys() - changing} for row in straight
    ]


def test_a_run_that_begins_anew_drops_the_former_rows(tmp_path: Path) -> None:
    logged(tmp_path, 1, 4)
    logged(tmp_path, 1, 2)
    assert [row["step"] for row in rows(tmp_path)] == [2]


def test_rewinding_forgets_what_came_after(tmp_path: Path) -> None:
    with RunLog(tmp_path, steps=10, every=1, quiet=True) as log:
        for index in (1, 2):
            log.step(step(index))
        state = log.state()
        for index in (3, 4, 5):
            log.step(step(index))
        log.rewind(2, state)
        log.step(step(3, 1.25))
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [1, 2, 3]
    assert found[-1]["tokens"] == 3000
    assert found[-1]["loss"] == 1.25


def test_the_environment_is_described(tmp_path: Path) -> None:
    logged(tmp_path, 1, 1)
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["command"] == sys.argv
    assert found["packages"]["torch"]
    assert found["device"] == "cpu"
    assert found["cores"] >= 1
    assert {"lambert", "commit", "python", "system", "processor", "threads", "processes"} <= found.keys()


def test_notes_warnings_and_the_error_stand_in_the_text_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with RunLog(tmp_path, steps=3) as log:
            log.note("a note")
            logging.getLogger("lambert.checkpoint").warning("disk of %d bytes", 7)
            raise KeyError("gone")

    with pytest.raises(KeyError):
        fail()
    logging.getLogger("lambert.checkpoint").debug("not heard")
    lines = [line.partition(" ")[2] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert lines == ["a note", "warning: disk of 7 bytes", "KeyError: 'gone'"]
    assert capsys.readouterr().err.splitlines() == ["a note", "warning: disk of 7 bytes"]


def test_only_the_first_rank_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged(tmp_path, 1, 4, world=World(rank=1, size=2), quiet=False)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_plain_lines_show_loss_rate_and_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged(tmp_path, 1, 10, quiet=False, seconds=0)
    text = capsys.readouterr().err
    assert "train: 10/10 (100%) updates, loss 2.0000, lr 1.00e-03, 2,000 tokens/s, waiting for data 10%" in text
    assert "held out after 4 updates: mlm 3.25, nsp_accuracy 0.5" in text
    lines = [line for line in text.splitlines() if line.startswith("train: ")]
    assert "loss" not in lines[0], "nothing has been measured"
    assert ["updates, loss" in line for line in lines if "/10 (90%)" in line] == [True]
    assert ["left" in line for line in lines if "/10 (90%)" in line] == [False], "too few updates for an estimate"


def test_the_console_keeps_silent_about_data_that_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(tmp_path, steps=2, every=1, seconds=0) as log:
        for index in (1, 2):
            at_hand = step(index)
            at_hand.wait_seconds = 0.004
            log.step(at_hand)
    text = capsys.readouterr().err
    assert "tokens/s" in text
    assert "waiting" not in text


def test_a_full_disk_is_said_once_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    (tmp_path / "environment.json").symlink_to("/dev/full")
    with RunLog(tmp_path, steps=10, every=1) as log:
        for index in range(1, 11):
            log.note("hello")
            log.step(step(index))
    assert capsys.readouterr().err.count("warning: ") == 1
    assert len(rows(tmp_path)) == 10


def test_a_row_after_a_torn_one_begins_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    write, calls = os.write, []

    def torn(handle: int, data: bytes) -> int:
        calls.append(data)
        return write(handle, data[: len(data) // 2] if len(calls) == 2 else data)

    with RunLog(tmp_path, steps=3, every=1, quiet=True) as log:
        monkeypatch.setattr(os, "write", torn)
        for index in (1, 2, 3):
            log.step(step(index))
        monkeypatch.undo()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in (lines[0], lines[2])] == [1, 3]


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logged(tmp_path, 1, 4, trackers=("tensorboard",))
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/mlm")] == [(2, 1.5), (4, 1.5)]
    assert [(e.step, e.value) for e in events.Scalars("heldout/mlm")] == [(4, 3.25)]


def test_a_run_folder_that_is_gone_or_another_ends_the_run(tmp_path: Path) -> None:
    for instead in (False, True):
        run = tmp_path / f"run-{instead}"
        with RunLog(run, steps=10, every=1, quiet=True) as log:
            log.step(step(1))
            run.rename(tmp_path / f"moved-{instead}")
            if instead:
                run.mkdir()
            with pytest.raises(MachineError, match="removed or replaced"):
                log.step(step(2))
        assert not run.exists() or not list(run.iterdir())


def test_the_last_rows_are_on_the_disk_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model folder is written next, and a run that has one does not write these rows again."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    with RunLog(tmp_path, steps=1, every=1, quiet=True) as log:
        log.scores(1, {"mlm": 2.0})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    assert size > 0
    assert size in synced


def test_what_holds_up_the_next_update_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(tmp_path, steps=1, every=1, seconds=0) as log:
        log.step(step(1))
        with log.show_activity("saving"):
            pass
    *_, saving, ended = capsys.readouterr().err.splitlines()
    assert ", saving" in saving
    assert "loss" in saving
    assert "saving" not in ended
    assert "loss" in ended
