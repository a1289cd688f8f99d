"""The page at `/`: its parts put together into one answer that loads nothing but the answers of its own service."""

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

SCRIPTS = ("elements.js", "views.js", "results.js", "service.js", "main.js")
"""The parts of the script, which is one module, in order."""
_RULES = {
    "default-src": "'none'",
    "connect-src": "'self'",
    "img-src": "data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A page of HTML and the headers of its answer."""

    html: str
    headers: dict[str, str]


@cache
def page() -> Page:
    """Returns the page.

    Its Content-Security-Policy allows the style and the script of the page by their SHA-256 (Content Security Policy
    Level 3, section 2.3.1) and requests to the service, and forbids to turn text into HTML or code (Trusted Types).
    """
    style, script = _part("style.css"), "\n".join(map(_part, SCRIPTS))
    html = _part("index.html").replace("/*style*/", style).replace("/*script*/", script)
    rules = {**_RULES, "style-src": _hash(style), "script-src": _hash(script)}
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in rules.items()),
        "Cache-Control": "no-cache",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Page(html, headers)


def _part(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
