"""Run folders that no run wrote, and the page that report makes of them."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from lambert.verbs import report
from lambert.verbs.report import ReportConfig


def row(step: int, **values: Any) -> dict[str, Any]:
    """A row of metrics.jsonl, as the engine writes it."""
    return {
        "step": step,
        "time": 1e9 + step,
        "sequences": step * 64,
        "tokens": step * 6400,
        "skipped": 0,
        "loss": 9.0 - step / 100,
        "loss/mlm": 8.5 - step / 100,
        "loss/nsp": 0.5,
        "lr": 1e-3,
        "grad_norm": 1.5,
        "sequences_per_second": 32.0,
        "tokens_per_second": 3200.0,
        "utilisation": None,
        "wait_share": 0.01,
        "memory_mb": 512,
    } | values


def folder(path: Path, rows: list[dict[str, Any]] | None = None, **files: Any) -> Path:
    """A run folder of those rows, with JSON files by name and config.toml as text."""
    path.mkdir(parents=True)
    if rows is None:
        rows = [row(step) for step in range(10, 101, 10)]
        rows += [{"step": step, "heldout/mlm": 8.6 - step / 100, "heldout/nsp_accuracy": 0.75} for step in (50, 100)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "config.toml").write_text(files.pop("config", 'seed = 1\n[optim]\nname = "lamb"\nlr = 0.002\n'))
    for name, content in files.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def page(*folders: Path, **options: Any) -> str:
    out = folders[0].parent / "page.html"
    assert report.run(ReportConfig(runs=folders, out=out, **options)) == out
    return out.read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Text, and the open elements at the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br", "link", "use", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        self.text += " "
        if tag not in ("use", "path"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
