"""Writes incidents.jsonl in the run folder: one row per Incident, with the samples of its update."""

import json
import logging
import math
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from lambert.core.batch import Ints
from lambert.core.files import open_regular
from lambert.core.world import World
from lambert.engine.guard import Incident

INCIDENTS = "incidents.jsonl"

MAX_ROWS, MAX_BYTES = 1000, 1 << 25
"""Limits of the size of incidents.jsonl. The values are our choice: further rows would add no information."""

_log = logging.getLogger("lambert.incidents")


class Incidents:
    """Appends a row for each Incident to incidents.jsonl in the folder `run`, up to MAX_ROWS rows and about
    MAX_BYTES. Rows remain when a run is resumed or rolled back. Only rank 0 writes.

    A row has the keys step, time (seconds since 1970), what, loss and grad_norm (null if not finite), parameter and
    ranks (those with a non-finite gradient), sequences ([first, last], numbered over the whole run from 0) and samples
    ([[epoch, [index, ...]], ...] in the order of the sequences).

    Args:
        samples: Returns the epochs and indices [S] of the sequences of an update, given its number from 0.
    """

    def __init__(self, run: Path, samples: Callable[[int], tuple[Ints, Ints]], world: World) -> None:
        self._path, self._samples = run / INCIDENTS, samples
        self._world, self._open, self._rows = world, world.is_first, -1

    def add(self, incident: Incident) -> None:
        """Writes the row, and logs a skipped update. If the disk refuses, a warning is logged once and no further row
        is written."""
        if not self._open:
            return
        if incident.what == "skipped":
            where = f", first in {incident.parameter}" if incident.parameter else ""
            if incident.ranks and self._world.size > 1:
                where += f", on rank {', '.join(map(str, incident.ranks))}"
            _log.info("update %d skipped: its gradient is not finite%s", incident.step, where)
        try:
            with open_regular(self._path, "a+b") as file:
                if self._rows < 0:
                    self._rows = _repair(file)
                if self._rows >= MAX_ROWS or file.tell() >= MAX_BYTES:
                    self._open = False
                    _log.warning("%s is full: further incidents are not written.", self._path)
                    return
                file.write(json.dumps(self._row(incident)).encode() + b"\n")
                self._rows += 1
        except OSError as error:
            self._open = False
            _log.warning("%s cannot be written: %s. The run continues without it.", self._path, error.strerror)

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


def _repair(file: IO[bytes]) -> int:
    """Returns the number of rows in the file. Appends a newline if a killed process left the last row incomplete."""
    file.seek(0)
    before = file.read()
    if before and not before.endswith(b"\n"):
        file.write(b"\n")
    return len(before.splitlines())
