"""Groups of parameters, by weight decay and by depth, and the base class of the optimizers over them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from lambert.core.compute import NOWHERE, Place
from lambert.core.errors import UsageError
from lambert.core.optimizer import EagerOptimizer
from lambert.ops import native
from lambert.optim.config import Adapt

OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "lr": lambda lr: 0 <= lr < math.inf,
    "betas": lambda betas: len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
    "momentum": lambda momentum: 0 <= momentum < 1,
    "eps": lambda eps: 0 <= eps < math.inf,
    "weight_decay": lambda decay: 0 <= decay < math.inf,
    "trust_coefficient": lambda coefficient: 0 < coefficient < math.inf,
    "adapt": lambda adapt: adapt in get_args(Adapt),
    "trust": lambda trust: len(trust) == 2 and 0 <= trust[0] <= trust[1],
}
"""Whether a value of an option of the optimizers is in its range."""
_BLOCK = re.compile(r"(.*\.)?(?:blocks|layers?)\.(?=\d+\.)")
"""Prefix of the names of parameters of numbered blocks, such as `encoder.blocks.3.`, or `bert.encoder.layer.3.` in
transformers."""


def decay_groups(model: nn.Module, weight_decay: float = 0.01, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Splits the trainable parameters of a model into two groups for a torch optimizer: matrices, which are decayed,
    and vectors (biases and norms), which are not. With a `layer_decay` other than 1, there are two groups for each
    layer.

    In BERT the vectors are exactly the tensors called `bias` or `LayerNorm.*`, which Devlin et al.'s code excludes from
    the decay; the number of dimensions identifies them under any name. Each trainable parameter is in exactly one
    group; a tied weight counts once.

    Args:
        model: Any module; with `layer_decay`, one with numbered blocks.
        weight_decay: Decay of the matrices, a share of the weight for a learning rate of 1.
        layer_decay: Factor from the learning rate of a layer to that of the layer below: the head and the pooler have
            the whole rate, block i of n has `layer_decay` ** (n - i), from 0, and the embeddings ** (n + 1).

    Returns:
        Groups, each with `params`, a list of (name, parameter), and `weight_decay`; with `layer_decay` also with
        `lr_scale`, the factor by which the caller multiplies the learning rate of the group before each step. A group
        without parameters is omitted. In `Lamb` the vectors have no trust ratio, because their decay is 0.

    Raises UsageError if the model has no numbered blocks, and `layer_decay` is not 1.

    Source: google-research/bert, optimization.py, exclude_from_weight_decay; Howard and Ruder, 2018, section 3.2, and
    Clark et al., 2020 (ELECTRA), appendix B: learning rates by layer.
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    matrices = [(name, param) for name, param in named if param.ndim > 1], weight_decay
    vectors = [(name, param) for name, param in named if param.ndim <= 1], 0.0
    groups: list[dict[str, Any]] = [{"params": params, "weight_decay": decay} for params, decay in (matrices, vectors)]
    if layer_decay != 1.0:
        depths = dict(_depths([name for name, _ in model.named_parameters()]))
        top = max(depths.values())
        groups = [
            {**group, "params": part, "lr_scale": layer_decay ** (top - depth)}
            for depth in range(top + 1)
            for group in groups
            if (part := [(name, param) for name, param in group["params"] if depths[name] == depth])
        ]
    return [group for group in groups if group["params"]]


def is_adapted(group: Mapping[str, Any]) -> bool:
    """Returns whether the tensors of a group have a trust ratio, by its `adapt` and `weight_decay`."""
    decayed: bool = group["weight_decay"] != 0
    return group["adapt"] == "all" or (group["adapt"] == "decayed" and decayed)


class GroupOptimizer(EagerOptimizer):
    """The base class of the optimizers: checks the options of each group, and updates one group after another."""

    options: ClassVar[Mapping[str, Callable[[Any], bool]]] = OPTIONS

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._tables: dict[int, tuple[list[object], Any]] = {}  # of the kernels, by the id of the first parameter

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._tables = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group. Raises ValueError for the first option out of its range, in the words of torch's optimizers."""
        group = {**self.defaults, **param_group}
        for name, holds in self.options.items():
            if name in group and not holds(group[name]):
                raise ValueError(f"Invalid {name}: {group[name]}.")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient. Returns what `closure`, if given, returned."""
        loss, self.written = None, frozenset()
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if any(param.grad.is_sparse for param in params):
                raise RuntimeError(
                    f"{type(self).__name__} does not support sparse gradients: build the embedding with sparse=False."
                )
            if params:
                self._update_group(params, group)
        return loss

    def _update_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Updates these parameters of a group, which have gradients."""
        raise NotImplementedError

    def _moments(self, params: list[Tensor], *, on_device: bool) -> list[dict[str, Tensor]]:
        """Returns the states of parameters as in torch's Adam, and creates those that do not exist. The counter of
        steps is on the parameter's device if `on_device`, else on the CPU."""
        for param in params:
            state = self.state[param]
            if not state:
                state["step"] = torch.zeros((), device=param.device if on_device else "cpu")
                state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return [self.state[param] for param in params]

    def _update_by_kernels(
        self, kind: str, params: list[Tensor], numbers: Callable[[float], native.Numbers]
    ) -> list[float] | None:
        """Updates parameters that have states by the compiled kernels. Returns the ratio of each; None if the kernels
        cannot update them.

        Args:
            kind: As in `native.update`.
            params: Parameters with gradients.
            numbers: Returns the numbers of the n-th step, from 1.
        """
        states = [self.state[param] for param in params]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        tensors: list[Any] = [*zip(params, (param.grad for param in params), means, squares, strict=True)]
        table = self._find_table(native, tensors)
        if table is None:
            return None
        torch._foreach_add_([state["step"] for state in states], 1.0)
        steps = [state["step"].item() for state in states]
        if len({*steps}) == 1:
            ratios = native.update(kind, table, numbers(steps[0]))
        else:
            ratios = [1.0] * len(params)
            for step in {*steps}:
                numbered = [number for number, one in enumerate(steps) if one == step]
                some = native.Table([tensors[number] for number in numbered], self.places)
                for number, ratio in zip(numbered, native.update(kind, some, numbers(step)), strict=True):
                    ratios[number] = ratio
        torch.autograd.graph.increment_version(params)
        self.written = {*self.written, *map(id, params)}
        return ratios

    def _find_table(self, kernels: Any, tensors: list[Any]) -> Any:
        """Returns the table of these tensors for the kernels of a module, `ops.native` or `ops.updates`, the last one
        if nothing has moved since; None if the kernels cannot update them."""
        addresses = _find_addresses(tensors, self.places)
        known, table = self._tables.get(id(tensors[0][0]), (None, None))
        if known != addresses:
            if not kernels.can_update([*chain.from_iterable(tensors)]):
                return None
            table = kernels.Table(tensors, self.places)
            self._tables[id(tensors[0][0])] = addresses, table
        return table


def _find_addresses(tensors: Iterable[tuple[Tensor, ...]], places: Mapping[int, Place]) -> list[object]:
    """Returns the addresses of the tensors of each parameter, the parameter first, and the place of its copy. A table
    of them is valid as long as these are the same."""
    found: list[object] = []
    for together in tensors:
        found += [one.data_ptr() for one in together]
        found.append(places.get(id(together[0]), NOWHERE))
    return found


def _depths(names: Sequence[str]) -> list[tuple[str, int]]:
    """Returns each name with the depth of its layer: 0 before the first block, i + 1 in block i, and the number of
    blocks + 1 after the last block."""
    prefix = next((match[0] for match in map(_BLOCK.match, names) if match), None)
    if prefix is None:
        raise UsageError("optim.layer_decay needs a model with numbered blocks.")
    found, depth = [], 0
    blocks = 1 + max(int(name[len(prefix) :].partition(".")[0]) for name in names if name.startswith(prefix))
    for name in names:
        if name.startswith(prefix):
            depth = 1 + int(name[len(prefix) :].partition(".")[0])
        elif depth:
            depth = 1 + blocks
        found.append((name, depth))
    return found
