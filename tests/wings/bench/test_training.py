"""Training and inference of ModernBERT in the bench: the same values as transformers, and what it does not have."""

import pytest
import torch

from lambert.core.errors import UsageError
from lambert.core.world import World
from lambert.wings.bench import inference, training
from lambert.wings.bench.verb import BenchConfig

WORKS = {"pretrain": training.pretrain, "finetune": training.finetune, "inference": inference.inference}


@pytest.mark.parametrize(
    "work", [pytest.param(work, marks=() if work == "inference" else pytest.mark.slow) for work in WORKS]
)
def test_modernbert_beside_transformers(work: str) -> None:
    """Sequences are longer than the window. transformers' loss of spans includes the padding, so there is none."""
    config = BenchConfig(
        work=work, block="modernbert", size="mini", sequences=2, length=80, precision="float32", peer="transformers",
        lengths="full" if work == "finetune" else "squad",
    ).resolve()  # fmt: skip
    torch.manual_seed(0)
    made = WORKS[work](config, World())
    own, peer = (side()() for side in made.sides.values())
    assert own == pytest.approx(peer, rel=1e-5)
    assert made.operations > 0


def test_other_peers_and_works_have_berts_block() -> None:
    with pytest.raises(
        UsageError, match="block = 'modernbert' is for the works run, inference, pretrain, finetune, not"
    ):
        BenchConfig(work="loader", block="modernbert")
    with pytest.raises(UsageError, match="peer = openvino-latency is measured with BERT's block only"):
        BenchConfig(work="inference", block="modernbert", peer="transformers,openvino-latency")
