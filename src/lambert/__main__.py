"""The command `lambert`, and `python -m lambert` for torchrun."""

from typing import NoReturn

from lambert.core.signals import exit_on_signals


def main() -> NoReturn:
    """Runs the command line. A signal is obeyed before the rest is imported, which takes half a second or more."""
    exit_on_signals()
    from lambert import cli

    cli.main()


if __name__ == "__main__":
    main()
