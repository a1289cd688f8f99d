"""Reads web archives (WARC 1.0 and 1.1, ISO 28500) and the texts that Common Crawl extracts from them (WET).

Libraries stop at the first damaged record. Here it is one unreadable document, and the next record is found by its
first line. The bodies of HTTP responses are decoded with limits: chunks, gzip, deflate, Brotli and Zstandard.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from lambert.core.registry import import_extra
from lambert.text.streams import BLOCK, zstd
from lambert.wings.corpus.reading.html import PAGE, extract_page
from lambert.wings.corpus.reading.pieces import Layout, Piece, format_metadata, normalise_newlines

RECORD = 32 << 20
"""Maximum bytes of a record that is read (our choice). The content of longer ones is not read."""
_LINE, _HEAD = 1 << 16, 1 << 18
_NEXT = re.compile(rb"\r?\n(?=WARC/1\.[01]\r?\n[Ww][Aa][Rr][Cc]-)")
SEPARATOR = re.compile(rb"\n\r?\n(?=WARC/1\.[01]\r?\n[Ww][Aa][Rr][Cc]-)")
"""Bytes between two records."""
_BORDER = 64  # bytes of a block that are searched again with the next one, longer than what `_NEXT` finds
_FEWER = "has fewer bytes than its Content-Length"
_TRUNCATED = f"{_FEWER}: the file is truncated"
_PAGES = ("text/html", "application/xhtml+xml")
_UNREAD = {"request", "warcinfo", "metadata", "revisit", "continuation"}
_CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]{0,1000})?\r?\n")
_ENCODINGS = 3
"""Maximum number of encodings of a body (our choice); servers use one."""


class _Damaged(Exception):
    """A record or its body cannot be read. The message is the end of a sentence."""


@dataclass(slots=True)
class _Record:
    headers: dict[str, str]
    content: bytes
    too_long: bool = False


def read_warc(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads a WARC or WET file: the main text of each HTML page that a server sent with success, and each conversion to
    plain text. Other records are skipped and counted."""
    records = _Records(stream)
    number = 0
    while True:
        number += 1
        place = f"record {number}"
        try:
            if (record := records.next()) is None:
                return
            if url := record.headers.get("warc-target-uri", "").strip("<>"):
                place += f" ({_shorten(url)})"
            text, over = _convert_record(record)
            about = {"url": url, "date": record.headers.get("warc-date", "")} if url and text else {}
            yield Piece(normalise_newlines(text), place, metadata=format_metadata(about), passed_over=over)
        except _Damaged as error:
            yield Piece("", place, error=str(error))


def _convert_record(record: _Record) -> tuple[str, str]:
    """Returns (text of a record, "") or ("", reason why it is skipped)."""
    kind = record.headers.get("warc-type", "").lower()
    media, charset = _parse_media(record.headers)
    body = record.content
    if kind in _UNREAD:
        return "", f"{kind} record"
    if kind == "conversion" and media == "text/plain":
        if record.too_long:
            raise _Damaged(f"is longer than {RECORD >> 20} MiB")
        try:
            return body.decode("utf-8"), ""
        except UnicodeDecodeError as error:
            raise _Damaged(f"is not UTF-8 text (byte 0x{body[error.start]:02x})") from error
    if kind == "response" and media in ("application/http", ""):
        if not body.startswith(b"HTTP/"):
            if media:
                raise _Damaged("has no HTTP header")
            return "", "response without HTTP"
        head, _, body = body.partition(b"\r\n\r\n" if b"\r\n\r\n" in body[:_HEAD] else b"\n\n")
        status, *lines = head.splitlines()
        headers = _parse_headers(lines)
        media, charset = _parse_media(headers)
        if not re.match(rb"HTTP/[0-9.]+ +2[0-9][0-9]\b", status):
            return "", "response without success"
    elif kind == "resource":
        headers = {}
    else:
        return "", f"{kind[:20] or 'unnamed'} record"
    if media not in _PAGES:
        return "", "other content"
    if record.too_long:
        raise _Damaged(f"is longer than {RECORD >> 20} MiB")
    text, problem = extract_page(decode_body(headers, body, PAGE), charset)
    if problem:
        raise _Damaged(problem)
    return text, ""


def _parse_media(headers: dict[str, str]) -> tuple[str, str]:
    """Returns (media type, encoding) of a content type."""
    media, _, parameters = headers.get("content-type", "").partition(";")
    found = re.search(r"charset\s*=\s*[\"']?([\w.:-]{2,40})", parameters, re.IGNORECASE)
    return media.strip().lower(), found[1] if found else ""


