"""The lock of a run folder: only one run at a time can use the folder."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lambert.core.errors import MachineError, UsageError
from lambert.core.lock import lock_folder
from lambert.core.world import World
from lambert.engine import checkpoint


@contextmanager
def hold(run: Path, world: World | None = None) -> Iterator[None]:
    """A context that creates the folder `run`, locks it, and removes files that a killed process left incomplete.

    All ranks must enter the context; rank 0 holds the lock (`core/lock.py`) for all.

    Raises UsageError, which names the holder of the lock, or why the folder cannot be written, and MachineError if its
    disk is full or broken.
    """
    world = world or World()
    refusal = ""
    with ExitStack() as held:
        if world.is_first:
            try:
                held.enter_context(lock_folder(run))
                checkpoint.clean(run)
            except (MachineError, UsageError) as error:
                refusal = json.dumps([error.exit_code, str(error)])
        refusal = world.broadcast_text(refusal)
        if refusal:
            code, text = json.loads(refusal)
            raise (MachineError if code == MachineError.exit_code else UsageError)(text)
        yield
