"""Tries the parts of an untrusted `tokenizer.json` in a process with limits, before this process uses them.

A few kilobytes can describe rules that take all memory or never end (thirty replacements that each double a text; a
pattern that backtracks), and the `tokenizers` library panics at a truncated table.
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
"""Kinds of parts whose rules the file cannot choose. Each lengthens a text at most a few times, so one of each is
harmless."""
_PLAIN_AFTER = {"BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing"}
_PLAIN_DECODERS = {"WordPiece", "ByteLevel", "Metaspace", "BPEDecoder", "Fuse", "ByteFallback"}
_TEMPLATE_CHARACTERS = 4_000
"""Maximum characters of a template (our choice). BERT's has 500; each token that it adds to a text takes about 50."""
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")
_SECONDS = 60.0
"""Wall-clock limit of the process (our choice); its limit of processor time normally ends it much earlier."""


def check_parts(values: Mapping[str, Any], path: Path) -> None:
    """Raises DataError if the rules in the content of a `tokenizer.json` panic, or exceed `trial_process.SECONDS` or
    `trial_process.BYTES`, for texts of a few kilobytes. Harmless rules are not tried. The process costs 0.1 s."""
    before = _are_plain(values, ("normalizer", "pre_tokenizer"), _PLAIN)
    after = _are_plain(values, ("post_processor",), _PLAIN_AFTER) and _are_plain(values, ("decoder",), _PLAIN_DECODERS)
    if before and after and len(json.dumps(values.get("post_processor"))) < _TEMPLATE_CHARACTERS:
        return
    if problem := _try_parts(json.dumps({name: values[name] for name in _PARTS if name in values})):
        raise DataError(f"{path} has rules that {problem}: they are damaged or hostile. Take a copy of the original.")


def _are_plain(values: Mapping[str, Any], parts: Sequence[str], plain: Set[str]) -> bool:
    """Returns whether all rules of these parts are of a kind in `plain`, at most one of each."""
    rules = [rule for part in parts for rule in trial_process.flat(part, values.get(part))]
    keys = {*trial_process.SEQUENCES.values()}
    kinds = Counter(
        str(rule.get("type")) if isinstance(rule, dict) and not keys & rule.keys() else "" for rule in rules
    )
    return kinds.keys() <= plain and max(kinds.values(), default=0) <= 1


@lru_cache(64)
def _try_parts(parts: str) -> str:
    """Returns the problem of the parts, as the end of a message, or ""."""
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
    """A context that raises errors of the `tokenizers` library, which have no own class, and panics, which are not an
    Exception, as DataError that begins with `what`."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {' '.join(str(error).split())[:300]}.") from error
