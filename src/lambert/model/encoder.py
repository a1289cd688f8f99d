"""The encoder: embeddings followed by a stack of blocks."""

from collections import deque
from collections.abc import Iterator
from typing import Self

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.config import SIZES, EncoderConfig

__all__ = ["SIZES", "Encoder", "EncoderConfig"]


class Encoder(nn.Module):
    """Maps a flat batch to states [T, D]. `Encoder(config)` is the encoder of the family that `config.block` names.

    A family derives its encoder from this class. Its constructor makes `words`, `blocks` and everything else that the
    embeddings need, and its `embed` computes the embeddings.

    Source: Devlin et al., 2018, section 3 and figure 2.
    """

    words: nn.Embedding
    """Table of word embeddings [V, D], which the masked-LM head reads too."""
    blocks: nn.ModuleList
    """Modules from (states [T, D], batch) to states [T, D]."""

    def __new__(cls, *arguments: EncoderConfig, **named: EncoderConfig) -> Self:
        if cls is not Encoder:  # also of copies, which are made without a configuration
            return super().__new__(cls)
        from lambert.model.families import family_of  # families derive from this class

        found: type[Self] = family_of(*arguments, **named).encoder  # type: ignore[assignment]
        return super().__new__(found)

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config

    def embed(self, batch: Batch) -> Tensor:
        """Returns the embeddings of the tokens, [T, D], which the first block reads."""
        raise NotImplementedError

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """Yields the states [T, D] that each block reads, and finally those that the encoder returns."""
        states_TD = self.embed(batch)
        for block in self.blocks:
            yield states_TD
            states_TD = block(states_TD, batch)
        yield states_TD

    def forward(self, batch: Batch) -> Tensor:
        """Returns the states of the tokens, [T, D]."""
        return deque(self.states(batch), maxlen=1).pop()
