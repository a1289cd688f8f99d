"""Passes of batches, and steps of an optimizer, as graphs: one call of the device instead of hundreds or thousands.

A graph computes batches of fixed sizes at fixed addresses. A batch is filled (`Batch.fill`) to the smallest size that
it fits and copied to the inputs of the graph of that size. A batch that fits none, and the first of each size, is
computed without a graph. If recording fails, all that follows is computed without graphs.

Source: NVIDIA, "CUDA graphs" in the CUDA C++ programming guide. Graphs of few sizes for flat batches are those of
NVIDIA's MLPerf BERT.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from lambert.core.batch import Batch
from lambert.core.world import World
from lambert.engine.compiler import describe_cause
from lambert.engine.device import on_device, ran_out

Found = TypeVar("Found")
Work = Callable[[Batch, Tensor], Tensor]
"""The passes of a batch with the divisors of its losses [K]: returns the summed losses [K], and adds the gradients to
their buffer."""
Step = Callable[[], tuple[Tensor, Tensor]]
"""Takes a step of an optimizer without waiting for the device: returns the norms of its gradients, and 1 if it changed
nothing because they are not finite, else 0."""
_PARTS = (8, 4, 2, 1)
"""The sizes of graphs in training are these parts of a full micro-batch (our choice)."""
_SPARE = 1.25
"""Capacity for sequences and targets, as a multiple of what the first batch of a size has (our choice)."""
_SHORT = 2
"""Capacity for further sequences: so many times those of the longest length that fill the size (our choice)."""
_SWITCH = "LAMBERT_GRAPHS"
_OFF = "batches are computed without graphs, which is slower"
_NO_STEP = "steps of the optimizer are computed without a graph, which is slower"
_RECORDINGS = 32
"""Graphs that are recorded at most (our choice). Beyond it, batches that no graph fits are computed without."""


class Recorder(Protocol):
    """Records work on a device."""

    def run(self, work: Callable[[], Found]) -> Found:
        """Returns the result of the work, computed where `record` will record it."""

    def record(self, work: Callable[[], Found]) -> Callable[[], Found]:
        """Records the work without computing it. Returns the function that computes it from the present contents of
        the tensors that it reads; its result is overwritten by the next call."""


class CudaRecorder:
    """Records CUDA graphs on one stream, in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, work: Callable[[], Found]) -> Found:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            found = work()
        current.wait_stream(self._stream)
        return found

    def record(self, work: Callable[[], Found]) -> Callable[[], Found]:
        graph = torch.cuda.CUDAGraph()
        # Threads that read data copy to pinned memory meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            found = work()

        def replay() -> Found:
            graph.replay()
            return found

        return replay


class _Size(NamedTuple):
    """What the batches of one graph have in common."""

    tokens: int
    longest: int
    objectives: tuple[str, ...]
    pooled_later: bool
    """Whether the vector of a sequence may be computed from later tokens than its first."""


@dataclass(slots=True)
class _Graph(Generic[Found]):
    """A graph and its inputs."""

    batch: Batch
    others: tuple[Tensor, ...]
    targets: dict[str, int]
    """Number of targets of each objective."""
    replay: Callable[[], Found]


class Graphs(Generic[Found]):
    """Computes work on batches by graphs.

    The work must not depend on anything but its arguments and tensors that stay where they are. In training, gradients
    are added to a buffer that is cleared before, and rounded weights are not kept from one pass to the next.

    Args:
        work: Computes a batch on the device, with further tensors. It may be called with a batch that is filled.
        recorder: Records it.
        world: Puts batches on the device.
        sizes: Numbers of tokens for which there are graphs, in ascending order.
        say: Gets a line if recording fails.
    """

    def __init__(
        self,
        work: Callable[..., Found],
        recorder: Recorder,
        world: World,
        sizes: Sequence[int],
        say: Callable[[str], None],
    ) -> None:
        self._work, self._recorder, self._world, self._sizes, self._say = work, recorder, world, sizes, say
        self._graphs: dict[_Size, _Graph[Found]] = {}
        self._recorded, self._failed = 0, False

    def run(self, batch: Batch, *others: Tensor) -> Found:
        """Returns the result of the work for a batch in host memory, or for the same batch filled, with `others` on the
        device, whose sizes are always the same. The next call may overwrite the result."""
        size = None if self._failed else self._size_of(batch)
        if size is None:
            return self._work(self._world.put(batch), *others)
        graph = self._graphs.get(size)
        if graph is not None and (filled := _fill(batch, size, graph.batch.sequences, graph.targets)) is not None:
            _copy(self._world.pin(filled), graph.batch)
            for one, other in zip(graph.others, others, strict=True):
                one.copy_(other, non_blocking=True)
            return graph.replay()
        return self._begin(batch, others, size)

    def _begin(self, batch: Batch, others: tuple[Tensor, ...], size: _Size) -> Found:
        """Computes the first batch of a size, or the first that does not fit its graph, and records a graph."""
        sequences = ceil(_SPARE * batch.sequences + _SHORT * size.tokens / size.longest)
        targets = {name: ceil(_SPARE * (len(target.at_N) + 8)) for name, target in batch.targets.items()}
        filled = _fill(batch, size, sequences, targets)
        if filled is None or self._recorded >= _RECORDINGS:
            return self._work(self._world.put(batch), *others)
        inputs, others = self._world.put(filled), tuple(other.clone() for other in others)

        def work() -> Found:
            return self._work(inputs, *others)

        found = self._recorder.run(work)
        self._recorded += 1
        try:
            self._graphs[size] = _Graph(inputs, others, targets, self._recorder.record(work))
        except Exception as error:  # a driver, an operation that waits for the host, too little memory
            self._graphs.clear()
            self._failed = True
            self._say(f"{_OFF}: {_cause(error)}")
        return found

    def _size_of(self, batch: Batch) -> _Size | None:
        """Returns the size of the graph for a batch; None if it is larger than all."""
        tokens = next((tokens for tokens in self._sizes if batch.tokens <= tokens), None)
        if tokens is None or not batch.tokens:
            return None
        longest = 1 << (batch.longest - 1).bit_length()
        return _Size(tokens, longest, tuple(batch.targets), batch.pooled_from_S is not None)


