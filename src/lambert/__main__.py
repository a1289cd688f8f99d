"""The command `lambert`, and `python -m lambert`, which torchrun needs."""

from typing import NoReturn

from lambert.core.signals import leave_when_asked


def main() -> NoReturn:
    """Runs the command line. A signal is obeyed before the rest is imported, which takes half a second or more."""
    leave_when_asked()
    from lambert import cli

    cli.main()


if __name__ == "__main__":
    main()
