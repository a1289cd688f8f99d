"""The costs of encoders: weights, floating-point operations, and memory for the backward pass."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import torch

from lambert.model.config import EncoderConfig
from lambert.native import library

_WIDE = torch.float32.itemsize


class Costs(ABC):
    """Formulas of a family's costs, a base class. The methods are pure functions of an encoder's settings."""

    norms: int = 4
    """Tensors of the width of the states that a block saves in float32: inputs and outputs of two norms."""
    gated: bool = True
    """Whether the feed-forward layer computes gates beside its units."""

    def matrices(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        """Returns the numbers of (inputs, outputs) of the linear layers of one block, in the order of the forward
        pass."""
        width, inner = config.hidden, config.intermediate
        return (width, 3 * width), (width, width), (width, (1 + self.gated) * inner), (inner, width)

    def linear_weights(self, config: EncoderConfig, biased: Sequence[bool]) -> int:
        """Returns the number of weights of the linear layers of one block; `biased`: which layers have biases."""
        matrices = zip(self.matrices(config), biased, strict=True)
        return sum((inputs + bias) * outputs for (inputs, outputs), bias in matrices)

    @abstractmethod
    def weight_count(self, config: EncoderConfig) -> int:
        """Returns the number of weights of the encoder. Those of custom blocks are not known, and not counted."""

    @abstractmethod
    def saved_values(self, config: EncoderConfig) -> int:
        """Returns the number of values that a block saves for a token in the type of the products, without attention
        probabilities."""

    def pairs(self, config: EncoderConfig, lengths: Collection[int]) -> int:
        """Returns the number of pairs of tokens that attend to each other, summed over all blocks, for sequences of
        these lengths."""
        return config.layers * sum(length**2 for length in lengths)

    def probabilities(self, config: EncoderConfig, longest: int) -> int:
        """Returns the number of attention probabilities that a block saves for a token if torch's operators compute
        them on a CPU: those before and after dropout."""
        return (1 + bool(config.attention_dropout)) * config.heads * longest

    def operations(self, config: EncoderConfig, lengths: Collection[int]) -> int:
        """Returns the operations of the matrix products of the forward pass over sequences of these lengths, in tokens,
        with 2 operations per multiply-add."""
        linear = config.layers * sum(inputs * outputs for inputs, outputs in self.matrices(config)) * sum(lengths)
        return 2 * (linear + 2 * config.hidden * self.pairs(config, lengths))

    def saved_per_token(
        self, config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int, *, native: bool
    ) -> int:
        """Returns an estimate of the bytes that the encoder holds per token at the peak of the backward pass: the
        tensors that its blocks save, and two more blocks for the one being computed.

        Args:
            config: The encoder.
            dtype: Type of the matrix products.
            device: On a CPU the attention probabilities are saved; other devices and the compiled kernels recompute
                them.
            longest: Length of the sequences in tokens, to which the attention probabilities per token are proportional.
            native: Whether the compiled kernels for CPUs compute the blocks (`uses_kernels`).
        """
        computed = device.type == "cpu" and not native
        return self.saved_with(config, dtype, self.probabilities(config, longest) * dtype.itemsize * computed)

    def saved_with(self, config: EncoderConfig, dtype: torch.dtype, attention: int) -> int:
        """Returns `saved_per_token` for blocks that save `attention` bytes of attention per token."""
        size, width = dtype.itemsize, config.hidden
        copies = 2 * width * size if size < _WIDE else 0  # rounded outputs of the norms, for the products
        block = self.saved_values(config) * size + attention + self.norms * width * _WIDE + copies
        return (config.layers + 2) * block + 3 * width * _WIDE


def uses_kernels(dtype: torch.dtype, device: torch.device) -> bool:
    """Returns whether the compiled kernels compute blocks, with their attention, in this type."""
    return device.type == "cpu" and dtype == torch.bfloat16 and library() is not None
