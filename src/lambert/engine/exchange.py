"""The exchange of a single process, which is also the interface of every exchange."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.engine.gradients import Gradients, PairwiseSum


class Exchange:
    """The exchange of a single process: there is nothing to sum. `DistributedExchange` has the same interface for
    several ranks."""

    local = False
    """Whether each rank updates its own weights by its own share of the batch, as in local SGD."""
    residuals_per_weight = 0
    """Number of float32 values per weight that the exchange may keep as residual between updates."""
    method = "none"
    """Name of the method in use."""
    decided = True
    """Whether `method` was named by the recipe or used by the run before; if not, a trial is to choose the method."""

    def __init__(self, net: nn.Module, *, deterministic: bool = False) -> None:
        """Builds the gradient buffer of `net`. `deterministic`: the gradients of an update's shares are added as a
        binary tree, in an order that does not depend on which rank has which share."""
        self.gradients = Gradients(net)
        """The gradients of this rank; after `finish` their sum over all ranks."""
        self._tree = PairwiseSum() if deterministic else None

    def attach(self) -> None:
        """Called before the first update."""

    def detach(self) -> None:
        """Called after the last update: later backward passes no longer write to the gradient buffer."""
        self.gradients.release()

    def use(self, name: str) -> None:
        """Switches to the method called `name` from the next update on; residuals of the former method are dropped."""

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        """Called before the first pass of update number `update`, from 0. `scale()` returns the loss scale by which the
        gradients are multiplied; it waits for the device, so an exchange calls it only if needed."""

    def last_pass(self) -> None:
        """Called before the last backward pass of this update on this rank: gradients that it finishes may be sent."""

    def add(self) -> None:
        """Called after the last pass over one of the update's shares."""
        if self._tree is not None:
            self.gradients.collect()
            self._tree.add(self.gradients.flat)

    def finish(self) -> None:
        """Completes the sum of all gradients over the ranks in the buffer. Raises MachineError if a rank is lost."""
        self.gradients.collect()
        if self._tree is not None:
            self._tree.take(self.gradients.flat)

    def report(
        self, losses_SK: Tensor, seconds: float, flags: Sequence[bool] = ()
    ) -> tuple[Tensor, Tensor, Sequence[bool]]:
        """Exchanges the ranks' reports on an update after `finish`. Does not wait for the device.

        Args:
            losses_SK: Losses of this rank's shares S by objective K.
            seconds: Time of this rank's passes.
            flags: Flags of this rank.

        Returns the losses [K] summed over the shares of all ranks; for each rank [2, W] 1 + the number of the first
        parameter whose own gradient was not finite on that rank (0: none), and its `seconds`; and for each flag whether
        any rank has set it.
        """
        ranks_2W = torch.stack([losses_SK.new_zeros(1), losses_SK.new_full((1,), seconds)])
        return losses_SK.sum(0), ranks_2W, flags

    def average_norms(self, norms_P: Tensor) -> Tensor:
        """Returns the gradient norms to report, the same on all ranks; local SGD averages them over the ranks."""
        return norms_P

    def end_update(self, updates: int) -> None:
        """Called after the optimizer's step. `updates` is the number of updates done."""

    def average_residuals(self, optimizer: Optimizer) -> None:
        """Called before a checkpoint or an evaluation: makes all state that differs between ranks equal."""

    def abort_update(self) -> None:
        """Called after an aborted update: drops the residuals, which partly belong to that update."""

    def state(self) -> dict[str, Tensor]:
        """Returns the host tensors to save. The checkpoint takes those of rank 0, after `average_residuals`."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state` returned, in a run with any number of ranks."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that the last update's exchange took, and how many of them the backward pass did not hide."""
        return 0.0, 0.0
