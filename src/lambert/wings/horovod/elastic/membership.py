"""The worker's side of an elastic job: the world to which the worker belongs, and how it joins the next world.

`lambert horovodrun --min-np` runs a key-value store. A worker that needs a new world, because a peer failed or the
hosts changed, sets the key `ready/GENERATION/WORKER` and waits for the key `world/GENERATION/WORKER`. The launcher
writes the latter once all running workers are ready: the environment variables (JSON) of the worker's rank in the new
world, or `null` if the worker is not part of it. The key `hosts` counts the changes of hosts that the launcher has
seen.
"""

import json
import os
import sys
from datetime import timedelta
from typing import Any

from lambert.distributed.rendezvous import connect

STORE = "HOROVOD_ELASTIC_STORE"
WORKER = "HOROVOD_ELASTIC_WORKER"
GENERATION = "HOROVOD_ELASTIC_GENERATION"
HOSTS_SEEN = "HOROVOD_ELASTIC_HOSTS_SEEN"


class Membership:
    """The membership of this process in the worlds of an elastic job. Outside an elastic job it never changes."""

    def __init__(self) -> None:
        self._store: Any = None

    @property
    def elastic(self) -> bool:
        """Whether an elastic launcher started this process."""
        return STORE in os.environ

    def hosts_changed(self) -> tuple[bool, bool]:
        """Returns whether the hosts have changed since this world was formed, and whether they were only removed."""
        store = self._connected()
        seen = int(os.environ[HOSTS_SEEN])
        count, grown = json.loads(store.get("hosts"))
        return count > seen, grown <= seen

    def join_next(self) -> None:
        """Waits for the next world and sets the environment variables of this process's rank in it, for `init`.

        If the process is not part of the next world, it exits with code 0.

        Raises:
            TimeoutError: No world was formed within HOROVOD_ELASTIC_TIMEOUT seconds (default 600).
        """
        store = self._connected()
        generation, worker = int(os.environ[GENERATION]) + 1, os.environ[WORKER]
        seconds = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", "600"))
        key = f"world/{generation}/{worker}"
        store.set(f"ready/{generation}/{worker}", "1")
        try:
            store.wait([key], timedelta(seconds=seconds))
        except RuntimeError as error:
            raise TimeoutError(
                f"no new world within {seconds:g} s: the launcher ended or has too few workers"
            ) from error
        place = json.loads(store.get(key))
        if place is None:
            sys.exit(0)
        os.environ.update(place)

    def _connected(self) -> Any:
        if self._store is None:
            self._store = connect(os.environ[STORE], 300)
        return self._store


membership = Membership()
"""The membership of this process."""
