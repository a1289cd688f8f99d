"""The exchange of a process alone, and what any exchange answers."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.engine.exchange.gradients import Gradients, PairwiseSum


class Exchange:
    """Of a process alone: its gradients are all there are. `Ranks` is the same for several."""

    local = False
    """Whether each rank updates its own weights by its own share of the batch."""
    held_back = 0
    """Values a weight that it may hold back from one update to the next, in float32."""
    method = "none"
    """Name of the method in use."""
    decided = True
    """Whether that is what the recipe names or the run had before; else it is to be timed (`stages/tuning.py`)."""

    def __init__(self, net: nn.Module, *, deterministic: bool = False) -> None:
        """`deterministic`: gradients of an update's shares are added up as a binary tree, whichever rank has which."""
        self.gradients = Gradients(net)
        """Of this rank; after `finish` the sum over all."""
        self._tree = PairwiseSum() if deterministic else None

    def attach(self) -> None:
        """Before the first update."""

    def detach(self) -> None:
        """After the last update: parameters are torch's again."""
        self.gradients.release()

    def use(self, name: str) -> None:
        """Sends by the method of this name from the next update on; what another one held back is dropped."""

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        """Before the first pass of update number `update`, from 0, whose gradients are times `scale()`. Waiting for
        the device is then up to the exchange."""

    def last_pass(self) -> None:
        """The next backward pass is the last of this update on this rank: what it finishes may travel."""

    def add(self) -> None:
        """After the last pass over one of the update's shares."""
        if self._tree is not None:
            self.gradients.collect()
            self._tree.add(self.gradients.flat)

    def finish(self) -> None:
        """All gradients are in the buffer, summed over the ranks. Raises MachineError where a rank is lost."""
        self.gradients.collect()
        if self._tree is not None:
            self._tree.take(self.gradients.flat)

    def report(
        self, losses_SK: Tensor, seconds: float, told: Sequence[bool] = ()
    ) -> tuple[Tensor, Tensor, Sequence[bool]]:
        """What the ranks tell one another after `finish`: the losses [K], summed over the shares S of all ranks W;
        [2, W] for each rank 1 + the number of the first parameter whose own gradient was not finite there (0: none),
        and the `seconds` it took; and of each thing `told` whether any rank says so. No device is waited for."""
        ranks_2W = torch.stack([losses_SK.new_zeros(1), losses_SK.new_full((1,), seconds)])
        return losses_SK.sum(0), ranks_2W, told

    def shared(self, norms_P: Tensor) -> Tensor:
        """The norms as all ranks report them, where each has its own."""
        return norms_P

    def stepped(self, updates: int) -> None:
        """After the optimizer's step of an update: `updates` are done."""

    def settle(self, optimizer: Optimizer) -> None:
        """Before a checkpoint or scores: makes what the ranks hold apart from one another the same on all."""

    def dropped(self) -> None:
        """After an update that was broken off: forgets what is held back, of which some is that update's."""

    def state(self) -> dict[str, Tensor]:
        """Host tensors for the checkpoint, those of the first rank once all have settled."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave, on any number of ranks."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Of the last update: how long the exchange took, and how much of it the backward pass did not hide."""
        return 0.0, 0.0
