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
    def of(cls, probability: float, training: bool = True, device: torch.device | None = None) -> "Drop":
        """Draws a key from torch's generator of the device, of the CPU by default. The key of a GPU stays there. Draws
        nothing if nothing is dropped."""
        threshold = round(probability * STEPS) if training else 0
        if not threshold:
            return NOTHING
        if device is not None and device.type == "cuda":
            return cls(torch.empty(1, dtype=torch.int64, device=device).random_(), threshold)
        return cls(draw_key(), threshold)

    @property
    def scale(self) -> float:
        """The inverse of the probability with which an element is kept."""
        return STEPS / (STEPS - self.threshold)

    def kept(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Returns which elements of a tensor are kept, bool."""
        count = torch.Size(shape).numel()
        return self._drawn(self._key(device), -(-count // 4))[:count].view(shape)

    def kept_of_heads(self, parts_P: Tensor, M: int) -> Tensor:
        """Returns which probabilities of matrices of queries and keys are kept, bool [P, M, M]. Each has a key of its
        own, by its number in `parts_P`, and rows that are padded to a multiple of 64 elements."""
        width = -(-M // 64) * 64
        keys_P = _mix(self._key(parts_P.device) + (parts_P + 1) * _GOLDEN)
        return self._drawn(keys_P[:, None], M * width // 4).view(-1, M, width)[:, :, :M]

    def _key(self, device: torch.device) -> Tensor:
        return self.key if isinstance(self.key, Tensor) else torch.tensor(_wrap(self.key), device=device)

    def _drawn(self, key: Tensor, count: int) -> Tensor:
        """Returns whether elements of the first `count` words of a key are kept, four for each, bool."""
        words = torch.arange(1, count + 1, device=key.device).mul_(_GOLDEN) + key
        # In order as signed integers if the highest bit is turned.
        return (_mix(words).view(torch.int16) ^ -(2**15)) >= self.threshold - 2**15

    def apply(self, values: Tensor) -> Tensor:
        """Returns the values, zeroed or scaled; the gradient is the same function of the gradient."""
        if not self.threshold:
            return values
        return torch.where(self.kept(values.shape, values.device), values * self.scale, 0.0)


NOTHING = Drop()


def draw_key() -> int:
    """Draws a key from torch's generator of the CPU."""
    return int(torch.empty(1, dtype=torch.int64).random_())


def _wrap(word: int) -> int:
    """Returns the signed 64-bit integer with the bits of `word`."""
    return (word + 2**63) % 2**64 - 2**63


def _mix(words: Tensor) -> Tensor:
    """Returns SplitMix64's finaliser of 64-bit words. Products of int64 tensors wrap around."""
    words = (words ^ _shift(words, 30)).mul_(_MIX_1)
    words = words.bitwise_xor_(_shift(words, 27)).mul_(_MIX_2)
    return words.bitwise_xor_(_shift(words, 31))


def _shift(words: Tensor, bits: int) -> Tensor:
    """Returns the words without their lowest bits, filled with zeros from above."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)
