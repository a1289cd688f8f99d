"""`python -m lambert`, which torchrun needs, is the command `lambert`."""

from lambert.cli import main

if __name__ == "__main__":
    main()
