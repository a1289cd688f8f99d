"""SQuAD v1.1 training features, from the JSON file to batches, beside transformers 4, on one thread.

    pip install --target TF4 transformers==4.57.6
    python -m benchmarks.squad_features.run --tokenizer vocab.txt --train train-v1.1.json --peer-path TF4 [--json]

The first `--questions` questions are divided into `--slices` files; on each in turn run Lambert, the classic
conversion of run_squad.py (`squad_convert_examples_to_features`, tokenizer in Python, one worker) and the code of
run_qa.py on the fast tokenizer (peers/transformers_squad.py), all with 384 tokens and a stride of 128, which
for run_qa.py is the overlap of windows. Lambert's time includes collating all windows into batches of 32; "cached" is
the same from a file of features (`--cache` of finetune). Ratios are peer to Lambert, medians over slices; processor
seconds, workers included, say what holds where other processes share the cores. Lambert's windows are compared with the
classic ones: ids, starts and ends.
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import tokenizers
import torch

from benchmarks.support.experiment import BENCHMARKS
from lambert.tasks.config import TaskConfig
from lambert.tasks.reading.cache import FeatureCache
from lambert.text.tokenizers import tokenizer as lambert_tokenizer

BATCH = 32
SETTINGS = TaskConfig(name="squad").resolve_length()
PEER = BENCHMARKS / "peers/transformers_squad.py"


def processor_time() -> float:
    """Processor seconds of this process and of the workers it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def slice_questions(train: Path, questions: int, slices: int, folder: Path) -> list[Path]:
    """The first questions of a file as several files of as many questions each."""
    with_article = [
        (article["title"], paragraph["context"], question)
        for article in json.loads(train.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ][:questions]
    paths = []
    for number in range(slices):
        paragraphs: list[dict[str, Any]] = []
        part = with_article[number * questions // slices : (number + 1) * questions // slices]
        for _, context, question in part:
            if not paragraphs or paragraphs[-1]["context"] != context:
                paragraphs.append({"context": context, "qas": []})
            paragraphs[-1]["qas"].append(question)
        paths.append(folder / f"{number}.json")
        data = {"version": "1.1", "data": [{"title": part[0][0], "paragraphs": paragraphs}]}
        paths[-1].write_text(json.dumps(data), encoding="utf-8")
    return paths


def ours(tokenizer: Any, path: Path, folder: Path | None = None) -> dict[str, Any]:
    """Lambert: every window of a file, collated; with a `folder`, from its file of features."""
    if folder is not None:
        FeatureCache(folder, tokenizer, "").learn(SETTINGS, path)
    started, processor = time.perf_counter(), processor_time()
    _, windows = FeatureCache(folder, tokenizer, "").learn(SETTINGS, path)
    numbers_S = np.arange(windows.size(0))
    batches = [windows.collate(numbers_S[:0], numbers_S[at : at + BATCH]) for at in range(0, len(numbers_S), BATCH)]
    seconds, processor = time.perf_counter() - started, processor_time() - processor
    made = []
    for batch in batches:
        rows = np.split(batch.ids_T.numpy(), batch.bounds_S1.numpy()[1:-1])
        made += [(ids.tolist(), *span) for ids, span in zip(rows, batch.targets["span"].labels_N.tolist(), strict=True)]
    digest = hashlib.sha256(json.dumps(made).encode()).hexdigest()
    return {"seconds": seconds, "processor_seconds": processor, "windows": len(made), "digest": digest}


class Peer:
    """The process of transformers."""

    def __init__(self, tokenizer: Path, path: str) -> None:
        environment = os.environ | {"PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), "--digest", "--tokenizer", str(tokenizer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.version = self._answer()["transformers"]

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit(f"the peer ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def measure(self, method: str, path: Path) -> dict[str, Any]:
        """One of "classic" and "fast"."""
        assert self.process.stdin
        print(method, path, file=self.process.stdin, flush=True)
        return self._answer()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="an uncased vocab.txt")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--slices", type=int, default=10)
    parser.add_argument("--methods", nargs="*", default=["classic", "fast"], help="of the peer")
    parser.add_argument("--peer-path", default="", help="where transformers 4 is installed")
    parser.add_argument("--json", action="store_true", help="a line of JSON a run, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = lambert_tokenizer.load(args.tokenizer, lowercase=True)
    peer = Peer(args.tokenizer, args.peer_path)
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for number, path in enumerate(slice_questions(args.train, args.questions, args.slices, Path(temporary))):
            found = {"lambert": ours(tokenizer, path), "cached": ours(tokenizer, path, Path(temporary) / "features")}
            found |= {method: peer.measure(method, path) for method in args.methods}
            rounds.append(found)
            for side, row in found.items():
                if args.json:
                    print(json.dumps({"side": side, "slice": number, **row}), flush=True)
    if peer.process.stdin:
        peer.process.stdin.close()
    peer.process.wait()
    summary: dict[str, Any] = {"questions": args.questions, "slices": args.slices}
    for side in rounds[0]:
        for unit in ("seconds", "processor_seconds"):
            summary[f"{side}_{unit}"] = round(sum(found[side][unit] for found in rounds), 2)
            if side in args.methods:
                ratios = [found[side][unit] / found["lambert"][unit] for found in rounds]
                summary[f"{side}_ratio_{unit}"] = round(statistics.median(ratios), 2)
        summary[f"{side}_windows"] = sum(found[side]["windows"] for found in rounds)
    if "classic" in args.methods:
        summary["slices_equal_to_classic"] = sum(f["lambert"]["digest"] == f["classic"]["digest"] for f in rounds)
    summary["slices_equal_to_cached"] = sum(f["lambert"]["digest"] == f["cached"]["digest"] for f in rounds)
    summary |= {"transformers": peer.version, "tokenizers": tokenizers.__version__}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
