"""torch's optimizer, without the import of torch's compiler."""

import inspect

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """The base class of Lambert's optimizers: torch's, whose methods are called directly.

    torch excludes these methods from its compiler at their first call, and imports the compiler to do so: 0.8 s in each
    training process. Updates are not compiled here.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
