"""Values and times on their way from the device, so that the host never waits inside an update."""

import time

import torch
from torch import Tensor


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


def product_ceiling(device: torch.device, dtype: torch.dtype, repeats: int = 3) -> float:
    """Operations a second of the best of a few matrix products in the shapes of BERT: what this device can do, now."""
    best = 0.0
    for rows, inner, columns in ((2048, 768, 3072), (1024, 1024, 4096), (4096, 1024, 1024)):
        left = torch.randn(rows, inner, device=device, dtype=dtype)
        right = torch.randn(columns, inner, device=device, dtype=dtype)
        for _ in range(repeats):
            watch = Stopwatch(device)
            torch.nn.functional.linear(left, right)
            watch.stop()
            best = max(best, 2 * rows * inner * columns / watch.seconds)
    return best
