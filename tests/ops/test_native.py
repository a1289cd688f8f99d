"""Each operation by the compiled kernels is that of torch in float64 up to a rounding to bfloat16, with equal dropout.

The kernels' own tests, with threads and instructions, are in tests/native.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from lambert.native import library
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.native import OPS, PackedWeight
from lambert.ops.reference import Into, Norm, Ops, Weight

pytestmark = pytest.mark.skipif(library() is None, reason="the compiled kernels are not used on this machine")
ORACLE = Ops(torch.float64)
DROP = Drop(key=0xFEDCBA9876543210, threshold=20000)
drops = pytest.mark.parametrize("drop", [NOTHING, DROP], ids=["all", "dropped"])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).bfloat16()


def wide(values: object) -> object:
    if isinstance(values, Tensor):
        return values.double() if values.is_floating_point() else values
    if isinstance(values, Norm):
        return Norm(*(wide(one) for one in values))  # type: ignore[arg-type]
    return tuple(map(wide, values)) if isinstance(values, tuple | list) else values


def near(found: Tensor, expected: Tensor, share: float = 2**-6) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=share, atol=share * float(expected.abs().max()) + 1e-9)


@drops
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("window", "causal", "limited"),
    [(0, False, False), (20, False, False), (0, True, False), (20, True, False), (0, False, True), (0, True, True)],
)
def test_attention(window: int, causal: bool, limited: bool, biased: bool, drop: Drop) -> None:
    lengths, H, E = [1, 70, 33], 2, 32
    bounds_S1 = torch.tensor([0, *lengths]).cumsum(0).int()
    qkv_T3HE, grad_THE = drawn(sum(lengths), 3, H, E), drawn(sum(lengths), H, E)
    biases_HL = drawn(H, 2 * 75 - 1).float() if biased else None  # for more distances than there are
    keys_S = torch.tensor([1, 41, 7], dtype=torch.int32) if limited else None
    reach: dict[str, Any] = {"causal": causal, "keys_S": keys_S}
    results = []
    for ops, values in ((OPS, (qkv_T3HE, grad_THE, biases_HL)), (ORACLE, wide((qkv_T3HE, grad_THE, biases_HL)))):
        qkv, grad, biases = values  # type: ignore[misc]
        out_THE, saved = ops.attention(qkv, bounds_S1, 70, drop, window, biases, **reach)
        arguments = qkv, bounds_S1, 70, out_THE, saved, grad, drop, window, biases
        results.append((out_THE, *ops.attention_backward(*arguments, **reach)))
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            near(one, other)


@pytest.mark.parametrize("keys", [[0, 5], [71, 5], [70], [70.0, 5.0]])
def test_wrong_numbers_of_keys(keys: list[float]) -> None:
    keys_S = torch.tensor(keys)
    keys_S = keys_S if keys_S.is_floating_point() else keys_S.int()
    with pytest.raises(IndexError, match="numbers of keys are int32, from 1 to the length of each sequence"):
        OPS.attention(drawn(80, 3, 2, 32), torch.tensor([0, 70, 80]).int(), 70, NOTHING, keys_S=keys_S)


def test_too_few_biases() -> None:
    with pytest.raises(IndexError, match="there are biases for 137 distances, too few for the longest sequence"):
        OPS.attention(drawn(70, 3, 2, 32), torch.tensor([0, 70]).int(), 70, NOTHING, 0, torch.zeros(2, 137))


@drops
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("centred", [True, False])
def test_norm_of_a_sum(centred: bool, alone: bool, drop: Drop) -> None:
    y_TD, x_TD, grad_TD, other_TD = (drawn(5, 64, seed=seed) for seed in range(4))
    norm = Norm(drawn(64).float(), drawn(64, seed=1).float() if centred else None, 1e-5, centred)
    added_TD = None if alone else y_TD
    out_TD, saved = OPS.add_norm(added_TD, x_TD, norm, drop)
    near(out_TD, ORACLE.add_norm(wide(added_TD), wide(x_TD), wide(norm), drop)[0])  # type: ignore[arg-type]
    found = OPS.add_norm_backward(grad_TD, saved, norm, drop, other_TD)
    expected = ORACLE.add_norm_backward(*wide((grad_TD, saved, norm)), drop, wide(other_TD))  # type: ignore[misc, arg-type]
    for one, other in zip(found, expected, strict=True):
        near(one, other)


@drops
def test_norm_of_embeddings(drop: Drop) -> None:
    tables, indices = [drawn(9, 32, seed=seed).float() for seed in range(3)], [torch.tensor([8, 0, 3])] * 3
    norm, grad_TD = Norm(drawn(32).float(), drawn(32, seed=1).float(), 1e-12), drawn(3, 32)
    out_TD, saved = OPS.embed_norm(indices, tables, norm, drop)
    near(out_TD, ORACLE.embed_norm(indices, wide(tables), wide(norm), drop)[0])  # type: ignore[arg-type]
    expected = ORACLE.embed_norm_backward(*wide((grad_TD, saved, norm)), drop)  # type: ignore[misc]
    for one, other in zip(OPS.embed_norm_backward(grad_TD, saved, norm, drop), expected, strict=True):
        near(one, other)


@drops
@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("activation", ["none", "tanh", "silu"])
def test_gated_units(activation: str, gate_first: bool, drop: Drop) -> None:
    both_TF, grad_TF, order = 3 * drawn(5, 128), drawn(5, 64), {"gate_first": gate_first}
    both_TF[0, ::7] = torch.tensor(-300.0)
    both_TF[0, 3::7] = torch.tensor(300.0)
    near(OPS.gated(both_TF, activation, drop, **order), ORACLE.gated(both_TF.double(), activation, drop, **order))
    expected = ORACLE.gated_backward(both_TF.double(), grad_TF.double(), activation, drop, **order)
    near(OPS.gated_backward(both_TF, grad_TF, activation, drop, **order), expected)


@pytest.mark.parametrize("T", [1, 70])
def test_linear_layers(T: int) -> None:
    x_TD, grad_TF, weights, biases = drawn(T, 64), drawn(T, 96), [drawn(64, 64), drawn(32, 64)], [drawn(64), drawn(32)]
    packed = OPS.pack([one.float() for one in weights], [one.float() for one in biases])
    exact = Weight(torch.cat(weights).double(), torch.cat(biases).double())
    near(OPS.linear(x_TD, packed), ORACLE.linear(x_TD.double(), exact))
    near(OPS.linear(x_TD, packed, "tanh"), ORACLE.linear(x_TD.double(), exact, "tanh"))
    for one, other in zip(
        OPS.linear_gelu(x_TD, packed, "none"), ORACLE.linear_gelu(x_TD.double(), exact, "none"), strict=True
    ):
        near(one, other)
    near(OPS.linear_input(grad_TF, packed, x_TD), ORACLE.linear_input(grad_TF.double(), exact, x_TD.double()))
    before_TD = drawn(T, 64, seed=3)
    expected = ORACLE.linear_gelu_input(grad_TF.double(), exact, before_TD.double(), "none")
    near(OPS.linear_gelu_input(grad_TF, packed, before_TD, "none"), expected)
    found, right = (
        [torch.ones(32, 64, dtype=dtype), torch.ones(32, dtype=dtype)] for dtype in (torch.float32, torch.float64)
    )
    OPS.linear_weights(grad_TF, x_TD, [Into(64, 32, *((one, True) for one in found))])
    ORACLE.linear_weights(grad_TF.double(), x_TD.double(), [Into(64, 32, *((one, True) for one in right))])
    for one, other in zip(found, right, strict=True):
        near(one, other)
    assert isinstance(packed, PackedWeight)


def test_rotation_tables_and_losses() -> None:
    qkv_T3HE, positions_T = drawn(3, 3, 2, 32), torch.tensor([4, 0, 2])
    angles_ME = torch.rand(5, 16)
    turns = angles_ME.cos(), angles_ME.sin()
    expected = ORACLE.rotate_(qkv_T3HE.double(), positions_T, wide(turns))  # type: ignore[arg-type]
    near(OPS.rotate_(qkv_T3HE.clone(), positions_T, turns), expected)
    into_VD, rows_TD = torch.zeros(4, 32), drawn(3, 32)
    OPS.add_rows(rows_TD, torch.tensor([3, 0, 3]), into_VD)
    near(into_VD[3], (rows_TD[0].double() + rows_TD[2].double()))
    logits_NV, labels_N = drawn(3, 64), torch.tensor([5, 63, 0])
    losses_N, saved = OPS.cross_entropy(logits_NV, labels_N)
    right_N, right = ORACLE.cross_entropy(logits_NV.double(), labels_N)
    near(losses_N, right_N)
    scales_N = torch.linspace(-0.5, 1.0, len(labels_N))
    expected = ORACLE.cross_entropy_backward_(logits_NV.double(), labels_N, right, scales_N.double())
    near(OPS.cross_entropy_backward_(logits_NV, labels_N, saved, scales_N), expected)


@pytest.mark.parametrize("N", [1, 37])
def test_rows_and_activations(N: int) -> None:
    x_TD, rows_ND, ids_N = drawn(50, 24), drawn(N, 24, seed=1), torch.randperm(50)[:N]
    assert torch.equal(OPS.take_rows(x_TD, ids_N), x_TD[ids_N])
    into_TD, expected_TD = x_TD.clone(), x_TD.double()
    for clear in (False, True):
        OPS.put_rows(rows_ND, ids_N, into_TD, clear=clear)
        ORACLE.put_rows(rows_ND.double(), ids_N, expected_TD, clear=clear)
        near(into_TD, expected_TD)
    y_ND = OPS.tanh(rows_ND)
    near(y_ND, ORACLE.tanh(rows_ND.double()))
    near(OPS.tanh_backward(x_TD[:N], y_ND), ORACLE.tanh_backward(x_TD[:N].double(), y_ND.double()))
    for form in ("none", "tanh"):
        expected = ORACLE.gelu_backward(x_TD[:N].double(), rows_ND.double(), form)
        near(OPS.gelu_backward(x_TD[:N], rows_ND, form), expected)
    with pytest.raises(IndexError, match="out of range"):
        OPS.take_rows(x_TD, torch.tensor([50]))