def _parse_headers(lines: list[bytes]) -> dict[str, str]:
    pairs = (line.decode("utf-8", "replace").partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _shorten(url: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in url)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."


class _Records:
    """The records of a stream. The bytes of a record are kept until its end is checked; if it is damaged, they are
    searched for another record. Nothing is copied meanwhile, so the time is linear for any content."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._held = bytearray()
        self._at = 0
        """Position in `_held` of the next byte to read."""
        self._searching = False

    def next(self) -> _Record | None:
        """Returns the next record, or None after the last. Raises _Damaged once for each damaged one."""
        while True:
            self._forget()
            line = self._line()
            if line.startswith(b"WARC/1."):
                self._searching = False
                return self._record()
            if not line:
                return None
            if line.strip() and not self._searching:
                self._searching = True
                raise _Damaged("is no WARC record: it does not begin with WARC/1")

    def _record(self) -> _Record:
        headers = _parse_headers(self._header())
        length = headers.get("content-length", "")
        if not re.fullmatch(r"[0-9]{1,15}", length, re.ASCII):
            self._searching = True
            raise _Damaged("has no valid Content-Length")
        begin, size = self._at, self._fill(min(int(length), RECORD))
        self._at += size
        left = int(length) - size
        if left and ((found := _NEXT.search(self._held, begin, self._at)) or size < RECORD):
            self._again(begin)
            raise _Damaged(_FEWER if found else _TRUNCATED)
        if left:
            content, begin = bytes(self._held[begin : self._at]), self._skip(left)
        end = self._at
        blank, last = self._line() + self._line(), self._line()
        wrong = last and not last.startswith(b"WARC/1.") and _NEXT.search(self._held, begin, end)
        if blank.strip() or wrong:
            self._again(begin)
            raise _Damaged("does not end where its Content-Length says")
        self._at -= len(last)
        return _Record(headers, content if left else bytes(self._held[begin:end]), left > 0)

    def _header(self) -> list[bytes]:
        """Returns the lines of a header."""
        lines: list[bytes] = []
        size = 0
        while (line := self._line()).strip():
            if line.startswith(b"WARC/1."):
                self._at -= len(line)
                raise _Damaged("has no content: the next record begins in its header")
            lines.append(line)
            size += len(line)
            if size > _HEAD:
                self._searching = True
                raise _Damaged(f"has a header of more than {_HEAD >> 10} KiB")
        return lines

    def _again(self, begin: int) -> None:
        """Continues with the first record that begins between this position and the next byte to read, or else searches
        for one from there."""
        found = _NEXT.search(self._held, begin, self._at)
        self._at = found.end() if found else self._at
        self._searching = not found

    def _skip(self, size: int) -> int:
        """Skips bytes that are not kept. Returns the new position."""
        while size > 0:
            self._forget(_BORDER)
            taken = self._fill(min(size, BLOCK))
            found = _NEXT.search(self._held, 0, self._at + taken)
            self._at = found.end() if found else self._at + taken
            if found or not taken:  # the length is wrong, or the file is truncated
                raise _Damaged(_FEWER if found else _TRUNCATED)
            size -= taken
        return self._at

    def _forget(self, keep: int = 0) -> None:
        """Drops the bytes that were read, except the last ones."""
        gone = max(0, self._at - keep)
        del self._held[:gone]
        self._at -= gone

    def _fill(self, size: int) -> int:
        """Reads up to `size` further bytes into memory. Returns how many there are."""
        if (lacking := size - (len(self._held) - self._at)) > 0:
            self._held += self._stream.read(lacking)
        return min(size, len(self._held) - self._at)

    def _line(self) -> bytes:
        end = self._held.find(b"\n", self._at, self._at + _LINE) + 1
        if not end:
            self._held += self._stream.readline(max(0, _LINE - (len(self._held) - self._at)))
            end = min(len(self._held), self._at + _LINE)
        line = bytes(self._held[self._at : end])
        self._at = end
        return line


def decode_body(headers: Mapping[str, str], body: bytes, limit: int) -> bytes:
    """Returns the body of a response. Archives often keep the headers of bodies that they have decoded, so a body that
    does not begin as its headers say is returned as it is.

    Args:
        headers: Values by name in lower case.
        limit: Maximum bytes of the result.

    Raises _Damaged, and UsageError if a library is missing.
    """
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _join_chunks(body)
    names = [name for name in re.split(r"[\s,]+", headers.get("content-encoding", "").lower()) if name]
    if len(names) > _ENCODINGS:
        raise _Damaged(f"has {len(names)} content encodings")
    for name in reversed(names):
        if name not in ("identity", "none", "utf-8"):
            body = _decompress(name, body, limit)
    return body


def _join_chunks(body: bytes) -> bytes:
    """Returns the content of chunks (RFC 9112, section 7.1). The last one may be cut off."""
    found, position = [], 0
    while match := _CHUNK.match(body, position):
        size = int(match[1], 16)
        found.append(body[match.end() : match.end() + size])
        position = match.end() + size
        if not size or position >= len(body):
            return b"".join(found)
        if end := re.compile(rb"\r?\n").match(body, position):
            position = end.end()
        else:
            break
    if not found:
        return body
    raise _Damaged("has a broken chunk")


def _decompress(name: str, body: bytes, limit: int) -> bytes:
    """Returns the decompressed body, or its beginning if it is cut off."""
    try:
        if name in ("gzip", "x-gzip"):
            data = zlib.decompressobj(31).decompress(body, limit + 1) if body.startswith(b"\x1f\x8b") else body
        elif name == "deflate":
            window = 15 if body[:1] and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0 else -15
            data = zlib.decompressobj(window).decompress(body, limit + 1)
        elif name == "br":
            data = _brotli(body, limit)
        elif name == "zstd":
            data = _zstd(body, limit) if body.startswith(b"\x28\xb5\x2f\xfd") else body
        else:
            raise _Damaged(f"has the unknown content encoding {name[:40]!r}")
    except zlib.error as error:
        raise _Damaged(f"is not {name} ({error})") from error
    if len(data) > limit:
        raise _Damaged(f"is longer than {limit >> 20} MiB when it is decompressed")
    return data


def _brotli(body: bytes, limit: int) -> bytes:
    brotli = import_extra("brotli", "Reading Brotli needs a library", "web")
    decompressor = brotli.Decompressor()
    try:
        data = bytes(decompressor.process(body, output_buffer_limit=limit + 1))
        while len(data) <= limit and (more := decompressor.process(b"", output_buffer_limit=limit + 1)):
            data += more
    except brotli.error as error:
        raise _Damaged(f"is not br ({error})") from error
    return data


def _zstd(body: bytes, limit: int) -> bytes:
    module = zstd()
    try:
        return bytes(module.ZstdDecompressor().decompress(body, limit + 1))
    except module.ZstdError as error:
        raise _Damaged(f"is not zstd ({error})") from error
