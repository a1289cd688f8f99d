"""The peer of the budgets: masked-LM pre-training with transformers as in its script run_mlm, within a budget.

    python benchmarks/peers/transformers_pretrain.py --corpus CORPUS --config model.json --seconds 600 --out OUT

Imports nothing of Lambert. Reads the tokens of a corpus of `lambert prepare` with numpy, so that both sides have the
same text and vocabulary, and groups them into blocks of `--length`, as run_mlm does. Masks are those of transformers'
collator for language modeling, new in every epoch; the model is a BERT of the sizes in model.json, with sdpa attention;
unlike in run_mlm, only the masked tokens pass through the head. The optimizer is torch's fused AdamW. The budget is
processor time (`--clock wall`: seconds) of training alone. The learning rate is a function of the share of the budget
that is used, so that it is 0 at its end: warm-up, then linear.

Writes a Hugging Face folder and prints a line of JSON. `mlm` is the loss on the first blocks of held-out text, with
15% of the tokens masked, as in `lambert pretrain`.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HELDOUT = 2048
"""Blocks of held-out text that are scored."""


def blocks(corpus: Path, split: str, tokenizer: Any, length: int) -> torch.Tensor:
    """The tokens of a split of the corpus in blocks of `length` with [CLS] and [SEP], [B, length]."""
    dtype = "<u2" if len(tokenizer) <= 65_536 else "<u4"
    tokens = np.concatenate([np.fromfile(shard, dtype) for shard in sorted((corpus / split).glob("*.bin"))])
    inner = length - 2
    rows = tokens[: len(tokens) // inner * inner].reshape(-1, inner).astype(np.int64)
    ends = np.full((2, len(rows), 1), [[[tokenizer.cls_token_id]], [[tokenizer.sep_token_id]]])
    return torch.from_numpy(np.concatenate([ends[0], rows, ends[1]], axis=1))


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """The mean loss of the masked tokens of a batch of sequences of equal length, [B, length], in nats."""
    masked = batch["labels"] != -100
    logits = model.cls(model.bert(batch["input_ids"]).last_hidden_state[masked])
    return torch.nn.functional.cross_entropy(logits.float(), batch["labels"][masked])


@torch.no_grad()
def heldout(model: Any, rows: torch.Tensor, tokenizer: Any) -> float:
    """The mean loss of the masked tokens of these blocks, each masked once, in nats. Changes the mode of the model
    and torch's random numbers."""
    model.eval()
    torch.manual_seed(0)
    masks = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    total = count = 0.0
    for begin in range(0, min(HELDOUT, len(rows)), 64):
        found = masks([{"input_ids": row} for row in rows[begin : begin + 64]])
        batch = {name: value.to(model.device) for name, value in found.items()}
        masked = int((batch["labels"] != -100).sum())
        total, count = total + masked * float(loss_of(model, batch)), count + masked
    return total / count


def rate(share: float, warmup: float, lr: float) -> float:
    """The learning rate after this share of the budget."""
    return lr * (share / warmup if share < warmup else max(0.0, (1 - share) / (1 - warmup)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "config", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--clock", choices=("processor", "wall"), default="processor")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--masked", type=float, default=0.15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--workers", type=int, default=0, help="processes that mask")
    parser.add_argument("--compile", action="store_true", help="compile the model, before the budget begins")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.set_seed(args.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.corpus)
    rows = blocks(args.corpus, "train", tokenizer, args.length)
    masks = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=args.masked)
    config = transformers.BertConfig(**json.loads(args.config.read_text()), vocab_size=len(tokenizer))
    model = transformers.BertForMaskedLM._from_config(config, attn_implementation="sdpa").to(args.device).train()
    weights = list(model.parameters())
    groups = [{"params": [w for w in weights if (w.ndim > 1) == many], "weight_decay": 0.01 * many} for many in (1, 0)]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), eps=args.eps, fused=True)
    examples: Any = [{"input_ids": row} for row in rows]
    loader: Any = torch.utils.data.DataLoader(
        examples, args.batch_size, shuffle=True, drop_last=True, collate_fn=masks,
        num_workers=args.workers, pin_memory=args.device != "cpu", persistent_workers=args.workers > 0,
    )  # fmt: skip
    batches = (batch for _ in itertools.count() for batch in loader)

    def gradients() -> Any:
        batch = {name: value.to(args.device, non_blocking=True) for name, value in next(batches).items()}
        with torch.autocast(torch.device(args.device).type, torch.bfloat16, enabled=args.bf16):
            loss = loss_of(model, batch)
        loss.backward()
        return loss

    if args.compile:
        model.bert.compile()
        model.cls.compile(dynamic=True)
        gradients()
        optimizer.zero_grad()
        float(gradients().detach())
        optimizer.zero_grad()
    clock = time.process_time if args.clock == "processor" else time.perf_counter
    began, updates = clock(), 0
    while (share := (clock() - began) / args.seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate(share, 0.06, args.lr)
        loss = gradients()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
    result = {"steps": updates, "seconds": round(clock() - began, 1), "loss": float(loss.detach())}
    result["mlm"] = heldout(model, blocks(args.corpus, "heldout", tokenizer, args.length), tokenizer)
    result |= {"lr": args.lr, "batch": args.batch_size, "masked": args.masked}
    model.save_pretrained(args.out / "model")
    tokenizer.save_pretrained(args.out / "model")
    (args.out / "result.tmp").write_text(json.dumps(result))
    (args.out / "result.tmp").replace(args.out / "result.json")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
