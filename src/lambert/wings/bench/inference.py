"""Inference: answer spans of a batch beside transformers, onnxruntime and OpenVINO, each in its fastest mode.

All sides have the same weights and sequences and compute two logits for each real token. Before the rounds, the logits
of a side are compared with Lambert's in float32. A round returns the sum of the absolute values of the logits.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lambert.core.batch import Batch, Ints, flat_batch
from lambert.core.errors import MachineError, UsageError
from lambert.core.world import World
from lambert.inference.config import InferenceConfig
from lambert.inference.outputs import outputs, ready
from lambert.measure import batches as drawn
from lambert.measure.training import Step
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of
from lambert.planning import operations as flops
from lambert.wings.bench import batches
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.training import compile_model, peer_model
from lambert.wings.bench.work import Checked, Work, import_peer, sides

NAMES = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = {"float32": 1e-2, "bfloat16": 0.15, "float16": 0.15, "int8": 0.5}
"""Largest allowed difference from Lambert's float32 logits, as a share of the largest logit. Rounding alone causes far
smaller differences, so a larger one means that a side does not compute the same function."""
Logits = Callable[[], Tensor]
"""Returns the logits of a round [T, 2]."""


def inference(config: BenchConfig, world: World) -> Work:
    """Computes the logits of answer starts and ends from tokens on the device."""
    encoder = batches.encoder_of(config)
    lengths_S = batches.draw_lengths(config)
    batch = drawn.draw_batch(encoder, lengths_S, config.seed, ()).to(world.device)
    lengths = lengths_S.tolist()
    return Work(
        sides(config, lambda: _own(config, encoder, batch, world), PEERS, config, encoder, batch, world),
        tokens=batch.tokens,
        sequences=batch.sequences,
        padded=batch.sequences * batches.width_of(config, batch),
        operations=flops.encoder_forward(encoder, lengths)
        + flops.heads_forward(encoder, lengths, {"span": len(lengths)}, {}),
        shapes=drawn.layer_shapes(encoder, batch.tokens),
    )


class Drawn:
    """A Source of the sequences of a batch."""

    def __init__(self, batch: Batch) -> None:
        self._bounds = batch.bounds_S1.cpu().numpy().astype(np.int64)
        self._ids, self._types = batch.ids_T.cpu().numpy(), batch.types_T.cpu().numpy()

    def size(self, epoch: int) -> int:
        return len(self._bounds) - 1

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        found: Ints = np.diff(self._bounds)[indices_S]
        return found

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        """Returns these sequences, which are consecutive."""
        tokens = slice(self._bounds[indices_S[0]], self._bounds[indices_S[-1] + 1])
        return flat_batch(self._ids[tokens], self._types[tokens], self.lengths(epochs_S, indices_S))


def _own(config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World) -> Step:
    model, precision = ready(weights.draw(encoder, {"span": 0}), config.precision, world.device)
    source, micro_tokens = Drawn(batch), InferenceConfig().micro_tokens

    def logits() -> Tensor:
        return torch.cat([found["span"].float() for found in outputs(model, source, precision, world, micro_tokens)])

    return _add_check("lambert", config.precision, logits, encoder, batch)


def _float_precision(config: BenchConfig) -> str:
    """The precision of a peer that has no int8."""
    return "bfloat16" if config.precision == "int8" else config.precision


def _transformers(
    config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World, *, compile: bool = False
) -> Step:
    """The weights are cast once; rows are as long as the longest sequence."""
    name = _float_precision(config)
    model = peer_model(("span",), encoder).eval().to(world.device, getattr(torch, name))
    called = compile_model(model, world.device) if compile else model
    inputs = batches.pad(batch, batches.width_of(config, batch), segments=family_of(encoder).segments)
    inside = inputs["attention_mask"].bool()

    def logits() -> Tensor:
        with torch.inference_mode():
            found = called(**inputs)
            return torch.stack([found.start_logits[inside], found.end_logits[inside]], 1).float()

    return _add_check("transformers", name, logits, encoder, batch)


def _onnxruntime(config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World) -> Step:
    """Padded rows in float32, or in int8 by dynamic quantisation: onnxruntime has no bfloat16 on CPUs."""
    if batch.ids_T.device.type != "cpu":
        raise UsageError("peer = onnxruntime is measured on a CPU: use --device cpu.")
    onnxruntime = import_peer("onnxruntime", "onnxruntime", "onnxruntime onnx")
    import_peer("onnx", "onnxruntime", "onnxruntime onnx")
    model = peer_model(("span",), encoder).eval()
    inputs = batches.pad(batch, batches.width_of(config, batch))
    axes = {name: {0: "sequences", 1: "tokens"} for name in (*NAMES, "start", "end")}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            model, tuple(inputs[name] for name in NAMES), path, input_names=list(NAMES), output_names=["start", "end"],
            dynamic_axes=axes, dynamo=False,
        )  # fmt: skip
        if config.precision == "int8":
            quantisation = import_peer("onnxruntime.quantization", "onnxruntime", "onnxruntime onnx")
            quantisation.quantize_dynamic(path, path.with_suffix(".int8"), per_channel=True)
            path = path.with_suffix(".int8")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {name: inputs[name].numpy() for name in NAMES}
    inside = inputs["attention_mask"].bool()

    def logits() -> Tensor:
        start, end = (torch.from_numpy(found)[inside] for found in session.run(None, feed))
        return torch.stack([start, end], 1)

    return _add_check("onnxruntime", "int8" if config.precision == "int8" else "float32", logits, encoder, batch)


def _openvino(
    config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World, *, latency: bool = False
) -> Step:
    """Each sequence is a request, without padding. There is a stream per thread, or with `latency` one for all."""
    # Its import and each conversion send a report to the vendor from a forked process, unless this module is missing.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    openvino = import_peer("openvino", "openvino", "openvino")
    if batch.ids_T.device.type != "cpu":
        raise UsageError("peer = openvino is measured on a CPU: use --device cpu.")
    name = _float_precision(config)
    example = {name: torch.ones(1, 16, dtype=torch.int64) for name in NAMES}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        graph = openvino.convert_model(peer_model(("span",), encoder).eval(), example_input=example)
    streams = 1 if latency else torch.get_num_threads()
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT" if streams > 1 else "LATENCY",
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[name],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": streams,
    }
    network = openvino.Core().compile_model(graph, "CPU", settings)
    free: SimpleQueue[Any] = SimpleQueue()
    for _ in range(streams):
        free.put(network.create_infer_request())
    pool = ThreadPoolExecutor(streams)
    requests = list(_requests(batch))

    def answer(inputs: dict[str, Any]) -> Any:
        stream = free.get()
        start, end = stream.infer(inputs).to_tuple()
        free.put(stream)
        return np.stack([start[0], end[0]], 1)

    def logits() -> Tensor:
        return torch.from_numpy(np.concatenate(list(pool.map(answer, requests))))

    return _add_check("openvino", name, logits, encoder, batch)


def _requests(batch: Batch) -> Iterator[dict[str, Any]]:
    for start, end in pairwise(batch.bounds_S1.tolist()):
        ids, types = (values_T[None, start:end].numpy() for values_T in (batch.ids_T, batch.types_T))
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}


PEERS: Mapping[str, Callable[..., Step]] = {
    "transformers": _transformers,
    "transformers-compiled": partial(_transformers, compile=True),
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "openvino-latency": partial(_openvino, latency=True),
}
"""Functions (config, encoder, batch, world) that build a round. A peer without the precision of `config` uses the next
one: bfloat16 for int8, float32 for bfloat16 (onnxruntime)."""


def _add_check(side: str, precision: str, logits: Logits, encoder: EncoderConfig, batch: Batch) -> Step:
    """Returns a round that computes `logits`, and compares them with those of the same model in float32."""

    def compare() -> None:
        model = weights.draw(encoder, {"span": 0}).to(batch.ids_T.device).eval()
        with torch.inference_mode():
            expected_T2 = model.outputs(batch)["span"]
        difference = float((logits() - expected_T2).abs().max() / expected_T2.abs().max())
        if not difference <= TOLERANCE[precision]:
            raise MachineError(f"{side} in {precision} differs from float32 by {difference:.3f} of the largest logit.")

    return Checked(lambda: float(logits().abs().sum()), compare)
