"""Elastic training, which continues when ranks leave or join: `@elastic.run` wraps the training function, `TorchState`
its state.

When a rank fails, the other ranks restore the last `state.commit()`, form a smaller world and call the function again.
When hosts are added, the ranks form a larger world after the next commit. Start an elastic job with
`lambert horovodrun --min-np`.

The launcher runs a key-value store. A worker that needs a new world, because a peer failed or the hosts changed, sets
the key `ready/GENERATION/WORKER` and waits for the key `world/GENERATION/WORKER`. The launcher writes the latter once
all running workers are ready: the environment variables (JSON) of the worker's rank in the new world, or `null` if the
worker is not part of it. The key `hosts` counts the changes of hosts that the launcher has seen.
"""

import copy
import functools
import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import torch
import torch.utils.data
from torch import nn

from lambert.distributed.rendezvous import connect
from lambert.wings.horovod.basics import init, rank, shutdown, size
from lambert.wings.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from lambert.wings.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = [
    "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run",
]  # fmt: skip

STORE = "HOROVOD_ELASTIC_STORE"
WORKER = "HOROVOD_ELASTIC_WORKER"
GENERATION = "HOROVOD_ELASTIC_GENERATION"
HOSTS_SEEN = "HOROVOD_ELASTIC_HOSTS_SEEN"

P = ParamSpec("P")
R = TypeVar("R")


def run(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Wraps a function so that it is called again in a new world whenever ranks have failed, left or joined.

    The first argument of the function is the `State`, which is synchronized from rank 0 before each call. After a
    failure (`HorovodInternalError`) the state is restored to the last commit; after a change of hosts
    (`HostsUpdatedInterrupt`) it is kept. No collective may run outside the function, because ranks that join would not
    take part in it.

    Under `lambert horovodrun --min-np`, the processes keep running and form the new world. Under another launcher, such
    as torchrun, the same ranks connect again; if that launcher restarts its workers after a failure, the script starts
    from the beginning.
    """

    @functools.wraps(function)
    def elastic(state: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        in_step = False
        while True:
            try:
                if not in_step:
                    state.sync()
                return function(state, *args, **kwargs)
            except HorovodInternalError:
                state.restore()
                in_step = False
            except HostsUpdatedInterrupt as interrupt:
                in_step = interrupt.skip_sync
            _form_new_world()
            state.on_reset()

    return cast(Callable[Concatenate[Any, P], R], elastic)


def _form_new_world() -> None:
    shutdown()
    while STORE in os.environ:
        _join_next_world()
        try:
            init()
            return
        except HorovodInternalError:
            # A rank of the new world failed before the ranks were connected; the launcher forms the next world
            # without it.
            shutdown()
    init()


@functools.cache
def _connect_store() -> Any:
    return connect(os.environ[STORE], 300)


def _join_next_world() -> None:
    """Waits for the next world and sets the environment variables of this process's rank in it, for `init`.

    If the process is not part of the next world, it exits with code 0.

    Raises:
        TimeoutError: No world was formed within HOROVOD_ELASTIC_TIMEOUT seconds (default 600).
    """
    store = _connect_store()
    generation, worker = int(os.environ[GENERATION]) + 1, os.environ[WORKER]
    seconds = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", "600"))
    key = f"world/{generation}/{worker}"
    store.set(f"ready/{generation}/{worker}", "1")
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError as error:
        raise TimeoutError(f"no new world within {seconds:g} s: the launcher ended or has too few workers") from error
    place = json.loads(store.get(key))
    if place is None:
        sys.exit(0)
    os.environ.update(place)


def _check_hosts() -> tuple[bool, bool]:
    """Returns whether the hosts have changed since this world was formed, and whether they were only removed."""
    seen = int(os.environ[HOSTS_SEEN])
    count, grown = json.loads(_connect_store().get("hosts"))
    return count > seen, grown <= seen


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Yields each rank's share of the samples that no rank has processed in this epoch.

    Add the sampler to the `TorchState`, call `record_batch` (or `record_indices`) after each batch and `set_epoch` at
    the end of each epoch. The order depends only on `seed` and the epoch, so all ranks agree on the remaining samples.
    If their number is not divisible by the number of ranks, some samples occur twice, as in torch's
    `DistributedSampler`.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Starts a new epoch with no processed samples. Call `set_epoch` at the end of an epoch, so that a restart
        repeats no sample."""
        self.epoch = epoch
        self.processed_num = 0
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records one processed batch of `batch_size` samples per rank. These samples are not repeated in this epoch.
        `batch_idx` is not used."""
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Any) -> None:
        """Records samples that are not repeated in this epoch. `TorchState.sync` combines the records of all ranks."""
        self.processed_indices.update(int(index) for index in indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Returns the samples of this rank's batch `batch_idx` in the current pass."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and the samples processed in it."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": sorted(self.processed_indices),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state and splits the remaining samples over the current ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.processed_indices = set(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self) -> None:
        """Splits the remaining samples over the current ranks."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        rest = order[self.processed_num :]
        self.remaining_indices = [index for index in rest if index not in self.processed_indices]
        self.num_samples: int = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = self._select_own()

    def _select_own(self) -> list[int]:
        rest = self.remaining_indices
        repeated = (rest * (1 + self.total_size // len(rest)))[: self.total_size] if rest else []
        return repeated[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        self.indices = self._select_own()
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


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
        if STORE in os.environ:
            seen = _check_hosts() if self._rank() == 0 else None
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


def _sync_sampler(sampler: ElasticSampler) -> None:
    # Each rank knows only the indices that it recorded itself, and a rank that joins knows none.
    everywhere = allgather_object(sampler.state_dict(), name="elastic.sampler")
    state = everywhere[0]
    done = (other["processed_indices"] for other in everywhere if other["epoch"] == state["epoch"])
    state["processed_indices"] = sorted(set().union(*done))
    sampler.load_state_dict(state)


_SYNC: dict[type, Callable[[Any], None]] = {
    nn.Module: lambda model: broadcast_parameters(model.state_dict(), root_rank=0),
    torch.optim.Optimizer: lambda optimizer: broadcast_optimizer_state(optimizer, root_rank=0),
    ElasticSampler: _sync_sampler,
}
"""Functions that synchronize a value from rank 0, by the value's type."""


class _Kept:
    """A value with a `state_dict`, and a copy of its state to restore."""

    def __init__(self, value: Any, sync: Callable[[Any], None]) -> None:
        self.value, self._sync = value, sync
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # Load a copy, because optimizers keep the tensors that they load and would change the saved tensors.
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        self._sync(self.value)
        self.save()


class TorchState(ObjectState):
    """A state of modules, optimizers and elastic samplers, kept by their state dicts, and of other Python objects. All
    are available as attributes."""

    def __init__(self, model: nn.Module | None = None, optimizer: Any = None, **kwargs: Any) -> None:
        everything = {**kwargs, "model": model, "optimizer": optimizer}
        functions = {
            name: next((sync for kind, sync in _SYNC.items() if isinstance(value, kind)), None)
            for name, value in everything.items()
        }
        self._kept = {name: _Kept(everything[name], sync) for name, sync in functions.items() if sync is not None}
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
