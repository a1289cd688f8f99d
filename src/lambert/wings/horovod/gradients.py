"""Submission of an optimizer's gradients: many gradients at once, with requests that are created once and reused."""

from collections.abc import Sequence

from torch import Tensor

from lambert.wings.horovod import session
from lambert.wings.horovod.buckets import BUCKET_BYTES, Buckets
from lambert.wings.horovod.fusion import factors
from lambert.wings.horovod.negotiation import Entry, record_event
from lambert.wings.horovod.operations import create_request
from lambert.wings.horovod.process_sets import ProcessSet, find_ranks
from lambert.wings.horovod.requests import ReduceOp, Request


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
        """Adds the reduction of a group of tensors to the held requests, which `hand_over` sends.

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
    def are_many(self) -> bool:
        """Whether the held gradients have enough bytes for an operation."""
        return self._held > BUCKET_BYTES * 3 // 4

    def hand_over(self) -> None:
        """Sends the held requests."""
        self.restart()
        session.current().negotiator.flush()

    def restart(self) -> None:
        """Resets the count of held bytes, after the held requests were sent or dropped."""
        self._held = 0
        self._buckets.close()
