"""Decodes the bodies of HTTP responses, with limits: chunks, gzip, deflate, Brotli and Zstandard."""

import re
import zlib
from collections.abc import Mapping

from lambert.core.registry import import_extra
from lambert.text.streams import zstd

_CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]{0,1000})?\r?\n")
_ENCODINGS = 3
"""Maximum number of encodings of a body (our choice); servers use one."""


class Undecodable(Exception):
    """A body cannot be decoded. The message is the end of a sentence."""


def decode_body(headers: Mapping[str, str], body: bytes, limit: int) -> bytes:
    """Returns the body of a response. Archives often keep the headers of bodies that they have decoded, so a body that
    does not begin as its headers say is returned as it is.

    Args:
        headers: Values by name in lower case.
        limit: Maximum bytes of the result.

    Raises Undecodable, and UsageError if a library is missing.
    """
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _join_chunks(body)
    names = [name for name in re.split(r"[\s,]+", headers.get("content-encoding", "").lower()) if name]
    if len(names) > _ENCODINGS:
        raise Undecodable(f"has {len(names)} content encodings")
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
    raise Undecodable("has a broken chunk")


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
            raise Undecodable(f"has the unknown content encoding {name[:40]!r}")
    except zlib.error as error:
        raise Undecodable(f"is not {name} ({error})") from error
    if len(data) > limit:
        raise Undecodable(f"is longer than {limit >> 20} MiB when it is decompressed")
    return data


def _brotli(body: bytes, limit: int) -> bytes:
    brotli = import_extra("brotli", "Reading Brotli needs a library", "web")
    decompressor = brotli.Decompressor()
    try:
        data = bytes(decompressor.process(body, output_buffer_limit=limit + 1))
        while len(data) <= limit and (more := decompressor.process(b"", output_buffer_limit=limit + 1)):
            data += more
    except brotli.error as error:
        raise Undecodable(f"is not br ({error})") from error
    return data


def _zstd(body: bytes, limit: int) -> bytes:
    module = zstd()
    try:
        return bytes(module.ZstdDecompressor().decompress(body, limit + 1))
    except module.ZstdError as error:
        raise Undecodable(f"is not zstd ({error})") from error
