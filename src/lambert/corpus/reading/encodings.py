"""Plain text in other encodings than UTF-8: what a header declares, and streams in UTF-8."""

import codecs
import re

from lambert.core.errors import UsageError
from lambert.corpus.reading.streams import BLOCK, Stream, Unreadable

UTF8 = "utf-8"
_HEAD = 1 << 12
"""Bytes in which a header declares the encoding (our choice; those of Project Gutenberg do in about 600)."""
_DECLARED = re.compile(rb"^[ \t]*Character set encoding:[ \t]*([^\r\n]{1,60})", re.MULTILINE | re.IGNORECASE)
_LATIN1 = re.compile(r"(iso)?[ _-]?(8859[ _-]1|latin[ _-]?1)\b", re.IGNORECASE)
_WINDOWS = re.compile(r"(windows|cp|code page|[ _-])*(125\d)\b", re.IGNORECASE)


def known(encoding: str) -> str:
    """Returns Python's name of an encoding. Raises UsageError if it is unknown."""
    try:
        found = codecs.lookup(encoding)
        "".encode(encoding)  # not of text, such as base64
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"encoding = {encoding!r} is unknown: name one of Python's, such as latin-1, cp1252 or utf-16."
        ) from error
    return found.name


def declared(beginning: bytes) -> str:
    """Returns the encoding that the header of a text file declares, as Project Gutenberg writes it; "" if none or
    UTF-8, ASCII included.

    Latin-1 is read as Windows-1252, which differs in control characters only (WHATWG Encoding Standard, section 4.2).
    """
    match = _DECLARED.search(beginning[:_HEAD])
    if match is None:
        return ""
    name = match[1].decode("ascii", "replace").strip()
    if _LATIN1.match(name):
        return "cp1252"
    if windows := _WINDOWS.match(name):
        return f"cp{windows[2]}"
    try:
        found = known(name.split()[0])
    except (UsageError, IndexError):
        return ""
    return "" if found in (UTF8, "ascii") else found


class Decoded:
    """A stream in UTF-8 of a stream in another encoding, unless all of its first `BLOCK` bytes with a character that is
    not ASCII are UTF-8: files are converted and keep their header.

    Reading raises Unreadable at a byte that is not of the encoding.
    """

    def __init__(self, stream: Stream, encoding: str, perhaps_utf8: bool) -> None:
        self._stream, self._encoding, self._perhaps_utf8 = stream, encoding, perhaps_utf8
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._rest, self._ended = b"", False

    def read1(self, size: int) -> bytes:
        """Returns at most `size` bytes, none only at the end."""
        while not self._rest and not self._ended:
            block = self._stream.read(BLOCK)
            self._ended = not block
            if self._perhaps_utf8 and not block.isascii():
                self._perhaps_utf8 = False
                if _is_utf8(block):
                    self._decoder = codecs.getincrementaldecoder(UTF8)()
            try:
                text = self._decoder.decode(block, final=self._ended)
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise Unreadable(f"is not {self._encoding} text (byte 0x{byte:02x})") from error
            except UnicodeError as error:  # UTF-16 without a byte-order mark
                raise Unreadable(f"is not {self._encoding} text ({error})") from error
            self._rest = text.encode("utf-8", "replace")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _is_utf8(block: bytes) -> bool:
    try:
        codecs.getincrementaldecoder(UTF8)().decode(block)
    except UnicodeDecodeError:
        return False
    return True
