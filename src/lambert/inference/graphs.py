"""Outputs of a model on a GPU by graphs: a request waits for its kernels to run, but not for the launch of each."""

import logging
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from lambert.core.batch import Batch
from lambert.core.world import World
from lambert.engine.graphs import CudaRecorder, Graphs, Recorder, are_wanted
from lambert.engine.precision import Precision

SIZES = tuple(2**power for power in range(6, 13))
"""Tokens of the batches for which there are graphs, 64 to 4,096 (our choice). In larger ones, kernels should take
longer than their launches, which was not measured."""
_log = logging.getLogger(__name__)
_made: "WeakKeyDictionary[Any, GraphedOutputs]" = WeakKeyDictionary()


class GraphedOutputs:
    """Computes `model.outputs` of batches by graphs. The weights of the model must not change, and the model must live
    as long as this object."""

    def __init__(self, model: Any, precision: Precision, world: World, recorder: Recorder) -> None:
        self._model, self.precision = ref(model), precision
        self.graphs = Graphs(self._work, recorder, world, SIZES, _log.warning)
        self._lock = threading.Lock()

    def __call__(self, batch: Batch) -> Mapping[str, Tensor]:
        """Returns the outputs of a batch in host memory."""
        if batch.targets:  # their number is that of the rows of an output
            raise ValueError("graphs compute batches without targets")
        rows = {True: batch.tokens, False: batch.sequences}
        with self._lock:  # the threads of a service share the inputs and outputs of the graphs
            found = self.graphs.run(batch)
            return {name: values[: rows[of_tokens]].clone() for name, (values, of_tokens) in found.items()}

    def _work(self, batch: Batch) -> dict[str, tuple[Tensor, bool]]:
        """Returns the outputs, and whether each has a row for each token, not for each sequence."""
        with torch.inference_mode(), self.precision.autocast():
            model: Any = self._model()
            found = model.outputs(batch.with_compute(self.precision.compute))
        return {name: (rows, len(rows) == batch.tokens) for name, rows in found.items()}


def find_graphs(model: Any, precision: Precision, world: World, batch: Batch) -> GraphedOutputs | None:
    """Returns what computes the outputs of a batch by graphs; None: they are computed without. The weights of the model
    must not change."""
    if batch.targets or not are_wanted(world):
        return None
    found = _made.get(model)
    if found is None or found.precision is not precision:
        found = _made[model] = GraphedOutputs(model, precision, world, CudaRecorder(world.device))
    return found
