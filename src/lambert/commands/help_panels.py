"""Formats the help of verbs with many settings: first the common settings, then the others by table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

COMMON, REST = "Common settings", "Other settings of the run"


class ByTable(DefaultFormatter):
    """A help formatter for cyclopts: first the settings named in `common`, in that order, then those of each table."""

    def __init__(self, common: Sequence[str]) -> None:
        super().__init__()
        self._common = {name: place for place, name in enumerate(common)}

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: HelpPanel) -> None:
        panels: dict[str, list[HelpEntry]] = {COMMON: [], REST: []}
        for entry in panel.entries:
            panels.setdefault(self._title(entry), []).append(entry)
        if not panels[COMMON]:  # the panel of the commands or of the recipe
            super().__call__(console, options, panel)
            return
        panels[COMMON].sort(key=lambda entry: self._common[_name(entry)])
        for title, entries in panels.items():
            if entries:
                super().__call__(console, options, panel.copy(title=Text(title), entries=entries))

    def _title(self, entry: HelpEntry) -> str:
        name = _name(entry)
        table = name.rpartition(".")[0]
        return COMMON if name in self._common else f"[{table}]" if table else REST


def _name(entry: HelpEntry) -> str:
    """Returns the dotted name of a setting."""
    return entry.positive_names[0].removeprefix("--").replace("-", "_") if entry.positive_names else ""
