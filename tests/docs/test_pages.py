"""The published claims and the tables of docs/numbers.md, and the length of README.md."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
PUBLICATIONS = ("Perseus-BERT", "BERT Meets GPUs", "SQuAD in 30 minutes", "BERT in 76 minutes")


def links(text: str) -> list[str]:
    """The paths of the links of a text that lead to files."""
    return re.findall(r"\]\((?!\w+:|#)([^)#]+)[^)]*\)", text)


@pytest.mark.parametrize("publication", PUBLICATIONS)
def test_every_claim_has_a_link(publication: str) -> None:
    (section,) = re.findall(rf"^### {publication}.*?(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = [row for row in section.splitlines() if row.startswith("|")][2:]
    assert len(rows) >= 3
    for row in rows:
        assert row.count(" | ") == 2, row
        assert links(row), row


def test_the_links_of_the_page_lead_to_files() -> None:
    assert not [link for link in links(PAGE) if not (ROOT / "docs" / link).exists()]


def test_the_readme_is_short_and_its_links_lead_to_files() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 1200
    assert not [link for link in links(readme) if not (ROOT / link).exists()]


def test_the_tree_of_the_readme_is_that_of_the_source() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").partition("src/lambert/\n")[2].partition("```")[0]
    rooms, wings = tree.split("└── wings/\n")
    source = ROOT / "src" / "lambert"
    first = re.findall(r"^├── ((?:\w+[./]\w*  ?)+)", rooms, re.MULTILINE)
    named = {name for line in first for name in line.split()}
    assert {name for name in named if not (source / name).exists()} == set()
    packages = {path.parent.name + "/" for path in source.glob("*/__init__.py")} - {"wings/"}
    assert {name for name in named if name.endswith("/")} == packages
    assert {f"{name}/" for name in re.findall(r"── (\w+)/", wings)} == {
        path.parent.name + "/" for path in source.glob("wings/*/__init__.py")
    }


def test_the_modules_that_the_tour_names_exist() -> None:
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w./]+)` \| (.*) \|$", tour, re.MULTILINE)
    assert len(rows) >= 20
    source = ROOT / "src" / "lambert"
    packages = {path.parent.name for path in (*source.glob("*/__init__.py"), *source.glob("wings/*/__init__.py"))}
    wrong = []
    for package, text in rows:
        folders = (source / package, source / "wings" / package)
        known = {path.stem for folder in folders for path in folder.rglob("*")} | packages | {"say"}
        wrong += [f"{package}: {name}" for name in re.findall(r"`(\w+)`", text) if name not in known]
    assert wrong == []
