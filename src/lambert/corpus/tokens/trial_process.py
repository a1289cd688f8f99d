"""The process in which `trial` uses the parts of a tokenizer. Reads them from standard input, and writes what is wrong,
as the end of a sentence, or nothing. Imports nothing of Lambert, so that it starts in 0.1 s."""

import json
import resource
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

BYTES = 1 << 30
"""Address space of the process. The library itself takes 0.1 GB; ours."""
SECONDS = 3
"""Processor time. The process of a tokenizer with a large table takes 0.1 s; ours."""
TIME_IS_UP = (signal.SIGXCPU, signal.SIGKILL)
_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
_WHOLE = 8
"""Texts, the usual ones and the words of the rules, that are also encoded as a whole."""
_BLOCK = 1 << 12
_EXPANSION = 100
"""A text may become so many times longer. The longest decomposition of Unicode (U+FDFA) has 18 characters."""
_CHARACTERS = ((0, 0x3400), (0x4E00, 0x5000), (0xAC00, 0xAE00), (0xF900, 0x10000), (0x1F300, 0x1F700))
"""First and last + 1: all scripts, some of the many Chinese and Korean characters, compatible forms, pictures."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.path.append(sys.argv[1])
    from tokenizers import Tokenizer

    parts = json.load(sys.stdin.buffer)
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}

    def made(**some: Any) -> Any:
        return Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, **some}))

    try:
        normalizers = [made(normalizer=one).normalizer for one in flat(parts.get("normalizer"))]
        dividers = [made(pre_tokenizer=one).pre_tokenizer for one in flat(parts.get("pre_tokenizer"))]
        decoders = [made(decoder=one).decoder for one in flat(parts.get("decoder"))]
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
        tokenizer = made(**parts)
        for text in islice(_texts(parts), _WHOLE):
            for texts in ((text,), (text, text)):
                encoding = tokenizer.encode(*texts)
                _check(encoding.tokens, text)
            _check([tokenizer.decode(encoding.ids, skip_special_tokens=False)], text)
    except _Expanded as error:
        print(error)
    except MemoryError:
        print(f"take more than {BYTES >> 30} GiB for short texts")
    except BaseException as error:  # a panic is no Exception
        print(f"fail for short texts ({' '.join(str(error).split())[:200]})")


class _Expanded(Exception):
    pass


def _check(found: list[str], text: str) -> None:
    if (length := sum(map(len, found))) > _EXPANSION * (len(text) + 10):
        raise _Expanded(f"make {length:,} characters of {len(text):,}")


def flat(part: Any) -> Iterator[Any]:
    """Yields a rule, or those that it applies in sequence, as which the library also reads a table without a type."""
    inner = next((part[key] for key in _SEQUENCES if key in part), None) if isinstance(part, dict) else None
    if isinstance(inner, list):
        for each in inner:
            yield from flat(each)
    elif part is not None:
        yield part


def _texts(parts: dict[str, Any]) -> Iterator[str]:
    """Yields texts of at most a few kilobytes: usual ones, the words of the rules themselves, what patterns that
    backtrack fail on, and each character."""
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
