"""The settings of the process that determine how torch computes: threads, determinism, random generators, gradients and
autocast, and the interval at which Python switches threads."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lambert.core.errors import UsageError
from lambert.core.world import World

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_AUTOCAST = ("cpu", "cuda")
_SWITCH = 1e-4
"""Seconds for which a thread may hold the interpreter lock while others wait for it; the default is 5 ms. Every call of
torch releases the lock. With the default, the loop then waited for the loader's thread: a tenth of the time of a small
net's update (measured)."""


def check_gradients() -> None:
    """Raises UsageError in a context of torch.inference_mode, whose tensors cannot be trained."""
    if torch.is_inference_mode_enabled():
        raise UsageError("Training does not work within torch.inference_mode: call it outside.")


class Numerics:
    """A snapshot of the settings of this process, taken at construction."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._read()

    def _read(self) -> None:
        self._threads, self._workspace = torch.get_num_threads(), os.environ.get(_WORKSPACE)
        self._switch = sys.getswitchinterval()
        self._gradients = torch.is_grad_enabled()
        self._autocast = {kind: torch.is_autocast_enabled(kind) for kind in _AUTOCAST}
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        self._warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self._random = torch.random.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None

    def set(self) -> None:
        """Sets the settings of this process to those of the snapshot."""
        sys.setswitchinterval(self._switch)
        torch.set_grad_enabled(self._gradients)
        for kind, enabled in self._autocast.items():
            torch.set_autocast_enabled(kind, enabled)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if now != (self._deterministic, self._warn_only):  # the function imports torch's compiler
            torch.use_deterministic_algorithms(self._deterministic, warn_only=self._warn_only)
        torch.random.set_rng_state(self._random)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)
        if self._workspace is None:
            os.environ.pop(_WORKSPACE, None)
        else:
            os.environ[_WORKSPACE] = self._workspace

    @contextmanager
    def outside(self) -> Iterator[None]:
        """A context in which the settings of the snapshot apply. Changes made in it are added to the snapshot.
        At the end, the settings are as they were before."""
        own = Numerics(self._device)
        self.set()
        try:
            yield
        finally:
            self._read()
            own.set()


@contextmanager
def numerics(world: World, *, threads: int = 0, deterministic: bool = False) -> Iterator[Numerics]:
    """A context with the settings of a run: gradients are computed, and nothing is cast but by the run's `Precision`.
    Yields the settings from before, which are restored at the end.

    Args:
        threads: Number of threads; 0: see `thread_count`.
        deterministic: Use deterministic algorithms only.
    """
    before = Numerics(world.device)
    torch.set_grad_enabled(True)
    for kind in _AUTOCAST:
        torch.set_autocast_enabled(kind, False)
    sys.setswitchinterval(min(_SWITCH, before._switch))
    if deterministic:
        os.environ.setdefault(_WORKSPACE, ":4096:8")  # must be set before the first call of cuBLAS
        torch.use_deterministic_algorithms(True)
    if deterministic or threads or world.size > 1:
        torch.set_num_threads(thread_count(world, threads=threads, deterministic=deterministic))
    try:
        yield before
    finally:
        before.set()


def thread_count(world: World, *, threads: int = 0, deterministic: bool = False) -> int:
    """Returns the number of threads of every rank: `threads` if not 0, otherwise 1 if `deterministic`, otherwise the
    smallest number on any rank. Ranks with more threads would wait for that rank, and results that all ranks compute,
    such as the bases of PowerSGD, would be rounded differently."""
    fewest = -world.largest(-torch.get_num_threads())
    return threads or (1 if deterministic else fewest)
