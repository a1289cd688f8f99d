"""Blocks by Triton's kernels: in float32 by its interpreter, in bfloat16 on a GPU, beside torch in float64."""

import os
from dataclasses import replace

import pytest
import torch
from blocks import CONFIGS, build, compare, run
from flat import make_batch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton's interpreter (make test-triton)", allow_module_level=True)

from lambert.model import bert, block, linear, rotary
from lambert.ops.cuda import CudaOps
from lambert.ops.reference import Ops

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PLACES = [(block, "choose"), (linear, "choose"), (bert, "choose"), (rotary, "of_device")]


DROPPED = [(name, 0.2) for name in CONFIGS if name != "mpnet"]  # flash attention has no biases


@pytest.mark.parametrize(("name", "dropout"), [*DROPPED, ("bert", 0.0), ("gte", 0.0), ("modernbert", 0.0)])
def test_states_and_gradients(name: str, dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels and the reference drop the same elements of the states; flash attention would drop others."""
    kept = 0.0 if DEVICE.type == "cuda" else dropout / 2
    config = replace(CONFIGS[name], dropout=dropout, attention_dropout=kept)
    model, batch = build(config).to(DEVICE), make_batch([5, 1, 20], 200).to(DEVICE)
    model.encoder.config = CONFIGS[name]  # nothing of the embeddings is dropped: torch would draw other masks
    found = []
    for ops in (CudaOps(torch.bfloat16 if DEVICE.type == "cuda" else torch.float32), Ops(torch.float64)):
        for place, attribute in PLACES:
            monkeypatch.setattr(place, attribute, lambda *_, ops=ops: ops)
        found.append(run(model.to(ops.dtype if ops.name == "torch" else torch.float32), batch))
    compare(*found, 0.02 if DEVICE.type == "cuda" else 2e-5)
