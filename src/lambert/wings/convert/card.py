"""Writes README.md of an exported folder: its inputs and outputs, and how to run it."""

from lambert.wings.convert.padded import PaddedModel

_SHAPES = {
    "logits": "float32, for each class of a text; for tags and masked words, for each token",
    "seq_relationship_logits": "float32 [batch, 2], for the next sentence",
    "start_logits": "float32 [batch, length], of the start of the answer",
    "end_logits": "float32 [batch, length], of its end",
    "last_hidden_state": "float32 [batch, length, width]",
    "sentence_embedding": "float32 [batch, width]",
}
_INPUTS = {
    "input_ids": "ids of the tokens, padded on the right",
    "attention_mask": "1 for tokens, 0 for padding",
    "token_type_ids": "0 for the first text of a pair, 1 for the second",
}
_TOKENIZED = """from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
rows = tokenizer(["A text.", "Another, longer text."], padding=True, return_tensors="{kind}")
"""
_CODE = {
    "onnx": """import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
outputs = session.run(None, {name: rows[name] for name in NAMES})
""",
    "openvino": """import openvino

model = openvino.Core().compile_model("openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
outputs = model({name: rows[name] for name in NAMES})
""",
    "torch": """import torch

program = torch.export.load("model.pt2").module()
outputs = program(*[rows[name] for name in NAMES])
""",
    "aoti": """import torch

program = torch._inductor.aoti_load_package("model.pt2")
outputs = program(*[rows[name] for name in NAMES])
""",
}


def format_card(format: str, precision: str, padded: PaddedModel, lines: tuple[str, ...]) -> str:
    """Returns the text of README.md."""
    shape = "[batch, choices, length]" if padded.choices else "[batch, length]"
    inputs = [f"| `{name}` | int64 {shape}: {_INPUTS[name]} |" for name in padded.inputs]
    of_choice = "float32 [batch, choices], for each choice"
    outputs = [f"| `{name}` | {of_choice if padded.choices else _SHAPES[name]} |" for name in padded.outputs]
    kind = "np" if format in ("onnx", "openvino") else "pt"
    code = _TOKENIZED.format(kind=kind) + _CODE[format].replace("NAMES", repr([*padded.inputs]))
    if padded.choices:
        code = code.replace("NAMES", repr([*padded.inputs]))
        code = "# One example: its choices are the rows, so add a first axis to each input.\n" + code
        code = code.replace("rows[name] for", "rows[name][None] for")
    return "\n".join(
        [
            f"# Export of a Lambert model: {format}, {precision}",
            "",
            *(f"- {line}" for line in lines),
            "",
            "| input | |",
            "|---|---|",
            *inputs,
            "",
            "| output | |",
            "|---|---|",
            *outputs,
            "",
            "```python",
            code.rstrip(),
            "```",
            "",
        ]
    )
