"""Recognises encodings other than UTF-8, and converts streams to UTF-8."""

import codecs
import io
import re
from typing import Any, BinaryIO, cast

from lambert.core.errors import UsageError
from lambert.text.streams import BLOCK, Converted, Unreadable

UTF8 = "utf-8"
BOM = b"\xef\xbb\xbf"
SURROGATE = re.compile("[\udc80-\udcff]")
_HEAD = 1 << 12
"""Number of first bytes that are searched for a declared encoding (our choice; Project Gutenberg's is in the first
600)."""
_DECLARED = re.compile(rb"^[ \t]*Character set encoding:[ \t]*([^\r\n]{1,60})", re.MULTILINE | re.IGNORECASE)
_LATIN1 = re.compile(r"(iso)?[ _-]?(8859[ _-]1|latin[ _-]?1)\b", re.IGNORECASE)
_WINDOWS = re.compile(r"(windows|cp|code page|[ _-])*(125\d)\b", re.IGNORECASE)
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""Byte-order marks. UTF-32's is tried first, because it begins as UTF-16's does."""
_ESCAPES = re.compile(rb"\x1b(?:\$[@B]|\(J)")
"""What begins Japanese characters, or the Latin ones of JIS X 0201, in ISO-2022-JP (RFC 1468)."""
_CR = "CR"
"""Line ends of classic Mac OS."""


def look_up_encoding(encoding: str) -> str:
    """Returns Python's name of an encoding. Raises UsageError if it is unknown.

    Latin-1 is read as Windows-1252, which differs in control characters only (WHATWG Encoding Standard, section 4.2).
    """
    try:
        found = codecs.lookup(encoding)
        "".encode(encoding)  # not of text, such as base64
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"encoding = {encoding!r} is unknown: name one of Python's, such as latin-1, cp1252 or utf-16."
        ) from error
    return "cp1252" if found.name == "iso8859-1" else found.name


def find_declared(beginning: bytes) -> str:
    """Returns the encoding that the header of a text file declares, as Project Gutenberg's do; "" if none, UTF-8 or
    ASCII.

    Latin-1 means Windows-1252, as for `look_up_encoding`.
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
        found = look_up_encoding(name.split()[0])
    except (UsageError, IndexError):
        return ""
    return "" if found in (UTF8, "ascii") else found


def find_marked(beginning: bytes) -> str:
    """Returns the encoding of a byte-order mark; "" if there is none or it is UTF-8's."""
    return next((name for mark, name in _MARKS.items() if beginning.startswith(mark)), "")


def has_escapes(data: bytes) -> bool:
    """Returns whether data have escape sequences of ISO-2022-JP, which is all ASCII, and no other bytes."""
    return data.isascii() and _ESCAPES.search(data) is not None


def explain_unmarked(beginning: bytes, option: bool = False) -> str:
    """Returns the end of a message if data with this beginning is UTF-16 without a byte-order mark, or ISO-2022-JP,
    else "". With `option`, the message names the setting `encoding` of plain text too."""
    head = beginning[:_HEAD]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if has_escapes(beginning):
        name = what = "ISO-2022-JP"
    elif not head or max(even, odd) * 4 < len(head) or min(even, odd) * 8 > max(even, odd):
        return ""
    else:
        name = "UTF-16LE" if odd > even else "UTF-16BE"
        what = f"{name} without a byte-order mark"
    other = f", or give its encoding (--encoding {codecs.lookup(name).name})" if option else ""
    return f"looks like {what}: convert it to UTF-8 (iconv -f {name} -t UTF-8){other}"


def explain_no_text(beginning: bytes) -> str:
    """Returns the end of a message if data with this beginning is not text (it is not UTF-8 and has NUL bytes), else
    ""."""
    if b"\0" not in beginning or _is_utf8(beginning):
        return ""
    return "has NUL bytes and is not UTF-8: it is no text file. Name the file with the text"


