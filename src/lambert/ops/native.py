"""The operations by the compiled kernels. They need `library()`; all tensors are contiguous and on the CPU. The kernels
check nothing, so indices that come from outside are checked here.

States are bfloat16, sums float32. What the kernels do not have is torch's (`ops/reference.py`).
"""

import ctypes
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lambert.core.compute import NOWHERE, Place
from lambert.native import library
from lambert.ops.drop import Drop
from lambert.ops.reference import Into, Norm, Ops, Saved, check_window

PANEL = 64
"""Columns of a panel of a packed operand."""
_TILE = 16
"""Packed operands have a multiple of this many pairs of bfloat16 along the inner dimension."""
FORMS = {"none": 0, "tanh": 1, "silu": 2}
"""Forms of gelu, by torch's argument `approximate`, and of gated units alone, silu."""


class PackedWeight:
    """The weights [F, D] of layers that read the same states, concatenated along F and packed for the kernels; with
    `gradient` also for the gradient of the states."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], *, gradient: bool = True) -> None:
        self.F, self.D = sum(len(weight) for weight in weights), weights[0].shape[1]
        self.forward = torch.empty(_panels(self.F) * PANEL * _pairs(self.D), dtype=torch.int32)
        backward = _panels(self.D) * PANEL * _pairs(self.F) if gradient else 0
        self.backward = torch.empty(backward, dtype=torch.int32)
        packed = self.forward, self.backward if gradient else None
        for offset, weight in _stack(weights):
            _call("pack_weight", weight, len(weight), self.D, offset, self.F, *packed, _threads())
        kept = [bias.detach() for bias in biases if bias is not None]
        self.bias_F = torch.cat(kept) if len(kept) > 1 else kept[0] if kept else None
        self._rows = [len(weight) for weight in weights], [len(bias) for bias in kept]

    def places(self) -> list[Place]:
        """Returns where an update writes the copies of each weight, then of each bias."""
        rows, biases = self._rows
        packed = self.forward.data_ptr(), self.backward.data_ptr()
        found = [Place(*packed, offset, self.F) for offset in accumulate(rows[:-1], initial=0)]
        if self.bias_F is None or len(biases) == 1:  # a single bias is not copied
            return found + [Place()] * len(biases)
        starts = accumulate(biases[:-1], initial=self.bias_F.data_ptr() // 4)
        return found + [Place(copy=4 * start) for start in starts]


def _stack(weights: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Yields the weights, each with the number of rows before it, which is a multiple of PANEL."""
    offset = 0
    for weight in weights:
        assert offset % PANEL == 0, [len(weight) for weight in weights]
        yield offset, weight.detach().float().contiguous()
        offset += len(weight)


def has_bytes(inputs: int) -> bool:
    """Returns whether there are products of bytes for layers with this many inputs."""
    return inputs % 4 == 0 and inputs <= 8192


