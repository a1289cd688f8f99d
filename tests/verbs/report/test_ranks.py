"""The report on several ranks and on what went wrong, from what training and its log really write."""

import json
import math
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from run_folders import Outline, folder, page, row

from lambert.distributed.config import ExchangeConfig
from lambert.distributed.stragglers import Stragglers
from lambert.engine.guard import Incidents
from lambert.engine.log import _now
from lambert.engine.signals import StopRequest
from lambert.runs import exchange_autotune
from lambert.runs.log import describe_ranks
from lambert.verbs import report
from lambert.verbs.report import folders, ranks


def on_ranks(step: int, **values: Any) -> dict[str, Any]:
    """A row of several ranks, whose updates take two seconds."""
    return row(step, imbalance=1.02, exchange_seconds=0.5, exchange_wait_seconds=0.1) | values


def logged(run: Path, *lines: str) -> Path:
    """The run folder with those lines in log.txt, a second apart."""
    (run / "log.txt").write_text("".join(f"2026-01-02T03:04:{at:02d}+0000 {text}\n" for at, text in enumerate(lines)))
    return run


def said_by_training(monkeypatch: pytest.MonkeyPatch, method: str = "int8") -> list[str]:
    """What training on four ranks, two a machine, says of the choice of the method."""
    seconds = {"float32": 0.4, "bfloat16": 0.2, "int8": 0.1}
    chosen: list[str] = []
    exchange: Any = SimpleNamespace(decided=False, use=chosen.append, method=method)
    monkeypatch.setattr(exchange_autotune, "_time_update", lambda *arguments: seconds[chosen[-1]])
    config = SimpleNamespace(exchange=ExchangeConfig(method="auto", tolerates=("bfloat16", "int8")))
    run: Any = SimpleNamespace(config=config, exchange=exchange)
    world: Any = SimpleNamespace(size=4, local_size=2, reason="RANK, WORLD_SIZE")
    lines = [
        *exchange_autotune.autotune(run, lambda first: iter(()), 0, StopRequest()),
        describe_ranks(world, method),
    ]
    assert chosen[-1] == "int8"
    return lines


def straggling() -> str:
    slow, step = Stragglers(), SimpleNamespace(rank_seconds=[1.0, 3.0, 1.0], loads=(9, 9, 9), tokens=27)
    return next(line for _ in range(99) if (line := slow.watch(step)))  # type: ignore[arg-type]


def idle() -> str:
    return Stragglers().watch(SimpleNamespace(rank_seconds=[1.0, 0.0], loads=(9, 0), tokens=9))  # type: ignore[arg-type]


def test_the_log_writes_the_times_that_are_read() -> None:
    assert datetime.strptime(_now(), folders.TIME).tzinfo is not None


def test_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [on_ranks(step) for step in range(10, 101, 10)] + [on_ranks(110, imbalance=1.1)]
    run = folder(tmp_path / "run", rows, config='[exchange]\nmethod = "auto"\n', environment={"processes": 4})
    logged(run, *said_by_training(monkeypatch), idle(), straggling(), "continuing after update 50 of 110")
    text = " ".join(Outline(page(run)).text.split())
    for expected in (
        "Ranks 4 ",
        "Machines 2 ",
        "Gradients by int8 (auto)",
        "Exchange, share of an update, median 25.0%",
        "Of it overlapped with the backward pass, median 80.0%",
        "Waiting for gradients, share of an update, median 5.0%",
        "1.020 median, 1.100 maximum",
        "Slow ranks rank 1",
        "Times continued 1",
        "float32 0.400 1.00 x bfloat16 0.200 2.00 x int8 0.100 4.00 x chosen",
        "Share of an update spent waiting for gradients",
        "1 of 2 ranks have no work",
        "rank 1 is slow",
    ):
        assert expected in text
    assert "held out after" not in text


def test_a_run_whose_ranks_change_names_all_of_them(tmp_path: Path) -> None:
    line = "{} ranks, 2 a machine (torchrun), gradients by bfloat16"
    run = logged(folder(tmp_path / "run"), line.format(4), line.format(2), line.format(2), line.format(4))
    found = dict(ranks.facts([report.read(run, "run")]))
    assert found["Ranks"] == ["4, then 2, then 4"]
    assert found["Machines"] == ["2, then 1, then 2"]
    assert found["Gradients by"] == ["bfloat16"]
    assert found["Times continued"] == ["3"]


