"""The settings of `lambert report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """One HTML page about runs, sweeps and prepared corpora."""

    runs: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()
    """Run folders written by pretrain and finetune, folders of several seeds, folders written by sweep, and corpora
    written by prepare."""
    out: Path | None = None
    """The page to write. Not set: report.html in the folder, or in the current folder for several."""
    chain: bool = False
    """Draw each run after the previous one, as stages of one training, instead of over one another."""
