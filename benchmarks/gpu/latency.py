"""How long one question takes that `lambert serve` answers alone, by the kernels one after the other and by a graph.

    python -m benchmarks.gpu.latency --work WORK --out FILE [--device cuda] [--seconds 10]

A BERT-base with random weights and a vocabulary of `docs/` answers questions about a paragraph of 40 to 300 words, one
request after the other over one connection. A line of JSON for each way: latencies in milliseconds, from the first byte
of the request to the last of the answer. `--device cpu --size tiny` proves the script where there is no GPU.
"""

import argparse
import json
import sys
from pathlib import Path

import lambert
from benchmarks.serving import load
from benchmarks.support import processes
from benchmarks.support.experiment import ROOT, record
from lambert.model.config import SIZES

WAYS: dict[str, dict[str, str]] = {"eager": {}, "graphs": {"LAMBERT_GRAPHS": "1"}}
LENGTHS = 40, 100, 200, 300


def build_model(folder: Path, size: str) -> Path:
    """Writes a model folder that answers questions."""
    import transformers
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train([str(path) for path in ROOT.glob("docs/*.md")], vocab_size=8000)
    transformers.BertTokenizerFast(tokenizer_object=tokenizer._tokenizer).save_pretrained(folder / "hf")
    shape = SIZES[size]
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=shape["hidden"], num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"], intermediate_size=shape["intermediate"],
    )  # fmt: skip
    transformers.BertForQuestionAnswering(config).save_pretrained(folder / "hf")
    return lambert.import_model(folder / "hf", out=folder / "model").folder


def bodies() -> list[bytes]:
    words = (ROOT / "docs" / "pretrain.md").read_text(encoding="utf-8").split()
    texts = [" ".join(words[10 * number :][:length]) for number, length in enumerate(LENGTHS * 5)]
    return [json.dumps({"inputs": {"question": "What does a run write?", "context": text}}).encode() for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="base")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    model = build_model(args.work, args.size)
    for way, variables in WAYS.items():
        port = processes.free_port()
        command = [sys.executable, "-m", "lambert", "serve", f"--model={model}", f"--port={port}"]
        command += [f"--device={args.device}"]
        with processes.serve(command, f"http://127.0.0.1:{port}/readyz", variables):
            url = f"http://127.0.0.1:{port}/predict"
            load.run(url, bodies(), connections=1, seconds=args.seconds / 4)
            found = load.run(url, bodies(), connections=1, seconds=args.seconds)
        record(args.out, {"way": way, "size": args.size, "device": args.device, **found})


if __name__ == "__main__":
    main()