def other_form(beginning: bytes) -> str:
    """Returns what `plain` converts in data with this beginning: an encoding, "CR" for line ends, or ""."""
    if encoding := find_marked(beginning):
        return encoding
    alone = b"\r" in beginning.rstrip(b"\r") and b"\n" not in beginning
    return _CR if alone else ""


def plain(stream: Any, beginning: bytes) -> Any:
    """Returns a stream of UTF-8 lines that end with LF. Decodes UTF-16 and UTF-32 with a byte-order mark, and replaces
    CR if it alone ends lines; other streams are returned unchanged. The stream must be at its beginning."""
    form = other_form(beginning)
    if not form:
        return stream
    if form == _CR:
        return cast(BinaryIO, io.BufferedReader(_CarriageReturns(stream), BLOCK))
    text = beginning.decode(form, "ignore").encode(UTF8, "ignore")
    return plain(cast(BinaryIO, io.BufferedReader(Decoded(stream, form), BLOCK)), text)


def plain_beginning(beginning: bytes) -> bytes:
    """Returns the first bytes of a stream as `plain` converts them."""
    if encoding := find_marked(beginning):
        beginning = beginning.decode(encoding, "ignore").encode(UTF8, "ignore")
    return beginning.replace(b"\r", b"\n") if other_form(beginning) == _CR else beginning


def explain_invalid(data: bytes, begin: int) -> str:
    """Returns the end of a message: the byte at `begin` is not UTF-8, and which encoding is likely, or that the data
    are no text."""
    if found := explain_no_text(data):
        return found
    high = sum(byte >= 0x80 for byte in data)
    letters = high + sum(chr(byte).isalpha() for byte in data if byte < 0x80)
    script = high > 4 and 2 * high > letters
    likely = "the encoding of another script" if script else "Windows-1252 (Latin-1) or one like it"
    others = (
        " (CP1251 Cyrillic, CP949 Korean, GB18030 Chinese, CP932 Japanese)"
        if script
        else " (CP1250 for Central Europe, CP1254 for Turkish)"
    )
    return (
        f"is not UTF-8 text (byte 0x{data[begin]:02x}): it may be in {likely}. Convert the file, such as with iconv -f "
        f"{'ENCODING' if script else 'CP1252'} -t UTF-8{others}"
    )


class Decoded(Converted):
    """A stream in another encoding, converted to UTF-8. With `perhaps_utf8`, it is not converted if its first block
    with a character outside ASCII is valid UTF-8, because converted files keep their header. Reading raises Unreadable
    at a byte that the encoding lacks.
    """

    def __init__(self, stream: Any, encoding: str, perhaps_utf8: bool = False) -> None:
        super().__init__(stream)
        self._encoding, self._perhaps_utf8 = encoding, perhaps_utf8
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def _restart(self) -> None:
        super()._restart()
        self._decoder.reset()

    def _next(self, size: int) -> bytes:
        while block := self._stream.read(BLOCK):
            if self._perhaps_utf8 and not block.isascii():
                self._perhaps_utf8 = False
                if _is_utf8(block):
                    self._decoder = codecs.getincrementaldecoder(UTF8)()
            if data := self._decode(block):
                return data
        return self._decode(b"", final=True)

    def _decode(self, block: bytes, *, final: bool = False) -> bytes:
        try:
            return self._decoder.decode(block, final).encode(UTF8, "replace")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise Unreadable(f"is not {self._encoding} text (byte 0x{byte:02x})") from error
        except UnicodeError as error:  # UTF-16 without a byte-order mark
            raise Unreadable(f"is not {self._encoding} text ({error})") from error


class _CarriageReturns(Converted):
    """A stream with LF for each CR."""

    def _next(self, size: int) -> bytes:
        data: bytes = self._stream.read(max(size, 1))
        return data.replace(b"\r", b"\n")


def _is_utf8(block: bytes) -> bool:
    try:
        codecs.getincrementaldecoder(UTF8)().decode(block)
    except UnicodeDecodeError:
        return False
    return True
