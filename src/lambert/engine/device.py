"""One device: selected by name; its memory; and values and times that are read without making the host wait."""

import gc
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from lambert.core.errors import UsageError

_NO_LIMIT = 2**62
_TEXTS = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Texts by which out-of-memory errors of torch's allocators are recognised if they are plain RuntimeErrors."""


def device_named(name: str, local_rank: int) -> torch.device:
    """Returns the device called `name` and makes a GPU torch's current one.

    Args:
        name: "auto" (a GPU if there is one, else the CPU), "cpu", "cuda", "cuda:N" or "mps".
        local_rank: Rank of this process on its node: the GPU's number if `name` contains none.

    Raises UsageError if the device is unknown or absent.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device = {name!r} is unknown. Known: auto, cpu, cuda, cuda:N, mps.") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device = {name!r} is not supported. Known: auto, cpu, cuda, cuda:N, mps.")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        device = torch.device("cuda", local_rank if device.index is None else device.index)
        if device.index >= count:
            raise UsageError(
                f"device = {name!r} needs GPU {device.index}, and torch finds {count} here; try device = 'cpu'."
            )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device = 'mps' needs an Apple GPU, and torch finds none here; try device = 'cpu'.")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


@contextmanager
def keep_current_gpu() -> Iterator[None]:
    """A context at whose end torch's current GPU is restored. Raises UsageError if torch would make new tensors in
    another type than float32, or on another device than the CPU."""
    if (dtype := torch.get_default_dtype()) != torch.float32:
        raise UsageError(
            f"torch's default type is {dtype}: call torch.set_default_dtype(torch.float32) first. The precision is a "
            "setting of Lambert's functions."
        )
    if (device := torch.get_default_device()).type != "cpu":
        raise UsageError(
            f"torch's default device is {device}: call torch.set_default_device(None) first, or leave the context of "
            "the device. The device is a setting of Lambert's functions."
        )
    before = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.set_device(before)


def gpu_uuid(device: torch.device) -> str:
    """Returns the GPU's UUID, which is unique across nodes too; "" for other devices."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds torch's generators of the CPU and of `device`.

    `torch.manual_seed` seeds the devices that are not used too. For each, it keeps a description of the call stack
    until the device is first used, which takes two milliseconds and memory.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def on_device(values: Sequence[float], device: torch.device) -> Tensor:
    """Returns the values as a tensor [n] on the device, in torch's default type for them. The copy to a GPU is from
    pinned memory, so the host does not wait."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Reading:
    """An asynchronous copy of a small tensor to the host. `values` waits for this copy only, not for later work of the
    device."""

    def __init__(self, tensor: Tensor) -> None:
        self._arrival: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record()
        else:
            self._host = tensor.detach().to("cpu", copy=True)

    @property
    def values(self) -> list[float]:
        """The values of the flattened tensor as Python floats."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return [float(value) for value in self._host.flatten().tolist()]


class Stopwatch:
    """Measures the seconds from construction to `stop` on the device's clock: queued work counts when it runs."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._start, self._end = self._now(), self._now()

    def _now(self) -> "float | torch.cuda.Event":
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def stop(self) -> None:
        """Marks the end of the measurement, after the work queued so far."""
        self._end = self._now()

    @property
    def seconds(self) -> float:
        """The seconds measured. Waits until the device has reached `stop`."""
        start, end = self._start, self._end
        if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            return float(start.elapsed_time(end)) / 1000
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start


def free_memory(device: torch.device) -> int:
    """Returns the bytes that this process can still allocate on a GPU; on other devices the minimum of what the host's
    memory, the control groups of this process and the limit of its address space leave. Other processes may allocate
    the same bytes."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return min(_host_bytes(), _group_bytes(), _address_bytes())


def ran_out(error: BaseException) -> bool:
    """Returns whether `error` is an out-of-memory error."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
    )


def release(device: torch.device) -> None:
    """Frees the memory of an aborted update: reference cycles of its traceback hold tensors, and a GPU's caching
    allocator holds blocks."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_megabytes(device: torch.device) -> int:
    """Returns the peak of this process's memory so far, in MB: on a GPU that of tensors, elsewhere of host memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 1_000_000
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 1_000_000


def _host_bytes() -> int:
    """Returns the bytes available without swapping; half of the machine's memory if the system does not report them."""
    try:
        return _fields(Path("/proc/meminfo"))["MemAvailable:"] * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _group_bytes(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Returns the bytes that the limits of this process's control groups (Linux, versions 1 and 2) leave. Inactive
    cached files count as free, because the kernel drops them first."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return _NO_LIMIT
    free = _NO_LIMIT
    for _, controllers, path in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        root, limit, used, cached = (
            (mount / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else (mount, "memory.max", "memory.current", "inactive_file")
        )
        folder = PurePosixPath(path.lstrip("/"))
        # Inside a container the path is often the host's: the loop reads those of its parents that exist.
        for group in (root / folder, *(root / parent for parent in folder.parents)):
            with suppress(OSError, ValueError, KeyError):
                held = int((group / used).read_text()) - _fields(group / "memory.stat")[cached]
                free = min(free, int((group / limit).read_text()) - held)  # ValueError for "max": no limit
    return max(0, free)


def _address_bytes() -> int:
    """Returns the bytes that `ulimit -v` leaves."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return _NO_LIMIT
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def _fields(path: Path) -> dict[str, int]:
    """Returns the numbers of a file whose lines are a name and a number, by name."""
    words = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1}
