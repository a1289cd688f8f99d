"""Tries the parts of a foreign `tokenizer.json` in a process with limits, before this process uses them.

A file of a few kilobytes can describe rules that take all memory or never end (replacements that double a text, thirty
of them; a pattern that backtracks), and the `tokenizers` library panics where a table is truncated.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from lambert.core.errors import DataError
from lambert.corpus.tokens import trial_process

_PLAIN = {
    "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt", "BertPreTokenizer",
    "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits",
}  # fmt: skip
"""Parts without rules of their own. Each makes a text at most a few times longer, so one of each is harmless."""
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "added_tokens")
_SECONDS = 60.0
"""Wall-clock limit of the process, whose limit of processor time ends it much earlier (our choice)."""


def check_parts(values: Mapping[str, Any], path: Path) -> None:
    """Raises DataError if the rules in the content of a `tokenizer.json` panic, or take more than
    `trial_process.SECONDS` or `trial_process.BYTES`, for texts of a few kilobytes.

    Rules that no text can make expensive are not tried. The process costs 0.1 s.
    """
    parts = [one for part in _PARTS[:2] for one in trial_process.flat(values.get(part))]
    kinds = Counter(str(part.get("type")) if isinstance(part, dict) else "" for part in parts)
    if kinds.keys() <= _PLAIN and max(kinds.values(), default=0) <= 1:
        return
    if problem := _tried(json.dumps({name: values[name] for name in _PARTS if name in values})):
        raise DataError(f"{path} has rules that {problem}: they are damaged or hostile. Take a copy of the original.")


@lru_cache(64)
def _tried(parts: str) -> str:
    """Returns what is wrong with the parts, as the end of a sentence, or ""."""
    packages = str(Path(tokenizers.__file__).parents[1])
    command = [sys.executable, "-I", "-S", trial_process.__file__, packages]
    try:
        done = subprocess.run(command, input=parts.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"take more than {_SECONDS:.0f} s for short texts"
    if done.returncode == 0:
        return done.stdout.decode(errors="replace").strip()
    if -done.returncode in trial_process.TIME_IS_UP:
        return f"take more than {trial_process.SECONDS} s for short texts"
    return f"take more than {trial_process.BYTES >> 30} GiB for short texts, or end the process"


@contextmanager
def library_errors(what: str = "The tokenizer cannot encode a text") -> Iterator[None]:
    """Raises DataError, which begins with `what`, for an error of the `tokenizers` library, which has no class of its
    own, and for a panic, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {' '.join(str(error).split())[:300]}.") from error
