"""Biases of attention by distance: buckets as in transformers, and both ways to compute the same attention."""

import pytest
import torch
from flat import make_batch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from lambert.model import mpnet
from lambert.model.attention import attend_padded, attend_with_biases


@pytest.mark.parametrize("length", [1, 2, 9, 140, 600])
def test_buckets_are_those_of_transformers(length: int) -> None:
    expected = MPNetEncoder.relative_position_bucket(torch.arange(1 - length, length))
    found = mpnet.buckets(length, torch.device("cpu"))
    assert torch.equal(found, expected)
    assert int(found.max()) < mpnet.BUCKETS


def test_padded_rows_give_the_same() -> None:
    batch = make_batch([5, 40, 1, 40, 17], 50)
    torch.manual_seed(0)
    biases_HL = torch.randn(2, 2 * 40 - 1).requires_grad_()
    found = []
    for padded in (False, True):
        qkv_T3HE = torch.randn(103, 3, 2, 8, generator=torch.Generator().manual_seed(4)).requires_grad_()
        if padded:
            mixed_THE = attend_padded(qkv_T3HE, batch.bounds_S1, batch.longest, 0.0, biases_HL=biases_HL)
        else:
            mixed_THE = attend_with_biases(qkv_T3HE, batch, biases_HL, 0.0)
        found.append((mixed_THE.detach(), *torch.autograd.grad(mixed_THE.square().sum(), [qkv_T3HE, biases_HL])))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
