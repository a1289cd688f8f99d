"""The published claims in README.md and in docs/claims.md: the same headlines in the same order, each with a link."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PUBLICATIONS = ("Perseus-BERT", "NVIDIA", "Determined", "LAMB")


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of the tables whose first column is `published`."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")] if line.startswith("|") else []
        inside = bool(cells) and (inside or cells[0] == "published")
        if inside and cells[0] != "published" and not line.startswith("|---"):
            found.append(cells)
    return found


def test_the_readme_has_every_claim_of_its_page_with_a_link() -> None:
    readme = rows((ROOT / "README.md").read_text(encoding="utf-8"))
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    counts = [len(rows(section)) for section in sections]
    names = [cells[0].partition(":")[0] for cells in readme]
    assert [names.count(name) for name in PUBLICATIONS] == counts
    assert names == sorted(names, key=PUBLICATIONS.index)
    for cells in readme:
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", cells[1])
        assert links, cells
        assert all((ROOT / link).exists() for link in links), cells
