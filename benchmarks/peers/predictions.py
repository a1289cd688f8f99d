"""The peer of the prediction benchmark: JSON lines in, JSON lines out, as an expert writes it.

    python benchmarks/peers/predictions.py squad MODEL --engine openvino < lines.jsonl > answers.jsonl

The fast tokenizer in batches; transformers in bfloat16 weights with sdpa attention, sorted by length in batches padded
to their longest; or OpenVINO with one request for each sequence at its exact length and as many streams as threads, in
bfloat16 (`openvino`), or with weights of 8 bits and states that are quantised dynamically (`openvino-int8`, which needs
nncf). Windows of `--length` tokens with a stride of 128, the best span of at most 30 tokens over all windows of a
question.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

BATCH_TOKENS = 2048
"""Tokens of a batch, padding included; see `lambert bench --work run` for what is fastest on a CPU."""
NAMES = ("input_ids", "attention_mask", "token_type_ids")
Outputs = list[list[np.ndarray]]
"""The model's outputs for each row; those of tokens may end with padding."""


def batches(lengths: list[int]) -> Iterator[list[int]]:
    """Numbers of rows of similar length, at most BATCH_TOKENS together with their padding."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    while order:
        rows = max(1, BATCH_TOKENS // lengths[order[0]])
        yield order[:rows]
        order = order[rows:]


def transformers_outputs(model: Any, ids: list[list[int]], types: list[list[int]], pad: int) -> Outputs:
    """Batches of rows of similar length."""
    import torch

    model = model.to(torch.bfloat16)
    lengths = [len(row) for row in ids]
    found: Outputs = [[] for _ in ids]
    with torch.inference_mode():
        for numbers in batches(lengths):
            width = lengths[numbers[0]]
            rows = torch.tensor([ids[n] + [pad] * (width - lengths[n]) for n in numbers])
            kinds = torch.tensor([types[n] + [0] * (width - lengths[n]) for n in numbers])
            inside = torch.arange(width) < torch.tensor([lengths[n] for n in numbers])[:, None]
            mask = None if inside.all() else inside.long()
            made = model(input_ids=rows, token_type_ids=kinds, attention_mask=mask, return_dict=False)
            for place, number in enumerate(numbers):
                found[number] = [values[place].float().numpy() for values in made]
    return found


def openvino_outputs(model: Any, ids: list[list[int]], types: list[list[int]], threads: int, int8: bool) -> Outputs:
    """One request for each sequence, longest first, on as many streams as threads."""
    import torch

    # Its import and each conversion send a report to the vendor from a forked process, unless this module is missing.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    openvino: Any = importlib.import_module("openvino")

    with torch.no_grad():
        graph = openvino.convert_model(
            model, example_input={name: torch.ones(1, 16, dtype=torch.int64) for name in NAMES}
        )
    if int8:
        nncf: Any = importlib.import_module("nncf")

        graph = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16",
    }  # fmt: skip
    if int8:
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 2**62  # one scale for the states of a token
    network = openvino.Core().compile_model(graph, "CPU", settings)
    free: SimpleQueue[Any] = SimpleQueue()
    for _ in range(threads):
        free.put(network.create_infer_request())

    def answer(number: int) -> list[np.ndarray]:
        row = np.array([ids[number]])
        stream = free.get()
        made = stream.infer({NAMES[0]: row, NAMES[1]: np.ones_like(row), NAMES[2]: np.array([types[number]])})
        values = [np.array(value[0], dtype=np.float32) for value in made.to_tuple()]
        free.put(stream)
        return values

    order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
    found: Outputs = [[] for _ in ids]
    with ThreadPoolExecutor(threads) as pool:
        for number, values in zip(order, pool.map(answer, order), strict=True):
            found[number] = values
    return found


def answers(windows: Any, outputs: Outputs, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best span of at most 30 tokens among the 20 best starts and ends of each window."""
    best: list[tuple[float, str]] = [(-1e9, "")] * len(lines)
    for number, logits in enumerate(outputs):
        line = windows["overflow_to_sample_mapping"][number]
        offsets, parts = windows["offset_mapping"][number], windows.sequence_ids(number)
        inside = np.array([part == 1 for part in parts])
        start, end = (np.where(inside, values[: len(inside)], -1e9) for values in logits)
        starts, ends = (np.argpartition(-values, min(20, len(values) - 1))[:20] for values in (start, end))
        scores = start[starts][:, None] + end[ends][None]
        spans = ends[None] - starts[:, None]
        scores = np.where((spans >= 0) & (spans < 30), scores, -1e9)
        i, j = np.unravel_index(scores.argmax(), scores.shape)
        if scores[i, j] > best[line][0]:
            text = lines[line]["context"][offsets[starts[i]][0] : offsets[ends[j]][1]]
            best[line] = float(scores[i, j]), text
    return [{"answer": text} for _, text in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("squad", "classify"))
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", choices=("transformers", "openvino", "openvino-int8"), default="transformers")
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--text", default="sentence")
    parser.add_argument("--text-b", default="")
    args = parser.parse_args()
    target = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nncf prints there
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    lines = [json.loads(line) for line in sys.stdin]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    kinds = {"squad": "AutoModelForQuestionAnswering", "classify": "AutoModelForSequenceClassification"}
    kind = getattr(transformers, kinds[args.task])
    model = kind.from_pretrained(args.model, attn_implementation="sdpa").eval()
    if args.task == "squad":
        encoded = tokenizer(
            [line["question"].lstrip() for line in lines], [line["context"] for line in lines],
            truncation="only_second", max_length=args.length, stride=128, return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )  # fmt: skip
    else:
        texts = [[line[name] for line in lines] for name in (args.text, args.text_b) if name]
        encoded = tokenizer(*texts, truncation=True, max_length=args.length)
    ids, types = encoded["input_ids"], encoded["token_type_ids"]
    if args.engine == "transformers":
        outputs = transformers_outputs(model, ids, types, tokenizer.pad_token_id)
    else:
        outputs = openvino_outputs(model, ids, types, args.threads, args.engine == "openvino-int8")
    if args.task == "squad":
        found = answers(encoded, outputs, lines)
    else:
        found = [{"label": model.config.id2label[int(values[0].argmax())]} for values in outputs]
    with target:
        target.writelines(json.dumps(answer) + "\n" for answer in found)


if __name__ == "__main__":
    main()
