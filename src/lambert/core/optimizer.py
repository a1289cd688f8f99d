"""torch's optimizer, without the import of torch's compiler."""

import inspect

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """The base class of Lambert's optimizers: torch's, without the wrappers of these methods.

    The wrappers exclude them from torch's compiler, and import the compiler to do so: 0.8 s in each training process.
    Lambert does not compile updates.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
