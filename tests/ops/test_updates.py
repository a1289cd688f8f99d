"""Updates of flat buffers by Triton's kernels, in its interpreter, are those of Lambert's and torch's optimizers."""

import math
import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton's interpreter (make test-triton)", allow_module_level=True)

from lambert.ops.updates import Parts, update_adamw, update_lamb
from lambert.optim.lamb import Lamb

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(70, 90), (17,), (1,), (8192,), (3, 2)]
BETAS, EPS, RATE, DECAY = (0.9, 0.98), 1e-6, 0.01, 0.1


class Flat:
    """Weights in a flat buffer, each tensor from a multiple of 128."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.tensors = [torch.randn(shape, generator=generator) for shape in SHAPES]
        self.tensors[2].zero_()
        counts = [tensor.numel() for tensor in self.tensors]
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + -(-count // 128) * 128)
        self.starts, self.size = starts[:-1], starts[-1]
        self.parts = Parts(self.starts, counts, DEVICE)

    def join(self, tensors: list[Tensor]) -> Tensor:
        flat = torch.zeros(self.size)
        for start, tensor in zip(self.starts, tensors, strict=True):
            flat[start : start + tensor.numel()] = tensor.flatten()
        return flat.to(DEVICE)


def numbers(step: int, *, scale: float = 1.0, taken: float = 1.0) -> Tensor:
    corrections = [1 - beta**step for beta in BETAS]
    return torch.tensor([RATE, *corrections, scale, taken], device=DEVICE)


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_updates(name: str) -> None:
    flat = Flat()
    matrices = [tensor.ndim > 1 for tensor in flat.tensors]
    params = [tensor.clone().requires_grad_() for tensor in flat.tensors]
    groups = [
        {"params": [one for one, matrix in zip(params, matrices, strict=True) if matrix is kind], "weight_decay": decay}
        for kind, decay in ((True, DECAY), (False, 0.0))
    ]
    if name == "lamb":
        oracle: torch.optim.Optimizer = Lamb(groups, lr=RATE, betas=BETAS, eps=EPS, trust=(0.0, 10.0))
    else:
        oracle = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)
    weight = flat.join(flat.tensors)
    means = torch.zeros_like(weight), torch.zeros_like(weight)
    rounded = torch.zeros_like(weight, dtype=torch.bfloat16)
    decay = torch.tensor([DECAY * matrix for matrix in matrices], device=DEVICE)
    for step in range(1, 4):
        grads = [torch.randn(shape, generator=torch.Generator().manual_seed(step)) for shape in SHAPES]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        oracle.step()
        grad = flat.join([2 * one for one in grads])
        arguments = numbers(step, scale=0.5), BETAS, EPS
        if name == "lamb":
            adapted = torch.tensor(matrices, device=DEVICE).int()
            ratios = update_lamb(weight, grad, means, rounded, flat.parts, decay, adapted, *arguments, (0.0, 10.0))
            expected = oracle.trust_ratios()  # type: ignore[attr-defined]
            assert sorted(ratios.tolist()) == pytest.approx(sorted(expected.values()), rel=1e-4)
        else:
            update_adamw(weight, grad, means, rounded, flat.parts, decay, *arguments)
        torch.testing.assert_close(weight, flat.join([one.detach() for one in params]), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(rounded.float(), weight, rtol=2**-7, atol=0)  # the interpreter does not round


def test_an_update_that_is_not_taken_changes_nothing() -> None:
    flat = Flat()
    weight = flat.join(flat.tensors)
    means = torch.rand_like(weight), torch.rand_like(weight)
    before = [one.clone() for one in (weight, *means)]
    decay = torch.ones(len(SHAPES), device=DEVICE)
    for update in (
        lambda grad: update_adamw(weight, grad, means, None, flat.parts, decay, numbers(1, taken=0), BETAS, EPS),
        lambda grad: update_lamb(
            weight, grad, means, None, flat.parts, decay, decay.int(), numbers(1, taken=0), BETAS, EPS, (0.0, math.inf)
        ),
    ):
        update(torch.full_like(weight, math.nan))
        assert all(map(torch.equal, before, (weight, *means)))
