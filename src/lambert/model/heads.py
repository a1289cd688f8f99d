"""The model: an encoder and its heads."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lambert.core.batch import Batch
from lambert.core.registry import Kind, lookup
from lambert.model.config import EncoderConfig
from lambert.model.families import build_encoder, family_of
from lambert.model.objectives import HEADS, Head, HeadInputs, Vector
from lambert.model.pooling import find_pooling, split_modes

__all__ = ["HEADS", "Head", "Model", "build_model"]

KIND = Kind((EncoderConfig, int), base=Head)


def make_head(config: EncoderConfig, name: str, labels: int) -> Head:
    """Returns a fresh head of an objective, a key of HEADS or "package.module:name", as the family of the encoder has
    it. Raises UsageError for an objective that does not exist."""
    if name not in HEADS and (pooling := find_pooling(name)):
        return Vector(config, labels, modes=split_modes(pooling))
    return lookup({**HEADS, **family_of(config).heads}, name, "head", KIND)(config, labels)


class Model(nn.Module):
    """An encoder and its heads. Called with a batch, it returns the summed loss of each objective, float32 [K].

    Args:
        config: The encoder.
        heads: Number of labels of each objective (0 for mlm, nsp, value, choice, span and vectors), in the order of the
            sums. Objectives are keys of HEADS or "package.module:name".
        pooler: Whether the model has a pooler even if no head reads it.

    Raises UsageError for an objective or a block that does not exist.
    """

    def __init__(self, config: EncoderConfig, heads: Mapping[str, int], pooler: bool = False) -> None:
        super().__init__()
        self.config = config
        self.labels = dict(heads)
        self.encoder = build_encoder(config)
        self.heads = nn.ModuleDict({_key(name): make_head(config, name, labels) for name, labels in heads.items()})
        self._pooled = any(head.reads == "pooled" for head in self.heads.values())
        self.pooler = family_of(config).pooler(config) if self._pooled or pooler else None

    @property
    def joint(self) -> bool:
        """Whether a loss may depend on all examples of the global batch (engine/joint.py)."""
        return any(self.head(name).joint for name in self.objectives)

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives, in the order of the sums."""
        return tuple(self.labels)

    def head(self, name: str) -> Head:
        """Returns the head of an objective."""
        head = self.heads[_key(name)]
        assert isinstance(head, Head)
        return head

    def pool(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns one pooled row per sequence, [S, D]. The model must have a pooler."""
        assert self.pooler is not None
        pooled_SD: Tensor = self.pooler(states_TD, batch)
        return pooled_SD

    def _logits(self, states_TD: Tensor, batch: Batch, at: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        pooled_SD = self.pool(states_TD, batch) if self._pooled else None
        inputs = HeadInputs(states_TD, batch, self.encoder.words.weight, pooled_SD)
        return {name: self.head(name).predict(inputs, at_N) for name, at_N in at.items()}

    def forward(self, batch: Batch) -> Tensor:
        """Returns the summed losses [K], float32, in the order of `objectives`."""
        return self.losses(self.encoder(batch), batch)

    def losses(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns what `forward` returns, from the states [T, D] that the encoder returned for the batch."""
        at = {name: batch.targets[name].at_N for name in self.objectives}
        return self._sums(self._logits(states_TD, batch, at), batch)

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the summed losses [K], float32, and the numbers of correct predictions [K], int64. Both are 0 for an
        objective without targets."""
        at = {name: batch.targets[name].at_N for name in self.objectives if name in batch.targets}
        logits = self._logits(self.encoder(batch), batch, at)
        none = torch.zeros((), dtype=torch.int64, device=batch.ids_T.device)
        hits = [
            self.head(name).hits(logits[name], batch.targets[name], batch) if name in logits else none
            for name in self.objectives
        ]
        return self._sums(logits, batch), torch.stack(hits)

    def _sums(self, logits: Mapping[str, Tensor], batch: Batch) -> Tensor:
        none = torch.zeros((), device=batch.ids_T.device)
        return torch.stack(
            [
                self.head(name).loss(logits[name], batch.targets[name], batch) if name in logits else none
                for name in self.objectives
            ]
        )

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Returns logits for inference: [S, L] of the heads of sentences, [S, 1] of choice, [T, 2] of span, [T, L] of
        tag, and [N, V] of mlm at the mlm targets of the batch, if it has any."""
        own = {name: self.head(name).targets_only for name in self.objectives}
        at = {
            name: batch.targets[name].at_N if only else None
            for name, only in own.items()
            if not only or name in batch.targets
        }
        return self._logits(self.encoder(batch), batch, at)


def _key(name: str) -> str:
    """Returns the name of an objective as the name of a module, which must not contain a dot."""
    return name.replace(".", "/")


class _Unfilled(TorchFunctionMode):
    """Mode in which `torch.nn.init` does not change parameters. Random draws on the meta device would make torch import
    its compiler, which takes longer than reading a model."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensor = args[0] if args else (kwargs or {}).get("tensor")
        if getattr(function, "__module__", "") == nn.init.__name__ and isinstance(tensor, nn.Parameter):
            return tensor
        return function(*args, **(kwargs or {}))


def build_model(config: EncoderConfig, heads: Mapping[str, int], pooler: bool = False) -> Model:
    """Returns a model with uninitialised parameters. The state of torch's random generator does not change."""
    random = torch.random.get_rng_state()
    try:
        with _Unfilled():
            return Model(config, heads, pooler)
    finally:
        torch.random.set_rng_state(random)
