"""The command `lambert`, and `python -m lambert` for torchrun."""

import sys
from typing import NoReturn

from lambert.core.signals import HANGUPS, block_signals, exit_on_signals, say_that_it_continues
from lambert.engine import process
from lambert.verb import find


def main() -> NoReturn:
    """Runs the command line. Signal handlers are installed, and the process is replaced if it must be, before the other
    imports, which take half a second or more."""
    process.prepare_streams()
    block_signals()  # until it is known whether their message may say that the same command continues
    verb = find(sys.argv[1:])
    if verb and verb.continues:
        say_that_it_continues()
    if verb and verb.reloads:
        block_signals(HANGUPS)
    exit_on_signals()
    if verb and verb.replaces:
        process.replace()
    process.import_quickly("lambert.cli").main()
    raise AssertionError("the command line exits")


if __name__ == "__main__":
    main()
