"""Tries the parts of a foreign `tokenizer.json` in a process with limits, before this process uses them.

A file of a few kilobytes can describe rules that take all memory or never end (replacements that double a text, thirty
of them; a pattern that backtracks), and the `tokenizers` library panics where a table is truncated.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from lambert.core.errors import DataError, MachineError
from lambert.core.files import remedy
from lambert.text.tokenizers import trial_process

_PLAIN = {
    "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt", "BertPreTokenizer",
    "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits",
}  # fmt: skip
"""Parts without rules of their own. Each lengthens a text at most a few times, so one of each is harmless."""
_PLAIN_AFTER = {"BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing"}
_PLAIN_DECODERS = {"WordPiece", "ByteLevel", "Metaspace", "BPEDecoder", "Fuse", "ByteFallback"}
_TEMPLATE_CHARACTERS = 4_000
"""Maximum characters of a template. BERT's has 500, and each token, which is added to every text, about 50 (our
choice)."""
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")
_SECONDS = 60.0
"""Wall-clock limit of the process; its limit of processor time normally ends it much earlier (our choice)."""


def check_parts(values: Mapping[str, Any], path: Path) -> None:
    """Raises DataError if the rules in the content of a `tokenizer.json` panic, or take more than
    `trial_process.SECONDS` or `trial_process.BYTES`, for texts of a few kilobytes.

    Rules that no text can make expensive are not tried. The process costs 0.1 s.
    """
    before = _are_plain(values, ("normalizer", "pre_tokenizer"), _PLAIN)
    after = _are_plain(values, ("post_processor",), _PLAIN_AFTER) and _are_plain(values, ("decoder",), _PLAIN_DECODERS)
    if before and after and len(json.dumps(values.get("post_processor"))) < _TEMPLATE_CHARACTERS:
        return
    if problem := _try_parts(json.dumps({name: values[name] for name in _PARTS if name in values})):
        raise DataError(f"{path} has rules that {problem}: they are damaged or hostile. Take a copy of the original.")


def _are_plain(values: Mapping[str, Any], parts: Sequence[str], plain: Set[str]) -> bool:
    """Returns whether all rules of some parts are of a kind in `plain`, one of each kind."""
    rules = [rule for part in parts for rule in trial_process.flat(part, values.get(part))]
    keys = {*trial_process.SEQUENCES.values()}
    kinds = Counter(
        str(rule.get("type")) if isinstance(rule, dict) and not keys & rule.keys() else "" for rule in rules
    )
    return kinds.keys() <= plain and max(kinds.values(), default=0) <= 1


@lru_cache(64)
def _try_parts(parts: str) -> str:
    """Returns what is wrong with the parts, as the end of a sentence, or ""."""
    packages = str(Path(tokenizers.__file__).parents[1])
    command = [sys.executable, "-I", "-S", trial_process.__file__, packages]
    try:
        done = subprocess.run(command, input=parts.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"take more than {_SECONDS:.0f} s for short texts"
    except OSError as error:
        problem = f"The process that tries a tokenizer cannot start: {error.strerror}."
        raise MachineError(f"{problem} {remedy(error) or 'Repeat the command'}.") from error
    if done.returncode > 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise MachineError(f"The process that tries a tokenizer failed: {last[:300]}.")
    if done.returncode == 0:
        return done.stdout.decode(errors="replace").strip()
    if -done.returncode in trial_process.TIME_IS_UP:
        return f"take more than {trial_process.SECONDS} s for short texts"
    return f"take more than {trial_process.BYTES >> 30} GiB for short texts, or end the process"


@contextmanager
def library_errors(what: str = "The tokenizer cannot encode a text") -> Iterator[None]:
    """A context that raises DataError, which begins with `what`, for an error of the `tokenizers` library, which has no
    class of its own, and for a panic, which is not an Exception."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {' '.join(str(error).split())[:300]}.") from error
