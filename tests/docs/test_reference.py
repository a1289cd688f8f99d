"""The reference, the settings, the types of the package and the list of messages are what `make reference` writes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = made().PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page](), "run make reference"


def test_every_setting_has_a_line() -> None:
    page = made().settings()
    assert "| `optim.lr` | number | `0.001` |" in page
    assert "| `corpus` | path | required |" in page
    assert "|  |\n" not in page, "a setting without a docstring"
