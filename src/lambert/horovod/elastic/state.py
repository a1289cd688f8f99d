"""What training changes, kept so that it can go back to the last commit and be given to ranks that join."""

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lambert.horovod.basics import rank
from lambert.horovod.elastic.membership import membership
from lambert.horovod.elastic.sampler import ElasticSampler
from lambert.horovod.exceptions import HostsUpdatedInterrupt
from lambert.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class State:
    """What `elastic.run` needs of a state: derive from it and define `save`, `restore` and `sync`."""

    def __init__(self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Functions to call whenever the ranks have changed, before the state is synchronized."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `elastic.run` in the new world."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves in memory, then looks whether hosts have changed. A commit copies everything: not after each batch."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises `HostsUpdatedInterrupt` on all ranks alike when hosts have appeared or are about to go."""
        if membership.elastic:
            seen = membership.hosts_changed() if self._rank() == 0 else None
            changed, only_removed = self._bcast_object(seen, name="elastic.hosts")
            if changed:
                raise HostsUpdatedInterrupt(only_removed)

    def save(self) -> None:
        """Keeps a copy in memory for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the last `save`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes every rank's state that of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """What has to happen when the ranks have changed; nothing by default."""


class ObjectState(State):
    """Python objects, given by keyword and found as attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank, **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._set_attributes()

    def save(self) -> None:
        """Keeps the objects as they are: not copied, so replace mutable ones instead of changing them."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """The objects of the last `save`."""
        self._set_attributes()

    def sync(self) -> None:
        """The saved objects of rank 0, everywhere."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state, name="elastic.objects")
            self._set_attributes()

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


class _Kept:
    """A value with a `state_dict`, and the copy to go back to."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # Given away as a copy: optimizers keep the tensors they load and would train the saved ones.
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        """Makes it rank 0's."""
        raise NotImplementedError


class _KeptModel(_Kept):
    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class _KeptOptimizer(_Kept):
    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class _KeptSampler(_Kept):
    def sync(self) -> None:
        # Samples that were named are known to the rank that did them alone; a rank that joins knows of none.
        everywhere = allgather_object(self.value.state_dict(), name="elastic.sampler")
        state = everywhere[0]
        done = (other["processed_indices"] for other in everywhere if other["epoch"] == state["epoch"])
        state["processed_indices"] = sorted(set().union(*done))
        self.value.load_state_dict(state)
        self.save()


_KINDS: list[tuple[type, type[_Kept]]] = [
    (nn.Module, _KeptModel),
    (torch.optim.Optimizer, _KeptOptimizer),
    (ElasticSampler, _KeptSampler),
]


def _kept(value: Any) -> _Kept | None:
    return next((kept(value) for kind, kept in _KINDS if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """Modules, optimizers and elastic samplers by their state dicts, everything else as objects; all attributes."""

    def __init__(self, model: nn.Module | None = None, optimizer: Any = None, **kwargs: Any) -> None:
        everything = {**kwargs, "model": model, "optimizer": optimizer}
        kept = {name: _kept(value) for name, value in everything.items()}
        self._kept = {name: holder for name, holder in kept.items() if holder is not None}
        for name, holder in self._kept.items():
            setattr(self, name, holder.value)
        super().__init__(**{name: value for name, value in everything.items() if name not in self._kept})

    def save(self) -> None:
        """Copies everything in memory."""
        for holder in self._kept.values():
            holder.save()
        super().save()

    def restore(self) -> None:
        """Everything as at the last `save`."""
        for holder in self._kept.values():
            holder.restore()
        super().restore()

    def sync(self) -> None:
        """Everything as on rank 0; what it was there becomes the saved state."""
        for holder in self._kept.values():
            holder.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_kept" and name in self.__dict__.get("_kept", {}):
            self._kept[name].value = value
            self._kept[name].save()
        super().__setattr__(name, value)
