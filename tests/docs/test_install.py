"""The page about installation has all extras."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = page.partition("| extra | for |\n|---|---|\n")[2].partition("\n\n")[0]
    named = [extra for row in table.splitlines() for extra in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(project["optional-dependencies"].keys() - {"test", "dev"})
