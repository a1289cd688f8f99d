"""The encoder: embeddings followed by a stack of blocks."""

from collections import deque
from collections.abc import Iterator

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.config import EncoderConfig


class Encoder(nn.Module):
    """Maps a flat batch to states [T, D]. The base class of the encoders of all families: `build_encoder(config)`
    returns the one of a family.

    A family derives its encoder from this class. Its constructor creates `words`, `blocks` and everything else that the
    embeddings need, and its `embed` computes the embeddings.

    Raises TypeError if the class itself is called.

    Source: Devlin et al., 2018, section 3 and figure 2.
    """

    words: nn.Embedding
    """Table of word embeddings [V, D], which the masked-LM head reads too."""
    blocks: nn.ModuleList
    """Modules from (states [T, D], batch) to states [T, D]."""
    converted = False
    """Whether the blocks were converted for inference (`inference/cpu.py`). Their states may have another dtype than
    the embeddings and heads."""

    def __init__(self, config: EncoderConfig) -> None:
        if type(self) is Encoder:
            raise TypeError("Encoder is the base class of all encoders: call lambert.build_encoder(config).")
        super().__init__()
        self.config = config

    def kernel_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters that the compiled kernels read in float32 after a conversion for inference."""
        return [*self.blocks.parameters()]

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
        states_TD = deque(self.states(batch), maxlen=1).pop()
        return states_TD.to(self.words.weight.dtype) if self.converted else states_TD
