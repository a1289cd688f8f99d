"""Keeps beside a tokenizer what its files declare and the `tokenizers` library does not store.

The library either finds all special tokens in a text, or none. In a text, those of the template, such as [SEP], are
ordinary text; added ones, such as [E1] to mark an entity, are one id each. So the latter are not special in memory
(`Declared.markers`), and special again on disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Special tokens with a name, in the order in which transformers adds them (SPECIAL_TOKENS_ATTRIBUTES)."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Declarations of the files of a tokenizer."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Special tokens by role (`ROLES`), if files name them."""
    markers: frozenset[str] = frozenset()
    """Special tokens that are found in texts."""
    truncation_side: str = "right"
    """The side on which long texts lose tokens: left or right."""


def declared(tokenizer: Any) -> Declared:
    """Returns the declarations of a tokenizer; empty ones if no files describe it."""
    found: Declared = getattr(tokenizer, "declared", Declared())
    return found


def declare(tokenizer: Any, found: Declared) -> None:
    """Stores the declarations of a tokenizer. A copy through `to_str` loses them."""
    tokenizer.declared = found
