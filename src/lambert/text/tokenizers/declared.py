"""What the files of a tokenizer say that the `tokenizers` library does not keep: it is kept beside the tokenizer.

The library either finds all special tokens in a text, or none. A template's own ones, such as [SEP], are ordinary text
in a text; the other ones, such as [E1] that somebody added to mark an entity, are one id each. So the latter are not
special in memory (`Declared.markers`), and special again on disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Special tokens with a name, in the order in which transformers adds them (SPECIAL_TOKENS_ATTRIBUTES)."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What was declared about a tokenizer."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Special tokens by role (`ROLES`), if files name them."""
    markers: frozenset[str] = frozenset()
    """Special tokens that are found in texts."""
    truncation_side: str = "right"
    """The side on which long texts lose tokens: left or right."""


def declared(tokenizer: Any) -> Declared:
    """Returns what was declared about a tokenizer; of one that no files describe, nothing."""
    found: Declared = getattr(tokenizer, "declared", Declared())
    return found


def declare(tokenizer: Any, found: Declared) -> None:
    """Keeps what was declared about a tokenizer. A copy by way of `to_str` loses it."""
    tokenizer.declared = found
