"""What packing and masking need to know about a vocabulary, independent of the tokenizer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lambert.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Template:
    """The special tokens of a sequence: [CLS] A [SEP], and [CLS] A [SEP] ... [SEP] B [SEP] or
    [CLS] A [SEP] [CLS] B [SEP]."""

    cls: int
    """Id of the first token."""
    sep: int
    """Id of the token after each text."""
    between: int = 1
    """Number of tokens between A and B: 1 in BERT, 2 in RoBERTa; 0: tokens that are not supported."""
    second_type: int = 1
    """Segment type of B, the [SEP] after it and, if `again`, the [CLS] before it; that of the tokens before is 0. 0 in
    RoBERTa."""
    again: bool = False
    """Whether the last token before B is [CLS], as in Gemma's kind, instead of [SEP]."""

    @property
    def single(self) -> int:
        """Number of special tokens around one text."""
        return 2

    @property
    def pair(self) -> int:
        """Number of special tokens around a pair of texts. Raises DataError if pairs are not supported."""
        if not self.between:
            raise DataError(
                "The tokenizer separates the texts of a pair by other tokens than those at the end of a text, which is "
                "not supported. Use single texts, or another tokenizer."
            )
        return 2 + self.between


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids of the special tokens, the vocabulary's size, and which pieces continue and end a word."""

    template: Template
    unk: int
    """Id of the token for what the vocabulary cannot express; -1 if it can express every text."""
    mask: int
    vocabulary: int
    """Number of ids, V: the largest id plus 1. Some ids may have no piece."""
    continuation_V: npt.NDArray[np.bool_]
    """bool [V]. True for pieces that continue the word of the preceding piece, unless that is in `closing_V`."""
    closing_V: npt.NDArray[np.bool_]
    """bool [V]. True for pieces after which a word begins in any case, such as punctuation marks."""
