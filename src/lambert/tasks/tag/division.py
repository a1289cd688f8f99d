"""Divides a text into words for tagging, as BERT's tokenizer does, except for the words of the training file that it
would divide otherwise.

A file of words, such as CoNLL, has words like U.S. and e-mail as its authors divide them. The model has learnt those
words, so a text must be divided into the same ones. Which words they are, and which forms they have, is learnt from the
training file (`learn`) and kept in the model folder.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, pre_tokenizers

from lambert.core.errors import quote
from lambert.tasks.config import TagConfig
from lambert.tasks.tag.conll import Offsets, Sentence
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.trial import library_errors

_WORDS = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated"), pre_tokenizers.BertPreTokenizer()]
)
"""Divides text at white space, punctuation and Chinese characters, as BERT's tokenizer does (Devlin et al.,
google-research/bert, tokenization.py, BasicTokenizer)."""
_MOST = 50_000
"""Maximum number of words that are kept (our choice: about 1 MB in config.json)."""
_LONGEST = 32
"""Maximum number of parts of a kept word (our choice)."""
_EXAMPLES = 3
"""Number of different words from which a form with one run of letters or digits is kept, such as a. of Inc. One word is
enough for others, such as a.a. or 0.0%, whose punctuation is between letters or digits (our choice)."""
_NAMED = 5
"""Maximum number of words that a note lists."""
_CLITIC = re.compile(r"[^\W\d_]['’]\w+")
"""Words that begin with the last letter of the word before, such as n't in the Penn Treebank."""
_LETTERS, _DIGITS = re.compile(r"[^\W\d_]+"), re.compile(r"\d+")


class Division:
    """Divides texts into words."""

    def __init__(self, tokenizer: Tokenizer, config: TagConfig) -> None:
        self._tokenizer = tokenizer
        self._sizes = {_key(word): [*map(len, word.split(" "))] for word in config.words}
        self._forms = frozenset(config.forms)
        pairs = (word.split(" ") for word in config.words if " " in word)
        self._clitics = {_key(last) for *_, last in pairs if _CLITIC.fullmatch(last)}

    def __call__(self, texts: Sequence[str]) -> list[Offsets]:
        """Returns the offsets of the words of each text."""
        found = self.parts(texts)
        if not self._sizes and not self._forms:
            return found
        return [[*self._join_parts(text, offsets)] for text, offsets in zip(texts, found, strict=True)]

    @library_errors()
    def parts(self, texts: Sequence[str]) -> list[Offsets]:
        """Returns the offsets of the words of each text by BERT's rules. WordPiece divides text into words before it
        finds pieces. Tokenizers of other kinds divide text otherwise (XLM-R's at spaces only, RoBERTa's with the
        spaces, Gemma's not at all), so for them it is divided as by BERT's."""
        if not roles.prefix(self._tokenizer):
            return [[offsets for _, offsets in _WORDS.pre_tokenize_str(text)] for text in texts]
        found = []
        for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False):
            words = np.array(encoding.word_ids, dtype=np.int64)
            firsts = np.flatnonzero(np.diff(words, prepend=-1)).tolist()
            offsets = encoding.offsets  # a copy of all
            found.append([(offsets[first][0], offsets[end - 1][1]) for first, end in pairwise([*firsts, len(words)])])
        return [_with_marks(text, offsets) for text, offsets in zip(texts, found, strict=True)]

    def _join_parts(self, text: str, offsets: Offsets) -> Iterator[tuple[int, int]]:
        """Yields the words of a text: at each part, the longest kept word or form that begins there, or the part."""
        spaced = [at for at in range(1, len(offsets)) if offsets[at - 1][1] != offsets[at][0]]
        for begin, end in pairwise([0, *spaced, len(offsets)]):
            at = begin
            while at < end:
                start, sizes, until = offsets[at][0], [offsets[at][1] - offsets[at][0]], at + 1
                for last in range(min(end, at + _LONGEST), at + 1, -1):
                    if found := self._words_of(text[start : offsets[last - 1][1]]):
                        sizes, until = found, last
                        break
                for size in sizes:
                    yield start, start + size
                    start += size
                at = until

    def _words_of(self, text: str) -> list[int]:
        """Returns the lengths of the words of adjacent parts if they are kept, otherwise an empty list."""
        sizes = self._sizes.get(_key(text), [])
        if sum(sizes) == len(text):
            return sizes
        for clitic in self._clitics:
            if text.casefold().endswith(clitic) and text[: -len(clitic)].isalpha():
                return [len(text) - len(clitic), len(clitic)]
        return [len(text)] if form(text) in self._forms else []


def _with_marks(text: str, offsets: Offsets) -> Offsets:
    """Returns the words with the marks on their last letters, such as an accent, which an uncased tokenizer removes."""
    found = []
    for start, end in offsets:
        while end < len(text) and unicodedata.category(text[end]).startswith("M"):
            end += 1  # noqa: PLW2901
        found.append((start, end))
    return found


def _key(word: str) -> str:
    return word.replace(" ", "").casefold()


def form(word: str) -> str:
    """Returns a word with each run of letters as a and of digits as 0: U.S. has the form a.a."""
    return _DIGITS.sub("0", _LETTERS.sub("a", word))


