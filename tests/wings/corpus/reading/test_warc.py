"""Web archives: WARC and WET."""

import gzip
import sys
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from lambert.wings.corpus.reading.readers import Layout, read

web = pytest.mark.skipif(find_spec("resiliparse") is None, reason="needs resiliparse")


def record(kind: str, content: bytes, media: str = "application/http; msgtype=response", **more: object) -> bytes:
    head = {"WARC-Type": kind, "WARC-Target-URI": "http://a.org/x", "Content-Type": media}
    head |= {"Content-Length": str(len(content)), **{name: str(value) for name, value in more.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + content + b"\r\n\r\n"


def http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = {"Content-Type": "text/html; charset=utf-8", **{n.replace("_", "-"): v for n, v in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def article(number: int) -> bytes:
    return record("response", http(f"<p>Page {number} is about rivers.</p>".encode()))


def archive(path: Path, *records: bytes, packed: bool = True) -> list[str]:
    """The text of each document, <its error> or (why it is passed over)."""
    path.write_bytes(b"".join(map(gzip.compress, records)) if packed else b"".join(records))
    pieces = read(path, Layout())
    return [f"<{p.place} {p.error}>" if p.error else f"({p.passed_over})" if p.passed_over else p.text for p in pieces]


@web
def test_records_of_a_web_archive(tmp_path: Path) -> None:
    records = [
        record("warcinfo", b"software: x\r\n", "application/warc-fields"),
        record("request", b"GET / HTTP/1.1\r\n\r\n", "application/http; msgtype=request"),
        article(1), record("response", http(b"%PDF", Content_Type="application/pdf")),
        record("response", http(b"<p>Gone.</p>", "404 Not Found")), record("metadata", b"x"), record("revisit", b""),
        record("resource", b"<p>A resource is a page too.</p>", "text/html"),
        record("conversion", b"The text of\na page.", "text/plain"), article(2),
    ]  # fmt: skip
    expected = [
        "(warcinfo record)", "(request record)", "Page 1 is about rivers.", "(other content)",
        "(response without success)", "(metadata record)", "(revisit record)", "A resource is a page too.",
        "The text of\na page.", "Page 2 is about rivers.",
    ]  # fmt: skip
    for packed in (True, False):
        assert archive(tmp_path / f"a.warc{'.gz' if packed else ''}", *records, packed=packed) == expected
    places = [piece.place for piece in read(tmp_path / "a.warc", Layout())]
    assert places[2] == "record 3 (http://a.org/x)"


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@web
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw", "br", "zstd", "chunked", "chunked gzip", "only named"])
def test_bodies_are_decoded(tmp_path: Path, encoding: str) -> None:
    zstd = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    pack: Callable[[bytes], bytes] = {
        "gzip": gzip.compress, "chunked gzip": gzip.compress, "deflate": zlib.compress, "raw": raw_deflate,
        "br": lambda data: pytest.importorskip("brotli").compress(data), "zstd": zstd.compress,
    }.get(encoding, bytes)  # fmt: skip
    body = pack(b"<p>Page 1 is about rivers.</p>")
    headers = {"Content_Encoding": {"raw": "deflate", "only named": "gzip"}.get(encoding, encoding)}
    if encoding.startswith("chunked"):
        body = b"5\r\n" + body[:5] + b"\r\n%x;x=y\r\n" % len(body[5:]) + body[5:] + b"\r\n0\r\n\r\n"
        headers = {"Transfer_Encoding": "chunked"} | ({"Content_Encoding": "gzip"} if "gzip" in encoding else {})
    assert archive(tmp_path / "a.warc", record("response", http(body, **headers))) == ["Page 1 is about rivers."]


@web
@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (record("response", http(b"<p>x"), **{"Content-Length": 10**6}), "has fewer bytes than its Content-Length"),
        (record("response", http(b"<p>x"), **{"Content-Length": 200}), "does not end where its Content-Length says"),
        (record("response", http(b"<p>x"), **{"Content-Length": 10}), "does not end where its Content-Length says"),
        (record("response", http(b"<p>x"), **{"Content-Length": 10**14}), "has fewer bytes than its Content-Length"),
        (record("response", http(b"<p>x"), **{"Content-Length": -1}), "has no valid Content-Length"),
        (record("response", http(b"<p>x"), **{"Content-Length": "9" * 5000}), "has no valid Content-Length"),
        (b"\0\xffgarbage\n\n more\n", "is no WARC record"),
        (b"WARC/1.0\r\nWARC-Type: response\r\n", "has no content"),
        (b"WARC/1.0\r\n" + b"X: y\r\n" * 99_999 + b"\r\n", "has a header of more than 256 KiB"),
        (record("response", b"\0\1nothing"), "has no HTTP header"),
        (record("response", http(b"\x1f\x8bnot", Content_Encoding="gzip")), "is not gzip"),
        (record("response", http(b"1\r\na\r\nzz\r\n", Transfer_Encoding="chunked")), "has a broken chunk"),
        (record("response", http(gzip.compress(bytes(20 << 20)), Content_Encoding="gzip")), "longer than 16 MiB"),
        (record("response", http(b"x", Content_Encoding="a,b,c,d")), "has 4 content encodings"),
        (record("response", http(b"x", Content_Encoding="own")), "has the unknown content encoding 'own'"),
        (record("conversion", b"\xff", "text/plain"), "is not UTF-8 text (byte 0xff)"),
    ],
)
def test_a_damaged_record_affects_no_other(tmp_path: Path, bad: bytes, problem: str) -> None:
    lines = archive(tmp_path / "a.warc", article(1), bad, article(2), article(3), packed=False)
    assert lines[0] == "Page 1 is about rivers."
    assert problem in lines[1]
    assert lines[1].startswith("<record 2")
    assert "truncated" not in lines[1]
    assert lines[2:] == ["Page 2 is about rivers.", "Page 3 is about rivers."]


@web
@pytest.mark.parametrize("length", [0, 10**6, 10**14])
def test_an_archive_that_is_cut_is_called_truncated(tmp_path: Path, length: int) -> None:
    last = record("response", http(b"<p>x"), **({"Content-Length": length} if length else {}))
    lines = archive(tmp_path / "a.warc", article(1), last[:-9], packed=False)
    assert lines[0] == "Page 1 is about rivers."
    assert lines[1].endswith("has fewer bytes than its Content-Length: the file is truncated>")


@web
def test_long_records(tmp_path: Path) -> None:
    video = record("response", http(bytes(40 << 20), Content_Type="video/mp4"))
    text = record("response", http(b"x" * (40 << 20)))
    assert archive(tmp_path / "a.warc", video, article(1), text, article(2), packed=False) == [
        "(other content)", "Page 1 is about rivers.", "<record 3 (http://a.org/x) is longer than 32 MiB>",
        "Page 2 is about rivers.",
    ]  # fmt: skip
