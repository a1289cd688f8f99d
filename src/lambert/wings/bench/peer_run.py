"""Pre-training in a plain loop of torch and transformers: the peer of `lambert bench --work run`.

    python peer_run.py FOLDER --out FILE --form expert --micro-tokens 4096

Imports nothing of Lambert. Reads FOLDER/model.json, the configuration of a BERT or ModernBERT, and
FOLDER/sequences.npz, the sequences of every update with their masks. Appends a line of JSON to FILE after each update:
the time in seconds since 1970, and the loss.

form = expert: micro-batches of sequences sorted by length, padded to their longest; logits at the masked positions
only. form = stock: micro-batches in the order of the data; the model's own loss, from logits at all positions. Both
have sdpa attention, autocast, fused AdamW, gradient clipping and a linear schedule.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100
"""Label of a token that is not predicted."""


class Expert(nn.Module):
    """The loss of a micro-batch, with logits at the masked positions only."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: Tensor, types: Tensor, inside: Tensor | None, at: Tensor, labels: Tensor, nsp: Tensor, counts: Tensor
    ) -> Tensor:
        """Returns the summed losses, divided by the `counts` [2] of masked tokens and sequences of the update."""
        more = {"token_type_ids": types} if hasattr(self.model, "bert") else {}
        found = self.model.base_model(input_ids=ids, attention_mask=inside, **more)
        states = found.last_hidden_state.flatten(0, 1).index_select(0, at)
        logits = self.model.cls.predictions(states) if more else self.model.decoder(self.model.head(states))
        loss = functional.cross_entropy(logits.float(), labels, reduction="sum") / counts[0]
        if len(nsp):
            logits = self.model.cls.seq_relationship(found.pooler_output)
            loss = loss + functional.cross_entropy(logits.float(), nsp, reduction="sum") / counts[1]
        return loss


class Stock(nn.Module):
    """The loss of a micro-batch as the model computes it, from logits at all positions."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, parts: int, **inputs: Tensor) -> Any:
        """Returns the mean loss, divided by the number of micro-batches of the update."""
        return self.model(**inputs).loss / parts


class Sequences:
    """The sequences of all updates, U updates of S sequences."""

    def __init__(self, path: Path, form: str, micro_tokens: int, length: int) -> None:
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files}
        self.updates, self.size = arrays["lengths_US"].shape
        self.lengths, self.at = arrays["lengths_US"].ravel(), arrays["at_N"]
        self.ids, self.types = torch.from_numpy(arrays["ids_T"]), torch.from_numpy(arrays["types_T"])
        self.labels, self.nsp = torch.from_numpy(arrays["labels_N"]), torch.from_numpy(arrays["nsp_US"].ravel())
        self.form, self.micro_tokens, self.length = form, micro_tokens, length
        self.bounds = np.concatenate([[0], np.cumsum(self.lengths)])
        self.masked = np.searchsorted(self.at, self.bounds)

    def update(self, number: int) -> list[dict[str, Any]]:
        """Returns the arguments of `Expert` or `Stock` for each micro-batch of an update."""
        parts = [self._rows(cut) for cut in self._cuts(number)]
        if self.form == "expert":
            counts = torch.tensor([sum(len(part["labels"]) for part in parts), self.size])
            return [{**part, "counts": counts} for part in parts]
        return [{**part, "parts": len(parts)} for part in parts]

    def _cuts(self, update: int) -> list[Any]:
        """The numbers of the sequences of each micro-batch, which has at most `micro_tokens` tokens, padding included,
        or one sequence."""
        numbers = np.arange(update * self.size, (update + 1) * self.size)
        if self.form == "stock":
            rows = max(1, self.micro_tokens // self.length)
            return np.split(numbers, range(rows, self.size, rows))
        numbers, cuts = numbers[np.argsort(-self.lengths[numbers], kind="stable")], []
        while len(numbers):
            rows = max(1, self.micro_tokens // self.lengths[numbers[0]])
            cuts.append(numbers[:rows])
            numbers = numbers[rows:]
        return cuts

    def _rows(self, numbers: Any) -> dict[str, Any]:
        """These sequences as rows, padded to their longest."""
        shape = len(numbers), int(self.lengths[numbers].max())
        ids, types, inside = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
        labels = torch.full(shape, IGNORED)
        for row, number in enumerate(numbers):
            start, end, length = self.bounds[number], self.bounds[number + 1], self.lengths[number]
            ids[row, :length], types[row, :length], inside[row, :length] = self.ids[start:end], self.types[start:end], 1
            masked = slice(self.masked[number], self.masked[number + 1])
            labels[row, self.at[masked] - start] = self.labels[masked]
        nsp = self.nsp[numbers] if len(self.nsp) else self.nsp
        if self.form == "stock":
            made = {"input_ids": ids, "attention_mask": inside, "labels": labels}
            return {**made, "token_type_ids": types, "next_sentence_label": nsp} if len(nsp) else made
        at = (labels.ravel() != IGNORED).nonzero()[:, 0]
        mask = None if inside.all() else inside
        return {"ids": ids, "types": types, "inside": mask, "at": at, "labels": labels.ravel()[at], "nsp": nsp}


def train(options: argparse.Namespace) -> None:
    """Trains over all updates and writes a line after each."""
    import transformers

    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    data = Sequences(options.folder / "sequences.npz", options.form, options.micro_tokens, options.length)
    updates = min(options.updates or data.updates, data.updates)
    # Assembled in advance: the peer never waits for its data.
    batches = [[_move(part, device) for part in data.update(number)] for number in range(updates)]
    kind = transformers.AutoModelForPreTraining if len(data.nsp) else transformers.AutoModelForMaskedLM
    settings = json.loads((options.folder / "model.json").read_text())
    config = transformers.AutoConfig.for_model(**settings)
    if settings["model_type"] == "modernbert":
        config.sparse_prediction = True  # its own loss takes the logits of masked tokens only
    model = kind.from_config(config, attn_implementation="sdpa")
    called: Any = {"expert": Expert, "stock": Stock}[options.form](model).to(device).train()
    if options.compile:
        called = torch.compile(called, dynamic=True)
    weights = list(model.parameters())
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": 0.01},
        {"params": [weight for weight in weights if weight.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, eps=1e-6, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=updates)
    with options.out.open("w", encoding="utf-8") as out:
        for parts in batches:
            loss = 0.0
            for inputs in parts:
                with torch.autocast(device.type, torch.bfloat16, enabled=options.bfloat16):
                    share = called(**inputs)
                share.backward()
                loss += float(share.detach())
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            out.write(json.dumps({"time": time.time(), "loss": loss}) + "\n")
            out.flush()


def _move(inputs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if torch.is_tensor(value) else value for name, value in inputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--form", choices=("expert", "stock"), default="expert")
    parser.add_argument("--micro-tokens", type=int, default=4096)
    parser.add_argument("--length", type=int, default=512, help="tokens of the longest possible sequence")
    parser.add_argument("--updates", type=int, default=0, help="0: all")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
