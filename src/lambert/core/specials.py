"""The facts about a vocabulary that packing and masking need, independent of the tokenizer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids of the special pieces, the vocabulary's size, and which pieces continue a word."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    vocabulary: int
    """Number of pieces, V."""
    continuation_V: npt.NDArray[np.bool_]
    """bool [V]. True for pieces that begin with ##, which continue the word of the preceding piece."""
