"""Encodes each word of a text once.

BERT's normalizer, pre-tokenizer and WordPiece treat the parts of a text between ASCII spaces and punctuation marks
independently, so the ids of a text are the concatenated ids of its words and marks. Most tokenizers of other kinds
treat the parts between spaces like that (`scheme`). The tokenizers library encodes each word once; then its ids are
looked up.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from string import punctuation
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

from lambert.core.shards import token_type
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.lexicon import Lexicon

SLICE = 1 << 18  # bytes encoded at a time: the intermediate arrays fit the cache of a core
MARK = "\0"  # separates the words of a group; no text contains NUL
GROUP = 256  # new words encoded as one text, because calls are expensive
HALF = 32  # the value of a word is the index of its first id, and in this many low bits the number of its ids

SPACE, ALONE, JOINED, IDEOGRAPH = range(4)  # a byte is between words, a word, part of a word, or starts an ideograph
IDEOGRAPHS = range(0xE5, 0xEA)
"""First bytes of U+5000 to U+9FFF, each a word. Other ideographs are encoded with their neighbours, which is slower."""

Integers = npt.NDArray[np.int64]
Scheme = Literal["", "marks", "spaces", "bytes"]
"""How a text divides into words that a tokenizer treats independently: at spaces and punctuation marks (BERT); at
spaces (SentencePiece); at spaces, each part of the word after it (byte-level BPE, Gemma). Empty: it does not."""
_BLANK = np.isin(np.arange(256), [*b"\t\n\v\f\r ", *range(0x1C, 0x20), 0xC2, 0xE1, 0xE2, 0xE3])
"""Possible first bytes of white space outside ASCII."""
_BLANK_END = np.isin(np.arange(256), [*b"\t\n\v\f\r ", *range(0x1C, 0x20), *range(0x80, 0x100)])
"""Possible last bytes of white space outside ASCII."""


@dataclass(frozen=True, slots=True)
class EncodedWords:
    """Lines as ids: N words, marks and line ends; T ids; n lines."""

    data: bytes
    """The lines, with a newline after each."""
    starts_N: Integers
    """Position in `data` of the first byte of each word."""
    counts_N: Integers
    """Number of ids of each word; 0 for a newline."""
    ids_T: npt.NDArray[Any]

    @property
    def lengths_n(self) -> Integers:
        """Number of ids of each line."""
        return np.diff(np.cumsum(self.counts_N)[self._last_N], prepend=0)

    @property
    def spaced_T(self) -> npt.NDArray[np.int32]:
        """Number of the word of each id, from 0 in each line, with words divided at ASCII spaces only."""
        bytes_ = np.frombuffer(self.data, dtype=np.uint8)
        inside = (bytes_ != ord(" ")) & (bytes_ != ord("\n"))
        begins = np.diff(inside, prepend=False) & inside
        firsts_N = self.starts_N + (bytes_[self.starts_N] == ord(" "))  # without the space at the beginning of a word
        words_N, last_N = np.cumsum(begins, dtype=np.int32)[firsts_N], self._last_N
        before_n = np.concatenate([[0], words_N[last_N][:-1]]).astype(np.int32)
        line_N: Integers = np.cumsum(last_N) - last_N
        return np.repeat(words_N - 1 - before_n[line_N], self.counts_N)

    @property
    def _last_N(self) -> npt.NDArray[np.bool_]:
        return np.asarray(np.frombuffer(self.data, dtype=np.uint8)[self.starts_N] == ord("\n"))


class WordEncoder:
    """Encodes lines of text without NUL, for which `takes` returns True, with a tokenizer that treats words
    independently (`scheme`). `memory` bounds the cache of words in bytes; the result does not depend on it."""

    def __init__(self, tokenizer: Tokenizer, memory: int = 128 << 20) -> None:
        values = json.loads(tokenizer.to_str())
        self._memory = memory
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.encode_special_tokens = True  # "[MASK]" in a text is ordinary text
        self.dtype = token_type(roles.size(self._tokenizer))
        self._tokenizer.add_tokens([AddedToken(MARK, normalized=False, special=False)])
        self._mark = self._tokenizer.token_to_id(MARK)
        self._model = self._tokenizer.model
        self.scheme = scheme(tokenizer)
        assert self.scheme
        # An added token may contain punctuation and capitals.
        self._added = not all(token["special"] for token in values["added_tokens"])
        marks = self.scheme == "marks" and not self._added
        kinds = dict.fromkeys(b"\n" + punctuation.encode() if marks else b"\n", ALONE)
        if self.scheme != "bytes":
            kinds[ord(" ")] = SPACE
        if marks and values["normalizer"]["handle_chinese_chars"]:
            kinds |= dict.fromkeys(IDEOGRAPHS, IDEOGRAPH)
        self._kinds = bytes(kinds.get(byte, JOINED) for byte in range(256))
        lower = marks and values["normalizer"]["lowercase"]
        self._folds = bytes(range(256)).lower() if lower else bytes(range(256))
        whole = self.scheme == "spaces" and "WhitespaceSplit" not in roles.kinds(tokenizer)
        joined = roles.SPACE.encode() + b" "  # Gemma's kind may have pieces of several marks
        self._whole = whole
        self._refused: tuple[bytes, ...] = (
            _AROUND if whole else (b"  ", joined) if _of_gemma(values) else (b"  ",) if _blanks(values) else ()
        )
        self._forget()

    def _forget(self) -> None:
        self._lexicon = Lexicon(self._memory)
        self._ids = np.zeros(1 << 14, dtype=self.dtype)
        self._used = 1
        self._lexicon.add([b"\n"], np.array([self._used << HALF]))

    def takes(self, lines: bytes) -> bool:
        """Returns whether these lines can be encoded by words: some tokenizers also encode spaces around a line, or
        have tokens of several spaces."""
        if any(spaces in b"\n" + lines for spaces in self._refused):
            return False
        return not self._whole or lines.isascii() or _find_spacing().search(lines) is None

    def __call__(self, lines: bytes) -> Iterator[EncodedWords]:
        """Yields the lines of a UTF-8 text, which have a newline after each line, in blocks."""
        for data in _slices(lines):
            folded = data.translate(self._folds)
            kinds = np.frombuffer(data.translate(self._kinds), dtype=np.uint8)
            joined, alone, ideograph = kinds >= JOINED, kinds == ALONE, kinds == IDEOGRAPH
            edges = np.diff(joined, prepend=False, append=False)  # whether a word begins or ends before each byte
            if self.scheme == "bytes":
                edges[:-1] |= _word_spaces(data)
            else:
                edges[:-1] |= ideograph
                edges[3:] |= ideograph[:-2]
            starts_N = np.flatnonzero(edges[:-1] & joined | alone)
            lengths_N = np.flatnonzero(edges[1:] & joined | alone) + 1 - starts_N
            values_N, unknown = self._lexicon.find(folded, starts_N, lengths_N)
            if unknown:
                self._learn(unknown)
                new = np.flatnonzero(values_N == 0)
                values_N[new] = self._lexicon.find(folded, starts_N[new], lengths_N[new])[0]
            counts_N = values_N & ((1 << HALF) - 1)
            ends_N = np.cumsum(counts_N)
            takes_T = np.arange(int(ends_N[-1])) + np.repeat((values_N >> HALF) - (ends_N - counts_N), counts_N)
            yield EncodedWords(data, starts_N, counts_N, self._ids[takes_T])
            if self._lexicon.full or self._ids.nbytes > self._memory // 4:
                self._forget()

    def _learn(self, words: list[bytes]) -> None:
        """Encodes words and adds them to the lexicon."""
        # The normalizer does not change lower-cased ASCII letters and digits, and for the pre-tokenizer they are a
        # word.
        simple = self.scheme == "marks" and not self._added
        plain = [word for word in words if word.isalnum()] if simple else []
        lists = [[token.id for token in self._model.tokenize(word.decode())] for word in plain]
        others = [word.decode() for word in words if not (simple and word.isalnum())]
        groups = [MARK.join(others[at : at + GROUP]) + MARK for at in range(0, len(others), GROUP)]
        encodings = self._tokenizer.encode_batch_fast(groups, add_special_tokens=False)
        marked = np.array([number for encoding in encodings for number in encoding.ids], dtype=np.int64)
        marks = np.flatnonzero(marked == self._mark)
        ids = np.array([number for own in lists for number in own], dtype=np.int64)
        ids = np.concatenate([ids, marked[marked != self._mark]])
        lengths = np.array([len(own) for own in lists], dtype=np.int64)
        lengths = np.concatenate([lengths, np.diff(marks, prepend=-1) - 1])
        starts = self._used + np.cumsum(lengths) - lengths
        self._used += len(ids)
        if self._used > len(self._ids):
            self._ids = np.resize(self._ids, 2 * self._used)
        self._ids[self._used - len(ids) : self._used] = ids
        self._lexicon.add(plain + [word.encode() for word in others], (starts << HALF) | lengths)


def scheme(tokenizer: Tokenizer) -> Scheme:
    """Returns how a text divides into words that the tokenizer treats independently."""
    values = json.loads(tokenizer.to_str())
    loose = any(
        token["lstrip"] or token["rstrip"] or token["single_word"] or " " in token["content"].strip(" ")
        for token in values["added_tokens"]
        if not token["special"]
    )
    if loose or roles.size(tokenizer) != tokenizer.get_vocab_size(with_added_tokens=True):
        return ""
    normalizer, before, model = ((values[part] or {}) for part in ("normalizer", "pre_tokenizer", "model"))
    types = (normalizer.get("type"), before.get("type"), model.get("type"))
    if types == ("BertNormalizer", "BertPreTokenizer", "WordPiece"):
        return "" if _blanks(values) else "marks"
    if before.get("type") == "ByteLevel" and before.get("use_regex", True) and model.get("type") == "BPE":
        return "bytes" if _types_of(normalizer) <= {"NFC", "Lowercase"} else ""
    if _of_gemma(values) and not _blanks(values):
        return "bytes"
    parts = before.get("pretokenizers", [before])
    spaced = [part.get("type") for part in parts] in (["Metaspace"], ["WhitespaceSplit", "Metaspace"])
    if not spaced or model.get("type") not in ("Unigram", "BPE") or not _prepends(parts[-1]):
        return ""
    replaced = all(map(_replaces_in_words, normalizer.get("normalizers", [normalizer])))
    return "spaces" if _types_of(normalizer) <= _PER_WORD and replaced else ""


@cache
def _find_spacing() -> re.Pattern[bytes]:
    """Returns a pattern of the characters outside ASCII that a normalizer may turn into a text with a space: by their
    compatible forms, or by SentencePiece's rules nmt_nfkc. The many of U+2000 to U+203F are one prefix."""
    forms = (chr(code) for code in range(0x80, 0x10000) if not 0x2000 <= code < 0x2040 and not 0xD800 <= code < 0xE000)
    spacing = [one for one in forms if any(map(str.isspace, unicodedata.normalize("NFKD", one)))]
    return re.compile(b"|".join([b"\xe2\x80", *(one.encode() for one in [*spacing, "\ufeff", "\ufffd"])]))