class PackedBytes:
    """The weights [F, D] of layers that read the same states, concatenated along F, rounded to int8 and packed.

    Each row of a weight has a scale of its own (Yao et al., "ZeroQuant", 2022, section 4.1). D is a multiple of 4, at
    most 8192 (`has_bytes`).
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
        self.F, self.D = sum(len(weight) for weight in weights), weights[0].shape[1]
        assert has_bytes(self.D), self.D
        self.scale_F, self.shift_F = torch.empty(self.F), torch.empty(self.F, dtype=torch.int32)
        self.forward = torch.empty(_panels(self.F) * PANEL * _pairs(self.D // 2), dtype=torch.int32)
        for offset, weight in _stack(weights):
            packed = self.forward, self.scale_F, self.shift_F
            _call("pack_bytes", weight, len(weight), self.D, offset, *packed, _threads())
        kept = [bias.detach().float() for bias in biases if bias is not None]
        self.bias_F = torch.cat(kept) if kept else torch.zeros(self.F)


class NativeOps(Ops):
    """The operations that have compiled kernels, on bfloat16 states. Norms have float32 parameters, those of embeddings
    a mean."""

    name = "native"

    def fits(self, weights: Sequence[Tensor]) -> bool:
        """Returns whether D and the sum of F are even, all weights but the last have a multiple of 64 rows, and all are
        float32."""
        return (
            weights[0].shape[1] % 2 == 0
            and sum(map(len, weights)) % 2 == 0
            and all(len(weight) % PANEL == 0 for weight in weights[:-1])
            and all(weight.dtype == torch.float32 for weight in weights)
        )

    def pack(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> PackedWeight:  # type: ignore[override]
        return PackedWeight(weights, biases)

    def linear(self, x_TD: Tensor, weight: Any, gelu: str = "") -> Tensor:
        if isinstance(weight, PackedBytes):
            return _multiply_bytes(x_TD, weight, gelu)
        y_TF = x_TD.new_empty(len(x_TD), weight.F)
        outputs = (None, y_TF) if gelu else (y_TF, None)
        _multiply(x_TD, weight, outputs, gelu or "none")
        return y_TF

    def linear_gelu(self, x_TD: Tensor, weight: Any, approximate: str) -> tuple[Tensor, Tensor]:
        y_TF, activated_TF = (x_TD.new_empty(len(x_TD), weight.F) for _ in range(2))
        _multiply(x_TD, weight, (y_TF, activated_TF), approximate)
        return y_TF, activated_TF

    def linear_input(self, grad_TF: Tensor, weight: Any, other_TD: Tensor | None = None) -> Tensor:
        grad_TD = grad_TF.new_empty(len(grad_TF), weight.D)
        sizes = len(grad_TF), weight.F, weight.D
        _call("linear_input", grad_TF, weight.backward, other_TD, None, grad_TD, 0, *sizes, _threads())
        return grad_TD

    def linear_gelu_input(self, grad_TF: Tensor, weight: Any, before_TD: Tensor, approximate: str) -> Tensor:
        grad_TD, form = torch.empty_like(before_TD), FORMS[approximate]
        sizes = len(grad_TF), weight.F, weight.D
        _call("linear_input", grad_TF, weight.backward, None, before_TD, grad_TD, form, *sizes, _threads())
        return grad_TD

    def gelu_backward(self, grad_TD: Tensor, before_TD: Tensor, approximate: str) -> Tensor:
        found_TD = torch.empty_like(before_TD)
        _call("gelu_backward", grad_TD, before_TD, FORMS[approximate], before_TD.numel(), _threads(), found_TD)
        return found_TD

    def linear_weights(self, grad_TF: Tensor, x_TD: Tensor, into: Sequence[Into]) -> None:
        (T, F), D = grad_TF.shape, x_TD.shape[1]
        rows: list[int] = []
        for offset, outputs, *places in into:
            rows += (offset, outputs)
            for place in places:
                rows += (0, 0) if place is None else (place[0].data_ptr(), place[1])
        _call("linear_weights", grad_TF, x_TD, T, F, D, Integers(rows), len(into), _threads())

    def attention(
        self, qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, drop: Drop, window: int = 0,
        biases_HL: Tensor | None = None, *, causal: bool = False, keys_S: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
        T, _, H, E = qkv_T3HE.shape
        found = check_bounds(bounds_S1, T)
        if biases_HL is not None and 2 * found - 1 > biases_HL.shape[1]:
            raise IndexError(f"there are biases for {biases_HL.shape[1]} distances, too few for the longest sequence")
        out_THE, sums_TH = qkv_T3HE.new_empty(T, H, E), qkv_T3HE.new_empty(T, H, dtype=torch.float32)
        sizes = window, causal, _check_keys(keys_S, bounds_S1, window), len(bounds_S1) - 1, H, E
        given = qkv_T3HE, bounds_S1, biases_HL, _longest(biases_HL)
        _call("attention", *given, out_THE, sums_TH, *_drop(drop), *sizes, _threads())
        return out_THE, (sums_TH,)

    def attention_backward(
        self, qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, out_THE: Tensor, saved: Sequence[Tensor],
        grad_THE: Tensor, drop: Drop, window: int = 0, biases_HL: Tensor | None = None, *, causal: bool = False,
        keys_S: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        T, _, H, E = qkv_T3HE.shape
        grad_T3HE, grad_HL, sums = torch.empty_like(qkv_T3HE), None, None
        if biases_HL is not None:
            grad_HL, sums = torch.empty_like(biases_HL), torch.empty(2 * T * H)
        given = qkv_T3HE, bounds_S1, biases_HL, _longest(biases_HL), out_THE, *saved, grad_THE
        sizes = window, causal, keys_S, len(bounds_S1) - 1, H, E
        _call("attention_backward", *given, grad_T3HE, grad_HL, sums, *_drop(drop), *sizes, _threads())
        return grad_T3HE, grad_HL

    def add_norm(self, y_TD: Tensor | None, x_TD: Tensor, norm: Norm, drop: Drop) -> tuple[Tensor, Saved]:
        out_TD, saved = torch.empty_like(x_TD), _allocate_saved(*x_TD.shape)
        settings = *_drop(drop), norm.weight_D, _bias(norm), norm.eps, norm.centred
        _call("add_norm", y_TD, x_TD, *settings, *x_TD.shape, _threads(), out_TD, *saved)
        return out_TD, saved

    def add_norm_backward(
        self, grad_TD: Tensor, saved: Sequence[Tensor], norm: Norm, drop: Drop, other_TD: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        grad_x_TD, sums_2D = torch.empty_like(grad_TD), torch.empty(2, grad_TD.shape[1])
        grad_y_TD = torch.empty_like(grad_TD) if drop.threshold else grad_x_TD
        given = grad_TD, *saved, norm.weight_D, other_TD
        found = grad_x_TD, grad_y_TD, sums_2D[0], sums_2D[1]
        _call("add_norm_backward", *given, *_drop(drop), norm.centred, *grad_TD.shape, _threads(), *found)
        return found

    def embed_norm(
        self, indices: Sequence[Tensor], tables: Sequence[Tensor], norm: Norm, drop: Drop
    ) -> tuple[Tensor, Saved]:
        T, D = len(indices[0]), tables[0].shape[1]
        for index_T, table in zip(indices, tables, strict=True):
            check_index(index_T, T, len(table))
        out_TD, saved = torch.empty(T, D, dtype=torch.bfloat16), _allocate_saved(T, D)
        settings = *_drop(drop), norm.weight_D, _bias(norm), norm.eps
        _call("embed_norm", *indices, *tables, *settings, T, D, _threads(), out_TD, *saved)
        return out_TD, saved

    def embed_norm_backward(
        self, grad_TD: Tensor, saved: Sequence[Tensor], norm: Norm, drop: Drop
    ) -> tuple[Tensor, Tensor, Tensor]:
        grad_sum_TD, sums_2D = torch.empty_like(grad_TD), torch.empty(2, grad_TD.shape[1])
        found = grad_sum_TD, sums_2D[0], sums_2D[1]
        _call("embed_norm_backward", grad_TD, *saved, norm.weight_D, *_drop(drop), *grad_TD.shape, _threads(), *found)
        return found

    def rotate_(
        self, qkv_T3HE: Tensor, positions_T: Tensor, turns: tuple[Tensor, Tensor], *, back: bool = False
    ) -> Tensor:
        T, _, H, E = qkv_T3HE.shape
        check_index(positions_T, T, len(turns[0]))
        _call("rotate", qkv_T3HE, positions_T, *turns, back, T, H, E, _threads())
        return qkv_T3HE

    def gated(self, both_TF: Tensor, activation: str, drop: Drop, *, gate_first: bool = True) -> Tensor:
        T, F = len(both_TF), both_TF.shape[1] // 2
        out_TF, settings = both_TF.new_empty(T, F), (FORMS[activation], gate_first, *_drop(drop))
        _call("gated", both_TF, *settings, T, F, _threads(), out_TF)
        return out_TF

    def gated_backward(
        self, both_TF: Tensor, grad_TF: Tensor, activation: str, drop: Drop, *, gate_first: bool = True
    ) -> Tensor:
        T, F = grad_TF.shape
        found_TF, settings = torch.empty_like(both_TF), (FORMS[activation], gate_first, *_drop(drop))
        _call("gated_backward", both_TF, grad_TF, *settings, T, F, _threads(), found_TF)
        return found_TF

    def add_rows(self, rows_TD: Tensor, ids_T: Tensor, into_VD: Tensor) -> None:
        check_index(ids_T, len(rows_TD), len(into_VD))
        _call("add_rows", rows_TD, ids_T, *rows_TD.shape, _threads(), into_VD)

    def take_rows(self, x_TD: Tensor, ids_N: Tensor) -> Tensor:
        check_index(ids_N, len(ids_N), len(x_TD))
        out_ND = x_TD.new_empty(len(ids_N), x_TD.shape[1])
        _call("take_rows", x_TD, ids_N, *out_ND.shape, _threads(), out_ND)
        return out_ND

    def put_rows(self, rows_ND: Tensor, ids_N: Tensor, into_TD: Tensor, *, clear: bool) -> None:
        check_index(ids_N, len(rows_ND), len(into_TD))
        _call("put_rows", rows_ND, ids_N, len(rows_ND), *into_TD.shape, clear, into_TD)

    def tanh(self, x_TD: Tensor) -> Tensor:
        y_TD = torch.empty_like(x_TD)
        _call("tanh", x_TD, x_TD.numel(), _threads(), y_TD)
        return y_TD

    def tanh_backward(self, grad_TD: Tensor, y_TD: Tensor) -> Tensor:
        found_TD = torch.empty_like(y_TD)
        _call("tanh_backward", grad_TD, y_TD, y_TD.numel(), _threads(), found_TD)
        return found_TD

    def cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        check_index(labels_N, *logits_NV.shape)
        losses_N, tops_N, log_sums_N = (torch.empty(len(labels_N)) for _ in range(3))
        _call("cross_entropy", logits_NV, labels_N, *logits_NV.shape, _threads(), losses_N, tops_N, log_sums_N)
        return losses_N, (tops_N, log_sums_N)

    def cross_entropy_backward_(
        self, logits_NV: Tensor, labels_N: Tensor, saved: Sequence[Tensor], scales_N: Tensor
    ) -> Tensor:
        _call("cross_entropy_backward", logits_NV, labels_N, *saved, scales_N, *logits_NV.shape, _threads())
        return logits_NV


OPS = NativeOps()


def _multiply(x_TD: Tensor, weight: PackedWeight, outputs: tuple[Tensor | None, Tensor | None], gelu: str) -> None:
    sizes = len(x_TD), weight.D, weight.F
    _call("linear", x_TD, weight.forward, weight.bias_F, *outputs, FORMS[gelu], *sizes, _threads())


KINDS = {"adamw": 0, "lamb": 1, "stable_adamw": 2}
"""Kinds of updates."""


class Numbers(NamedTuple):
    """The numbers of an update: from the gradient g, scaled by `grad_scale`,

        m  <-  m + take1 (g - m)        v  <-  keep2 v + take2 g^2
        u  =   m debias1 / (sqrt(v) debias2 + eps) + decay w
        w  <-  w - rate ratio u

    where the ratio of a tensor is 1 in AdamW, |w| / |u| between `low` and `high` in LAMB, if `adapted` is not 0, and
    1 / max(1, RMS(g / max(sqrt(v), eps))) in StableAdamW.
    """

    grad_scale: float
    take1: float
    keep2: float
    take2: float
    debias1: float
    debias2: float
    eps: float
    decay: float
    rate: float
    adapted: float = 0.0
    low: float = 0.0
    high: float = math.inf


def can_update(tensors: Iterable[Tensor]) -> bool:
    """Returns whether the kernels can update such tensors, or read them as gradients and means."""
    return library() is not None and all(
        tensor.is_cpu and tensor.dtype is torch.float32 and tensor.is_contiguous() for tensor in tensors
    )


class Table:
    """Addresses of tensors that are updated together.

    Args:
        tensors: Weight, gradient, and running means of the gradient and of its square, for which `can_update` holds.
        places: Where the copies of weights are, by the ids of the weights.
    """

    def __init__(self, tensors: Sequence[tuple[Tensor, ...]], places: Mapping[int, Place]) -> None:
        rows = []
        for four in tensors:
            weight, place, count = four[0], places.get(id(four[0]), NOWHERE), four[0].numel()
            shape = (count // weight.shape[1], weight.shape[1]) if place.forward else (count, 1)
            rows.append((*(one.data_ptr() for one in four), *shape, *place))
        self.rows = torch.tensor(rows, dtype=torch.int64)


def update(kind: str, table: Table, numbers: Numbers) -> list[float]:
    """Updates weights and both running means in place, and writes the copies of the weights to their places.

    Args:
        kind: A key of KINDS.
        table: The tensors.
        numbers: Those of all these tensors.

    Returns the ratio of each tensor.
    """
    ratios, given = torch.empty(len(table.rows), dtype=torch.float64), torch.tensor(numbers, dtype=torch.float32)
    _call("update", table.rows, len(table.rows), given, KINDS[kind], ratios, _threads())
    return ratios.tolist()


class Buffers:
    """A table of tensors whose norms are computed again and again, for which `can_update` holds."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors  # they must not be freed
        self._table = torch.tensor([[one.data_ptr() for one in tensors], [one.numel() for one in tensors]])

    def norms(self) -> Tensor:
        """Returns the L2 norm of each tensor, float32 [P]."""
        found = torch.empty(len(self._tensors))
        _call("norms", self._table[0], self._table[1], len(found), found, _threads())
        return found


