"""The page is one well-formed answer that loads nothing, runs only its own code and can be read by a screen reader."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.request import urlopen

import pytest

from lambert.wings.serve import page as parts
from lambert.wings.serve.page import SCRIPTS, page
from tests.support.services import serving

VOID = {"meta", "link", "input", "br", "hr", "img"}
FOLDER = Path(parts.__file__).parent
LIMIT = 60_000


class Parsed(HTMLParser):
    """The elements (tag, attributes) of a page, the content of style and script, and what is not closed or not open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("style", "script"):
            self.inside[self._open[-1]] = self.inside.get(self._open[-1], "") + data

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.elements if "id" in attributes]


@pytest.fixture(scope="module")
def parsed() -> Parsed:
    return Parsed(page().html)


def test_is_well_formed_and_small(parsed: Parsed) -> None:
    assert parsed.wrong == []
    assert len(parsed.ids()) == len(set(parsed.ids()))
    assert page().html.startswith("<!doctype html>")
    assert len(page().html.encode()) < LIMIT
    assert {"style", "script"} == set(parsed.inside)


def test_every_script_is_in_it() -> None:
    assert {path.name for path in FOLDER.glob("*.js")} == set(SCRIPTS)


def test_loads_nothing_from_elsewhere() -> None:
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s'\")]*", page().html)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|\burl\(|import\s*\(|^import ", page().html, re.MULTILINE)


def test_policy_allows_its_own_style_and_script_only(parsed: Parsed) -> None:
    policy = dict(rule.split(" ", 1) for rule in page().headers["Content-Security-Policy"].split("; "))
    for name, content in parsed.inside.items():
        expected = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{name}-src"] == f"'sha256-{expected}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)


def test_texts_cannot_become_html_or_code(parsed: Parsed) -> None:
    sinks = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser|localStorage"
    )
    assert not re.search(sinks, parsed.inside["script"])
    for _, attributes in parsed.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_every_input_has_a_label_and_references_exist(parsed: Parsed) -> None:
    ids = set(parsed.ids())
    labelled = {attributes.get("for") for tag, attributes in parsed.elements if tag == "label"}
    for tag, attributes in parsed.elements:
        if tag in ("input", "select", "textarea"):
            assert attributes["id"] in labelled
        for name in ("for", "aria-controls", "aria-labelledby", "aria-describedby"):
            assert set((attributes.get(name) or "").split()) <= ids | {"tab-0"}, attributes
    assert set(re.findall(r'byId\("([\w-]+)"\)', parsed.inside["script"])) <= ids
    assert ("html", {"lang": "en"}) in parsed.elements


def test_service_answers_with_it(pretrained: Path) -> None:
    pytest.importorskip("fastapi")
    with serving(pretrained, precision="float32") as service:
        answer = urlopen(service.url, timeout=60)
        assert answer.read().decode() == page().html
        assert {name: answer.headers[name] for name in page().headers} == page().headers
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert service.end()[0] == 0
