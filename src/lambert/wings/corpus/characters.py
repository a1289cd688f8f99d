"""Properties of characters, as flags for each byte of a UTF-8 text."""

import functools
import unicodedata

import numpy as np
import numpy.typing as npt

from lambert.text.tokenizers import roles

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

SPACE, LETTER, PUNCTUATION, END, QUOTE, UNSPACED, UNUSUAL, MIDDLE = (1 << bit for bit in range(8))
"""White space; a letter; a punctuation mark or symbol; a mark that ends a sentence; a quotation mark or bracket that
may follow it; a letter of a script that is written without spaces; a character that `normalise` may change; a byte that
continues a character."""
ENDS = ".!?…‥‼⁇⁈⁉。！？．｡।॥؟۔։՞՜።፧፨၊။។៕᠃᠉"
"""Marks that end a sentence, in the scripts of large languages (Unicode property Sentence_Terminal, and ellipses)."""
QUOTES = "\"'»”’›」』）)］]"
INVISIBLE = "\u00ad\u200b\u2060\ufeff"
"""Soft hyphens, zero-width spaces, word joiners and byte-order marks. Joiners that shape letters are not among them."""
_BMP = 1 << 16


def flags_of(character: str) -> int:
    """Returns the flags of a character."""
    kind = unicodedata.category(character)
    return (
        SPACE * character.isspace()
        | LETTER * character.isalpha()
        | PUNCTUATION * (kind[0] in "PS")
        | END * (character in ENDS)
        | QUOTE * (character in QUOTES)
        | UNSPACED * (character.isalpha() and roles.UNSPACED.match(character) is not None)
        | UNUSUAL * (character in INVISIBLE or _composes(character))
    )


def _composes(character: str) -> bool:
    """Returns whether canonical composition may change a text because it contains this character."""
    return bool(unicodedata.combining(character)) or character in _seconds() or not unicodedata.is_normalized(
        "NFC", character
    )  # fmt: skip


@functools.cache
def _seconds() -> frozenset[str]:
    """Returns the characters that compose with one before them: the second ones of canonical decompositions, and the
    vowels and final consonants of Hangul."""
    found = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    for code in (*range(0x80, _BMP), *range(0x11000, 0x12000)):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and parts[0][0] != "<":
            found.add(chr(int(parts[1], 16)))
    return frozenset(found)


@functools.cache
def _byte_table() -> bytes:
    """Returns the flags of each byte. Those of characters outside ASCII are set later."""
    return bytes(flags_of(chr(byte)) if byte < 0x80 else MIDDLE * (byte < 0xC0) for byte in range(256))


@functools.cache
def _table() -> Bytes:
    """Returns the flags of the characters below U+10000."""
    return np.array([0 if 0xD800 <= code < 0xE000 else flags_of(chr(code)) for code in range(_BMP)], dtype=np.uint8)


def wide_characters(data_B: Bytes) -> tuple[Integers, npt.NDArray[np.int32]]:
    """Returns the positions and the code points of the characters outside ASCII. The last byte must be ASCII."""
    at_n = np.flatnonzero(data_B >= 0xC0)
    first = data_B[at_n].astype(np.int32)
    second = (data_B[at_n + 1] & 63).astype(np.int32)
    codes_n = (first & 31) << 6 | second
    longer = np.flatnonzero(first >= 0xE0)
    if len(longer):
        third = (data_B[at_n[longer] + 2] & 63).astype(np.int32)
        codes_n[longer] = (first[longer] & 15) << 12 | second[longer] << 6 | third
        longest = np.flatnonzero(first >= 0xF0)
        if len(longest):
            at, high = at_n[longest], (first[longest] & 7) << 18 | second[longest] << 12
            low = (data_B[at + 2] & 63).astype(np.int32) << 6 | (data_B[at + 3] & 63).astype(np.int32)
            codes_n[longest] = high | low
    return at_n, codes_n


def flags(data: bytes) -> tuple[Bytes, bool]:
    """Returns the flags of each byte of a UTF-8 text that ends with an ASCII character, and whether it has others. The
    flags of a character are at its first byte, and SPACE, PUNCTUATION and UNSPACED also at its other bytes."""
    flags_B = np.frombuffer(bytearray(data).translate(_byte_table()), dtype=np.uint8)
    if data.isascii():
        return flags_B, False
    at_n, codes_n = wide_characters(np.frombuffer(data, dtype=np.uint8))
    own_n = _table().take(codes_n, mode="clip")
    for code in np.unique(codes_n[codes_n >= _BMP]).tolist():
        own_n[codes_n == code] = flags_of(chr(code))
    flags_B[at_n] = own_n
    whole = own_n & (SPACE | PUNCTUATION | UNSPACED)
    some = np.flatnonzero(whole)
    for step in range(1, 4):
        if not len(some):
            break
        some = some[flags_B[at_n[some] + step] & MIDDLE != 0]
        flags_B[at_n[some] + step] |= whole[some]
    return flags_B, True
