"""The peer of the fine-tuning benchmark: transformers' Trainer with the same weights, data and recipe.

    python benchmarks/peers/transformers_finetune.py squad --init MODEL --train train.json --dev dev.json --out OUT
    python benchmarks/peers/transformers_finetune.py classify --init MODEL --train train.tsv --dev dev.tsv --out OUT

Its best configuration: sdpa attention, bfloat16 autocast where asked, batches of sequences of similar length padded to
their longest. Writes OUT/predictions.json (SQuAD: {id: text}, from offsets, best span per question) and prints one line
of JSON with seconds of training and, for classification, the accuracy.
"""

import argparse
import collections
import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import Dataset


class Rows(Dataset):  # type: ignore[type-arg]
    """A list of features."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def questions(path: Path) -> list[dict[str, Any]]:
    """SQuAD's questions, flat."""
    found = []
    for article in json.loads(path.read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                found.append({**entry, "context": paragraph["context"]})
    return found


def squad_features(asked: list[dict[str, Any]], tokenizer: Any, length: int, training: bool) -> list[dict[str, Any]]:
    """Windows of `length` tokens with a stride of 128, as in the run_qa example."""
    rows = []
    for entry in asked:
        windows = tokenizer(
            entry["question"].lstrip(), entry["context"], truncation="only_second", max_length=length, stride=128,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        for number, ids in enumerate(windows["input_ids"]):
            parts, offsets = windows.sequence_ids(number), windows["offset_mapping"][number]
            row = {"input_ids": ids, "attention_mask": windows["attention_mask"][number]}
            row["token_type_ids"] = windows["token_type_ids"][number]
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


def answers(asked: list[dict[str, Any]], rows: list[dict[str, Any]], starts: Any, ends: Any) -> dict[str, str]:
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


def table(path: Path, args: argparse.Namespace) -> list[dict[str, str]]:
    """A tab-separated file with a header."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("squad", "classify"))
    for name in ("init", "train", "dev", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--text", default="sentence")
    parser.add_argument("--text-b", default="")
    parser.add_argument("--label", default="label")
    args = parser.parse_args()
    transformers.set_seed(args.seed)
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.init, model_max_length=args.length)
    settings = transformers.TrainingArguments(
        output_dir=str(args.out), per_device_train_batch_size=args.batch_size, per_device_eval_batch_size=32,
        learning_rate=args.lr, num_train_epochs=args.epochs, weight_decay=0.01, warmup_steps=0.1, bf16=args.bf16,
        lr_scheduler_type="linear", max_grad_norm=1.0, seed=args.seed, save_strategy="no", report_to="none",
        train_sampling_strategy="group_by_length", use_cpu=not torch.cuda.is_available(), disable_tqdm=True,
        adam_epsilon=1e-6,
    )  # fmt: skip
    collator = transformers.DataCollatorWithPadding(tokenizer)
    if args.task == "squad":
        asked = questions(args.dev)
        train = squad_features(questions(args.train), tokenizer, args.length, training=True)
        dev = squad_features(asked, tokenizer, args.length, training=False)
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(args.init, attn_implementation="sdpa")
    else:
        train_rows, dev_rows = table(args.train, args), table(args.dev, args)
        labels = sorted({row[args.label] for row in train_rows})

        def feature(row: dict[str, str]) -> dict[str, Any]:
            texts = (row[args.text], row[args.text_b]) if args.text_b else (row[args.text],)
            return {**tokenizer(*texts, truncation=True), "labels": labels.index(row[args.label])}

        train, dev = [feature(row) for row in train_rows], [feature(row) for row in dev_rows]
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            args.init, num_labels=len(labels), attn_implementation="sdpa"
        )
    trainer = transformers.Trainer(model=model, args=settings, train_dataset=Rows(train), data_collator=collator)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    settings.train_sampling_strategy = "random"  # grouping by length would reorder the predictions too
    result: dict[str, Any] = {"seconds": round(seconds, 1), "sequences": len(train)}
    args.out.mkdir(parents=True, exist_ok=True)
    if args.task == "squad":
        plain = [{k: v for k, v in row.items() if k not in ("id", "offsets")} for row in dev]
        began = time.perf_counter()
        starts, ends = trainer.predict(Rows(plain)).predictions[:2]
        result["predict_seconds"] = round(time.perf_counter() - began, 1)
        found = answers(asked, dev, starts, ends)
        (args.out / "predictions.json").write_text(json.dumps(found))
    else:
        logits = trainer.predict(Rows(dev)).predictions
        truth = np.array([row["labels"] for row in dev])
        result["accuracy"] = float((logits.argmax(-1) == truth).mean())
        (args.out / "predictions.json").write_text(json.dumps([labels[i] for i in logits.argmax(-1)]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
