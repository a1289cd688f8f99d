"""MediaWiki dumps that nobody meant: each is read, or refused in one line that names the file and the place."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from odd_files import EXAMPLES, damaged, fuzz, some

wikitext = st.lists(
    some
    | st.sampled_from(
        ["{{", "}}", "[[", "]]", "{|", "\n|}", "&lt;ref>", "&lt;/ref>", "&lt;!--", "'''", "|", "\n=", "&amp;"]
    ),
    max_size=8,
).map("".join)
pages = st.builds(
    "<page><title>{}</title>{}<revision>{}<text>{}</text></revision></page>".format,
    some,
    st.sampled_from(["<ns>0</ns>", "<ns>0</ns>", "<ns>1</ns>", "", '<redirect title="x" />']),
    st.sampled_from(["", "<model>wikitext</model>", "<text>", "</page>", "<page>", "&x;", "<!DOCTYPE a>"]),
    wikitext,
)
dumps = st.builds(
    lambda head, found, encoding: f"{head}{''.join(found)}</mediawiki>".encode(encoding, "surrogatepass"),
    st.sampled_from(
        ["<mediawiki>", "<mediawiki><siteinfo>", '<mediawiki><siteinfo><namespace key="6">A</namespace></siteinfo>']
    ),
    st.lists(pages, max_size=4),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)


def test_wiki_dumps(prepared: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    @examples(fuzz, max_examples=max(20, EXAMPLES // 2))
    @given(damaged(dumps), st.sampled_from(["auto", "mediawiki"]))
    def check(file: tuple[str, bytes], kind: str) -> None:
        packed, data = file
        prepared(f"dump.xml{packed}", data, format=kind)

    check()
