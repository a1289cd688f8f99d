"""incidents.jsonl in the run folder: the updates that went wrong, each with the samples it saw."""

import json
import logging
import math
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from lambert.core.batch import Ints
from lambert.engine.cluster.dist import World
from lambert.engine.guard import Incident

INCIDENTS = "incidents.jsonl"

MOST_ROWS, MOST_BYTES = 1000, 1 << 25
"""Of the file; ours. A run that has more of them has told what it can."""

_log = logging.getLogger("lambert.incidents")


class Incidents:
    """Adds a row for each Incident to incidents.jsonl of the folder `run`, up to MOST_ROWS rows and about MOST_BYTES;
    nothing is taken out when a run is continued or rolled back. Only the first rank writes.

    `samples` gives epochs and indices [S] of the sequences of an update, counted from 0. A row has the keys step, time
    (seconds since 1970), what, loss, grad_norm (null where they are not finite), parameter and ranks (where the
    gradient was not), sequences ([first, last] of the run, from 0) and samples ([[epoch, [index, ...]], ...] in the
    order of the sequences).
    """

    def __init__(self, run: Path, samples: Callable[[int], tuple[Ints, Ints]], world: World) -> None:
        self._path, self._samples = run / INCIDENTS, samples
        self._world, self._open, self._rows = world, world.is_first, -1

    def add(self, incident: Incident) -> None:
        """Writes the row, and says a skipped update in the log. A disk that refuses is said once, and ends the file."""
        if not self._open:
            return
        if incident.what == "skipped":
            where = f", first in {incident.parameter}" if incident.parameter else ""
            if incident.ranks and self._world.size > 1:
                where += f", on rank {', '.join(map(str, incident.ranks))}"
            _log.info("update %d skipped: its gradient is not finite%s", incident.step, where)
        try:
            with self._path.open("a+b") as file:
                if self._rows < 0:
                    self._rows = _mended(file)
                if self._rows >= MOST_ROWS or file.tell() >= MOST_BYTES:
                    self._open = False
                    _log.warning("%s is full: what goes wrong from here on is not written there.", self._path)
                    return
                file.write(json.dumps(self._row(incident)).encode() + b"\n")
                self._rows += 1
        except OSError as error:
            self._open = False
            _log.warning("%s cannot be written: %s. The run goes on without it.", self._path, error.strerror)

    def _row(self, incident: Incident) -> dict[str, Any]:
        epochs_S, indices_S = (places_S.tolist() for places_S in self._samples(incident.step - 1))
        pairs = groupby(zip(epochs_S, indices_S, strict=True), key=lambda pair: pair[0])
        first = (incident.step - 1) * len(indices_S)
        return {
            "step": incident.step,
            "time": round(time.time(), 3),
            "what": incident.what,
            "loss": incident.loss if math.isfinite(incident.loss) else None,
            "grad_norm": incident.grad_norm if math.isfinite(incident.grad_norm) else None,
            "parameter": incident.parameter,
            "ranks": [*incident.ranks],
            "sequences": [first, first + len(indices_S) - 1],
            "samples": [[epoch, [index for _, index in group]] for epoch, group in pairs],
        }


def _mended(file: IO[bytes]) -> int:
    """Rows in the file, the last of which is ended where a killed process left it torn."""
    file.seek(0)
    before = file.read()
    if before and not before.endswith(b"\n"):
        file.write(b"\n")
    return len(before.splitlines())
