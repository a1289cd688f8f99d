"""Reads web archives (WARC 1.0 and 1.1, ISO 28500) and the texts that Common Crawl extracts from them (WET).

Libraries end at the first damaged record. Here it is one document that cannot be read: the next record is found by its
first line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from lambert.corpus.reading.html import PAGE, page_text
from lambert.corpus.reading.http_body import Undecodable, decoded
from lambert.corpus.reading.pieces import Layout, Piece, described, with_newlines
from lambert.corpus.reading.streams import BLOCK

RECORD = 32 << 20
"""Maximum bytes of a record that is read (our choice). The content of longer ones is not read."""
_LINE, _HEAD = 1 << 16, 1 << 18
_NEXT = re.compile(rb"\r?\n(?=WARC/1\.[01]\r?\n[Ww][Aa][Rr][Cc]-)")
SEPARATOR = re.compile(rb"\n\r?\n(?=WARC/1\.[01]\r?\n[Ww][Aa][Rr][Cc]-)")
"""What ends a record that another follows."""
_PAGES = ("text/html", "application/xhtml+xml")
_UNREAD = {"request", "warcinfo", "metadata", "revisit", "continuation"}


class _Damaged(Exception):
    """Why a record cannot be read."""


@dataclass(slots=True)
class _Record:
    headers: dict[str, str]
    content: bytes
    too_long: bool = False


def read_warc(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads a WARC or WET file: the main text of each HTML page that a server sent with success, and each conversion to
    plain text. Other records are passed over."""
    records = _Records(stream)
    number = 0
    while True:
        number += 1
        place = f"record {number}"
        try:
            if (record := records.next()) is None:
                return
            if url := record.headers.get("warc-target-uri", "").strip("<>"):
                place += f" ({_short(url)})"
            text, over = _document(record)
            about = {"url": url, "date": record.headers.get("warc-date", "")} if url and text else {}
            yield Piece(with_newlines(text), place, metadata=described(about), passed_over=over)
        except (_Damaged, Undecodable) as error:
            yield Piece("", place, error=str(error))


def _document(record: _Record) -> tuple[str, str]:
    """Returns (the text of a record, "") or ("", why it is passed over)."""
    kind = record.headers.get("warc-type", "").lower()
    media, charset = _media(record.headers)
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
            return ("", "response without HTTP") if not media else _no_http()
        head, _, body = body.partition(b"\r\n\r\n" if b"\r\n\r\n" in body[:_HEAD] else b"\n\n")
        status, *lines = head.splitlines()
        headers = _headers(lines)
        media, charset = _media(headers)
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
    text, problem = page_text(decoded(headers, body, PAGE), charset)
    if problem:
        raise _Damaged(problem)
    return text, ""


def _no_http() -> tuple[str, str]:
    raise _Damaged("has no HTTP header")


def _media(headers: dict[str, str]) -> tuple[str, str]:
    """Returns (media type, encoding) of a content type."""
    media, _, parameters = headers.get("content-type", "").partition(";")
    found = re.search(r"charset\s*=\s*[\"']?([\w.:-]{2,40})", parameters, re.IGNORECASE)
    return media.strip().lower(), found[1] if found else ""


def _headers(lines: list[bytes]) -> dict[str, str]:
    pairs = (line.decode("utf-8", "replace").partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _short(url: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in url)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."


class _Records:
    """The records of a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._held = b""
        """Bytes that were read and are to be read again."""
        self._searching = False

    def next(self) -> _Record | None:
        """Returns the next record, or None after the last. Raises _Damaged once for each damaged one."""
        while line := self._line():
            if line.startswith(b"WARC/1."):
                self._searching = False
                return self._record()
            if line.strip() and not self._searching:
                self._searching = True
                raise _Damaged("is no WARC record: it does not begin with WARC/1")
        return None

    def _record(self) -> _Record:
        lines: list[bytes] = []
        while (line := self._line()).strip():
            if line.startswith(b"WARC/1."):
                self._held = line + self._held
                raise _Damaged("has no content: the next record begins in its header")
            lines.append(line)
            if sum(map(len, lines)) > _HEAD:
                self._searching = True
                raise _Damaged(f"has a header of more than {_HEAD >> 10} KiB")
        headers = _headers(lines)
        length = headers.get("content-length", "")
        if not re.fullmatch(r"[0-9]{1,15}", length, re.ASCII):
            self._searching = True
            raise _Damaged("has no valid Content-Length")
        content = self._read(min(int(length), RECORD))
        left = int(length) - len(content)
        if left > 0 and (len(content) < RECORD or _NEXT.search(content)):
            self._again(content)
            raise _Damaged("has fewer bytes than its Content-Length")
        self._skip(left)
        end = [self._line(), self._line(), self._line()]
        wrong = end[2] and not end[2].startswith(b"WARC/1.") and _NEXT.search(content)
        if b"".join(end[:2]).strip() or wrong:
            self._again(content + b"".join(end))
            raise _Damaged("does not end where its Content-Length says")
        self._held = end[2] + self._held
        return _Record(headers, content, left > 0)

    def _again(self, data: bytes) -> None:
        """Goes on with the first record that begins in bytes that were read."""
        begin = _NEXT.search(data)
        self._held = (data[begin.end() :] if begin else b"") + self._held
        self._searching = not begin

    def _skip(self, size: int) -> None:
        before = b""
        while size > 0 and (block := self._read(min(size, BLOCK))):
            size -= len(block)
            if begin := _NEXT.search(before + block):  # the length is wrong
                self._held = (before + block)[begin.end() :] + self._held
                raise _Damaged("has fewer bytes than its Content-Length")
            before = block[-64:]
        if size > 0:
            raise _Damaged("has fewer bytes than its Content-Length")

    def _read(self, size: int) -> bytes:
        data, self._held = self._held[:size], self._held[size:]
        return data + self._stream.read(size - len(data)) if len(data) < size else data

    def _line(self) -> bytes:
        if not self._held:
            return self._stream.readline(_LINE)
        end = self._held.find(b"\n", 0, _LINE) + 1
        if not end and len(self._held) < _LINE:
            line, self._held = self._held + self._stream.readline(_LINE - len(self._held)), b""
            return line
        end = end or _LINE
        line, self._held = self._held[:end], self._held[end:]
        return line
