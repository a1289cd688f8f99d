"""The trace that chrome://tracing opens: complete JSON, a row a tensor, every activity begun and ended."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lambert.horovod as hvd
from lambert.wings.horovod.timeline import Timeline, start_from_environment, timeline


def rows(events: list[dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """(phase, activity) of each tensor, in their order."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e.get("args", {})}
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] in "BE":
            found[names[event["pid"]]].append((event["ph"], event.get("name", "")))
    return found


def test_each_tensor_has_a_row_of_its_activities(tmp_path: Path) -> None:
    trace, path = Timeline(), tmp_path / "trace.json"
    trace.begin("early", "ALLREDUCE")
    trace.start(str(path), mark_cycles=True)
    trace.mark_cycle()
    for name in ('quoted "name"', "second"):
        trace.begin(name, "NEGOTIATE_ALLREDUCE")
    for name in ("second", 'quoted "name"'):
        trace.end(name)
        trace.begin(name, "ALLREDUCE")
        trace.end(name)
    trace.stop()
    trace.end("late")
    events = json.loads(path.read_text())
    whole = [("B", "NEGOTIATE_ALLREDUCE"), ("E", ""), ("B", "ALLREDUCE"), ("E", "")]
    assert rows(events) == {'quoted "name"': whole, "second": whole}
    assert sum(event.get("name") == "CYCLE_START" for event in events) == 1
    assert "start_time_since_epoch_in_micros" in events[0]["args"]
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times)


def test_starting_again_ends_the_file_before(tmp_path: Path) -> None:
    trace = Timeline()
    for name in ("first", "second", "second"):
        trace.start(str(tmp_path / name))
        trace.mark_cycle()
        trace.begin(name, "ALLREDUCE")
    trace.stop()
    trace.stop()
    assert len(rows(json.loads((tmp_path / "first").read_text()))["first"]) == 1
    assert len(rows(json.loads((tmp_path / "second").read_text()))["second"]) == 2


def test_the_environment_starts_it_on_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    start_from_environment(1)
    assert not path.exists()
    monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    start_from_environment(0)
    timeline.begin("x", "ALLREDUCE")
    assert not path.exists()
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    hvd.init()
    hvd.allreduce(torch.ones(2), name="told")
    hvd.shutdown()
    assert ("B", "ALLREDUCE") in rows(json.loads(path.read_text()))["allreduce.told"]


def test_operations_are_recorded_between_start_and_stop(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(ValueError, match=r"init"):
        hvd.start_timeline(str(path))
    hvd.init()
    hvd.allreduce(torch.ones(2), name="before")
    hvd.start_timeline(str(path), mark_cycles=True)
    hvd.allreduce(torch.ones(2), name="during")
    hvd.broadcast(torch.ones(2), 0, name="during")
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(2), name="after")
    hvd.shutdown()
    found = rows(json.loads(path.read_text()))
    assert set(found) == {"allreduce.during", "broadcast.during"}
    for kind in ("ALLREDUCE", "BROADCAST"):
        phases = found[f"{kind.lower()}.during"]
        assert ("B", f"NEGOTIATE_{kind}") in phases
        assert ("B", kind) in phases
        assert sum(phase == "B" for phase, _ in phases) == sum(phase == "E" for phase, _ in phases)