def _multiply_bytes(x_TD: Tensor, weight: PackedBytes, gelu: str) -> Tensor:
    """Returns x W' + b, or its gelu, [T, F], for x rounded to 8 bits with a step for each row."""
    bytes_TD, steps_T = torch.empty(x_TD.shape, dtype=torch.uint8), torch.empty(len(x_TD))
    _call("quantize", x_TD, *x_TD.shape, bytes_TD, steps_T, _threads())
    y_TF = x_TD.new_empty(len(x_TD), weight.F)
    packed = weight.forward, weight.scale_F, weight.shift_F, weight.bias_F
    form = FORMS[gelu] if gelu else -1
    _call("linear_bytes", bytes_TD, steps_T, *packed, y_TF, form, len(x_TD), weight.D, weight.F, _threads())
    return y_TF


def _check_keys(keys_S: Tensor | None, bounds_S1: Tensor, window: int) -> Tensor | None:
    """Returns the numbers of keys. Raises ValueError, or IndexError if one is not in its sequence."""
    check_window(window, keys_S)
    if keys_S is not None and (
        keys_S.dtype != torch.int32
        or len(keys_S) != len(bounds_S1) - 1
        or not ((keys_S >= 1) & (keys_S <= bounds_S1.diff())).all()
    ):
        raise IndexError("numbers of keys are int32, from 1 to the length of each sequence")
    return keys_S


