"""The estimate of memory, against the peak of a process that trains."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from lambert.engine.precision import PRECISIONS
from lambert.model.config import SIZES, EncoderConfig, ModernConfig
from lambert.model.costs import uses_kernels
from lambert.model.families import FAMILIES, build_encoder
from lambert.planning.memory import bytes_per_token, bytes_per_weight, checkpoint_state, training_state, weight_count

MEASURED = """
import json, sys
import numpy as np, torch
from lambert.core.batch import Target, flat_batch
from lambert.engine.loop import train

from lambert.engine.precision import Precision
from lambert.model import weights
from lambert.model.config import EncoderConfig

settings, precision, length, share = json.loads(sys.argv[1])
torch.set_num_threads(1)
model = weights.draw(EncoderConfig(**settings), {"mlm": 0})
peaks = []
for tokens in (512, 3072):
    ids = np.random.default_rng(0).integers(0, settings["vocabulary"], tokens)
    at = torch.arange(round(share * tokens))
    targets = {"mlm": Target(at, torch.from_numpy(ids[at]))}
    batch = flat_batch(ids, np.zeros_like(ids), np.full(tokens // length, length), targets)
    found = Precision(precision)
    with found.autocast():
        loss = model.train()(batch.with_compute(found.compute)).sum()
    loss.backward()
    status = open("/proc/self/status").read().splitlines()
    peaks.append(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
print((peaks[1] - peaks[0]) / (3072 - 512))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("precision", "length", "dropout", "vocabulary", "share"),
    [
        ("float32", 128, 0.1, 1000, 0.15),
        pytest.param("float32", 512, 0.1, 1000, 0.15, marks=pytest.mark.slow),
        pytest.param("float32", 512, 0.0, 1000, 0.15, marks=pytest.mark.slow),
        pytest.param("float32", 128, 0.0, 30_522, 0.6, marks=pytest.mark.slow),
        pytest.param("bfloat16", 128, 0.1, 1000, 0.15, marks=pytest.mark.slow),
        pytest.param("bfloat16", 512, 0.1, 30_522, 0.15, marks=pytest.mark.slow),
    ],
)
def test_the_estimate_is_near_the_measured_peak(
    precision: str, length: int, dropout: float, vocabulary: int, share: float
) -> None:
    settings = {**SIZES["mini"], "vocabulary": vocabulary, "dropout": dropout, "attention_dropout": dropout}
    arguments = json.dumps([settings, precision, length, share])
    done = subprocess.run([sys.executable, "-c", MEASURED, arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config, cpu = EncoderConfig(**settings), torch.device("cpu")
    dtype = PRECISIONS[precision]
    estimate = bytes_per_token(config, dtype, cpu, longest=length, predicted=share, native=uses_kernels(dtype, cpu))
    assert 0.85 * float(done.stdout) < estimate < 2 * float(done.stdout)


def test_only_a_cpu_without_the_kernels_keeps_the_probabilities_of_attention() -> None:
    def estimate(device: str, longest: int, *, native: bool = False) -> int:
        config = EncoderConfig(**SIZES["base"], vocabulary=30_522)
        return bytes_per_token(
            config, torch.bfloat16, torch.device(device), longest=longest, predicted=0.15, native=native
        )

    assert estimate("cuda", 512) == estimate("cuda", 128)
    assert estimate("cpu", 512, native=True) == estimate("cpu", 128, native=True)
    assert estimate("cpu", 512) > 1.3 * estimate("cpu", 128)


def test_a_weight_has_a_gradient_two_moments_and_where_it_is_rounded_a_copy() -> None:
    assert [bytes_per_weight(dtype) for dtype in PRECISIONS.values()] == [12, 18, 18, 18]


@pytest.mark.parametrize("family", [*FAMILIES])
@pytest.mark.parametrize("modern", [{}, {"kv_heads": 1, "attention_bias": True, "mlp_bias": True, "norm_bias": True}])
def test_weights_are_counted_as_they_are_made(family: str, modern: dict[str, Any]) -> None:
    own = {"mpnet": {"segment_types": 0, "pad": 1, "position_offset": 2}, "electra": {"embedding": 4}}
    types = {"segment_types": 0} if family in ("modernbert", "eurobert", "distilbert") else {}
    config = EncoderConfig(
        layers=3, hidden=8, heads=2, intermediate=20, vocabulary=11, positions=5, block=family,
        modern=ModernConfig(**modern), **types | own.get(family, {}),
    )  # fmt: skip
    assert weight_count(config) == sum(parameter.numel() for parameter in build_encoder(config).parameters())


def test_what_a_run_holds_and_saves_for_its_weights_is_float32() -> None:
    assert training_state(100) == 4 * (100 + 100 + 200)
    assert training_state(100, shards=4) == 4 * (100 + 100 + 50)
    assert training_state(100, moments=0) == 4 * 200
    assert checkpoint_state(100) == 4 * 300
    assert training_state(1) == bytes_per_weight(torch.float32) + 4
