"""The state of elastic training, which can be restored to the last commit and sent to ranks that join."""

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lambert.wings.horovod.basics import rank
from lambert.wings.horovod.elastic.membership import membership
from lambert.wings.horovod.elastic.sampler import ElasticSampler
from lambert.wings.horovod.exceptions import HostsUpdatedInterrupt
from lambert.wings.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class State:
    """The base class of the states for `elastic.run`. Subclasses define `save`, `restore` and `sync`."""

    def __init__(self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Registers functions to call whenever the ranks have changed, before the state is synchronized."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls `reset` and the registered callbacks. `elastic.run` calls `on_reset` in each new world."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state in memory and then calls `check_host_updates`. A commit copies the whole state, so do not
        commit after every batch."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises `HostsUpdatedInterrupt` on all ranks if hosts were added or are about to be removed."""
        if membership.elastic:
            seen = membership.hosts_changed() if self._rank() == 0 else None
            changed, only_removed = self._bcast_object(seen, name="elastic.hosts")
            if changed:
                raise HostsUpdatedInterrupt(only_removed)

    def save(self) -> None:
        """Saves a copy in memory for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the state of the last `save`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Synchronizes the state of all ranks from rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the ranks have changed. Does nothing by default."""


class ObjectState(State):
    """A state of Python objects, which are passed by keyword and available as attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank, **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._set_attributes()

    def save(self) -> None:
        """Saves references to the objects. Objects are not copied, so replace mutable objects instead of changing
        them."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Restores the objects of the last `save`."""
        self._set_attributes()

    def sync(self) -> None:
        """Broadcasts the saved objects of rank 0."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state, name="elastic.objects")
            self._set_attributes()

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


class _Kept:
    """A value with a `state_dict`, and a copy of its state to restore."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # Load a copy, because optimizers keep the tensors that they load and would change the saved tensors.
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        """Synchronizes the value from rank 0."""
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
        # Each rank knows only the indices that it recorded itself, and a rank that joins knows none.
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
    """A state of modules, optimizers and elastic samplers, kept by their state dicts, and of other Python objects. All
    are available as attributes."""

    def __init__(self, model: nn.Module | None = None, optimizer: Any = None, **kwargs: Any) -> None:
        everything = {**kwargs, "model": model, "optimizer": optimizer}
        kept = {name: _kept(value) for name, value in everything.items()}
        self._kept = {name: holder for name, holder in kept.items() if holder is not None}
        for name, holder in self._kept.items():
            setattr(self, name, holder.value)
        super().__init__(**{name: value for name, value in everything.items() if name not in self._kept})

    def save(self) -> None:
        """Saves copies of all state dicts and references to the other objects in memory."""
        for holder in self._kept.values():
            holder.save()
        super().save()

    def restore(self) -> None:
        """Restores the state of the last `save`."""
        for holder in self._kept.values():
            holder.restore()
        super().restore()

    def sync(self) -> None:
        """Synchronizes the state from rank 0 and saves it."""
        for holder in self._kept.values():
            holder.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_kept" and name in self.__dict__.get("_kept", {}):
            self._kept[name].value = value
            self._kept[name].save()
        super().__setattr__(name, value)
