"""The settings of `lambert verify`."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from lambert.core.errors import UsageError
from lambert.core.settings import check


@dataclass(frozen=True, slots=True)
class VerifyConfig:
    """Compares the beginning of a run with the table [expect] of its recipe. Other flags override the recipe."""

    recipe: Annotated[Path, Parameter(parse=False)] = Path()
    """The recipe of pretrain or finetune."""
    overrides: Annotated[tuple[str, ...], Parameter(parse=False)] = ()
    """Settings that override the recipe."""
    updates: int = 0
    """Updates to run. 0: up to the last band within the first 100 updates or the first hundredth of the run."""
    out: Path | None = None
    """Run folder of these updates, which `lambert pretrain RECIPE --out` of it continues. Unset: a temporary folder."""
    run: Path | None = None
    """A run folder, finished or not: it is compared instead, and nothing is run."""
    write_from: tuple[Path, ...] = ()
    """Folders of finished runs that differ in the seed: [expect] is computed from them and written into the recipe."""
    json: bool = False
    """Print the comparison as JSON."""

    def __post_init__(self) -> None:
        check(self)
        if self.run and self.write_from:
            raise UsageError("--run compares a run with [expect], and --write-from makes it from runs: give one.")
        if (self.run or self.write_from) and (self.updates or self.out):
            raise UsageError("--updates and --out are for a new run, which --run and --write-from do not start.")


_OWN = {f"--{one.name.replace('_', '-')}" for one in fields(VerifyConfig)} | {"--help", "-h", "--version"}


def split(tokens: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the tokens of the command line that are `verify`'s own, and as `overrides` those that override the
    recipe."""
    own: list[str] = tokens[:2]
    others: list[str] = []
    group = own
    for token in tokens[2:]:
        if re.match(r"--?[A-Za-z]", token):
            name = token.partition("=")[0].replace("_", "-")
            group = own if name in _OWN or name == "--no-json" else others
        group.append(token)
    return own, {"overrides": tuple(others)}
