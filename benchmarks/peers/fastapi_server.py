"""The peers of the benchmark of serving: a model of transformers or sentence-transformers behind FastAPI.

    python benchmarks/peers/fastapi_server.py transformers MODEL --task squad --port 8001 [--batch 32]
    python benchmarks/peers/fastapi_server.py sentence-transformers MODEL --port 8001 [--batch 32]

Weights in bfloat16, sdpa attention, the fast tokenizer, uvicorn with httptools and uvloop. With `--batch 1` each
request is computed alone as it comes, by all threads; with more, as an expert writes it: a thread takes what is
waiting, up to that many texts, and computes them as one batch padded to its longest text. Bodies are {"inputs": text}
or {"inputs": {"question": ..., "context": ...}}.
"""

import argparse
import asyncio
import queue
import threading
from concurrent.futures import Future
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI

LENGTH, STRIDE, LONGEST = 384, 128, 30


def vectors(folder: str) -> Any:
    """A function from texts to vectors."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", model_kwargs={"torch_dtype": torch.bfloat16})

    def compute(texts: list[str]) -> list[Any]:
        return model.encode(texts, batch_size=len(texts), show_progress_bar=False).tolist()  # type: ignore[no-any-return]

    return compute


def span_answers(folder: str) -> Any:
    """A function from questions with contexts to the best span of each."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.eval()

    def compute(rows: list[dict[str, str]]) -> list[Any]:
        encoded = tokenizer(
            [row["question"] for row in rows], [row["context"] for row in rows], truncation="only_second",
            max_length=LENGTH, stride=STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True,
            padding="longest", return_tensors="pt",
        )  # fmt: skip
        owners, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        with torch.inference_mode():
            out = model(**encoded)
        inside = torch.tensor([[part == 1 for part in encoded.sequence_ids(at)] for at in range(len(owners))])
        starts, ends = (values.float().masked_fill(~inside, -1e9) for values in (out.start_logits, out.end_logits))
        width = starts.shape[1]
        band = torch.ones(width, width, dtype=torch.bool).triu().tril(LONGEST - 1)
        sums = (starts[:, :, None] + ends[:, None, :]).masked_fill(~band, -1e9).flatten(1)
        best, places = sums.max(1)
        found: list[Any] = [None] * len(rows)
        scores = [-1e9] * len(rows)
        for at, owner in enumerate(owners.tolist()):
            if best[at] > scores[owner]:
                scores[owner] = float(best[at])
                first, last = divmod(int(places[at]), width)
                found[owner] = rows[owner]["context"][int(offsets[at, first, 0]) : int(offsets[at, last, 1])]
        return found

    return compute


def labels(folder: str) -> Any:
    """A function from texts to the most probable label of each."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.eval()

    def compute(texts: list[str]) -> list[Any]:
        with torch.inference_mode():
            logits = model(**tokenizer(texts, truncation=True, padding="longest", return_tensors="pt")).logits
        return [model.config.id2label[int(number)] for number in logits.argmax(-1)]

    return compute


class Batcher:
    """A thread that computes what is waiting, up to `most` texts at a time."""

    def __init__(self, compute: Any, most: int) -> None:
        self.compute, self.most = compute, most
        self.waiting: queue.SimpleQueue[tuple[Any, Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        while True:
            taken = [self.waiting.get()]
            while len(taken) < self.most and not self.waiting.empty():
                taken.append(self.waiting.get())
            for (_, future), answer in zip(taken, self.compute([text for text, _ in taken]), strict=True):
                future.set_result(answer)

    def ask(self, text: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.waiting.put((text, future))
        return future


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("transformers", "sentence-transformers"))
    parser.add_argument("model")
    parser.add_argument("--task", choices=("squad", "classify"), default="squad")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    makers = {"squad": span_answers, "classify": labels}
    compute = vectors(args.model) if args.library == "sentence-transformers" else makers[args.task](args.model)
    batcher = Batcher(compute, args.batch)
    app = FastAPI()

    @app.post("/predict")
    async def predict(body: dict[str, Any]) -> dict[str, Any]:
        return {"outputs": [await asyncio.wrap_future(batcher.ask(body["inputs"]))]}

    print("ready", flush=True)
    uvicorn.run(app, port=args.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
