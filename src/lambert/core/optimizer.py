"""torch's optimizer, without the import of torch's compiler."""

import inspect
from collections.abc import Mapping, Set

import torch

from lambert.core.compute import Place


class EagerOptimizer(torch.optim.Optimizer):
    """The base class of Lambert's optimizers: torch's, without the wrappers of these methods.

    The wrappers exclude them from torch's compiler, and import the compiler to do so: 0.8 s in each training process.
    Lambert does not compile updates.
    """

    places: Mapping[int, Place] = {}
    """Where a step may write copies of parameters too, by their ids; the caller of `step` sets it."""
    written: Set[int] = frozenset()
    """The ids of the parameters that the last step updated with their copies."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
