"""The command `lambert`, and `python -m lambert` for torchrun."""

import sys
from typing import NoReturn

from lambert.core.imports import imported
from lambert.core.signals import exit_on_signals
from lambert.engine import process


def main() -> NoReturn:
    """Runs the command line. A signal is obeyed, and the process replaced where that is needed, before the rest is
    imported, which takes half a second or more."""
    exit_on_signals()
    if sys.argv[1:2] and sys.argv[1] in process.REPLACED:
        process.replace()
    imported("lambert.cli").main()
    raise AssertionError("the command line exits")


if __name__ == "__main__":
    main()
