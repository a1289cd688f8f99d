"""The page in a real browser: clicks and keys, on all screens and for everyone."""

import json
import subprocess
import urllib.request
from typing import Any

import pytest

from tests.support.browsers import PHONE, TASKS, TEXT, choose, faults, mocked, opened, run
from tests.support.services import Service


def test_examples_run_at_once(page: Any) -> None:
    for model in (*TASKS, "mask"):
        choose(page, model)
        for tab in range(page.get_by_role("tab").count()):
            page.get_by_role("tab").nth(tab).click()
            shown = page.locator("[data-key]").first.input_value()
            page.locator("#run").click()
            page.wait_for_selector("#timing:not(:empty)")
            page.get_by_role("button", name="Another example").click()
            assert page.locator("[data-key]").first.input_value() != shown
            assert "The answer appears here" in page.locator("#output").inner_text()


def test_texts_are_kept_and_changes_are_said(page: Any) -> None:
    choose(page, "classify")
    run(page, Text=TEXT)
    assert page.locator("#stale").is_hidden()
    page.get_by_label("Text", exact=True).fill("something else")
    assert page.locator("#stale").is_visible()
    page.get_by_label("Text", exact=True).fill(TEXT)
    assert page.locator("#stale").is_hidden()
    choose(page, "tag")
    choose(page, "classify")
    assert page.get_by_label("Text", exact=True).input_value() == TEXT
    assert page.url.endswith("#classify")
    page.reload()
    page.wait_for_selector("#model")
    assert page.get_by_label("Model", exact=True).input_value() == "classify"


def test_curl_is_the_same_request(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose(page, "squad")
    run(page, Question='the king\'s "boat" $HOME `ls`?', Context="it's\nthe king's boat \\ 😀")
    page.get_by_text("The same request with curl").click()
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied.").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    shell = f"curl() {{ printf '%s\\0' \"$@\"; }}; {command}"
    words = subprocess.run(["sh", "-c", shell], check=True, capture_output=True, text=True).stdout.split("\0")
    assert [words[1], words[2], words[3]] == ["-H", "Content-Type: application/json", "-d"]
    request = urllib.request.Request(words[0], words[4].encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer) == json.loads(page.locator("#json").text_content())


def test_keys_alone_are_enough(page: Any) -> None:
    focus = "document.activeElement.id || document.activeElement.textContent"
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(focus))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
    wanted = ["Skip to the model", "API description", "model", "tab-0", "field-0", "field-1", "run", "example"]
    assert [name for name in reached if name in wanted] == wanted
    page.locator("#model").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#model").input_value() == "tag"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    assert page.evaluate(focus) == "tab-2"
    assert page.locator("[aria-selected=true]").inner_text() == "Relevance"
    page.keyboard.press("ArrowRight")
    assert page.locator("[aria-selected=true]").inner_text() == "Tagging"
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#output .text")
    assert page.evaluate(focus) == "field-0"


def test_cancel_and_busy(page: Any) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/predict", hold)
    choose(page, "classify")
    for way in ("click", "Escape", "Enter"):
        page.locator("#run").click()
        page.locator("#output").get_by_text("Computing…").wait_for()
        assert page.locator("#result").get_attribute("aria-busy") == "true"
        page.locator("#run").click(force=True)
        if way == "click":
            page.get_by_role("button", name="Cancel").click()
        else:
            page.locator("#cancel" if way == "Enter" else "#run").press(way)
        page.locator("#output").get_by_text("Cancelled.").wait_for()
        assert page.locator("#cancel").is_hidden()
        assert page.evaluate("document.activeElement.id") == "run"
    assert len(held) == 3
    page.locator("#run").click()
    page.locator("#output").get_by_text("Computing…").wait_for()
    choose(page, "tag")
    assert page.locator("#cancel").is_hidden()
    page.unroute("**/predict")
    run(page)
    assert "mark" in page.locator("#output").inner_html()


@pytest.mark.parametrize("screen", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everyone_can_read_it(browser: Any, service: Service, scheme: str, screen: str) -> None:
    settings: dict[str, Any] = {"color_scheme": scheme, **(PHONE if screen == "phone" else {})}
    with opened(browser, service.url, **settings) as page:
        page.wait_for_selector("#model")
        for model in (*TASKS, "mask"):
            choose(page, model)
            if model in ("squad", "mask"):
                assert faults(page) == []
            page.locator("#run").click()
            page.wait_for_selector("#timing:not(:empty)")
            page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            assert faults(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), model
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") < "rgb(2"
        assert dark == (scheme == "dark")


def test_long_words_and_narrow_screens(browser: Any, service: Service) -> None:
    with opened(browser, service.url, viewport={"width": 320, "height": 568}) as page:
        page.wait_for_selector("#model")
        word = "a" * 400
        label = {"label": word, "probability": 1.0, "probabilities": {word: 1.0}}
        mocked(page, "predict", {"model": word, "version": word, "outputs": [label]})
        choose(page, "classify")
        run(page, Text=word)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        small = "e => { const b = e.getBoundingClientRect(); return b.height > 0 && Math.min(b.width, b.height) < 24; }"
        assert page.evaluate(f"[...document.querySelectorAll('button, input, select, a')].filter({small}).length") == 0
