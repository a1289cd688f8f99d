"""The steps of benchmarks/prepare_steps with `datasets`: load_dataset, then filters and tokenization by batched map in
two processes.

    python datasets_corpus.py --out FOLDER --tokenizer vocab.txt FILE...

The filters are the rules of Gopher's quality filter and of FineWeb alone, written for one document as users do; so this
pipeline does less than the other ones.
"""

import argparse
from pathlib import Path
from typing import Any

from datasets import load_dataset
from tokenizers import BertWordPieceTokenizer

STOP = {"the", "be", "to", "of", "and", "that", "have", "with"}


def keep(text: str) -> bool:
    words = text.split()
    count = len(words)
    if not 50 <= count <= 100_000 or not 3 <= sum(map(len, words)) / count <= 10:
        return False
    if (text.count("#") + text.count("...") + text.count("\u2026")) / count > 0.1 or len(STOP.intersection(words)) < 2:
        return False
    if sum(any(c.isalpha() for c in word) for word in words) / count < 0.8:
        return False
    lines = [line for line in text.split("\n") if line.strip()]
    if sum(line.startswith(("\u2022", "-")) for line in lines) / len(lines) > 0.9:
        return False
    if sum(line.endswith((".", "!", "?", '"')) for line in lines) / len(lines) < 0.12:
        return False
    return sum(len(line) < 30 for line in lines) / len(lines) <= 0.67


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tokenizer", required=True, type=Path)
    arguments = parser.parse_args()
    tokenizer = BertWordPieceTokenizer(str(arguments.tokenizer), lowercase=True)
    rows = load_dataset("json", data_files=[str(file) for file in arguments.files], split="train")

    def encoded(batch: dict[str, Any]) -> dict[str, Any]:
        return {"ids": [found.ids for found in tokenizer._tokenizer.encode_batch_fast(batch["text"])]}

    rows = rows.filter(lambda batch: [keep(text) for text in batch["text"]], batched=True, num_proc=2)
    rows = rows.map(encoded, batched=True, remove_columns=rows.column_names, num_proc=2)
    rows.save_to_disk(str(arguments.out / "tokens"))


if __name__ == "__main__":
    main()