def _longest(biases_HL: Tensor | None) -> int:
    """Returns the tokens of the longest sequence that the biases are for."""
    return 0 if biases_HL is None else (biases_HL.shape[1] + 1) // 2


def _drop(drop: Drop) -> tuple[int, int]:
    return int(drop.key), drop.threshold


def _bias(norm: Norm) -> Tensor:
    return norm.bias_D if norm.bias_D is not None else _zeros(len(norm.weight_D))


@cache
def _zeros(count: int) -> Tensor:
    return torch.zeros(count)


def check_index(index_T: Tensor, count: int, size: int) -> None:
    """Raises IndexError unless these are `count` int64 numbers from 0 to `size` - 1."""
    if watch := _watch.get():
        watch(CHECK_INDEX, index_T, count, size)
    if index_T.shape != (count,) or index_T.dtype != torch.int64 or not index_T.is_contiguous():
        raise IndexError(f"expected {count} contiguous int64 indices, not {index_T.dtype} {tuple(index_T.shape)}")
    least, most = (int(value) for value in torch.aminmax(index_T)) if count else (0, 0)
    if least < 0 or (count and most >= size):
        raise IndexError(f"index {least if least < 0 else most} is out of range for {size:,} rows")


def check_bounds(bounds_S1: Tensor, T: int) -> int:
    """Returns the tokens of the longest sequence. Raises IndexError unless these are the int32 bounds of sequences that
    divide T tokens."""
    if watch := _watch.get():
        watch(CHECK_BOUNDS, bounds_S1, T)
    if bounds_S1.dtype != torch.int32 or not bounds_S1.is_contiguous():
        raise IndexError(f"expected contiguous int32 bounds of sequences, not {bounds_S1.dtype}")
    bounds = bounds_S1.tolist()
    lengths = [end - start for start, end in pairwise(bounds)]
    if bounds[:1] != [0] or bounds[-1] != T or min(lengths, default=0) < 0:
        raise IndexError(f"the bounds of the sequences do not divide the {T:,} tokens of the batch")
    return max(lengths, default=0)


