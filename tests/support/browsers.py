"""A real browser for the tests of the page: Chromium, steered by Playwright (`make test-page`)."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("LAMBERT_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(os.environ.get("LAMBERT_AXE") or Path(__file__).parents[2] / "build/axe/package/axe.min.js")
"""axe-core, which finds what people who do not see the page, or see it badly, cannot use."""
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
TASKS = ("squad", "tag", "classify", "multilabel", "regress", "choice", "pair", "embed")
"""The task models of the service, beside one for `mask`."""
TEXT = "😀 the king found a boat near the old road"
FAILED_LOAD = "Failed to load resource"
"""The line in the console for an answer with an error status."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser. The test is skipped where Playwright or Chromium is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make test-page")
    if not CHROMIUM:
        pytest.skip("Chromium is missing: install it, or name it in LAMBERT_CHROMIUM")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, url: str, *, expected: str = "", **settings: Any) -> Iterator[Any]:
    """The page at `url`. At its end, it must have run without an error in the console, except for lines that match
    `expected`."""
    context = browser.new_context(**{**DESKTOP, **settings})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
    page.set_default_timeout(15_000)
    page.goto(url)
    yield page
    context.close()
    assert not [line for line in errors if not expected or not re.search(expected, line)]


def faults(page: Any) -> list[str]:
    """Returns what axe finds wrong with the page as it is, by the rules of WCAG 2.2 AA and good practice."""
    if not AXE.exists():
        pytest.skip(f"axe-core is missing ({AXE}): make test-page")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations', 'incomplete']})")
    nodes = [(rule, node) for rule in found["violations"] for node in rule["nodes"]]
    return [f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule, node in nodes]


def choose(page: Any, model: str, tab: str = "") -> None:
    page.get_by_label("Model", exact=True).select_option(model)
    if tab:
        page.get_by_role("tab", name=tab).click()


def run(page: Any, **texts: str) -> None:
    """Writes texts into the fields by their labels, and runs."""
    for label, text in texts.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(text)
    page.locator("#run").click()
    page.wait_for_selector("#result[aria-busy=false]")


def rows(page: Any) -> list[tuple[str, str]]:
    items = page.locator(".bars li")
    return [(items.nth(at).locator(".name").inner_text(), items.nth(at).locator(".value").inner_text())
            for at in range(items.count())]  # fmt: skip


def percent(share: float) -> str:
    return f"{100 * share:.1f}%" if 0.001 <= share <= 0.999 else "> 99.9%" if share > 0.5 else "< 0.1%"


def mocked(page: Any, path: str, answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
    body = answer if isinstance(answer, str) else json.dumps(answer)
    page.route(f"**/{path}", lambda route: route.fulfill(status=status, body=body, headers=headers or {}))
