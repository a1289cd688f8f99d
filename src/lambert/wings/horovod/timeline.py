"""A timeline of the collectives as a Chrome trace. Open the file in chrome://tracing or ui.perfetto.dev.

The trace has one row per tensor and one bar per activity (`NEGOTIATE_ALLREDUCE`, then `ALLREDUCE`, ...), with times in
microseconds since the start of the recording. Only rank 0 writes the trace. The threads that run the collectives call
`begin`, `end` and `mark_cycle`, which cost one comparison when nothing is recorded.
Format: Trace Event Format, Google, 2016 (JSON array, phases B, E, i and M).
"""

import json
import os
import threading
import time
from typing import Any, TextIO

OPERATIONS_ROW = 0
"""The "process" of the trace for events without a tensor: the start time and the marks of cycles."""


class Timeline:
    """Writes the events of one recording as they happen. After a crash, the viewers can still open the incomplete
    file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._path = ""
        self._mark_cycles = False
        self._start = 0.0
        self._rows: dict[str, int] = {}

    def start(self, path: str, mark_cycles: bool = False) -> None:
        """Starts a recording to the file `path` and ends the previous recording. If `path` is being recorded already,
        the recording continues."""
        if self._file is not None and path == self._path:
            self._mark_cycles = mark_cycles
            return
        self.stop()
        with self._lock:
            file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (open until stop)
            self._path, self._mark_cycles, self._rows = path, mark_cycles, {}
            self._start = time.perf_counter()
            began = {"start_time_since_epoch_in_micros": time.time_ns() // 1000}
            file.write("[\n" + json.dumps({"name": "process_name", "ph": "M", "pid": OPERATIONS_ROW, "args": began}))
            self._file = file

    def stop(self) -> None:
        """Ends the recording and completes the JSON file. Does nothing if nothing is recorded."""
        with self._lock:
            if self._file is not None:
                self._file.write("\n]\n")
                self._file.close()
                self._file = None

    def begin(self, name: str, activity: str) -> None:
        """Records that the tensor `name` starts an activity. Activities of a tensor can be nested."""
        if self._file is not None:
            self._write({"name": activity, "ph": "B"}, name)

    def end(self, name: str) -> None:
        """Records that the tensor `name` ends its innermost activity."""
        if self._file is not None:
            self._write({"ph": "E"}, name)

    def mark_cycle(self) -> None:
        """Records that a cycle of the negotiation starts, if the recording was started with `mark_cycles`."""
        if self._file is not None and self._mark_cycles:
            self._write({"name": "CYCLE_START", "ph": "i", "s": "g"}, None)

    def _write(self, event: dict[str, Any], name: str | None) -> None:
        microseconds = int((time.perf_counter() - self._start) * 1e6)
        with self._lock:
            if self._file is None:
                return
            row = OPERATIONS_ROW if name is None else self._row(name, self._file)
            self._file.write(",\n" + json.dumps({**event, "ts": microseconds, "pid": row, "tid": 0}))

    def _row(self, name: str, file: TextIO) -> int:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._rows) + 1
            for kind, args in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": row})):
                file.write(",\n" + json.dumps({"name": kind, "ph": "M", "pid": row, "args": args}))
        return row


timeline = Timeline()
"""The timeline of this process."""


def start_from_environment(rank: int) -> None:
    """Starts the recording to the file `HOROVOD_TIMELINE` on rank 0. With the value DYNAMIC, the recording starts with
    a call of `start_timeline`."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if rank == 0 and path and path != "DYNAMIC":
        timeline.start(path, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"))
