"""The peer of the fine-tuning benchmark: transformers' models in a plain loop, with the same weights, data and recipe.

    python -m benchmarks.peers.transformers_finetune squad --init MODEL --train train.json --dev dev.json --out OUT
    python -m benchmarks.peers.transformers_finetune classify --init MODEL --train train.tsv --dev dev.tsv --out OUT
    python -m benchmarks.peers.transformers_finetune tag --init MODEL --train train.jsonl --dev dev.jsonl --out OUT

As an expert writes it: the fast tokenizer in batches, sdpa attention, bfloat16 autocast where asked, batches of
sequences of similar length padded to their longest (grouped as by transformers' Trainer; not with `--group 1`), torch's
fused AdamW; scoring in bfloat16 weights, sorted by length, without gradients. Writes OUT/predictions.json (SQuAD: {id:
text}, from offsets, best span per question; else a label, or a list of labels, for each row) and prints one line of
JSON with the seconds of reading, training and scoring.
"""

import argparse
import collections
import copy
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.support.fine_tuning import read_questions, read_table, recipe_arguments

IGNORED = -100
Rows = list[dict[str, Any]]


def squad_features(asked: Rows, tokenizer: Any, length: int, training: bool) -> Rows:
    """Windows of `length` tokens with a stride of 128, as in the run_qa example."""
    rows = []
    windows = tokenizer(
        [entry["question"].lstrip() for entry in asked], [entry["context"] for entry in asked], max_length=length,
        truncation="only_second", stride=128, return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    for number, ids in enumerate(windows["input_ids"]):
        entry = asked[windows["overflow_to_sample_mapping"][number]]
        parts, offsets = windows.sequence_ids(number), windows["offset_mapping"][number]
        row = {"input_ids": ids, "token_type_ids": windows["token_type_ids"][number]}
        if training:
            answer = entry["answers"][0]
            begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            inside = [i for i, part in enumerate(parts) if part == 1]
            row["start_positions"] = row["end_positions"] = 0
            if offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= end:
                row["start_positions"] = max(i for i in inside if offsets[i][0] <= begin)
                row["end_positions"] = min(i for i in inside if offsets[i][1] >= end)
        else:
            row["id"] = entry["id"]
            row["offsets"] = [offsets[i] if part == 1 else None for i, part in enumerate(parts)]
        rows.append(row)
    return rows


def answers(asked: Rows, rows: Rows, starts: Any, ends: Any) -> dict[str, str]:
    """The best span of at most 30 tokens for each question."""
    context = {entry["id"]: entry["context"] for entry in asked}
    best: dict[str, tuple[float, str]] = collections.defaultdict(lambda: (-1e9, ""))
    for row, start, end in zip(rows, starts, ends, strict=True):
        offsets = row["offsets"]
        for i in np.argsort(start)[-20:]:
            for j in np.argsort(end)[-20:]:
                if i < len(offsets) and j < len(offsets) and offsets[i] and offsets[j] and i <= j < i + 30:
                    score = float(start[i] + end[j])
                    if score > best[row["id"]][0]:
                        best[row["id"]] = score, context[row["id"]][offsets[i][0] : offsets[j][1]]
    return {entry["id"]: best[entry["id"]][1] for entry in asked}


def classify_features(path: Path, tokenizer: Any, args: argparse.Namespace, labels: list[str]) -> Rows:
    """A row for each line of a tab-separated file with a header. Labels of the first file are appended to `labels`."""
    lines = read_table(path)
    labels += [] if labels else sorted({line[args.label] for line in lines})
    texts = [[line[name] for line in lines] for name in (args.text, args.text_b) if name]
    found = tokenizer(*texts, truncation=True, max_length=args.length)
    return [
        {"input_ids": ids, "token_type_ids": types, "labels": labels.index(line[args.label])}
        for ids, types, line in zip(found["input_ids"], found["token_type_ids"], lines, strict=True)
    ]


def tag_features(path: Path, tokenizer: Any, args: argparse.Namespace, labels: list[str]) -> Rows:
    """A row for each line {"tokens": [...], "tags": [...]}; the label of a word is at its first piece."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    labels += [] if labels else sorted({tag for line in lines for tag in line["tags"]})
    words = [line["tokens"] for line in lines]
    found = tokenizer(words, is_split_into_words=True, truncation=True, max_length=args.length)
    rows = []
    for number, line in enumerate(lines):
        owners = found.word_ids(number)
        firsts = [i for i, word in enumerate(owners) if word is not None and word != owners[i - 1]]
        row = {"input_ids": found["input_ids"][number], "labels": [IGNORED] * len(owners), "words": len(words[number])}
        for i in firsts:
            row["labels"][i] = labels.index(line["tags"][owners[i]])
        rows.append({**row, "firsts": {owners[i]: i for i in firsts}})
    return rows


def pad_rows(rows: Rows, pad: int) -> dict[str, torch.Tensor]:
    """The inputs of a model, padded to the longest row."""
    width = max(len(row["input_ids"]) for row in rows)

    def fill(name: str, empty: int) -> torch.Tensor:
        return torch.tensor([row[name] + [empty] * (width - len(row[name])) for row in rows])

    made = {"input_ids": fill("input_ids", pad)}
    made["attention_mask"] = torch.tensor([[i < len(row["input_ids"]) for i in range(width)] for row in rows]).long()
    if "token_type_ids" in rows[0]:
        made["token_type_ids"] = fill("token_type_ids", 0)
    for name in ("labels", "start_positions", "end_positions"):
        if isinstance(rows[0].get(name), list):
            made[name] = fill(name, IGNORED)
        elif name in rows[0]:
            made[name] = torch.tensor([row[name] for row in rows])
    return made


def batches(rows: Rows, size: int, group: int, generator: torch.Generator) -> list[Rows]:
    """Batches of rows of similar length in random order: shuffled, and sorted within `group` batches."""
    order = torch.randperm(len(rows), generator=generator).tolist()
    found = []
    for at in range(0, len(order), group * size):
        similar = order[at : at + group * size]
        if group > 1:
            similar.sort(key=lambda i: -len(rows[i]["input_ids"]))
        found += [[rows[i] for i in similar[low : low + size]] for low in range(0, len(similar), size)]
    return [found[i] for i in torch.randperm(len(found), generator=generator).tolist()]


def span_loss(made: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of answer spans over the tokens of the sequences alone; transformers' own counts padding as tokens that
    the answer might begin and end at."""

    def loss(name: str) -> torch.Tensor:
        logits = made[f"{name}_logits"].float().masked_fill(inputs["attention_mask"] == 0, -torch.inf)
        return torch.nn.functional.cross_entropy(logits, inputs[f"{name}_positions"])

    return (loss("start") + loss("end")) / 2


def train(model: Any, rows: Rows, args: argparse.Namespace, pad: int) -> None:
    """Trains in place: linear schedule, warm-up over a tenth of the updates."""
    weights = list(model.parameters())
    decays = [{"params": [w for w in weights if (w.ndim > 1) == many], "weight_decay": 0.01 * many} for many in (1, 0)]
    optimizer = torch.optim.AdamW(decays, lr=args.lr, eps=1e-6, fused=True)
    updates = int(np.ceil(args.epochs * len(rows) / args.batch_size))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(0.1 * updates), updates)
    generator = torch.Generator().manual_seed(args.seed)
    done = 0
    model.train()
    while done < updates:
        for batch in batches(rows, args.batch_size, args.group, generator)[: updates - done]:
            inputs = pad_rows(batch, pad)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                made = model(**inputs)
            loss = span_loss(made, inputs) if args.without_padding else made.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1


