"""The rules of the filters, written for one document at a time as in the papers, to compare with."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from lambert.text.sentences import split
from lambert.wings.corpus.filters.c4 import C4, CITATION, POLICIES
from lambert.wings.corpus.filters.fineweb import FineWeb
from lambert.wings.corpus.filters.gopher import Gopher
from lambert.wings.corpus.filters.repetition import Repetition

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
ENDS = tuple(".!?…‥‼⁇⁈⁉。！？．｡।॥؟۔։՞՜።፧፨၊။។៕᠃᠉")
QUOTES = tuple("\"'»”’›」』")


def words(text: str) -> list[str]:
    """White space, and runs of letters of scripts that are written without spaces."""
    found = []
    for part in text.split():
        word, before = "", False
        for character in part:
            unspaced = bool(UNSPACED.match(character)) and character.isalpha()
            if word and unspaced != before:
                found.append(word)
                word = ""
            word, before = word + character, unspaced
        found.append(word)
    return found


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def gopher(text: str, rules: Gopher) -> str | None:
    """Rae et al. 2021, appendix A.1.1."""
    found, own = words(text), lines(text)
    count = max(len(found), 1)
    if len(found) < rules.min_words:
        return "too few words"
    if len(found) > rules.max_words:
        return "too many words"
    length = sum(map(len, found)) / count
    if length < rules.min_word_length:
        return "words too short"
    if length > rules.max_word_length:
        return "words too long"
    if text.count("#") / count > rules.max_symbols:
        return "too many #"
    if (text.count("...") + text.count("…")) / count > rules.max_symbols:
        return "too many ellipses"
    if sum(line.startswith(("-", "•")) for line in own) / max(len(own), 1) > rules.max_bullet_lines:
        return "too many bullets"
    if sum(line.endswith(("...", "…")) for line in own) / max(len(own), 1) > rules.max_ellipsis_lines:
        return "too many lines end with an ellipsis"
    if sum(any(map(str.isalpha, word)) for word in found) / count < rules.min_alphabetic:
        return "too few words with letters"
    forms = {form: word for word in rules.stop_words for form in (word, word.capitalize(), word.upper())}
    if len({forms[word] for word in found if word in forms}) < rules.min_stop_words:
        return "too few stop words"
    return None


def duplicates(elements: Sequence[str]) -> tuple[int, int]:
    """The number, and the characters, of the elements that occurred before."""
    seen: set[str] = set()
    number = characters = 0
    for element in elements:
        if element in seen:
            number += 1
            characters += len(element)
        seen.add(element)
    return number, characters


def gopher_repetition(text: str, rules: Repetition) -> str | None:
    """Rae et al. 2021, table A1. Sequences of 5 to 10 words as in datatrove's `find_all_duplicate`."""
    total = max(len(text), 1)
    paragraphs = [part.strip() for part in re.split(r"\n(?:[^\S\n]*\n)+", text) if part.strip()]
    number, characters = duplicates(paragraphs)
    if number / max(len(paragraphs), 1) > rules.paragraphs:
        return "repeated paragraphs"
    if characters / total > rules.paragraph_characters:
        return "characters in repeated paragraphs"
    own = lines(text)
    number, characters = duplicates(own)
    if number / max(len(own), 1) > rules.lines:
        return "repeated lines"
    if characters / total > rules.line_characters:
        return "characters in repeated lines"
    found = words(text)
    for size, maximum in enumerate(rules.top, 2):
        grams = Counter(tuple(found[at : at + size]) for at in range(len(found) - size + 1))
        gram, count = grams.most_common(1)[0] if grams else ((), 0)
        if count > 1 and len(" ".join(gram)) * count / total > maximum:
            return f"most frequent {size} words"
    for size, maximum in enumerate(rules.repeated, 5):
        seen: set[tuple[str, ...]] = set()
        at = inside = 0
        while at < len(found) - size + 1:
            gram = tuple(found[at : at + size])
            if gram in seen:
                inside += len("".join(gram))
                at += size
            else:
                seen.add(gram)
                at += 1
        if inside / total > maximum:
            return f"repeated {size} words"
    return None


def fineweb(text: str, rules: FineWeb) -> str | None:
    """Penedo et al. 2024, section 3.5."""
    own = lines(text)
    if not own:
        return "empty"
    if sum(line.endswith(ENDS) for line in own) / len(own) < rules.min_ended_lines:
        return "too few lines end with punctuation"
    if sum(len(line) < rules.short_line for line in own) / len(own) > rules.max_short_lines:
        return "too many short lines"
    if duplicates(own)[1] / sum(map(len, own)) > rules.max_repeated_characters:
        return "characters in repeated lines"
    return None


def c4(text: str, rules: C4) -> tuple[str | None, str]:
    """Raffel et al. 2020, section 2.2. Returns the reason and the new text."""
    text = CITATION.sub("", text)
    if "lorem ipsum" in _lower(text):
        return "lorem ipsum", text
    if "{" in text:
        return "curly bracket", text
    kept: list[str] = []
    blank = removed = False
    for line in text.split("\n"):
        bare = line.strip()
        if not bare:
            blank = True
            continue
        bad = not bare.endswith((*ENDS, *QUOTES)) or bare.endswith(("...", "…"))
        bad = bad or len(words(bare)) < rules.min_line_words
        bad = bad or any(phrase in _lower(bare) for phrase in ("javascript", *map(bytes.decode, POLICIES)))
        bad = bad or any(len(word) > rules.max_word_length for word in words(bare))
        removed |= bad
        if not bad:
            if kept:
                kept.append("\n\n" if blank else "\n")
            kept.append(bare)
            blank = False
    if removed:
        text = "".join(kept)
    if len(kept) // 2 + 1 < rules.min_sentences or not kept:
        found = len(split(text, "en", "paragraphs"))
        if found < rules.min_sentences:
            return "too few sentences", text
    return None, text


def _lower(text: str) -> str:
    """Lower case of ASCII letters."""
    return text.encode().lower().decode()


def plain_words(text: str) -> list[str]:
    """Words in lower case without punctuation; each letter of a script without spaces is one."""
    found = [""]
    for character in text.lower():
        if character.isspace() or unicodedata.category(character)[0] in "PS":
            found.append("")
        elif UNSPACED.match(character) and character.isalpha():
            found += [character, ""]
        else:
            found[-1] += character
    return [word for word in found if word]
