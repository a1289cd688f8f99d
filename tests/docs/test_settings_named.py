"""Every setting that a page names exists."""

import re
from pathlib import Path

import pytest
from commands import setting_names

from lambert.verb import all_verbs, settings_of

ROOT = Path(__file__).parents[2]
CODE = {"tour", "reference"}
"""Pages that name modules."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "migrating").glob("*.md"))]
PAGES = [page for page in PAGES if page.stem not in CODE]
KINDS = {name: settings_of(verb) for name, verb in all_verbs().items() if verb.settings}
NAMES = {name for kind in KINDS.values() for name in setting_names(kind)}
NAMES |= {f"{verb}.{name}" for verb in ("sweep", "plan") for name in setting_names(KINDS[verb])}
TABLES = sorted({name.partition(".")[0] for name in NAMES if "." in name} - {"model"})
SETTING = re.compile(rf"`((?:{'|'.join(TABLES)}|model)\.[a-z_]+(?:\.[a-z_]+)*)(?: = [^`]*)?`")
OTHERS = re.compile(
    r".*\.(safetensors|onnx|txt|json|toml|tsv|csv)$|model\.(encoder|outputs|heads|config|task|tokenizer)\b"
)
"""What looks like a setting: files, and names of Python."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_exist(page: Path) -> None:
    found = {name for name in SETTING.findall(page.read_text(encoding="utf-8")) if not OTHERS.match(name)}
    wrong = sorted(found - NAMES)
    assert not wrong


def test_the_pages_name_settings() -> None:
    text = (ROOT / "docs" / "migrating" / "transformers.md").read_text(encoding="utf-8")
    assert {"optim.eps", "task.squad.stride", "train.keep_best"} <= set(SETTING.findall(text))