def outputs(model: Any, rows: Rows, args: argparse.Namespace, pad: int) -> list[list[np.ndarray]]:
    """The model's outputs for each row, each cut to the row's length."""
    model = copy.deepcopy(model).eval().to(torch.bfloat16 if args.bf16 else torch.float32)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    found: list[list[np.ndarray]] = [[]] * len(rows)
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.inference_mode():
        for at in range(0, len(order), 32):
            numbers = order[at : at + 32]
            inputs = pad_rows([rows[i] for i in numbers], pad)
            made = model(**{name: inputs[name] for name in names if name in inputs}, return_dict=False)
            for place, i in enumerate(numbers):
                found[i] = [values[place].float().numpy() for values in made]
    return found


def main() -> None:
    parser = recipe_arguments(__doc__)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    transformers.set_seed(args.seed)
    transformers.logging.set_verbosity_error()
    began = time.perf_counter()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.init)
    labels: list[str] = []
    asked: Rows = []
    if args.task == "squad":
        asked = read_questions(args.dev)
        rows = squad_features(read_questions(args.train), tokenizer, args.length, training=True)
        dev = squad_features(asked, tokenizer, args.length, training=False)
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(args.init, attn_implementation="sdpa")
    else:
        read = classify_features if args.task == "classify" else tag_features
        rows, dev = (read(path, tokenizer, args, labels) for path in (args.train, args.dev))
        auto = {"classify": transformers.AutoModelForSequenceClassification,
                "tag": transformers.AutoModelForTokenClassification}[args.task]  # fmt: skip
        model = auto.from_pretrained(args.init, num_labels=len(labels), attn_implementation="sdpa")
    result: dict[str, Any] = {"read_seconds": round(time.perf_counter() - began, 2), "sequences": len(rows)}
    began = time.perf_counter()
    train(model, rows, args, tokenizer.pad_token_id)
    result["seconds"] = round(time.perf_counter() - began, 2)
    began = time.perf_counter()
    made = outputs(model, dev, args, tokenizer.pad_token_id)
    predictions: Any
    if args.task == "squad":
        predictions = answers(asked, dev, [start for start, _ in made], [end for _, end in made])
    elif args.task == "classify":
        predictions = [labels[logits.argmax()] for (logits,) in made]
        truth = [labels[row["labels"]] for row in dev]
        result["accuracy"] = float(np.mean([a == b for a, b in zip(predictions, truth, strict=True)]))
    else:
        predictions = [
            [
                labels[logits[row["firsts"][word]].argmax()] if word in row["firsts"] else None
                for word in range(row["words"])
            ]
            for row, (logits,) in zip(dev, made, strict=True)
        ]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "predictions.json").write_text(json.dumps(predictions))
    result["score_seconds"] = round(time.perf_counter() - began, 2)
    model.save_pretrained(args.out / "model")
    tokenizer.save_pretrained(args.out / "model")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
