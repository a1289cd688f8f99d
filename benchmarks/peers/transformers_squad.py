"""SQuAD features by transformers' `squad_convert_examples_to_features` ("classic", with the tokenizer in Python as in
run_squad.py) and as run_qa.py makes them ("fast"). Reads lines "METHOD PATH", answers each with a line of JSON.

transformers 4 is needed: version 5 no longer has the first. `--digest` adds the hash of what was made.
"""

import argparse
import hashlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from transformers import BertTokenizer, BertTokenizerFast, __version__
from transformers.data.processors.squad import SquadV1Processor, squad_convert_examples_to_features

LENGTH, STRIDE, QUERY, BATCH = 384, 128, 64, 1000


def processor_time() -> float:
    """Processor seconds of this process and of the workers it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def classic(tokenizer: Any, path: Path) -> list[tuple[list[int], int, int]]:
    """Ids without padding, start and end of each feature, after a data set of tensors was made of them."""
    examples = SquadV1Processor().get_train_examples(path.parent, path.name)
    features, _ = squad_convert_examples_to_features(
        examples, tokenizer, LENGTH, STRIDE, QUERY, is_training=True, return_dataset="pt", threads=1, tqdm_enabled=False
    )
    return [(f.input_ids[: sum(f.attention_mask)], f.start_position, f.end_position) for f in features]


def fast(tokenizer: Any, path: Path) -> list[tuple[list[int], int, int]]:
    """The same of the fast tokenizer's overflowing windows: answers are found by offsets, where windows hold them."""
    data = json.loads(path.read_text(encoding="utf-8"))["data"]
    rows = [(q, p["context"]) for d in data for p in d["paragraphs"] for q in p["qas"]]
    made = []
    for at in range(0, len(rows), BATCH):
        block = rows[at : at + BATCH]
        encoded = tokenizer(
            [q["question"].lstrip() for q, _ in block],
            [context for _, context in block],
            truncation="only_second",
            max_length=LENGTH,
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )
        for i, offsets in enumerate(encoded["offset_mapping"]):
            ids, sequences = encoded["input_ids"][i], encoded.sequence_ids(i)
            answer = block[encoded["overflow_to_sample_mapping"][i]][0]["answers"][0]
            begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            first = sequences.index(1)
            last = len(sequences) - 1 - sequences[::-1].index(1)
            start = stop = 0
            if offsets[first][0] <= begin and offsets[last][1] >= end:
                while first < len(offsets) and offsets[first][0] <= begin:
                    first += 1
                while offsets[last][1] >= end:
                    last -= 1
                start, stop = first - 1, last + 1
            made.append((ids[: sum(encoded["attention_mask"][i])], start, stop))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True, help="an uncased vocab.txt")
    parser.add_argument("--digest", action="store_true")
    args = parser.parse_args()
    methods = {
        "classic": (classic, BertTokenizer(args.tokenizer)),
        "fast": (fast, BertTokenizerFast(args.tokenizer)),
    }
    print(json.dumps({"transformers": __version__}), flush=True)
    for line in sys.stdin:
        name, path = line.strip().split(" ", 1)
        method, tokenizer = methods[name]
        started, processor = time.perf_counter(), processor_time()
        made = method(tokenizer, Path(path))
        answer: dict[str, Any] = {
            "seconds": time.perf_counter() - started,
            "processor_seconds": processor_time() - processor,
            "windows": len(made),
        }
        if args.digest:
            answer["digest"] = hashlib.sha256(json.dumps(made).encode()).hexdigest()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
