"""Builds the World of this process, which may be one of several."""

from lambert.core.world import World
from lambert.distributed.config import TIMEOUT_SECONDS
from lambert.distributed.launch_environment import process_info
from lambert.engine.device import device_named


def detect(device: str = "auto", timeout: float = TIMEOUT_SECONDS) -> World:
    """Returns the world of this process: a Group if the environment says that it is one of several processes
    (`distributed/launch_environment.py`), otherwise a World.

    Args:
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:N" or "mps".
        timeout: How long a collective waits, in seconds.

    Raises:
        UsageError: The device is unknown or absent.
        MachineError: The processes cannot connect to each other.
    """
    here = process_info()
    if here.size == 1:
        return World(device=device_named(device, here.local_rank), reason=here.reason)
    from lambert.distributed.group import join

    return join(here, device, timeout)
