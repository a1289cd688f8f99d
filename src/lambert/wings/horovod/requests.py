"""The requests of the ranks, the operations that they make, and the check that requests of one name agree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor


class ReduceOp(IntEnum):
    """The reduction operations. The numbers are those of Horovod."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


class TensorKind(NamedTuple):
    """The metadata of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    device: str


class Request(NamedTuple):
    """A rank's request for one operation, which is sent as a JSON list."""

    kind: str
    """allreduce, allgather, broadcast, alltoall, reducescatter, barrier, add_process_set or remove_process_set."""
    name: str
    """The name by which the requests of the ranks are matched. It starts with the kind."""
    process_set: int
    """Number of the process set."""
    tensors: tuple[TensorKind, ...] = ()
    """One tensor, or several for a grouped operation."""
    op: int = ReduceOp.Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    """Global rank of the source of a broadcast."""
    numbers: tuple[int, ...] = ()
    """The rows for each rank of an alltoall, the ranks of a process set to add, or the number of a process set to
    remove."""

    @classmethod
    def parse(cls, fields: list[Any]) -> "Request":
        """Returns the request of a JSON list. Raises ValueError if the list is not a request."""
        try:
            kind, name, process_set, tensors, op, prescale, postscale, root, numbers = fields
            kinds = tuple(TensorKind(dtype, tuple(shape), device) for dtype, shape, device in tensors)
            return cls(kind, name, process_set, kinds, op, prescale, postscale, root, tuple(numbers))
        except TypeError as error:
            raise ValueError(f"not a request: {fields!r}") from error


@dataclass(eq=False, slots=True)
class Entry:
    """An operation that this rank has requested."""

    request: Request
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    """Tensors for the results, if their shapes are known in advance."""
    result: Any = None
    scaled: list[bool] = field(default_factory=list)
    """For each input, whether the prescaling has already been applied. Empty: for no input."""
    error: str | None = None
    done: bool = False
    submitted: Any = None
    """CUDA event after which the inputs are ready."""
    finished: Any = None
    """CUDA event after which the outputs are ready."""


@dataclass(frozen=True, slots=True)
class Response:
    """An operation that all ranks have requested. `entry` is None on a rank that has not requested it but has called
    `join`."""

    requests: list[Request]
    entry: Entry | None

    @property
    def request(self) -> Request:
        return self.requests[0]


Finished = Callable[[list[Response], str | None], None]
"""Called with operations that have run together, and with the reason if they failed."""


FIRST_DIMENSION_IS_FREE = ("allgather", "alltoall")
RUNS_WITH_JOINED_RANKS = ("allreduce", "barrier")


def find_disagreement(requests: Mapping[int, Request], joined: list[int]) -> str | None:
    """Returns the reason why the requests of one name cannot run together, as one line that names the ranks, or None if
    they can. `requests` are by rank; `joined` are the ranks that take part because they have joined."""
    first = next(iter(requests.values()))
    title = f"{first.kind} {first.name.removeprefix(first.kind + '.')!r}"
    if joined and first.kind not in RUNS_WITH_JOINED_RANKS:
        return f"{title} cannot run after {_ranks(joined)} called join(): only allreduce and barrier can"
    free = first.kind in FIRST_DIMENSION_IS_FREE

    def shapes(request: Request) -> Any:
        return [list(tensor.shape[1:] if free else tensor.shape) for tensor in request.tensors]

    has_rows = free or first.kind == "reducescatter"
    checks: list[tuple[str, Callable[[Request], Any]]] = [
        ("the operation", lambda request: request.kind),
        ("the number of tensors", lambda request: len(request.tensors)),
        ("the data type", lambda request: [tensor.dtype for tensor in request.tensors]),
        ("the number of dimensions", lambda request: [len(tensor.shape) for tensor in request.tensors]),
        ("the shape after the first dimension" if free else "the shape", shapes),
        ("the reduction", lambda request: ReduceOp(request.op).name),
        ("prescale_factor and postscale_factor", lambda request: [request.prescale, request.postscale]),
        ("the root rank", lambda request: request.root),
        ("CPU or GPU", lambda request: [tensor.device for tensor in request.tensors]),
    ]
    if first.kind.endswith("process_set"):
        checks.append(("the process set", lambda request: list(request.numbers)))
    for what, of in checks:
        answers: dict[str, list[int]] = {}
        for rank, request in requests.items():
            answers.setdefault(_text(of(request)), []).append(rank)
        if len(answers) > 1:
            sent = "; ".join(f"{_ranks(ranks)} sent {answer}" for answer, ranks in answers.items())
            return f"{title}: ranks do not agree on {what}: {sent}"
    if has_rows and any(not tensor.shape for tensor in first.tensors):
        return f"{title}: a tensor without dimensions has no rows"
    return None


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return str(value)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, sorted(ranks)))}"


def to_one_line(error: Exception) -> str:
    """Returns the message of an exception as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def record_event(tensors: list[Tensor]) -> Any:
    """Records an event on the current CUDA stream and returns it, or None if the tensors are not on a GPU."""
    if not tensors or tensors[0].device.type != "cuda":
        return None
    return torch.cuda.current_stream(tensors[0].device).record_event()