def learn(
    tokenizer: Tokenizer, config: TagConfig, sentences: Sequence[Sentence], path: Path
) -> tuple[TagConfig, list[str]]:
    """Returns the settings with the words and forms of a training file whose words are given, so that texts are divided
    as this file is, and a note about them. Settings that have some already are kept."""
    if config.words or config.forms:
        return config, []
    plain = Division(tokenizer, config)
    counts = Counter(word for sentence in sentences for word in sentence.words)
    divided = {
        word: parts
        for word, offsets in zip(counts, plain.parts([*counts]), strict=True)
        if 1 < len(offsets) <= _LONGEST and "".join(parts := tuple(word[start:end] for start, end in offsets)) == word
    }
    words = [word for group in _together(sentences, counts, divided, _key) for word in group]
    words = sorted(words, key=lambda word: -counts[word])[:_MOST]
    cuts = _cuts(plain, sentences, {*map(_key, words)})[:_MOST]
    marked = {word: parts for word, parts in divided.items() if _is_marked(word) and not _CLITIC.fullmatch(word)}
    groups = _together(sentences, counts, marked, form)
    forms = {form(group[0]) for group in groups if len({*map(_key, group)}) >= _least(group[0])}
    config = replace(config, words=(*sorted(words), *sorted(cuts)), forms=tuple(sorted(forms)))
    return config, _notes(plain, Division(tokenizer, config), config, sentences, path)


def _is_marked(word: str) -> bool:
    """Returns whether a word has letters or digits, and other characters."""
    return not word.isalnum() and any(map(str.isalnum, word))


def _least(word: str) -> int:
    """Returns the number of different words from which the form of this word is kept."""
    return _EXAMPLES if form(word).count("a") + form(word).count("0") < 2 else 1


def _together(
    sentences: Sequence[Sentence],
    counts: Mapping[str, int],
    divided: Mapping[str, tuple[str, ...]],
    key: Callable[[str], str],
) -> list[list[str]]:
    """Returns the words that occur more often than their parts apart, in groups with the same keys of the parts."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for word, parts in divided.items():
        groups[tuple(map(key, parts))].append(word)
    sizes: dict[str, set[int]] = defaultdict(set)
    for parts in groups:
        sizes[parts[0]].add(len(parts))
    keys = {word: key(word) for word in counts}
    apart: Counter[tuple[str, ...]] = Counter()
    for sentence in sentences:
        row = tuple(keys[word] for word in sentence.words)
        for at, first in enumerate(row):
            for size in sizes.get(first, ()):
                if (found := row[at : at + size]) in groups and sentence.may_join(at, size):
                    apart[found] += 1
    return [words for parts, words in groups.items() if sum(counts[word] for word in words) > apart[parts]]


def _cuts(plain: Division, sentences: Sequence[Sentence], whole: Collection[str]) -> list[str]:
    """Returns pairs of words, joined by a space, that a text may write together and BERT's rules would not divide:
    where the file says that they are joined, or else as in do n't. `whole`: words that stay whole."""
    pairs = Counter(
        pair
        for sentence in sentences
        for at, pair in enumerate(pairwise(sentence.words))
        if pair[0][-1:].isalnum() and (sentence.may_join(at, 2) if sentence.surface else _CLITIC.fullmatch(pair[1]))
    )
    divided = zip(pairs, plain.parts(["".join(pair) for pair in pairs]), strict=True)
    return [
        " ".join(pair)
        for pair, offsets in divided
        if _key("".join(pair)) not in whole and len(pair[0]) not in {start for start, _ in offsets}
    ]


def _notes(
    plain: Division, learnt: Division, config: TagConfig, sentences: Sequence[Sentence], path: Path
) -> list[str]:
    """Returns a note about the words that are divided otherwise in a text: by BERT's rules, and by those learnt."""
    before, after = (_find_missed(division, sentences) for division in (plain, learnt))
    total = sum(len(sentence.words) for sentence in sentences)
    parts = sum(offsets is None for sentence in sentences if sentence.surface for offsets in sentence.surface[1])
    notes = []
    if before:
        most = ", ".join(quote(word) for word, _ in Counter(before).most_common(_NAMED))
        left = f"; {len(after):,} ({len(after) / total:.1%}) are still divided otherwise" if after else ""
        notes.append(
            f"note: {path}: BERT's rules divide {len(before):,} of {total:,} words ({len(before) / total:.1%}) "
            f"otherwise in a text, such as {most}. Texts are divided as in the file, by "
            f"{len(config.words):,} words and {len(config.forms):,} forms that the model keeps{left}."
        )
    if parts:
        notes.append(
            f"note: {path}: {parts:,} of {total:,} words are parts of written words (ranges such as 1-2), which are "
            "single words in a text."
        )
    return notes


def _find_missed(division: Division, sentences: Sequence[Sentence]) -> list[str]:
    """Returns the words that the division of their text misses, except those that the tokenizer reads as nothing."""
    surfaces = [sentence.surface or join_words(sentence.words) for sentence in sentences]
    missed = []
    for (text, offsets), found in zip(surfaces, division([text for text, _ in surfaces]), strict=True):
        known = {*found}
        missed += [text[one[0] : one[1]] for one in offsets if one is not None and one not in known]
    empty = {word for word, parts in zip(missed, division.parts(missed), strict=True) if not parts}
    return [word for word in missed if word not in empty]


def join_words(words: Sequence[str]) -> tuple[str, list[tuple[int, int] | None]]:
    """Returns words as a text with a space between them, and their offsets."""
    ends = [0, *accumulate(len(word) + 1 for word in words)]
    return " ".join(words), [(start, end - 1) for start, end in pairwise(ends)]