_AROUND = (b"  ", b" \n", b"\n ", f" {roles.SPACE}".encode())
"""Spaces and marks beside spaces and ends of lines."""


def _blanks(values: dict[str, Any]) -> bool:
    """Returns whether the tokenizer has added tokens of spaces, as ModernBERT's."""
    return any(token["content"].startswith(" ") or token["content"].endswith(" ") for token in values["added_tokens"])


def _of_gemma(values: dict[str, Any]) -> bool:
    """Returns whether a tokenizer is BPE over a whole text in which each space is a mark, and no piece has a mark after
    other characters, so that its merges stay within words. Source: transformers, GemmaTokenizer."""
    normalizer, before, model = ((values[part] or {}) for part in ("normalizer", "pre_tokenizer", "model"))
    space = {"String": " "}
    marked = normalizer.get("type") == "Replace" and normalizer["pattern"] == space
    whole = not before or (before.get("type") == "Split" and before["pattern"] == space)
    affixed = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or model.get("dropout")
    if not marked or normalizer["content"] != roles.SPACE or not whole or model.get("type") != "BPE" or affixed:
        return False
    inside = re.compile(f"[^{roles.SPACE}]{roles.SPACE}")
    return not any(map(inside.search, model["vocab"]))


_PER_WORD = {"Precompiled", "Replace", "NFC", "NFKC", "NFKD", "NFD", "Lowercase", "StripAccents", "Strip"}
"""Normalizers that treat words independently if single spaces separate them."""