def test_one_process_has_no_section_of_ranks_but_its_incidents(tmp_path: Path) -> None:
    run = logged(folder(tmp_path / "run"), "held out after 50 updates: mlm 1", "update 7 skipped: its gradient ...")
    text = Outline(page(run)).text
    assert "Ranks" not in text
    assert "Incidents" not in text
    samples, group = np.zeros(64, int), SimpleNamespace(is_first=True, size=1)
    incidents = Incidents(run, lambda step: (samples, samples), group)  # type: ignore[arg-type]
    bad: dict[str, Any] = {"non_finite": "decoder.bias", "faults": {0: "decoder.bias"}}
    incidents.add(SimpleNamespace(index=7, loss=8.5, grad_norm=math.inf, **bad), "skipped")  # type: ignore[arg-type]
    spike: Any = SimpleNamespace(index=9, loss=88.5, grad_norm=4.25, non_finite=None, faults={})
    incidents.add(spike, "spike")
    text = " ".join(Outline(page(run)).text.split())
    assert re.search(r"7 skipped: loss 8\.5, gradient norm not finite, first in decoder\.bias 0 64 ", text)
    assert re.search(r"9 spike: loss 88\.5, gradient norm 4\.25 64 ", text)
    assert "Times continued" not in text


def test_one_process_beside_ranks(tmp_path: Path) -> None:
    alone, several = folder(tmp_path / "a"), folder(tmp_path / "b", [on_ranks(10)], environment={"processes": 2})
    found = dict(ranks.facts([report.read(alone, "a"), report.read(several, "b")]))
    assert found["Ranks"] == ["1", "2"]
    assert found["Exchange, share of an update, median"] == ["", "25.0%"]
    assert ranks.facts([report.read(alone, "a")]) == []


def test_a_stop_is_no_incident_and_a_crash_is(tmp_path: Path) -> None:
    again = "continuing after update {} of 110"
    run = logged(
        folder(tmp_path / "run"), "SavedAndStopped: Stopped by SIGINT; saved after update 50 of 110.", again.format(50),
        again.format(60), "MachineError: The disk is full.",
    )  # fmt: skip
    table = ranks.incidents([report.read(run, "run")])
    assert table is not None
    what = table["columns"].index("What")
    assert [cells[what] for cells in table["rows"]] == [again.format(60), "The disk is full."]


def test_of_many_incidents_the_ends_are_shown_and_what_was_done_stays(tmp_path: Path) -> None:
    run = logged(
        folder(tmp_path / "run"), "PeerLost: Rank 0 lost its peers while summing: rank 3 does not answer.", "Traceback"
    )
    with (run / "incidents.jsonl").open("w") as file:
        rows = ({"step": step, "time": 1e9 + step, "what": "spike"} for step in range(999))
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.write('{"step": 1, "time": null}\n{"step": 2, "time": 5, "ranks": 7, "sequences": [1]}\nnonsense\n[]\n')
    table = ranks.incidents([report.read(run, "run")])
    assert table is not None
    assert len(table["rows"]) == 1 + ranks.MOST_INCIDENTS + 1
    what, who = (table["columns"].index(name) for name in ("What", "Ranks"))
    (more,) = (cells for cells in table["rows"] if "more in" in cells[what])
    assert more[what] == "960 more in incidents.jsonl"
    (lost,) = (cells for cells in table["rows"] if cells[what].startswith("PeerLost: "))
    assert lost[who] == "3"
    assert "1 of 1003 lines of incidents.jsonl could not be read" in page(run)


def test_advice_of_ranks() -> None:
    def advised(**values: Any) -> list[str]:
        return ranks.advice(
            report.RunContents("run", [on_ranks(step, **values) for step in (1, 2, 3)], {}, {}, {}, {}, [])
        )

    assert advised() == []
    (line,) = advised(exchange_wait_seconds=1.0)
    assert "50% of an update is waiting for gradients" in line
    (line,) = advised(imbalance=1.3)
    assert "1.30 times the mean number of tokens" in line
