"""Names and URLs that nobody meant: what is printed and stored of them obeys nobody and keeps secrets.

LAMBERT_FUZZ_EXAMPLES is the number of examples, few in the suite.
"""

import json
import os
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cards import parts, structure, written
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from lambert.core.errors import printable_line
from lambert.core.files import json_text, parse_json
from lambert.core.urls import public, without_secrets

Lambert = Callable[..., Any]

EXAMPLES = int(os.environ.get("LAMBERT_FUZZ_EXAMPLES", "60"))
fuzz = examples(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
CONTROLS = ["\x1b[31m", "\x1b]0;x\x07", "\x9b2J", "\r", "\x08", "\n", "\x0b", "\x85", "\u2028", "\u202e", "\u2066", "�"]
names = st.lists(st.sampled_from(CONTROLS) | st.text(max_size=4), min_size=1, max_size=4).map("".join)
HARMLESS = re.compile("[\u200e\u200f\t\xad]")


def harmless(line: str) -> bool:
    """Whether no character of a line controls a terminal or the direction of text, or ends the line."""
    kinds = {unicodedata.category(letter) for letter in HARMLESS.sub("", line)}
    return not kinds & {"Cc", "Cs", "Zl", "Zp"} and not re.search("[\u202a-\u202e\u2066-\u2069]", line)


@fuzz
@given(names)
def test_lines(name: str) -> None:
    line = printable_line(name)
    assert harmless(line)
    assert printable_line(line) == line


@fuzz
@given(st.recursive(names, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=4))
def test_json_has_every_name(value: Any) -> None:
    text = json_text(value)
    text.encode()
    assert json.loads(text) == value
    if not any("\ud800" <= letter <= "\udfff" for letter in str(value)):
        assert parse_json(text) == value


LETTERS = st.characters(codec="utf-8", exclude_characters="@#?&=%'\"<>", categories=("L", "N", "P", "S"))
secret = st.text(LETTERS, min_size=8)
schemes = st.sampled_from(["s3", "https", "http", "postgresql", "sftp", "gs", "ftp"])


@fuzz
@given(schemes, secret, secret, st.sampled_from(["sig", "X-Amz-Signature", "token", "X-Goog-Credential", "api_key"]))
def test_urls(scheme: str, password: str, signature: str, parameter: str) -> None:
    password, signature = f"a{password}", f"b{signature}"
    url = f"{scheme}://me:{password}@host/x?v=1&{parameter}={signature}"
    assert public(url) == f"{scheme}://host/x?v=1"
    said = without_secrets(f"Invalid bucket name 'me:{password}@host': {url} ({signature})", url)
    assert password not in said
    assert signature not in said


MARKUP = st.sampled_from(
    [*"`~*_[]()<>!|#-+.:;&$\\'\"{}=@ \n\r\t", "---", "www.", "http:", "&lt;", "1.", "<!--", "a", "é"]
)
PLAIN = [structure(parts(written("name", kind))[1]) for kind in ("converted", "trained")]


@fuzz
@given(st.lists(MARKUP, min_size=1, max_size=8).map("".join).filter(str.strip) | names.map(lambda name: f"x{name}"))
def test_cards(name: str) -> None:
    """A name in a field of a model card changes neither its structure nor its metadata."""
    name = re.sub("[/\0]|[\ud800-\udfff]", "", name).strip(".") or "x"
    for kind, plain in zip(("converted", "trained"), PLAIN, strict=True):
        front, tokens = parts(written(name, kind))
        assert structure(tokens) == plain
        assert front["base_model"] == "".join(letter if letter.isprintable() else " " for letter in name)


def test_verbs(labelled: Callable[..., Path], tuned: Callable[..., Path], tmp_path: Path, lambert: Lambert) -> None:
    """File names with controls, in what verbs print and in their errors."""
    model, content = tuned("classify"), labelled("classify", "dev").read_bytes()

    @examples(fuzz, max_examples=max(5, EXAMPLES // 20))
    @given(names.map(lambda name: re.sub("[/\0]|[\ud800-\udc7f]", "", name)[:40]).filter(bool))
    def check(name: str) -> None:
        data = tmp_path / f"x{name}.tsv"
        data.write_bytes(content)
        gone = tmp_path / f"no{name}.tsv"
        for path, code in ((data, 0), (gone, 3)):
            called = lambert("evaluate", model=model, data=path, predictions=tmp_path / f"p{name}.tsv")
            assert called.code == code, called
            for line in (called.out + called.err).split("\n"):
                assert harmless(line), line
            assert "\nlambert: forged" not in called.out + called.err
        data.unlink()

    check()


def test_a_name_forges_no_line(lambert: Lambert) -> None:
    done = lambert("predict", model="no\nlambert: forged")
    assert done.err.count("\n") == 1
