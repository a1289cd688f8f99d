"""Triton's kernels, in its interpreter, beside torch in float64."""

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton's interpreter (make test-triton)", allow_module_level=True)

from lambert.ops.cuda import CudaOps
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.reference import Into, Norm, Ops

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # 1 / (1 + inf) is 0
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OPS, ORACLE = CudaOps(), Ops(torch.float64)
DROP = Drop(key=0xFEDCBA9876543210, threshold=20000)
DTYPES = [torch.float32, torch.bfloat16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
drops = pytest.mark.parametrize("drop", [NOTHING, DROP], ids=["all", "dropped"])
sizes = pytest.mark.parametrize(("T", "D"), [(1, 8), (7, 48), (33, 132)])


def drawn(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def wide(value: object) -> object:
    """Tensors of states in float64; tuples of them likewise."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Norm):
        return Norm(*(wide(part) for part in value))  # type: ignore[arg-type]
    return tuple(map(wide, value)) if isinstance(value, tuple | list) else value


def near(found: Tensor, expected: Tensor, dtype: torch.dtype, roundings: int = 8) -> None:
    """Within a few roundings to `dtype` of the largest element."""
    assert found.shape == expected.shape
    share = roundings * torch.finfo(dtype).eps
    largest = max(0.25, float(expected.abs().max()) if expected.numel() else 0.0)
    torch.testing.assert_close(found.double(), expected, rtol=share, atol=share * largest)


@sizes
@dtypes
@drops
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_add_norm(T: int, D: int, dtype: torch.dtype, drop: Drop, centred: bool, added: bool) -> None:
    y_TD, x_TD, grad_TD, other_TD = (drawn(dtype, T, D, seed=seed) for seed in range(4))
    norm = Norm(drawn(torch.float32, D), drawn(torch.float32, D, seed=1) if centred else None, 1e-5, centred)
    y = y_TD if added else None
    out_TD, saved = OPS.add_norm(y, x_TD, norm, drop)
    expected_TD, expected = ORACLE.add_norm(wide(y), wide(x_TD), wide(norm), drop)
    near(out_TD, expected_TD, dtype)
    near(saved[0], expected[0], dtype)
    for other in (None, other_TD):
        found = OPS.add_norm_backward(grad_TD, saved, norm, drop, other)
        expected = ORACLE.add_norm_backward(wide(grad_TD), wide(saved), wide(norm), drop, wide(other))
        for one, another, kind in zip(found, expected, (dtype, dtype, torch.float32, torch.float32), strict=True):
            near(one, another, kind, 32)


@dtypes
@drops
@pytest.mark.parametrize("tables", [1, 2, 3])
def test_embed_norm(dtype: torch.dtype, drop: Drop, tables: int) -> None:
    T, D = 9, 24
    indices = [torch.arange(T, device=DEVICE) % (count + 1) for count in range(tables)]
    weights = [drawn(torch.float32, count + 1, D, seed=count) for count in range(tables)]
    norm = Norm(drawn(torch.float32, D), drawn(torch.float32, D, seed=1), 1e-12)
    out_TD, saved = CudaOps(dtype).embed_norm(indices, weights, norm, drop)
    expected_TD, _ = ORACLE.embed_norm(indices, wide(weights), wide(norm), drop)
    near(out_TD, expected_TD, dtype)
    grad_TD = drawn(dtype, T, D, seed=5)
    found = OPS.embed_norm_backward(grad_TD, saved, norm, drop)
    for one, another, kind in zip(
        found,
        ORACLE.embed_norm_backward(wide(grad_TD), wide(saved), wide(norm), drop),
        (dtype, torch.float32, torch.float32),
        strict=True,
    ):
        near(one, another, kind, 32)


@sizes
@dtypes
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(T: int, D: int, dtype: torch.dtype, approximate: str) -> None:
    x_TD, F = drawn(dtype, T, D), 16
    up, down = (CudaOps(dtype).pack([drawn(dtype, *shape)], [None]) for shape in ((F, D), (D, F)))
    y_TF, active_TF = OPS.linear_gelu(x_TD, up, approximate)
    near(active_TF, torch.nn.functional.gelu(y_TF.double(), approximate=approximate), dtype)
    grad_TD = drawn(dtype, T, D, seed=1)
    found_TF = OPS.linear_gelu_input(grad_TD, down, y_TF, approximate)
    expected_TF = torch.ops.aten.gelu_backward(
        (grad_TD @ down.weight_FD).double(), y_TF.double(), approximate=approximate
    )
    near(found_TF, expected_TF, dtype)
    found_DD, expected_DD = torch.ones(D, D), torch.ones(D, D, dtype=torch.float64)
    bias_D, expected_D = torch.ones(D), torch.ones(D, dtype=torch.float64)
    OPS.linear_weights(grad_TD, x_TD, [Into(0, D, (found_DD, True), (bias_D, True))])
    ORACLE.linear_weights(wide(grad_TD), wide(x_TD), [Into(0, D, (expected_DD, True), (expected_D, True))])
    near(bias_D, expected_D, torch.float32)
    near(found_DD, expected_DD, dtype)


@sizes
@dtypes
@drops
@pytest.mark.parametrize("order", [{"gate_first": True}, {"gate_first": False}], ids=["gate first", "gate last"])
@pytest.mark.parametrize("activation", ["none", "tanh", "silu"])
def test_gated(T: int, D: int, dtype: torch.dtype, drop: Drop, activation: str, order: dict[str, bool]) -> None:
    both_TF, grad_TF = drawn(dtype, T, 2 * D), drawn(dtype, T, D, seed=1)
    near(OPS.gated(both_TF, activation, drop, **order), ORACLE.gated(wide(both_TF), activation, drop, **order), dtype)
    found = OPS.gated_backward(both_TF, grad_TF, activation, drop, **order)
    near(found, ORACLE.gated_backward(wide(both_TF), wide(grad_TF), activation, drop, **order), dtype)


@dtypes
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("H", "E"), [(1, 2), (3, 24), (12, 64)])
def test_rotate(dtype: torch.dtype, back: bool, H: int, E: int) -> None:
    qkv_T3HE, positions_T = drawn(dtype, 5, 3, H, E), torch.tensor([0, 1, 2, 0, 8], device=DEVICE)
    angles_ME = torch.arange(9.0, device=DEVICE)[:, None] * torch.rand(E // 2, device=DEVICE)
    turns = angles_ME.cos(), angles_ME.sin()
    expected = ORACLE.rotate_(qkv_T3HE.double(), positions_T, wide(turns), back=back)
    near(OPS.rotate_(qkv_T3HE, positions_T, turns, back=back), expected, dtype)


@dtypes
@pytest.mark.parametrize(("N", "V"), [(0, 8), (1, 2), (5, 4999)])
def test_cross_entropy(dtype: torch.dtype, N: int, V: int) -> None:
    logits_NV, labels_N = 5 * drawn(dtype, N, V), torch.arange(N, device=DEVICE) * 3 % V
    expected_N, expected = ORACLE.cross_entropy(logits_NV.double(), labels_N)
    scales_N = torch.linspace(-0.5, 1.0, len(labels_N))
    grad_NV = ORACLE.cross_entropy_backward_(logits_NV.double(), labels_N, expected, scales_N.double())
    losses_N, saved = OPS.cross_entropy(logits_NV, labels_N)
    near(losses_N, expected_N, torch.float32, 16)
    near(OPS.cross_entropy_backward_(logits_NV, labels_N, saved, scales_N), grad_NV, dtype)
