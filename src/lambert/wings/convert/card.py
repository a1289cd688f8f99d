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
rows = tokenizer(["A text.", "Another, longer text."], padding=True, truncation=True, return_tensors="{kind}")
"""


def format_card(
    format: str, precision: str, padded: PaddedModel, lines: tuple[str, ...], arrays: str, usage: str
) -> str:
    """Returns the text of README.md.

    Args:
        arrays: Kind of the tokenizer's outputs, "np" or "pt".
        usage: Python code that computes the outputs of `rows`; NAMES stands for the list of the inputs.
    """
    shape = "[batch, choices, length]" if padded.choices else "[batch, length]"
    inputs = [f"| `{name}` | int64 {shape}: {_INPUTS[name]} |" for name in padded.inputs]
    of_choice = "float32 [batch, choices], for each choice"
    outputs = [f"| `{name}` | {of_choice if padded.choices else _SHAPES[name]} |" for name in padded.outputs]
    code = _TOKENIZED.format(kind=arrays) + usage.replace("NAMES", repr([*padded.inputs]))
    if padded.choices:
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
