"""A worker's side of an elastic job: which world it belongs to, and how it gets into the next one.

`lambert horovodrun --min-np` keeps a key-value store. A worker that wants a new world, because a peer failed or hosts
have changed, sets `ready/GENERATION/WORKER` and waits for `world/GENERATION/WORKER`, which the launcher writes once all
living workers are ready: the environment variables (JSON) of its rank in the new world, or `null` for "you are not in
it". The key `hosts` counts the changes of hosts that the launcher has seen.
"""

import json
import os
import sys
from datetime import timedelta
from typing import Any

STORE = "HOROVOD_ELASTIC_STORE"
WORKER = "HOROVOD_ELASTIC_WORKER"
GENERATION = "HOROVOD_ELASTIC_GENERATION"
HOSTS_SEEN = "HOROVOD_ELASTIC_HOSTS_SEEN"


class Membership:
    """Of this process in an elastic job; outside one it never changes."""

    def __init__(self) -> None:
        self._store: Any = None

    @property
    def elastic(self) -> bool:
        """Whether an elastic launcher started this process."""
        return STORE in os.environ

    def hosts_changed(self) -> tuple[bool, bool]:
        """Whether hosts have changed since this world began, and whether they have only become fewer."""
        store = self._connected()
        seen = int(os.environ[HOSTS_SEEN])
        count, grown = json.loads(store.get("hosts"))
        return count > seen, grown <= seen

    def join_next(self) -> None:
        """Waits for the next world and puts this process's place in it into the environment, for `init` to find.

        Ends the process (exit code 0) where the launcher has no place for it, and raises `TimeoutError` when no world
        comes about within HOROVOD_ELASTIC_TIMEOUT seconds (600).
        """
        store = self._connected()
        generation, worker = int(os.environ[GENERATION]) + 1, os.environ[WORKER]
        seconds = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", "600"))
        key = f"world/{generation}/{worker}"
        store.set(f"ready/{generation}/{worker}", "1")
        try:
            store.wait([key], timedelta(seconds=seconds))
        except RuntimeError as error:
            raise TimeoutError(f"no new world within {seconds:g} s: the launcher is gone or lacks workers") from error
        place = json.loads(store.get(key))
        if place is None:
            sys.exit(0)
        os.environ.update(place)

    def _connected(self) -> Any:
        if self._store is None:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            host, _, port = os.environ[STORE].rpartition(":")
            self._store = TCPStore(host, int(port), is_master=False)
        return self._store


membership = Membership()
"""Of this process."""
