"""Finds the special tokens of a tokenizer by role, and the pieces that continue a word.

Families name them differently: BERT's [CLS] is <s> in RoBERTa and XLM-R. The template in tokenizer.json has the tokens
around a text, and the other tokens have recognisable names.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lambert.core.errors import DataError
from lambert.core.specials import Specials, Template

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Special tokens with a name, in the order in which transformers adds them (SPECIAL_TOKENS_ATTRIBUTES)."""
SPACE = "\u2581"
"""Marks the beginning of a word in pieces of SentencePiece."""
BYTE_SPACE = "\u0120"
"""Marks it in pieces of byte-level BPE, where it stands for a space."""
_NAMED = {"mask": "[MASK]", "pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
"""BERT's names of the special tokens by role."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What the files of a tokenizer declare and the `tokenizers` library does not store.

    The library finds either all special tokens in a text, or none. But those of the template, such as [SEP], are
    ordinary text there, and added ones, such as [E1] to mark an entity, are one id each. So the latter (`markers`) are
    special on disk only.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    """Special tokens by role (`ROLES`), if files name them."""
    markers: frozenset[str] = frozenset()
    """Special tokens that are found in texts."""
    truncation_side: str = "right"
    """The side on which long texts lose tokens: left or right."""


def get_declared(tokenizer: Any) -> Declared:
    """Returns the declarations of a tokenizer; empty ones if no files describe it."""
    found: Declared = getattr(tokenizer, "declared", Declared())
    return found


def declare(tokenizer: Any, found: Declared) -> None:
    """Stores the declarations of a tokenizer. A copy through `to_str` loses them."""
    tokenizer.declared = found


def template(tokenizer: Tokenizer, source: str = "the tokenizer") -> Template:
    """Returns the places of the tokenizer's special tokens. Raises DataError, which names `source`, if they are not
    like those of BERT or RoBERTa, or if the vocabulary lacks the tokens."""
    single, pair = tokenizer.encode(""), tokenizer.encode("", "")
    around = [number for number, is_special in zip(single.ids, single.special_tokens_mask, strict=True) if is_special]
    if not around:  # without a template
        cls, sep = find_id(tokenizer, "cls"), find_id(tokenizer, "sep")
        if cls is None or sep is None:
            missing = [_NAMED[role] for role, number in (("cls", cls), ("sep", sep)) if number is None]
            raise DataError(f"{source} has no piece {', '.join(missing)}, and no template with special tokens.")
        return Template(cls, sep)
    if len(around) != 2:
        shown = " ".join(str(tokenizer.id_to_token(number)) for number in around)
        raise DataError(f"{source} puts {shown!r} around a text; Lambert needs one token before it and one after it.")
    rows = zip(pair.ids, pair.type_ids, pair.special_tokens_mask, strict=True)
    ids, types = zip(*[(number, kind) for number, kind, is_special in rows if is_special], strict=True)
    cls, sep = around
    usual = len(ids) >= 3 and ids[0] == cls and set(ids[1:]) == {sep}
    again = not usual and ids == (cls, sep, cls, sep) and types[2] == types[3]
    return Template(cls, sep, len(ids) - 2 if usual or again else 0, types[-1], again)


def bert_template(tokenizer: Tokenizer) -> bool:
    """Returns whether the special tokens between two texts are placed as in BERT, or the tokenizer has no template."""
    pair = tokenizer.encode("", "")
    return len(pair.ids) in (0, 3)


def find_id(tokenizer: Tokenizer, role: str) -> int | None:
    """Returns the id of the token for a role (mask, pad, unk, cls or sep), as files declare it or by its name, such as
    <mask> or <|mask|>; None if there is none. The unknown token is first that of the model of the pieces."""
    own = getattr(tokenizer.model, "unk_token", None) if role == "unk" else None
    if own is not None and (number := tokenizer.token_to_id(own)) is not None:
        return int(number)
    if role in (names := get_declared(tokenizer).names) and (number := tokenizer.token_to_id(names[role])) is not None:
        return int(number)
    added = sorted(tokenizer.get_added_tokens_decoder().items(), key=lambda entry: (not entry[1].special, entry[0]))
    for number, token in added:
        if re.sub(r"[\W_]", "", token.content.lower()) == role:
            return int(number)
    found = (tokenizer.token_to_id(name) for name in (_NAMED[role], f"<{role}>"))
    return next((int(number) for number in found if number is not None), None)


def piece(tokenizer: Tokenizer, role: str, source: str = "the tokenizer") -> str:
    """Returns the special token for a role. Raises DataError if the vocabulary lacks it."""
    if role in ("cls", "sep"):
        return content(tokenizer, getattr(template(tokenizer, source), role))
    number = find_id(tokenizer, role)
    if number is None:
        raise DataError(
            f"{source} has no {role} token such as {_NAMED[role]}. Add it to the tokenizer as a special token."
        )
    return content(tokenizer, number)


def content(tokenizer: Tokenizer, number: int) -> str:
    """Returns the token with an id as files write it; the library's `id_to_token` lower-cases some added tokens."""
    added = tokenizer.get_added_tokens_decoder().get(number)
    return str(tokenizer.id_to_token(number)) if added is None else str(added.content)


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """Returns the ids of the special tokens around texts and of placeholders: cls, sep, pad, unk and mask."""
    around = [tokenizer.encode(""), tokenizer.encode("", "")]
    ids = {number for one in around for number, at in zip(one.ids, one.special_tokens_mask, strict=True) if at}
    given = (
        find_id(tokenizer, role) for role in (("pad", "unk", "mask") if ids else ("pad", "unk", "mask", "cls", "sep"))
    )
    return ids | {number for number in given if number is not None}


def mask_id(tokenizer: Tokenizer, source: str = "the tokenizer") -> int:
    """Returns the id of the mask token. Raises DataError if the vocabulary lacks it."""
    found = tokenizer.token_to_id(piece(tokenizer, "mask", source))
    assert found is not None
    return int(found)


def specials(tokenizer: Tokenizer, source: str = "the tokenizer") -> Specials:
    """Returns the ids of the special tokens, and which pieces continue a word. Raises DataError, which names `source`,
    if a special token is missing or in an unexpected place."""
    found, mask, unknown = template(tokenizer, source), mask_id(tokenizer, source), find_id(tokenizer, "unk")
    if unknown is None and prefix(tokenizer):
        piece(tokenizer, "unk", source)  # raises: WordPiece cannot express every text
    continuation_V, closing_V = boundaries(tokenizer)
    return Specials(found, -1 if unknown is None else unknown, mask, len(closing_V), continuation_V, closing_V)


def size(tokenizer: Tokenizer) -> int:
    """Returns the number of ids: the largest one plus 1."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


_UNUSED = re.compile(r"\[unused_?\d+\]|<\|?unused_?\d+\|?>", re.IGNORECASE)
"""Names of reserved pieces: [unused7] in BERT and ModernBERT, <unused7> in mmBERT."""


def find_unused(tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of the pieces that the vocabulary reserves, in order."""
    pieces = tokenizer.get_vocab(with_added_tokens=True)
    return sorted(number for piece, number in pieces.items() if _UNUSED.fullmatch(piece))


def boundaries(tokenizer: Tokenizer) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns for each id whether its piece continues the word of the preceding piece, and whether a word always begins
    after its piece, each bool [V].

    In WordPiece, pieces with ## continue a word. In byte-level BPE and SentencePiece, pieces without the mark of a
    space do, except punctuation and characters of scripts without spaces. After those, and after white space other than
    the mark, a word always begins.
    """
    pieces: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    continuation_V, closing_V = np.zeros((2, 1 + max(pieces.values())), dtype=np.bool_)
    if mark := prefix(tokenizer):
        continuation_V[[number for piece, number in pieces.items() if piece.startswith(mark)]] = True
        return continuation_V, closing_V
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    text_of = decode_piece if "ByteLevel" in kinds(tokenizer) else str
    texts = {number: text_of(_ASCII.sub(_character, piece)) for piece, number in pieces.items() if piece not in added}
    continuation_V[[number for number, text in texts.items() if _joins(text)]] = True
    closing_V[[number for number, text in texts.items() if text not in ("", " ", SPACE) and _ends(text)]] = True
    return continuation_V, closing_V


def prefix(tokenizer: Tokenizer) -> str:
    """Returns the prefix of pieces inside words, ## in WordPiece; empty for other kinds."""
    return getattr(tokenizer.model, "continuing_subword_prefix", None) or ""


def reads_spaces(tokenizer: Tokenizer) -> bool:
    """Returns whether spaces belong to the words after them, so that the first word of a text has none."""
    if prefix(tokenizer):
        return False
    first = tokenizer.encode("a", add_special_tokens=False).tokens
    return not (first and first[0].startswith((SPACE, BYTE_SPACE)))


def kinds(tokenizer: Tokenizer) -> set[str]:
    """Returns the types of the tokenizer's normalizer, pre-tokenizer and decoder, and of their parts."""
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder)
    return {kind for part in parts if part is not None for kind in _types(json.loads(part.__getstate__()))}


