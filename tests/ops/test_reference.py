"""The backward pass of each operation is the gradient of its forward pass, and masks are those of `core/randomness`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lambert.core.randomness import words
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.reference import Into, Norm, Ops

OPS = Ops(torch.float64)
DROP = Drop(key=0xFEDCBA9876543210, threshold=20000)
LENGTHS = [1, 2, 17, 40, 1]
CPU = torch.device("cpu")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gradients(compute: Callable[..., Tensor], grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Those of the inputs, by autograd."""
    leaves = [one.detach().clone().requires_grad_() for one in inputs]
    return torch.autograd.grad(compute(*leaves), leaves, grad)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("shape", [(3, 8), (5, 7), (1, 1)])
def test_masks_are_words_of_the_key(shape: tuple[int, int]) -> None:
    count = shape[0] * shape[1]
    parts = words(np.uint64(DROP.key), -(-count // 4)).view(np.uint16)[:count].reshape(shape)
    assert np.array_equal(DROP.kept(shape, CPU).numpy(), parts >= DROP.threshold)


def test_a_head_has_a_key_of_its_own() -> None:
    masks = DROP.kept_of_heads(torch.tensor([0, 1, 7]), 70)
    assert abs(float(masks.double().mean()) - 1 / DROP.scale) < 0.02
    assert not torch.equal(masks[0], masks[1])
    assert torch.equal(masks[2], DROP.kept_of_heads(torch.tensor([7]), 70)[0])


@pytest.mark.parametrize("T", [1, 6])
def test_linear(T: int) -> None:
    x_TD, weights, biases = drawn(T, 8), [drawn(4, 8), drawn(6, 8, seed=1)], [drawn(4), drawn(6)]
    weight = OPS.pack(weights, biases)
    grad_TF, other_TD = drawn(T, 10), drawn(T, 8, seed=2)

    def compute(x: Tensor, w1: Tensor, w2: Tensor, b1: Tensor, b2: Tensor) -> Tensor:
        return functional.linear(x, torch.cat([w1, w2]), torch.cat([b1, b2]))

    same(OPS.linear(x_TD, weight), compute(x_TD, *weights, *biases))
    grad_x_TD, *expected = gradients(compute, grad_TF, x_TD, *weights, *biases)
    same(OPS.linear_input(grad_TF, weight), grad_x_TD)
    same(OPS.linear_input(grad_TF, weight, other_TD), grad_x_TD + other_TD)
    into_FD = torch.ones(6, 8, dtype=torch.float64)
    first_F, second_F = torch.ones(4, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    OPS.linear_weights(grad_TF, x_TD, [Into(4, 6, (into_FD, True), (second_F, True))])
    same(into_FD, expected[1] + 1)
    same(second_F, expected[3] + 1)
    OPS.linear_weights(grad_TF, x_TD, [Into(0, 4, None, (first_F, False)), Into(4, 6, (into_FD, False))])
    same(into_FD, expected[1])
    same(first_F, expected[2])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_a_product(approximate: str) -> None:
    before_TD = drawn(5, 8)
    up, down = (OPS.pack([drawn(*shape)], [None]) for shape in ((6, 8), (4, 6)))
    y_TF, active_TF = OPS.linear_gelu(before_TD, up, approximate)
    same(active_TF, functional.gelu(before_TD @ up.weight_FD.T, approximate=approximate))
    grad_TF = drawn(5, 4)

    def compute(y: Tensor) -> Tensor:
        return functional.gelu(y, approximate=approximate) @ down.weight_FD.T

    same(OPS.linear_gelu_input(grad_TF, down, y_TF, approximate), *gradients(compute, grad_TF, y_TF))


REACHES = [(0, False, False), (3, False, False), (0, True, False), (3, True, False), (0, False, True), (0, True, True)]
"""Whether attention has a window, is causal, and has fewer keys than queries."""


def test_a_window_and_numbers_of_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="a window or numbers of keys"):
        OPS.attention(drawn(4, 3, 1, 2), torch.tensor([0, 4]).int(), 4, NOTHING, 2, keys_S=torch.tensor([1]).int())


@pytest.mark.parametrize("drop", [NOTHING, DROP])
@pytest.mark.parametrize(("window", "causal", "limited"), REACHES)
@pytest.mark.parametrize("biased", [False, True])
def test_attention(window: int, causal: bool, limited: bool, drop: Drop, biased: bool) -> None:
    bounds_S1 = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    T, H, E = sum(LENGTHS), 2, 6
    qkv_T3HE, grad_THE = drawn(T, 3, H, E), drawn(T, H, E, seed=1)

    longest = max(LENGTHS) + 2
    biases_HL = drawn(H, 2 * longest - 1, seed=2)
    keys_S = torch.tensor([1 + length // 2 for length in LENGTHS], dtype=torch.int32)
    reach: dict[str, Any] = {"causal": causal, "keys_S": keys_S if limited else None}

    def compute(qkv_T3HE: Tensor, biases_HL: Tensor) -> Tensor:
        mixed, start = [], 0
        for number, length in enumerate(LENGTHS):
            q_HME, k_HME, v_HME = qkv_T3HE[start : start + length].permute(1, 2, 0, 3)
            places_M = torch.arange(length)
            near_MM = (places_M[:, None] - places_M).abs() <= (window or length)
            if causal:
                near_MM &= places_M <= places_M[:, None]
            if limited:
                near_MM &= places_M < keys_S[number]
            scores_HMM = q_HME @ k_HME.mT / E**0.5
            if biased:
                scores_HMM = scores_HMM + biases_HL[:, places_M - places_M[:, None] + longest - 1]
            weights_HMM = scores_HMM.masked_fill(~near_MM, -torch.inf).softmax(-1)
            if drop.threshold:
                kept_HMM = drop.kept_of_heads(torch.arange(H) + number * H, length)
                weights_HMM = weights_HMM * kept_HMM * drop.scale
            mixed.append((weights_HMM @ v_HME).transpose(0, 1))
            start += length
        return torch.cat(mixed)

    biases = biases_HL if biased else None
    out_THE, saved = OPS.attention(qkv_T3HE, bounds_S1, longest, drop, window, biases, **reach)
    same(out_THE, compute(qkv_T3HE, biases_HL))
    arguments = qkv_T3HE, bounds_S1, longest, out_THE, saved, grad_THE, drop, window, biases
    found_T3HE, found_HL = OPS.attention_backward(*arguments, **reach)
    if biased:
        expected_T3HE, expected_HL = gradients(compute, grad_THE, qkv_T3HE, biases_HL)
        same(found_HL, expected_HL)
    else:
        (expected_T3HE,) = gradients(lambda qkv_T3HE: compute(qkv_T3HE, biases_HL), grad_THE, qkv_T3HE)
        assert found_HL is None
    same(found_T3HE, expected_T3HE)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("drop", [NOTHING, DROP])
def test_norm_of_a_sum(drop: Drop, centred: bool) -> None:
    T, D, eps = 7, 12, 1e-5
    y_TD, x_TD, grad_TD, other_TD = (drawn(T, D, seed=seed) for seed in range(4))
    weight_D, bias_D = drawn(D), drawn(D, seed=1) if centred else None

    def compute(x_TD: Tensor, y_TD: Tensor, weight_D: Tensor, *bias: Tensor) -> Tensor:
        sum_TD = x_TD + drop.apply(y_TD)
        if centred:
            return functional.layer_norm(sum_TD, (D,), weight_D, bias[0], eps)
        return functional.rms_norm(sum_TD, (D,), weight_D, eps)

    norm = Norm(weight_D, bias_D, eps, centred)
    out_TD, saved = OPS.add_norm(y_TD, x_TD, norm, drop)
    parameters = [weight_D] if bias_D is None else [weight_D, bias_D]
    same(out_TD, compute(x_TD, y_TD, *parameters))
    expected = gradients(compute, grad_TD, x_TD, y_TD, *parameters)
    found = OPS.add_norm_backward(grad_TD, saved, norm, drop)
    for one, other in zip(found, expected, strict=False):
        same(one, other)
    grad_x_TD, grad_y_TD, *_ = OPS.add_norm_backward(grad_TD, saved, norm, drop, other_TD)
    same(grad_x_TD, expected[0] + other_TD)
    same(grad_y_TD, drop.apply(grad_x_TD))


@pytest.mark.parametrize("drop", [NOTHING, DROP])
def test_norm_of_embeddings(drop: Drop) -> None:
    tables, indices = [drawn(5, 8), drawn(9, 8)], [torch.tensor([4, 0, 4]), torch.tensor([8, 1, 0])]
    weight_D, bias_D, grad_TD = drawn(8), drawn(8, seed=1), drawn(3, 8)
    rows_TD = tables[0][indices[0]] + tables[1][indices[1]]

    def compute(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return drop.apply(functional.layer_norm(rows, (8,), weight, bias, 1e-5))

    norm = Norm(weight_D, bias_D, 1e-5)
    out_TD, saved = OPS.embed_norm(indices, tables, norm, drop)
    same(out_TD, compute(rows_TD, weight_D, bias_D))
    found = OPS.embed_norm_backward(grad_TD, saved, norm, drop)
    for one, other in zip(found, gradients(compute, grad_TD, rows_TD, weight_D, bias_D), strict=True):
        same(one, other)


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("activation", ["none", "tanh", "silu"])
def test_gated_units(activation: str, gate_first: bool) -> None:
    both_TF, grad_TF = drawn(5, 12), drawn(5, 6)

    def compute(both_TF: Tensor) -> Tensor:
        gate_TF, up_TF = both_TF.chunk(2, dim=1) if gate_first else both_TF.chunk(2, dim=1)[::-1]
        gelu_TF = functional.gelu(gate_TF, approximate="none" if activation == "silu" else activation)
        return DROP.apply((functional.silu(gate_TF) if activation == "silu" else gelu_TF) * up_TF)

    same(OPS.gated(both_TF, activation, DROP, gate_first=gate_first), compute(both_TF))
    found = OPS.gated_backward(both_TF, grad_TF, activation, DROP, gate_first=gate_first)
    same(found, *gradients(compute, grad_TF, both_TF))


def test_rotation_is_undone_by_its_inverse() -> None:
    qkv_T3HE = drawn(4, 3, 2, 6)
    angles_ME = torch.arange(9.0, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.5, 0.1])
    turns, positions_T = (angles_ME.cos(), angles_ME.sin()), torch.tensor([0, 8, 3, 1])
    turned_T3HE = OPS.rotate_(qkv_T3HE.clone(), positions_T, turns)
    pairs = torch.view_as_complex(torch.stack(qkv_T3HE[:, :2].chunk(2, -1), -1))
    expected = pairs * torch.polar(torch.ones_like(angles_ME), angles_ME)[positions_T][:, None, None]
    same(turned_T3HE[:, :2], torch.cat([expected.real, expected.imag], -1))
    same(turned_T3HE[:, 2], qkv_T3HE[:, 2])
    same(OPS.rotate_(turned_T3HE, positions_T, turns, back=True), qkv_T3HE)


@pytest.mark.parametrize("N", [0, 1, 5])
def test_cross_entropy(N: int) -> None:
    logits_NV, labels_N = drawn(N, 11), torch.arange(N) * 2

    def compute(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels_N, reduction="sum")

    losses_N, saved = OPS.cross_entropy(logits_NV, labels_N)
    same(losses_N, functional.cross_entropy(logits_NV, labels_N, reduction="none"))
    (expected_NV,) = gradients(compute, torch.tensor(1.0, dtype=torch.float64), logits_NV)
    scales_N = torch.linspace(-0.5, 1.0, len(labels_N), dtype=torch.float64)
    same(OPS.cross_entropy_backward_(logits_NV, labels_N, saved, scales_N), expected_NV * scales_N[:, None])


def test_rows_are_added_to_a_table() -> None:
    into_VD, rows_TD, ids_T = torch.zeros(4, 3, dtype=torch.float64), drawn(3, 3), torch.tensor([2, 0, 2])
    OPS.add_rows(rows_TD, ids_T, into_VD)
    same(
        into_VD, torch.stack([rows_TD[1], torch.zeros(3, dtype=torch.float64), rows_TD[0] + rows_TD[2], 0 * rows_TD[0]])
    )
