"""The command `lambert`, and `python -m lambert` for torchrun."""

import sys
from typing import NoReturn

from lambert.core.signals import HANGUPS, block_signals, exit_on_signals, say_that_it_continues
from lambert.engine import process
from lambert.verb import find


def main() -> NoReturn:
    """Runs the command line. A signal is obeyed, and the process replaced where that is needed, before the rest is
    imported, which takes half a second or more."""
    block_signals()  # until it is known whether the same command continues, which the line of a signal says
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
