"""The formats of `lambert export` side by side: size, speed, difference of outputs, and scores.

    python -m benchmarks.export_formats.run --model RUN --texts texts.txt [--data dev.tsv] [--rounds 3]
        [--calibration texts.txt] [--kinds lambert:int8 onnx:float32 openvino:int8 ...]

A line of JSON for each format and precision: megabytes of the model's files, texts per second of CPU time on one core
(median of the rounds, one text at a time at its exact length, tokenized before; other processes on the core do not
count), the largest difference of an output from Lambert's in float32, the root mean square of the differences as a
share of that of the outputs, and with labelled data the scores of the task. Every kind runs once in each round, in
turn. `lambert:PRECISION` is Lambert.
OpenVINO computes in float32 here; `openvino:bfloat16` is the float32 folder with its own default on fast processors.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lambert
from lambert.core.batch import Batch
from lambert.core.world import World
from lambert.engine.precision import Precision
from lambert.inference.outputs import outputs
from lambert.inference.text_model import TextModel
from lambert.tasks import score_predictions
from lambert.wings.convert import onnx, openvino, original, program
from lambert.wings.convert.formats import compare_outputs, name_outputs
from lambert.wings.convert.padded import input_names, output_names
from lambert.wings.convert.sample import Arrays, LargestDifference, Runtime, encode, pad
from lambert.wings.convert.settings import ExportConfig
from lambert.wings.convert.verb import FORMATS

KINDS: tuple[str, ...] = (
    "lambert:float32",
    "lambert:bfloat16",
    "lambert:int8",
    "onnx:float32",
    "onnx:int8",
    "openvino:float32",
)
KINDS += ("openvino:bfloat16", "openvino:int8", "torch:float32")
TOKENS = 2048


@dataclass(slots=True)
class Padded:
    """A runtime in place of the model, for `outputs`: a flat batch becomes padded rows and back."""

    run: Runtime
    of: original.Original

    def eval(self) -> "Padded":
        return self

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        bounds = batch.bounds_S1.tolist()
        ids, types = (
            [tensor[low:high].tolist() for low, high in pairwise(bounds)] for tensor in (batch.ids_T, batch.types_T)
        )
        (head,) = self.of.model.labels
        shape = (len(ids), 1) if head == "choice" else (len(ids),)
        inputs = pad(ids, types, input_names(self.of.model), shape)
        found = self.run(inputs)
        mask = inputs["attention_mask"].reshape(len(ids), -1) > 0
        if head == "span":
            return {head: torch.from_numpy(np.stack([found[f"{end}_logits"][mask] for end in ("start", "end")], -1))}
        values = np.array(found["sentence_embedding" if "vector" in head else "logits"])
        return {head: torch.from_numpy(values[mask] if head in ("tag", "mlm") else values)}


@dataclass(slots=True)
class Kind:
    name: str
    megabytes: float
    run: Callable[[Arrays], object]
    difference: LargestDifference | None
    scores: Mapping[str, float]
    seconds: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=200, help="number of texts")
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    source = original.read(ExportConfig(args.model, Path("none")))
    rows = [*tokenize(source, args.texts, args.limit)]
    with tempfile.TemporaryDirectory() as folder:
        kinds = [open_kind(name, source, args, Path(folder)) for name in args.kinds]
        for _ in range(args.rounds):
            for kind in kinds:
                kind.run(rows[0])
                began = time.process_time()
                for row in rows:
                    kind.run(row)
                kind.seconds.append(time.process_time() - began)
    for kind in kinds:
        speeds = [len(rows) / seconds for seconds in kind.seconds]
        line: dict[str, Any] = {
            "kind": kind.name, "MB": round(kind.megabytes, 1), "texts_per_cpu_s": round(statistics.median(speeds), 1),
            "slowest": round(min(speeds), 1), "fastest": round(max(speeds), 1),
        }  # fmt: skip
        if kind.difference is not None:
            line |= {"difference": kind.difference.absolute, "rms_share": round(kind.difference.relative, 5)}
        print(json.dumps(line | {name: round(value, 4) for name, value in kind.scores.items()}), flush=True)


def tokenize(source: original.Original, path: Path, limit: int) -> Iterator[Arrays]:
    """Yields the inputs of each text alone."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()][:limit]
    names, shape = input_names(source.model), (1, 1) if "choice" in source.model.labels else (1,)
    for text in texts:
        ids, types = encode(source.tokenizer, [text], source.longest)
        yield pad([ids], [types], names, shape)


def open_kind(name: str, source: original.Original, args: argparse.Namespace, folder: Path) -> Kind:
    """Exports the model and opens it."""
    form, _, precision = name.partition(":")
    data = args.data
    if form == "lambert":
        model = lambert.load(args.model, precision=precision)  # type: ignore[arg-type]
        found = {}
        if data:
            read = model.read(data)
            found = score_predictions(model.task, read, model.task.predictions(read, model.outputs(read)))
        return Kind(name, size(model.folder, "model.safetensors"), partial(flat, model), None, found, [])
    out = folder / name.replace(":", "-")
    made = "float32" if precision == "bfloat16" else precision
    config = ExportConfig(args.model, out, form, precision=made)  # type: ignore[arg-type]
    if (form, made) == ("openvino", "int8"):
        config = replace(config, calibration=args.calibration)
    for line in FORMATS[form](config) or ():
        print(f"# {name}: {line}", flush=True)
    run: Runtime = {
        "onnx": onnx.FORMAT.load, "torch": program.TORCH.load, "aoti": program.AOTI.load,
        "openvino": partial(openvino.load_model, hint="bf16" if precision == "bfloat16" else "f32"),
    }[form](out)  # type: ignore[operator]  # fmt: skip
    names = output_names(source.model.labels)

    def by_name(inputs: Arrays) -> Arrays:
        return name_outputs(run(inputs), names)

    scores = scores_of(lambert.load(args.model), Padded(by_name, source), data) if data else {}
    weights = {"onnx": "model.onnx*", "openvino": "openvino_model.*"}.get(form, "model.pt2")
    return Kind(name, size(out, weights), run, compare_outputs(source, by_name), scores, [])


def scores_of(model: TextModel, runtime: Padded, data: Path) -> dict[str, float]:
    read = model.read(data)
    found = outputs(runtime, read, Precision("float32"), World(), TOKENS)
    return score_predictions(model.task, read, model.task.predictions(read, found))


def flat(model: TextModel, inputs: Arrays) -> Mapping[str, Tensor]:
    """Lambert's own outputs for one text."""
    ids = inputs["input_ids"].ravel().tolist()
    with torch.inference_mode():
        return model.model.outputs(Batch.of([ids]))


def size(folder: Path, pattern: str) -> float:
    """Megabytes of the files of a folder that hold the model."""
    return sum(path.stat().st_size for path in folder.glob(pattern)) / 1e6


if __name__ == "__main__":
    main()