class StepGraph:
    """Computes clipping and the step of an optimizer by one graph, from gradients that stay where they are.

    The learning rate of each group is in a tensor. If the optimizer loads a state, or another setting of a group
    changes, the step is computed once without the graph and recorded again.

    Args:
        recorder: Records the step.
        device: Where the weights are.
        say: Gets a line if recording fails.
    """

    def __init__(self, recorder: Recorder, device: torch.device, say: Callable[[str], None]) -> None:
        self._recorder, self._device, self._say = recorder, device, say
        self._rates_G = torch.empty(0, device=device)
        self._replay: Step | None = None
        self._state: Any = None
        self._settings: list[Any] = []
        self._failed = False

    def run(self, optimizer: Optimizer, work: Step) -> tuple[Tensor, Tensor]:
        """Returns the result of `work()`, a step of the optimizer. The next call may overwrite it."""
        if self._failed:
            return work()
        groups, settings = optimizer.param_groups, _settings(optimizer)
        rates = [float(group["lr"]) for group in groups]
        rates_G = on_device(rates, self._device)
        if self._replay is not None and self._state is optimizer.state and self._settings == settings:
            self._rates_G.copy_(rates_G, non_blocking=True)
            return self._replay()
        self._rates_G, self._state, self._settings, self._replay = rates_G.clone(), optimizer.state, settings, None
        for group, rate in zip(groups, self._rates_G.unbind(), strict=True):
            group["lr"] = rate
        try:
            found = self._recorder.run(work)
            self._replay = self._try_to_record(work)
        finally:
            for group, number in zip(groups, rates, strict=True):
                group["lr"] = number
        return found

    def _try_to_record(self, work: Step) -> Step | None:
        try:
            return self._recorder.record(work)
        except Exception as error:
            self._failed = True
            self._say(f"{_NO_STEP}: {_cause(error)}")
            return None


def _settings(optimizer: Optimizer) -> list[Any]:
    """Returns the settings of the groups that a graph of a step depends on: all but the learning rates."""
    return [
        {name: value for name, value in group.items() if name not in ("params", "lr")}
        for group in optimizer.param_groups
    ]


def _cause(error: Exception) -> str:
    return "out of memory" if ran_out(error) else describe_cause(error)


def _fill(batch: Batch, size: _Size, sequences: int, targets: dict[str, int]) -> Batch | None:
    """Returns the batch with the sizes of a graph; None if it does not fit, or has targets of another kind."""
    try:
        # Each sequence of the tail has a token, so there are tokens for `sequences` more than those of the size.
        return replace(batch.fill(size.tokens + sequences, sequences, targets), longest=size.longest)
    except ValueError:
        return None


def _copy(source: Batch, into: Batch) -> None:
    """Copies all tensors of a batch to those of another with the same sizes."""
    pairs: list[tuple[Any, Any]] = [(source, into)]
    pairs += [(source.targets[name], target) for name, target in into.targets.items()]
    for one, other in pairs:
        for each in fields(other):
            if isinstance(tensor := getattr(other, each.name), Tensor):
                tensor.copy_(getattr(one, each.name), non_blocking=True)


def are_wanted(world: World) -> bool:
    """Returns whether batches are computed by graphs: on a GPU, if the environment variable LAMBERT_GRAPHS=1 switches
    them on. They are off by default, because their speed was not measured yet."""
    return os.environ.get(_SWITCH) == "1" and world.device.type == "cuda"


@dataclass(frozen=True, slots=True)
class TrainingGraphs:
    """Makes the graphs of a training run.

    Args:
        recorder: Records them.
        world: Has the device.
        sizes: Numbers of tokens for which there are graphs of passes, in ascending order.
        say: Gets a line if recording fails.
    """

    recorder: Recorder
    world: World
    sizes: Sequence[int]
    say: Callable[[str], None]

    def of_passes(self, work: Work) -> Graphs[Tensor]:
        """Returns the graphs of the passes of micro-batches."""
        return Graphs(work, self.recorder, self.world, self.sizes, self.say)

    def of_step(self) -> StepGraph:
        """Returns the graph of clipping and the step of an optimizer."""
        return StepGraph(self.recorder, self.world.device, self.say)


def choose_graphs(world: World, tokens: int, say: Callable[[str], None]) -> TrainingGraphs | None:
    """Returns the graphs of a run with micro-batches of up to `tokens` tokens; None: it computes without graphs. `say`
    gets a line if recording fails."""
    if not are_wanted(world) or graphs_problem(world):
        return None
    return TrainingGraphs(CudaRecorder(world.device), world, [ceil(tokens / part) for part in _PARTS], say)


def graphs_problem(world: World) -> str:
    """Returns why LAMBERT_GRAPHS=1 has no effect on a run in this world; empty if it has, or is not set."""
    if os.environ.get(_SWITCH) != "1":
        return ""
    if world.device.type != "cuda":
        return "the device is no GPU"
    return "several ranks exchange gradients during a pass" if world.size > 1 else ""
