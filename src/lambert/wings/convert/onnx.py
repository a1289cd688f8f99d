"""ONNX, for ONNX Runtime and other runtimes: one file, by the exporter of torch.

Source: torch.onnx.export(dynamo=True), torch 2.11 and later.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lambert.model.packed import Product
from lambert.model.padded import Joined
from lambert.model.publish import TOLERANCE
from lambert.wings.convert.formats import Format
from lambert.wings.convert.original import Original
from lambert.wings.convert.padded import PaddedModel, export_program
from lambert.wings.convert.sample import Arrays, Runtime
from lambert.wings.convert.settings import ExportConfig

FILE = "model.onnx"
OPSET = 20
"""The newest operators that ONNX Runtime and OpenVINO both compute without gaps: Gelu and LayerNormalization are single
operators, and attention consists of products that both fuse."""
_ONE_FILE = 2**31 - 2**20
"""Maximum bytes of weights in the ONNX file, because a file of protobuf cannot exceed 2 GB. More weights are in a file
beside it."""

_ZERO = 128
"""Zero point of the unsigned 8-bit states: processors multiply unsigned with signed bytes fastest."""


class Int8(Product):
    """Computes x W' + b by ONNX's MatMulInteger. It can be exported to ONNX only; torch computes zeros.

    Symmetric quantization, with one scale for each output channel of the weights and one for each token of the states
    (Yao et al., "ZeroQuant", 2022, section 4.1). ONNX Runtime's own dynamic quantization has one scale for all tokens
    of the batch, so that an answer depends on the texts beside it.
    """

    scale_F: Tensor
    whole_DF: Tensor
    zero: Tensor

    def __init__(self, product: Joined) -> None:
        super().__init__()
        assert product.weight is not None
        weight = product.weight.detach()
        scale_F = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        self.register_buffer("scale_F", scale_F)
        self.register_buffer("whole_DF", (weight / scale_F[:, None]).round().to(torch.int8).T.contiguous())
        self.register_buffer("zero", torch.tensor(_ZERO, dtype=torch.uint8))
        self.bias = product.bias

    def forward(self, states_TD: Tensor, gelu: str = "") -> Tensor:
        step_T1 = (states_TD.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
        bytes_TD = (states_TD / step_T1).round().to(torch.int32).add(_ZERO).to(torch.uint8)
        shape = (*states_TD.shape[:-1], self.whole_DF.shape[1])
        product: Tensor = torch.onnx.ops.symbolic(
            "MatMulInteger", (bytes_TD, self.whole_DF, self.zero), dtype=torch.int32, shape=shape, version=20
        )
        out_TF = product.float() * step_T1 * self.scale_F
        out_TF = out_TF if self.bias is None else out_TF + self.bias
        return nn.functional.gelu(out_TF, approximate=gelu) if gelu else out_TF


def _write(padded: PaddedModel, original: Original, folder: Path, config: ExportConfig) -> None:
    if config.precision == "int8":
        padded.encoder.replace_products(Int8)  # embeddings and heads stay in float32
    padded.encoder.flat = True
    write_program(padded, original, folder / FILE)


def write_program(padded: PaddedModel, original: Original, path: Path) -> None:
    """Writes the ONNX file, with its weights beside it if they exceed 2 GB."""
    program: Any = torch.onnx.export(
        export_program(padded, original.model.config.positions), input_names=[*padded.inputs],
        output_names=[*padded.outputs], opset_version=OPSET, dynamo=True, verbose=False,
    )  # fmt: skip
    _name_axes(program.model, padded)
    _remove_traces(program.model)
    size = sum(tensor.numel() * tensor.element_size() for tensor in padded.state_dict().values())
    program.save(path, external_data=size > _ONE_FILE)


def _name_axes(model: Any, padded: PaddedModel) -> None:
    """Names the dynamic axes of inputs and outputs: batch, choices and length."""
    axes = ("batch", "choices", "length") if padded.choices else ("batch", "length")
    names = {str(size): name for size, name in zip(model.graph.inputs[0].shape, axes, strict=True)}
    for value in (*model.graph.inputs, *model.graph.outputs):
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int) and str(size) in names:
                value.shape[axis] = names[str(size)]


def _remove_traces(model: Any) -> None:
    """Removes what the exporter notes about each operator: lines of source code with the paths of this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()


def _load(folder: Path) -> Runtime:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder / FILE), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    given = {value.name for value in session.get_inputs()}

    def run(inputs: Arrays) -> Arrays:
        found = session.run(names, {name: values for name, values in inputs.items() if name in given})
        return dict(zip(names, found, strict=True))

    return run


def _notes(config: ExportConfig) -> tuple[str, ...]:
    if config.precision != "int8":
        return ()
    return ("note: int8 scales each token by itself, so that answers do not depend on the batch; compare your scores.",)


FORMAT = Format(
    title="ONNX Runtime",
    extra="onnx",
    packages=("onnx", "onnxscript", "onnxruntime"),
    tolerances={"float32": TOLERANCE, "int8": 0.25},
    write=_write,
    load=_load,
    usage="""import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
outputs = session.run(None, {name: rows[name] for name in NAMES})
""",
    notes=_notes,
)
