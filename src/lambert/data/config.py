"""The settings of packing and masking."""

from dataclasses import dataclass
from typing import Literal

from lambert.core.errors import UsageError
from lambert.core.settings import check

_SHORTEST_SEQUENCE = 8
_LONGEST_SEQUENCE = 2**15


@dataclass(frozen=True, slots=True)
class PackingConfig:
    """The settings of packing, which cuts documents into sequences."""

    mode: Literal["pairs", "balanced", "full", "google"] = "pairs"
    """"pairs": two segments and a next-sentence label, as in the BERT paper's data (slightly more than half of the
    labels are "random"); "balanced": the same with exactly half; "full": one segment of one document, as long as fits,
    without next-sentence labels; "google": exactly the instances of Google's create_pretraining_data.py, with static
    masks (slow, for comparisons)."""
    sequence_length: int = 128
    """Maximum length of a sequence in tokens, [CLS] and [SEP] included."""
    short_sequences: float = 0.1
    """Share of documents that are cut to a random shorter target length (modes pairs, balanced, google). In modes pairs
    and balanced the lengths are drawn again in every epoch."""
    shortest: int = 8
    """Minimum tokens of a segment in mode "full": a masked token in a shorter one has almost no context. Shorter
    documents are dropped; a shorter last segment of a document takes tokens from the segment before it."""
    duplicates: int = 10
    """Passes over the corpus, each with different masks, that form one epoch in mode "google" (dupe_factor there)."""

    def __post_init__(self) -> None:
        if self.mode not in ("pairs", "balanced", "full", "google"):
            raise UsageError(f"packing.mode = {self.mode!r} is unknown. Known: pairs, balanced, full, google.")
        check(
            self, "packing.",
            sequence_length=f"[{_SHORTEST_SEQUENCE}, {_LONGEST_SEQUENCE}]", short_sequences="[0, 1]",
            shortest="[1, inf)", duplicates="[1, inf)",
        )  # fmt: skip

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives that sequences have targets of."""
        return ("mlm",) if self.mode == "full" else ("mlm", "nsp")

    def room(self, segments: int) -> int:
        """Returns the text tokens that fit into a sequence: its length minus [CLS] and one [SEP] per segment."""
        return self.sequence_length - 1 - segments


@dataclass(frozen=True, slots=True)
class MaskingConfig:
    """The settings of masked-token selection and replacement. Defaults: Devlin et al. 2019, section 3.1."""

    rate: float = 0.15
    """Share of a sequence's tokens to mask and predict; at least one token. [CLS] and [SEP] count as tokens of the
    sequence but are never masked."""
    whole_word: bool = False
    """Mask all pieces of a word or none. A word that would exceed the sequence's number of masked tokens is skipped;
    words do not cross a [SEP]."""
    mask_share: float = 0.8
    """Share of the masked tokens that are replaced by [MASK]."""
    random_share: float = 0.1
    """Share of the masked tokens that are replaced by a random piece of the whole vocabulary, special tokens included,
    as in the original code. The remaining masked tokens are left unchanged."""
    max_predictions: int | None = None
    """Maximum number of masked tokens per sequence. Unset: `rate` alone decides."""

    def __post_init__(self) -> None:
        check(
            self, "masking.",
            rate="(0, 1]", mask_share="[0, 1]", random_share="[0, 1]", max_predictions="[1, inf)",
        )  # fmt: skip
        if self.mask_share + self.random_share > 1 + 1e-9:
            shares = f"masking.mask_share = {self.mask_share} and masking.random_share = {self.random_share}"
            raise UsageError(f"{shares} add up to more than 1: choose shares from 0 to 1 whose sum is at most 1.")
