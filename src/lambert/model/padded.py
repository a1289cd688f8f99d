"""Encoders over padded rows, for runtimes that do not know flat batches. Every exporter can trace them."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.block import Block
from lambert.model.encoder import Encoder
from lambert.model.packed import Product, split_layers


class Joined(Product):
    """Linear layers that read the same states, as one layer."""

    def __init__(self, *layers: nn.Linear) -> None:
        super().__init__()
        weights, biases = split_layers(layers)
        self.weight, self.bias = (
            nn.Parameter(torch.cat([*parts]) if len(parts) > 1 else parts[0].detach(), requires_grad=False)
            if parts
            else None
            for parts in (weights, biases)
        )

    def forward(self, states_TD: Tensor, gelu: str = "") -> Tensor:
        out_TF = nn.functional.linear(states_TD, self.weight, self.bias)
        return nn.functional.gelu(out_TF, approximate=gelu) if gelu else out_TF


class PaddedEncoder(nn.Module):
    """Maps a batch of padded rows, which `collate` makes, to states [B, M, D].

    It is the encoder itself, on rows with a mask. It shares the parameters of the encoder, apart from layers that
    it joins.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = _copy(encoder)
        self.encoder.blocks = nn.ModuleList(_copy(block) for block in encoder.blocks)
        for block in self.blocks:
            block.replace_layers(lambda _, layers: Joined(*layers))
        self.flat = False
        """Whether the tokens of all rows are computed as one sequence of T, which some runtimes multiply faster."""
        self.eval()

    @property
    def blocks(self) -> list[Block]:
        """The blocks; each has a `Product` in the place of its layers."""
        return [block for block in self.encoder.blocks if isinstance(block, Block)]

    def replace_products(self, make: Callable[[Any], Product]) -> None:
        """Replaces each product of the blocks by what `make` returns for it."""
        for block in self.blocks:
            for names in block.products:
                setattr(block, names[0], make(getattr(block, names[0])))

    def collate(self, ids_BM: Tensor, mask_BM: Tensor, types_BM: Tensor | None = None) -> Batch:
        """Returns the batch of these ids [B, M], with the mask [B, M] of 1 and 0, and segment types [B, M] or None."""
        B, M = ids_BM.shape
        places_M = torch.arange(M, device=ids_BM.device)
        types_BM = torch.zeros_like(ids_BM) if types_BM is None else types_BM
        inputs = (ids_BM, types_BM, places_M.expand(B, M))
        ids, types, positions = (values.flatten() for values in inputs) if self.flat else inputs
        return Batch(
            ids_T=ids,
            types_T=types,
            positions_T=positions,
            bounds_S1=torch.arange(B + 1, dtype=torch.int32, device=ids_BM.device) * M,
            longest=M,
            targets={},
            mask_BM=mask_BM,
        )

    def forward(self, batch: Batch) -> Tensor:
        assert batch.mask_BM is not None
        states: Tensor = self.encoder(batch)
        return states.view(*batch.mask_BM.shape, -1)


def _copy(module: Any) -> Any:
    """Returns a copy of a module whose children can be replaced without changing the original."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied
