"""Biases of attention by distance: buckets as in transformers, and both ways to compute the same attention."""

import pytest
import torch
from flat import make_batch
from torch import nn
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from lambert.model import mpnet


@pytest.mark.parametrize("length", [1, 2, 9, 140, 600])
def test_buckets_are_those_of_transformers(length: int) -> None:
    places = torch.arange(length)
    expected = MPNetEncoder.relative_position_bucket(places[None, :] - places[:, None])
    found = mpnet.buckets(length, torch.device("cpu"))
    assert torch.equal(found, expected)
    assert int(found.max()) < mpnet.BUCKETS


def test_padded_rows_give_the_same() -> None:
    batch = make_batch([5, 40, 1, 40, 17], 50)
    table = nn.Embedding(mpnet.BUCKETS, 2)
    torch.manual_seed(0)
    found = []
    for padded in (False, True):
        qkv_T3HE = torch.randn(103, 3, 2, 8, generator=torch.Generator().manual_seed(4)).requires_grad_()
        table.weight.grad = None
        of_length = mpnet.biases(table, batch)
        if padded:
            mixed_THE = mpnet._attend_padded(qkv_T3HE, batch, of_length[batch.longest], 0.0)
        else:
            mixed_THE = mpnet.attend_with_biases(qkv_T3HE, batch, of_length, 0.0)
        mixed_THE.square().sum().backward()
        assert table.weight.grad is not None
        assert qkv_T3HE.grad is not None
        found.append((mixed_THE.detach(), qkv_T3HE.grad, table.weight.grad.clone()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