def _replaces_in_words(normalizer: dict[str, Any]) -> bool:
    """Returns whether a normalizer, if it replaces characters, replaces them within words, or several spaces."""
    if normalizer.get("type") != "Replace" or normalizer["pattern"] in ({"Regex": " {2,}"}, {"String": "  "}):
        return True
    changed = normalizer["pattern"].get("String", " ") + normalizer["content"]
    return not any(character.isspace() or character == roles.SPACE for character in changed)


def _types_of(normalizer: dict[str, Any]) -> set[str]:
    parts = normalizer.get("normalizers", [normalizer])
    return {part["type"] for part in parts if "type" in part}


def _prepends(metaspace: dict[str, Any]) -> bool:
    """Returns whether each word gets the mark of a space, whatever precedes it."""
    added = metaspace.get("prepend_scheme", "always" if metaspace.get("add_prefix_space") else "never")
    return bool(added == "always" and metaspace.get("split", True))


def _word_spaces(data: bytes) -> npt.NDArray[np.bool_]:
    """Returns for each byte whether it is a space that belongs to the word after it in byte-level BPE: only the last of
    several white spaces does. In doubt, the words on both sides count as one. Source: Radford et al., 2019 (GPT-2),
    encoder.py."""
    bytes_ = np.frombuffer(data, dtype=np.uint8)
    before, after = np.zeros(len(bytes_), np.bool_), np.zeros(len(bytes_), np.bool_)
    before[1:], after[:-1] = _BLANK_END[bytes_[:-1]], _BLANK[bytes_[1:]]
    return np.asarray((bytes_ == ord(" ")) & ~(before & after))


def _slices(data: bytes) -> Iterator[bytes]:
    """Yields the lines in parts of about `SLICE` bytes."""
    at = 0
    while at < len(data):
        end = (data.rfind(b"\n", at, at + SLICE) if len(data) - at > SLICE else len(data) - 1) + 1
        end = end or data.index(b"\n", at) + 1
        yield data[at:end]
        at = end
