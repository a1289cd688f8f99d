"""What a run writes down about an update that went wrong, and the way from there to the very text."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lambert.core.batch import Batch
from lambert.data.stream import stream
from lambert.runs import updates
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.verbs.pretrain import texts


def test_from_a_bad_update_to_its_text(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[tuple[int, Batch]]] = []

    def watched(*arguments: Any, **options: Any) -> Iterator[Any]:
        for update in stream(*arguments, **options):
            seen.append(list(update.micro_batches))
            yield update

    monkeypatch.setattr(updates, "stream", watched)
    monkeypatch.setattr(updates, "schedule", lambda optim, steps: lambda number: 1e9 if number == 2 else 1e-3)
    run = tmp_path / "run"
    wild = {"optim__name": "adamw", "optim__max_grad_norm": 0, "train__steps": 40, "train__micro_tokens": 64}
    wild |= {"guard__skips": 20}
    done = lambert("pretrain", corpus=corpus, out=run, **small, **wild)
    assert done.code == 5, done.err
    rows = [json.loads(line) for line in (run / "incidents.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [*range(4, 24)]
    assert [row["what"] for row in rows] == ["skipped"] * 19 + ["diverged"]
    assert "update 4 skipped: its gradient is not finite" in (run / "log.txt").read_text()
    over_the_end = next(row for row in rows if len(row["samples"]) == 2)  # of an epoch
    tokenizer = tokenizers.load(corpus)
    for row in (rows[0], over_the_end, rows[-1]):
        size = 8
        assert row["sequences"] == [(row["step"] - 1) * size, row["step"] * size - 1]
        expected = []
        for _, batch in seen[row["step"] - 1]:
            ids, at = batch.ids_T.tolist(), batch.targets["mlm"].at_N.tolist()
            for place, label in zip(at, batch.targets["mlm"].labels_N.tolist(), strict=True):
                ids[place] = label
            bounds = batch.bounds_S1.tolist()
            expected += [ids[a:b] for a, b in pairwise(bounds)]
        found = texts(run, row["step"])
        assert found == [tokenizer.decode(row, skip_special_tokens=False) for row in expected]
        assert all(text.startswith("[CLS]") and "[MASK]" not in text for text in found)
