"""Checks the resource limits of the process."""

import resource

from lambert.core.errors import MachineError

LEAST_ADDRESS_SPACE = 700_000_000
"""Bytes. Measured: importing torch 2.13 for CPUs takes 606 MB; with less its C++ library aborts the process."""
LEAST_FILES = 16
"""Measured: a run of one process starts with 16 open files allowed, and does not start with 8."""


def check_limits() -> None:
    """Raises MachineError under resource limits that would make torch's import or the first open file fail."""
    space, files = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE))
    if 0 <= space < LEAST_ADDRESS_SPACE:
        raise MachineError(
            f"An address space of {space / 1e6:,.0f} MB is too small: torch alone takes about "
            f"{LEAST_ADDRESS_SPACE / 1e6:,.0f} MB. Raise the limit with ulimit -v."
        )
    if 0 <= files < LEAST_FILES:
        raise MachineError(f"{files} open files are too few: at least {LEAST_FILES} are needed. Raise ulimit -n.")
