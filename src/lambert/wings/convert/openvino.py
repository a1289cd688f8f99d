"""OpenVINO's intermediate representation, from the ONNX graph; in int8 by NNCF with calibration texts."""

import importlib
import io
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from lambert.core.errors import DataError, MachineError
from lambert.core.files import read_file
from lambert.inference import cpu
from lambert.model.publish import TOLERANCE
from lambert.wings.convert import onnx
from lambert.wings.convert.formats import Format, check_installed
from lambert.wings.convert.original import Original
from lambert.wings.convert.padded import PaddedModel, input_names
from lambert.wings.convert.sample import TEXTS, Arrays, Runtime, encode, pad
from lambert.wings.convert.settings import ExportConfig

FILE = "openvino_model.xml"
"""Name of the file, as in Optimum."""
_FLOAT32 = "f32"
"""INFERENCE_PRECISION_HINT of the comparison: by default OpenVINO computes in bfloat16 if the processor can."""
_CALIBRATED = 300
"""Number of calibration texts that are read: the default of NNCF."""


def _import(name: str) -> Any:
    """Imports openvino or nncf without the package that sends their usage to Google Analytics; both run without it."""
    telemetry = "openvino_telemetry"
    before = sys.modules.get(telemetry)
    sys.modules[telemetry] = None  # type: ignore[assignment]  # importing it raises ImportError
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules[telemetry]
        if before is not None:
            sys.modules[telemetry] = before


def _write(net: PaddedModel, original: Original, folder: Path, config: ExportConfig) -> None:
    if config.precision == "int8":
        check_installed("openvino --precision int8", "openvino-int8", ("nncf",))
    path = folder / onnx.FILE
    onnx.write_program(net, original, path)
    openvino = _import("openvino")
    model = openvino.Core().read_model(str(path))  # convert_model would send telemetry
    if config.precision == "int8":
        model = _quantize(model, original, config)
    openvino.save_model(model, str(folder / FILE), compress_to_fp16=False)
    del model
    for left in folder.glob(f"{onnx.FILE}*"):
        left.unlink()


def _quantize(model: Any, original: Original, config: ExportConfig) -> Any:
    """Returns the model with static 8-bit scales, and weights of 7 bits if this processor adds the products of 8-bit
    numbers in 16 bits.

    Source: NNCF, quantize(model_type=TRANSFORMER), with SmoothQuant; OverflowFix.
    """
    nncf = _import("nncf")
    logging.getLogger("nncf").setLevel(logging.ERROR)  # nncf.set_log_level would change the handlers of other loggers
    names = input_names(original.model)
    shape = (1, 1) if "choice" in original.model.labels else (1,)

    def inputs(text: str) -> Arrays:
        ids, types = encode(original.tokenizer, text.split("\t", 1), original.longest)
        return pad([ids], [types], names, shape)

    texts = calibration_texts(config.calibration)
    data = nncf.Dataset(texts, inputs)
    fix = nncf.OverflowFix.DISABLE if _exact_products() else nncf.OverflowFix.ENABLE
    with redirect_stdout(io.StringIO()):  # without progress bars
        return nncf.quantize(
            model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts),
            advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=fix),
        )  # fmt: skip


def _exact_products() -> bool:
    """Returns whether this processor adds the products of 8-bit numbers in 32 bits (VNNI); in 16 bits, the sum of two
    can saturate."""
    try:
        cpu.check("int8")
    except MachineError:
        return False
    return True


def calibration_texts(path: Path | None) -> list[str]:
    """Returns the texts from which ranges are learnt: the lines of the file, at most 300, or the built-in sentences.
    Raises DataError if the file has none."""
    if path is None:
        return [*TEXTS]
    try:
        lines = [line.strip() for line in read_file(path).decode().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}.") from error
    if not any(lines):
        raise DataError(f"{path} has no text: give a file with a text in each line.")
    return [line for line in lines if line][:_CALIBRATED]


def load_model(folder: Path, hint: str = _FLOAT32) -> Runtime:
    """Loads the model with the threads of torch, computing in the precision `hint`."""
    threads = torch.get_num_threads()
    core = _import("openvino").Core()
    settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads}
    model = core.compile_model(str(folder / FILE), "CPU", settings)
    names = [value.get_any_name() for value in model.outputs]
    given = {name for value in model.inputs for name in value.get_names()}

    def run(inputs: Arrays) -> Arrays:
        found = model({name: values for name, values in inputs.items() if name in given})
        return {name: found[index] for index, name in enumerate(names)}

    return run


def _notes(config: ExportConfig) -> tuple[str, ...]:
    texts = "" if config.calibration else ", from built-in sentences: give texts of your domain (--calibration FILE)"
    if config.precision == "int8":
        ranges = f"note: int8 uses fixed ranges of activations{texts}; compare your scores."
        narrow = "note: weights have 7 bits: this processor has no 8-bit dot products (VNNI)."
        return (ranges,) if _exact_products() else (ranges, narrow)
    return ('note: OpenVINO computes in bfloat16 where it can: set INFERENCE_PRECISION_HINT to "f32" to compare.',)


FORMAT = Format(
    title="OpenVINO",
    extra="openvino",
    packages=("openvino", "onnx", "onnxscript"),
    tolerances={"float32": TOLERANCE, "int8": 0.25},
    write=_write,
    load=load_model,
    usage="""import openvino

model = openvino.Core().compile_model("openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
outputs = model({name: rows[name] for name in NAMES})
""",
    notes=_notes,
)
