"""Submits an optimizer's gradients, many at once, with requests that are created once and reused.

CPU gradients are moved to buckets: many gradients share one buffer and one all-reduce, and no result is copied back.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from lambert.wings.horovod import session
from lambert.wings.horovod.fusion import factors, is_large
from lambert.wings.horovod.operations import create_request
from lambert.wings.horovod.process_sets import ProcessSet, find_ranks
from lambert.wings.horovod.requests import Entry, ReduceOp, Request, record_event

BUCKET_BYTES = 32 << 20
"""Size of a bucket, which is reduced when it is at least three quarters full. For the same bytes, Gloo takes 1.5 times
as long in operations of 4 MB. Operations of 64 MB are not faster, and a larger bucket starts later (2 ranks on one
machine)."""


class Buckets:
    """Buffers to which CPU gradients are moved, and in which they stay until they are released."""

    def __init__(self) -> None:
        self._buffers: deque[Tensor] = deque()
        """Ordered by use; the most recent buffer is last."""
        self._open: dict[torch.dtype, tuple[Tensor, int]] = {}
        """For each data type, the buffer that is being filled and the number of values in it."""

    def move(self, grad: Tensor, factor: float) -> bool:
        """Multiplies the gradient by `factor` and moves it to the end of the bucket. The tensor object stays the same.

        Returns False and leaves the gradient unchanged if its memory is shared, if it is large enough to be reduced
        alone, or if it is not a plain contiguous CPU tensor.
        """
        if type(grad) is not Tensor or grad.device.type != "cpu" or grad.layout != torch.strided:
            return False
        if grad.requires_grad or not grad.is_contiguous() or is_large(grad) or _is_shared(grad):
            return False
        dtype, size = grad.dtype, grad.numel()
        buffer, used = self._open.get(dtype, (None, 0))
        if buffer is None or (used + size) * dtype.itemsize > BUCKET_BYTES:
            buffer, used = self._take().view(dtype), 0
        self._open[dtype] = buffer, used + size
        place = buffer.as_strided(grad.shape, grad.stride(), used)
        if factor == 1:
            place.copy_(grad)
        else:
            torch.mul(grad, factor, out=place)
        grad.data = place
        return True

    def close(self) -> None:
        """Closes the current buckets, so that the next gradient starts a new buffer."""
        self._open.clear()

    def _take(self) -> Tensor:
        at = next((i for i, buffer in enumerate(self._buffers) if not _is_shared(buffer)), None)
        if at is None:
            buffer = torch.empty(BUCKET_BYTES, dtype=torch.uint8)
        else:
            buffer = self._buffers[at]
            del self._buffers[at]
        self._buffers.append(buffer)
        return buffer


def _is_shared(tensor: Tensor) -> bool:
    """Returns whether other tensors share the tensor's storage."""
    storage = tensor.untyped_storage()
    # The tensor and `storage` hold two references.
    return bool(torch._C._storage_Use_Count(storage._cdata) > 2)


class Gradients:
    """In-place all-reduces of gradients, which are held back until they have enough bytes for one operation."""

    def __init__(self, op: int, prescale: float, postscale: float, process_set: ProcessSet) -> None:
        self._op, self._scales = ReduceOp(op), (prescale, postscale)
        self._process_set = process_set
        self._ranks: list[int] = []
        self._requests: dict[str, tuple[Request, list[object], float]] = {}
        self._buckets = Buckets()
        self._held = 0

    def start(self, name: str, tensors: Sequence[Tensor], movable: bool) -> Entry:
        """Adds the reduction of a group of tensors to the held requests, which `send` sends.

        If `movable`, the tensors may be moved to other memory, where they also receive the result.
        """
        ranks = find_ranks(self._process_set)
        if ranks is not self._ranks:
            self._ranks = ranks
            self._requests.clear()
        kinds: list[object] = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        request, known, factor = self._requests.get(name, (None, kinds, 1.0))
        if request is None or known != kinds:
            request = create_request("allreduce", tensors, name, self._process_set, self._op, *self._scales)
            factor = factors(request, tensors[0].dtype, len(ranks))[0]
            self._requests[name] = request, kinds, factor
        movable = movable and len({tensor.dtype for tensor in tensors}) == 1
        scaled = [movable and self._buckets.move(tensor, factor) for tensor in tensors]
        inputs = [tensor.detach() for tensor in tensors]
        entry = Entry(request, inputs, inputs, scaled=scaled, submitted=record_event(inputs))
        session.current().negotiator.submit(entry, hold=True)
        self._held += sum(tensor.nbytes for tensor in tensors)
        return entry

    @property
    def is_full(self) -> bool:
        """Whether the held gradients have enough bytes for an operation."""
        return self._held > BUCKET_BYTES * 3 // 4

    def send(self) -> None:
        """Sends the held requests."""
        self.restart()
        session.current().negotiator.flush()

    def restart(self) -> None:
        """Resets the count of held bytes, after the held requests were sent or dropped."""
        self._held = 0
        self._buckets.close()
