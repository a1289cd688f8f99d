"""The device by its name; values and times on their way from it, so that the host never waits inside an update."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from lambert.core.errors import UsageError


def device_named(name: str, local_rank: int) -> torch.device:
    """The device of process number `local_rank` on its machine, by "auto" (a GPU where there is one), "cpu",
    "cuda", "cuda:N" or "mps". A GPU becomes torch's current one. Raises UsageError where it is unknown or absent."""
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


def card_of(device: torch.device) -> str:
    """What tells this GPU from all others, also of other machines; nothing for other devices."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def sent(values: Sequence[float], device: torch.device) -> Tensor:
    """The values [n] on the device, in torch's default type for them. From pinned memory: the host does not wait."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Reading:
    """A small tensor that travels to the host while the device works on; `values` waits for it and nothing later."""

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
        """The flat values, as Python floats."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return [float(value) for value in self._host.flatten().tolist()]


class Stopwatch:
    """Seconds from its making to `stop` in the time of the device: queued work is counted when it runs."""

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
        self._end = self._now()

    @property
    def seconds(self) -> float:
        """Waits for the device to reach `stop`."""
        start, end = self._start, self._end
        if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            return float(start.elapsed_time(end)) / 1000
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start