def _types(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value["type"]
        for inner in value.values():
            yield from _types(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _types(inner)


_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A piece that is a byte of a character."""
_ASCII = re.compile("^<0x([0-7][0-9A-F])>$")
"""A piece that is a byte and a whole character."""


def _character(byte: re.Match[str]) -> str:
    return chr(int(byte[1], 16))


def _joins(text: str) -> bool:
    """Returns whether a piece with this text, the mark of a space included, continues a word."""
    return bool(text) and (bool(_BYTE.fullmatch(text)) or _inside(text[0]))


def _ends(text: str) -> bool:
    """Returns whether no word continues after a piece with this text."""
    return not (_BYTE.fullmatch(text) or _inside(text[-1]))


def _inside(character: str) -> bool:
    """Returns whether a character can be inside a word; U+FFFD is part of a character."""
    return character == "\ufffd" or (of_word(character) and not UNSPACED.match(character))


def of_word(character: str) -> bool:
    """Returns whether a character is a letter, a digit or a combining mark."""
    return unicodedata.category(character)[0] in "LNM"


WITHOUT_SPACES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)  # fmt: skip
"""First and last code points of scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese
characters."""
UNSPACED = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in WITHOUT_SPACES) + "]")


def decode_piece(text: str) -> str:
    """Returns the text of a piece of byte-level BPE, with U+FFFD for a part of a character."""
    table = _byte_of()
    return bytes(table[character] for character in text if character in table).decode("utf-8", errors="replace")


@cache
def _byte_of() -> dict[str, int]:
    """Returns the byte that each character of a byte-level piece stands for: printable characters of Latin-1 for
    themselves, those from U+0100 for the other bytes. Source: Radford et al., 2019 (GPT-2), encoder.py."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
