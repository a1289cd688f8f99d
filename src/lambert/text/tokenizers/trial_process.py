"""The process in which `trial` uses the parts of a tokenizer. Reads them from standard input, and writes the problem,
as the end of a message, or nothing. Imports nothing of Lambert, so that it starts in 0.1 s."""

import json
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

BYTES = 1 << 30
"""Bytes of address space of the process (our choice; the library itself takes 0.1 GB)."""
SECONDS = 3
"""Seconds of processor time (our choice; a tokenizer with a large table takes 0.1 s)."""
TIME_IS_UP = (signal.SIGXCPU, signal.SIGKILL)
SEQUENCES = {
    "normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
    "decoder": "decoders",
}  # fmt: skip
"""Key of the rules that a sequence of a part has."""
_WHOLE = 8
"""Number of texts (usual ones and words of the rules) that are also encoded as a whole."""
_BLOCK = 1 << 12
_EXPANSION = 100
"""Maximum factor by which a text may become longer. The longest decomposition in Unicode (U+FDFA) has 18 characters."""
_CHARACTERS = ((0, 0x3400), (0x4E00, 0x5000), (0xAC00, 0xAE00), (0xF900, 0x10000), (0x1F300, 0x1F700))
"""First and last + 1: all scripts, some of the many Chinese and Korean characters, compatible forms, pictures."""


def _limit(kind: int, value: int) -> None:
    """Sets a limit of this process if the system has it, at most the present hard limit."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with suppress(ValueError, OSError):  # macOS does not limit the address space
        resource.setrlimit(kind, (value, hard))


def main() -> None:
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, BYTES)
    _limit(resource.RLIMIT_CPU, SECONDS)
    sys.path.append(sys.argv[1])
    from tokenizers import Tokenizer

    parts = json.load(sys.stdin.buffer)
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}

    def make(**some: Any) -> Any:
        return Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, **some}))

    try:
        normalizers = [make(normalizer=one).normalizer for one in flat("normalizer", parts.get("normalizer"))]
        dividers = [make(pre_tokenizer=one).pre_tokenizer for one in flat("pre_tokenizer", parts.get("pre_tokenizer"))]
        decoders = [make(decoder=one).decoder for one in flat("decoder", parts.get("decoder"))]
        for text in _texts(parts):  # step by step, since each may make the text longer
            found = [text]
            for step in normalizers:
                found = [step.normalize_str(one) for one in found]
                _check(found, text)
            for step in dividers:
                found = [piece for one in found for piece, _ in step.pre_tokenize_str(one)]
                _check(found, text)
            for step in decoders:
                found = [step.decode(found)]
                _check(found, text)
        tokenizer = make(**parts)
        for text in islice(_texts(parts), _WHOLE):
            for texts in ((text,), (text, text)):
                encoding = tokenizer.encode(*texts)
                _check(encoding.tokens, text)
            _check([tokenizer.decode(encoding.ids, skip_special_tokens=False)], text)
    except _Expanded as error:
        print(error)
    except MemoryError:
        print(f"take more than {BYTES >> 30} GiB for short texts")
    except BaseException as error:  # a panic is not an Exception
        print(f"fail for short texts ({' '.join(str(error).split())[:200]})")


class _Expanded(Exception):
    pass


def _check(found: list[str], text: str) -> None:
    if (length := sum(map(len, found))) > _EXPANSION * (len(text) + 10):
        raise _Expanded(f"make {length:,} characters of {len(text):,}")


def flat(part: str, rule: Any) -> Iterator[Any]:
    """Yields a rule of a part of a tokenizer, or the rules of a sequence, which a table without a type also is for the
    library. Yields other rules that contain rules unchanged."""
    inner = rule.get(SEQUENCES[part]) if isinstance(rule, dict) and rule.get("type", "Sequence") == "Sequence" else None
    if isinstance(inner, list):
        for each in inner:
            yield from flat(part, each)
    elif rule is not None:
        yield rule


def _texts(parts: dict[str, Any]) -> Iterator[str]:
    """Yields texts of at most a few kilobytes: usual ones, the words of the rules, texts on which patterns backtrack,
    and each character."""
    yield from ("", " ", "a", "The king, 3.5 km from here!  \u00c9t\u00e9\r\n\tend", "x" * 1000, "a b " * 500)
    words = list(dict.fromkeys(word for word in _words(parts) if len(word) < 100))[:500]
    yield "".join(words)
    yield " ".join(words)
    for character in ("a", "0", " ", "\n", "!", "\u00e9", *words[:20]):
        yield character * (2000 // len(character))
        yield character * (2000 // len(character)) + "\x01"
    for first, end in _CHARACTERS:
        for start in range(first, end, _BLOCK):
            yield "".join(map(chr, range(start, min(end, start + _BLOCK))))


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _words(inner)


if __name__ == "__main__":
    main()
