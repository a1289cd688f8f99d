"""The gradient of a tied token table, sent in two parts."""

from typing import Any

import pytest
import torch
from exchange_runs import Found, found_by, trained, whole
from tiny import weights

from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange import build
from lambert.distributed.exchange.overlapped import DistributedExchange
from lambert.distributed.group import Group
from lambert.engine.precision import Precision
from lambert.model.config import EncoderConfig
from lambert.model.weights import draw


class Noting(DistributedExchange):
    """Notes the share of the buckets that were handed over by the end of each backward pass."""

    def finish(self) -> None:
        self.shares = [*getattr(self, "shares", []), self._next / len(self.buckets)]
        super().finish()


def tied(world: World) -> Any:
    """Weights of a BERT with a tied decoder: its table sent whole at the end, or its dense part first and then rows.
    Two updates: the first is watched, and later ones amplify the order of sums through bfloat16 weights."""
    found, options = {}, ExchangeConfig(bucket_mb=0.05)
    for name, apart in (("whole", False), ("apart", True)):
        config = EncoderConfig(vocabulary=600, hidden=32, layers=2, heads=2, intermediate=64, positions=16)
        model = draw(config, {"mlm": 0, "nsp": 0}, seed=5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        exchange = Noting(model, world, options) if isinstance(world, Group) else build(model, world, options)
        table = getattr(exchange, "tied_embedding", None)
        if table is not None and not apart:
            table.active = False
        trained(
            model, world, exchange, whole(world), schedule=lambda n: 0.1, max_grad_norm=0.0, stop=2,
            optimizer=optimizer, precision=Precision("bfloat16"),
        )  # fmt: skip
        shares = exchange.shares if isinstance(exchange, Noting) else []
        found[name] = (weights(model), None if table is None else table.active, shares)
    return found


found = found_by(tied)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="gradients in place need bfloat16")
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_tied_table_sent_in_two_parts_gives_the_same_weights(found: Found, size: int) -> None:
    for rank in range(size):
        said = found("tied", size, rank)
        (whole_table, off, shares), (apart, on, shares_apart) = said["whole"], said["apart"]
        assert (off, on) == (False, True)
        assert shares == shares_apart == [1.0, 1.0]  # everything leaves while the backward pass goes on
        assert (apart - whole_table).abs().max() <= 1e-6
        assert torch.equal(apart, found("tied", size)["apart"][0])
        assert (apart - found("tied", 1)["apart"][0]).abs().max() <= 1e-3  # in bfloat16
