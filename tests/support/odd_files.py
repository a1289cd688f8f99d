"""Contents of files that nobody meant, made up by hypothesis, and how files are damaged.

LAMBERT_FUZZ_EXAMPLES is the number of examples, few in the suite.
"""

import bz2
import gzip
import importlib
import lzma
import os
from collections.abc import Callable

from hypothesis import HealthCheck
from hypothesis import settings as examples
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("LAMBERT_FUZZ_EXAMPLES", "60"))
fuzz = examples(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def zstd(data: bytes) -> bytes:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return bytes(importlib.import_module(name).compress(data))
        except ImportError:
            continue
    return data  # then .zst is refused for its missing library


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd,
}  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, content: st.SearchStrategy[bytes]) -> tuple[str, bytes]:
    """(ending, bytes) of a file, mostly whole; else cut off, with bytes of its own, or with something behind it."""
    ending = draw(st.sampled_from(["", "", *PACKERS]))
    data = PACKERS[ending](draw(content))
    fault = draw(st.sampled_from(["", "", "", "cut", "bytes", "behind", "name"]))
    at = draw(st.integers(0, len(data)))
    if fault == "cut":
        data = data[:at]
    elif fault == "bytes":
        data = data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at + 2 :]
    elif fault == "behind":
        data += draw(st.sampled_from([b"\0", b"behind", data, data[: at + 1]]))
    elif fault == "name":
        ending = draw(st.sampled_from([*PACKERS]))
    return ending, data


some = st.one_of(
    st.sampled_from(
        ["", " ", "the king", "\ufeff", "\x00", "\x0b\x0c\x85\x1c", "[SEP] [MASK] [CLS]", "\ud800", "a\nb"]
    ),
    st.sampled_from(
        ["\u3000", "\u0301", "\U0001f999", "this. That! \u4eca\u3002\u201d", "x" * 300, "nan", "1e999", "-0"]
    ),
    st.text(max_size=12),
)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