def _allocate_saved(T: int, D: int) -> Saved:
    return torch.empty(T, D, dtype=torch.bfloat16), torch.empty(T), torch.empty(T)


def _panels(columns: int) -> int:
    return -(-columns // PANEL)


def _pairs(inner: int) -> int:
    return -(-inner // (2 * _TILE)) * _TILE


def _threads() -> int:
    return torch.get_num_threads()


_PLAIN = frozenset({int, float, bool, type(None)})


def address_of(name: str) -> int:
    """Returns the address of a kernel."""
    return int(ctypes.cast(_function(name), ctypes.c_void_p).value or 0)


def return_free_memory() -> None:
    """Returns memory that was freed to the system, which the allocator keeps otherwise."""
    ctypes.CDLL(None).malloc_trim(0)


def run(calls: int, count: int) -> None:
    """Computes a table of `count` calls at an address (`ops/program.py`)."""
    _call("run", calls, count)


class Integers:
    """Integers that a kernel reads: a table of sizes and addresses."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.array = (ctypes.c_int64 * len(numbers))(*numbers)

    def data_ptr(self) -> int:
        """Returns the address of the first."""
        return ctypes.addressof(self.array)


CHECK_INDEX, CHECK_BOUNDS = "check_index", "check_bounds"
_watch: ContextVar[Callable[..., None] | None] = ContextVar("watch", default=None)


@contextmanager
def watch_calls(watch: Callable[..., None]) -> Iterator[None]:
    """A context in which `watch` receives the name and the arguments of each call of a kernel, and of each check of its
    inputs (CHECK_INDEX, CHECK_BOUNDS)."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


@cache
def _function(name: str) -> Any:
    return getattr(library(), f"lambert_{name}")


def _call(name: str, *arguments: Tensor | Integers | float | None) -> None:
    function = _function(name)
    plain = [value if type(value) in _PLAIN else value.data_ptr() for value in arguments]  # type: ignore[union-attr]
    if torch._C._autograd._profiler_enabled():
        with torch.profiler.record_function(f"lambert::{name}"):
            function(*plain)
    else:
        function(*plain)
    if watch := _watch.get():
        watch(name, *arguments)
