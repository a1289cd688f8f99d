"""Handles: the numbers of collectives that this rank has started, by which it waits for their results."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lambert.wings.horovod import session
from lambert.wings.horovod.exceptions import HorovodInternalError
from lambert.wings.horovod.negotiation import Entry, record_event
from lambert.wings.horovod.requests import Request


@dataclass(frozen=True, slots=True)
class _Started:
    entry: Entry
    single: bool
    """Whether the result is a single tensor instead of a tuple."""
    in_place: tuple[Tensor, ...] = ()
    """The caller's tensors, if the operation works in place."""


_handles: dict[int, _Started] = {}
_next_handle = itertools.count(1)


def submit(
    request: Request,
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor] = (),
    single: bool = True,
    in_place: bool = False,
    result: Any = None,
) -> int:
    """Starts a collective and returns its handle.

    Args:
        request: The collective.
        tensors: The inputs.
        outputs: Tensors for the results, if their shapes are known in advance.
        single: Whether `synchronize` returns a single tensor instead of a tuple.
        in_place: Whether the results overwrite the inputs.
        result: Initial `result` of the entry; an all-to-all takes the data type of its second output from it.
    """
    inputs = [tensor.detach() for tensor in tensors]
    entry = Entry(request, inputs, inputs if in_place else list(outputs), result, submitted=record_event(inputs))
    session.current().negotiator.submit(entry)
    handle = next(_next_handle)
    _handles[handle] = _Started(entry, single, tuple(tensors) if in_place else ())
    return handle


def poll(handle: int) -> bool:
    """Returns whether `synchronize(handle)` would return immediately. Raises ValueError if the handle is unknown or
    already synchronized."""
    started = _handles.get(handle)
    if started is None:
        raise ValueError(f"handle {handle} was never given or is already synchronized")
    entry = started.entry
    return entry.done and (entry.finished is None or bool(entry.finished.query()))


def synchronize(handle: int) -> Any:
    """Waits for a collective and returns its result: a tensor or a tuple of tensors, or None if the handle is unknown
    or already synchronized. On a GPU, the current stream waits.

    Raises:
        HorovodInternalError: The collective failed.
    """
    started = _handles.pop(handle, None)
    if started is None:
        return None
    wait(started.entry)
    if started.entry.result is not None:
        return started.entry.result
    outputs = started.in_place or tuple(started.entry.outputs)
    return outputs[0] if started.single else outputs


def wait(entry: Entry) -> None:
    """Waits until the entry is done and the current stream may use its results. Raises HorovodInternalError if it
    failed."""
    # After a shutdown every entry is done: an entry that could not run has an error.
    if not entry.done:
        session.current().negotiator.wait(entry)
    if entry.error is not None:
        raise HorovodInternalError(entry.error)
    if entry.finished is not None:
        entry.finished.wait()
        for output in entry.outputs:
            output.record_stream(torch.cuda.current_stream(output.device))
