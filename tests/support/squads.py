"""SQuAD files, the settings of golden/make_squad.py, and logits that a formula gives."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lambert.tasks import SquadConfig, TaskConfig
from lambert.tasks.squad.windows import Windows

SETTINGS = {
    "wide": TaskConfig(name="squad", max_length=384, squad=SquadConfig(null_threshold=-30.0)),
    "narrow": TaskConfig(
        name="squad", max_length=96, squad=SquadConfig(stride=32, max_query=24, null_threshold=-30.0)
    ),
}  # fmt: skip


def checksum(value: Any) -> int:
    return zlib.crc32(json.dumps(value).encode())


def formula_logits(ids: np.ndarray) -> torch.Tensor:
    """The logits of golden/make_squad.py for one window."""
    mixed = np.stack([(ids * 7919 + np.arange(len(ids)) * 31 + side * 17) % 97 for side in (0, 1)], 1)
    return torch.from_numpy((mixed / 4.0 - 12.0).astype(np.float32))


def outputs_of(data: Windows, per_batch: int = 7) -> list[dict[str, torch.Tensor]]:
    found = []
    for start in range(0, data.size(0), per_batch):
        indices = np.arange(start, min(start + per_batch, data.size(0)))
        batch = data.collate(np.zeros_like(indices), indices)
        parts = np.split(batch.ids_T.numpy(), batch.bounds_S1.numpy()[1:-1])
        found.append({"span": torch.cat([formula_logits(ids) for ids in parts])})
    return found


def write(folder: Path, value: Any) -> Path:
    path = folder / "squad.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def one(context: str, answers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    question = {"id": "q1", "question": "When was he born?", "answers": answers, **more}
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": [question]}]}]}
