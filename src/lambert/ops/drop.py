"""Dropout (Srivastava et al., 2014) as a function of a key and the number of an element, equal on every device.

Element i gets 16 bits, part i % 4 of word i // 4 of the key, and is dropped if they are below the threshold, so the
probabilities are multiples of 1 / 65536. A mask is drawn again in the backward pass instead of being stored.

Source: words of a key as in `core/randomness.py` (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

STEPS = 2**16
_GOLDEN, _MIX_1, _MIX_2 = (word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Drop:
    """Which elements of a tensor are zeroed; the others are multiplied by `scale`."""

    key: int | Tensor = 0
    """A 64-bit word, or an int64 tensor of one element on the device, so that a graph can be replayed with another."""
    threshold: int = 0
    """Of 65536; 0: nothing is dropped."""

    @classmethod
    def of(cls, probability: float, training: bool = True) -> "Drop":
        """Draws a key from torch's generator of the CPU. Draws nothing if nothing is dropped."""
        threshold = round(probability * STEPS) if training else 0
        return cls(int(torch.empty((), dtype=torch.int64).random_()), threshold) if threshold else NOTHING

    @property
    def scale(self) -> float:
        """The inverse of the probability with which an element is kept."""
        return STEPS / (STEPS - self.threshold)

    def part(self, number: int) -> "Drop":
        """Returns the same probability under the key of part `number` of the tensor."""
        return Drop(int(_mix(torch.tensor(_wrap(int(self.key) + (number + 1) * _GOLDEN)))), self.threshold)

    def kept(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Returns which elements of a tensor are kept, bool."""
        count = torch.Size(shape).numel()
        steps = torch.arange(1, -(-count // 4) + 1, device=device)
        words = _mix(steps.mul_(_GOLDEN).add_(_wrap(int(self.key))))
        parts = words.view(torch.int16)[:count].to(torch.int32).bitwise_and_(STEPS - 1)
        return (parts >= self.threshold).view(shape)

    def apply(self, values: Tensor) -> Tensor:
        """Returns the values, zeroed or scaled; the gradient is the same function of the gradient."""
        if not self.threshold:
            return values
        return torch.where(self.kept(values.shape, values.device), values * self.scale, 0.0)


NOTHING = Drop()


def _wrap(word: int) -> int:
    """Returns the signed 64-bit integer with the bits of `word`."""
    return (word + 2**63) % 2**64 - 2**63


def _mix(words: Tensor) -> Tensor:
    """Returns SplitMix64's finaliser of 64-bit words. Products of int64 tensors wrap around."""
    words = (words ^ _shift(words, 30)) * _MIX_1
    words = (words ^ _shift(words, 27)) * _MIX_2
    return words ^ _shift(words, 31)


def _shift(words: Tensor, bits: int) -> Tensor:
    """Returns the words without their lowest bits, filled with zeros from above."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
