"""The peer of the benchmark of sentence vectors: sentence-transformers' model and losses.

    python benchmarks/peers/sentence_transformers_vectors.py train --model MODEL --texts pairs.jsonl --out OUT
    python benchmarks/peers/sentence_transformers_vectors.py encode --model MODEL --texts texts.jsonl --out vectors.npy

Training is a plain loop around its losses, without the Trainer: random batches, each column padded to its longest text,
sdpa attention, autocast where asked, torch's fused AdamW, a linear schedule, gradients clipped at 1. `--loss plain` is
MultipleNegativesRankingLoss, `cached` CachedMultipleNegativesRankingLoss with mini-batches of 32, its default; the
columns are query and passage. `cosent` is CoSENTLoss, of sentence1, sentence2 and score. `encode` sorts the texts by
length, as the library does. Prints a line of JSON with the seconds of training or encoding.
"""

import argparse
import json
import random
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses


def train(args: argparse.Namespace) -> None:
    rows = [json.loads(line) for line in args.texts.read_text(encoding="utf-8").splitlines()]
    random.Random(args.seed).shuffle(rows)
    torch.manual_seed(args.seed)
    model = SentenceTransformer(str(args.model), device="cpu")
    model.max_seq_length = args.length
    kinds = {
        "plain": losses.MultipleNegativesRankingLoss,
        "cached": losses.CachedMultipleNegativesRankingLoss,
        "cosent": losses.CoSENTLoss,
    }
    loss = kinds[args.loss](model)
    columns = ("sentence1", "sentence2") if args.loss == "cosent" else ("query", "passage")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, eps=1e-6, weight_decay=0.0, fused=True)
    steps = -(-len(rows) // args.batch_size)
    warm = max(1, round(0.1 * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
    )
    cast = torch.autocast("cpu", torch.bfloat16) if args.precision == "bfloat16" else nullcontext()
    model.train()
    began, value = time.perf_counter(), torch.zeros(())
    for step in range(steps):
        part = rows[step * args.batch_size : (step + 1) * args.batch_size]
        features = [model.preprocess([row[name] for row in part]) for name in columns]
        scores = torch.tensor([row["score"] for row in part]) if args.loss == "cosent" else None
        with cast:
            value = loss(features, scores)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = time.perf_counter() - began
    model.save(str(args.out))
    print(json.dumps({"seconds": round(seconds, 2), "pairs": len(rows), "loss": float(value.detach())}))


def encode(args: argparse.Namespace) -> None:
    texts = [json.loads(line)["text"] for line in args.texts.read_text(encoding="utf-8").splitlines()]
    dtype = torch.bfloat16 if args.precision == "bfloat16" else torch.float32
    model = SentenceTransformer(str(args.model), device="cpu", model_kwargs={"dtype": dtype})
    model.encode(texts[:64])
    began = time.perf_counter()
    vectors = model.encode(texts, show_progress_bar=False)
    seconds = time.perf_counter() - began
    np.save(args.out, vectors)
    print(json.dumps({"seconds": round(seconds, 2)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("train", "encode"))
    for name in ("model", "texts", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--loss", choices=("plain", "cached", "cosent"), default="plain")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    {"train": train, "encode": encode}[args.verb](args)


if __name__ == "__main__":
    main()
