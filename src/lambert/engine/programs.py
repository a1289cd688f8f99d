"""Records passes of small micro-batches on a CPU, and computes each by one call of the compiled kernels.

Gradients and losses have the bits of the same passes by torch's autograd, which computes what has no program: the pass
after a change of the weights outside of the optimizer, and batches without targets of an objective.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from lambert.core.batch import Batch, Target
from lambert.core.compute import Compute
from lambert.core.world import World
from lambert.engine.exchange import Exchange
from lambert.engine.precision import Precision
from lambert.native import library
from lambert.ops.program import NotRecordableError, Program, Recording, record

_LARGEST = 2**22
"""Elements of the states of all layers of a pass. In larger ones Python takes less than a hundredth of the time, and a
recording would keep too much memory (our choice)."""
_RECORDINGS = 16
"""Passes that are recorded at most without a program that computes one (our choice)."""


class Passes(Protocol):
    """The passes of a net in which nothing but a back-end computes (`model/passes.py`)."""

    states: int
    """Elements of the states of a token in all layers."""

    def settings(self) -> object:
        """Returns what the passes depend on beside batches and weights; None if they cannot be recorded."""

    def __call__(self, batch: Batch, firsts_S: Tensor, scales: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Adds the gradients of a micro-batch to its sink, and returns the loss of each target, [N] by objective.
        `firsts_S`: number of the first token of each sequence, int64. `scales`: what the gradient of each loss is
        multiplied by, [N] by objective, float32."""


class Programs:
    """Computes passes by programs.

    Args:
        passes: The passes.
        objectives: Names of their objectives.
        compute: How they compute.
        exchange: Has the gradients.
        precision: That of the passes.
    """

    def __init__(
        self, passes: Passes, objectives: Sequence[str], compute: Compute, exchange: Exchange, precision: Precision
    ) -> None:
        assert compute.copies is not None
        self._passes, self._objectives, self._compute, self._precision = passes, objectives, compute, precision
        self._gradients = exchange.gradients
        self._copies = compute.copies
        self._found: dict[bool, Program] = {}  # by whether passes add to gradients
        self._last: dict[bool, Recording] = {}
        self._state: object = None
        self._recordings = 0

    def run(self, batch: Batch, divisors_K: Tensor) -> Tensor | None:
        """Adds the gradients of a micro-batch to the buffer, and returns its summed losses [K]; None: nothing was done,
        as it has no program."""
        if batch.tokens * self._passes.states > _LARGEST or self._recordings >= _RECORDINGS:
            return None
        targets = [batch.targets.get(name) for name in self._objectives]
        if not all(target is not None and _is_plain(target) for target in targets):
            return None
        adds = self._gradients.is_written()
        if adds is None or not self._are_ready():
            return None
        inputs, sizes = _inputs_of(batch), {"tokens": batch.tokens, "sequences": batch.sequences}
        inverse_K = 1.0 / divisors_K
        for k, name in enumerate(self._objectives):
            target = batch.targets[name]
            sizes[name], weights_N = len(target.at_N), target.weights_N
            scales_N = inverse_K[k].expand(sizes[name]).contiguous() if weights_N is None else weights_N * inverse_K[k]
            inputs |= {f"{name} at": target.at_N, f"{name} labels": target.labels_N, f"{name} scales": scales_N}
        program = self._found.get(adds)
        if program is not None and program.fits(sizes):
            losses: Mapping[str, Tensor] | None = program.run(sizes, inputs)
            self._gradients.mark_all_written()
            self._recordings = 0
        else:
            losses = self._record(batch, sizes, inputs, adds=adds)
        if losses is None:
            return None
        return torch.stack([batch.targets[name].total(losses[name]) for name in self._objectives])

    def _are_ready(self) -> bool:
        """Returns whether passes can be recorded or computed by programs: the packed weights are those of now.
        Programs are dropped if weights, their copies or settings are not where and what they were."""
        settings = self._passes.settings()
        places = [parameter.data_ptr() for parameter in self._gradients.parameters]
        state = self._copies.changes, settings, places
        if state != self._state:
            self._found.clear()
            self._last.clear()
            self._state = state
        return settings is not None and self._copies.are_current()

    def _record(
        self, batch: Batch, sizes: Mapping[str, int], inputs: Mapping[str, Tensor], *, adds: bool
    ) -> Mapping[str, Tensor] | None:
        """Computes a pass and returns the losses. Makes a program of it and of the recording before. None: the pass has
        something that cannot be recorded, and nothing was done."""
        scales = {name: inputs[f"{name} scales"] for name in self._objectives}

        def work() -> Mapping[str, Tensor]:
            with self._precision.autocast():
                return self._passes(batch.with_compute(self._compute), inputs["firsts"], scales)

        self._recordings += 1
        before, state = self._gradients.flat.clone() if adds else None, torch.get_rng_state()
        try:
            losses, recording = record(work, sizes, inputs)
            if not self._gradients.is_written():
                raise NotRecordableError("a gradient is not written to the buffer")
        except NotRecordableError:
            self._recordings = _RECORDINGS
            torch.set_rng_state(state)
            if before is None:
                self._gradients.clear()
            else:
                self._gradients.flat.copy_(before)
                self._gradients.mark_all_written()
            return None
        if adds in self._last:
            self._try_to_build(self._last[adds], recording, adds=adds)
        self._last[adds] = recording
        return losses

    def _try_to_build(self, first: Recording, second: Recording, *, adds: bool) -> None:
        try:
            self._found[adds] = Program(first, second)
        except NotRecordableError:  # two sizes of one of the batches are equal by chance
            self._found.pop(adds, None)


def _is_plain(target: Target) -> bool:
    contiguous = target.at_N.is_contiguous() and target.labels_N.is_contiguous()
    return type(target) is Target and target.labels_N.ndim == 1 and len(target.at_N) > 0 and contiguous


def _inputs_of(batch: Batch) -> dict[str, Tensor]:
    """Returns the tensors of a batch that kernels read, without those of its targets, by name."""
    return {
        "ids": batch.ids_T, "types": batch.types_T, "positions": batch.positions_T, "bounds": batch.bounds_S1,
        "firsts": batch.bounds_S1[:-1].long(),
    }  # fmt: skip


def has_programs(precision: Precision, exchange: Exchange, world: World) -> bool:
    """Returns whether passes of a run can be programs: in a single process, on a CPU with the compiled kernels, in
    bfloat16."""
    single = type(exchange) is Exchange  # others send gradients during a pass
    return single and world.device.type == "cpu" and library() is not None and precision.name == "bfloat16"
