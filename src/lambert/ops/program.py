"""Programs: the calls of compiled kernels in a pass, as a table that one call computes, without Python in between.

A pass is recorded twice, for batches of different sizes. What is equal in both recordings is constant. A number that
differs must be a multiple of a size of the batch, the same in both; an address must be that of the same input, of the
same temporary tensor, or of the same tensor that outlives the pass. A pass in which torch computes anything is refused,
so what depends on a batch cannot become a constant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lambert.native import SIGNATURES
from lambert.ops import native
from lambert.ops.drop import draw_key

_aten = torch.ops.aten
_ALLOCATES = {_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default}
_VIEWS = {
    _aten.view.default, _aten.slice.Tensor, _aten.select.int, _aten.unbind.int, _aten.detach.default,
    _aten.alias.default, _aten._unsafe_view.default,
}  # fmt: skip
_EXTREMES, _NUMBER = _aten.aminmax.default, _aten._local_scalar_dense.default
"""Operations that checks of inputs call. A number that is read from anything else might depend on the batch."""
_IN_PLACE = {_aten.zero_.default: "zero", _aten.copy_.default: "copy", _aten.add_.Tensor: "add"}
_CHECKS: Mapping[str, Callable[..., Any]] = {
    native.CHECK_INDEX: native.check_index,
    native.CHECK_BOUNDS: native.check_bounds,
}
_INTEGERS = 20
_WORDS = 2 + _INTEGERS
"""Of a call: the address of the kernel, integers and addresses, and a float64 (native/program.cpp)."""
_ALIGNED = 64


class NotRecordableError(Exception):
    """A pass has something that is not a call of a compiled kernel."""


class _Address(NamedTuple):
    """An address in a pass."""

    kind: str
    """"input", "temporary" or "constant"."""
    place: Any
    """The name of an input, the number of a temporary tensor, or the address of a constant."""
    offset: int = 0
    """Bytes from the beginning of a temporary tensor."""


class _Key(NamedTuple):
    """A key of dropout."""

    number: int
    """Of its draw, from 0."""


@dataclass(slots=True)
class Recording:
    """The calls of a pass."""

    sizes: Mapping[str, int]
    calls: list[tuple[str, list[Any]]] = field(default_factory=list)
    """Names of kernels, and their arguments: numbers, tuples of numbers, keys and addresses."""
    checks: list[tuple[str, list[Any]]] = field(default_factory=list)
    """Of inputs, in the same form."""
    temporaries: list[tuple[int, torch.dtype]] = field(default_factory=list)
    """Bytes and type of each temporary tensor."""
    constants: list[torch.UntypedStorage] = field(default_factory=list)
    """Storages of addresses that are constant. They are kept, so that nothing else gets these addresses."""
    outputs: dict[str, _Address] = field(default_factory=dict)
    keys: int = 0
    """Number of keys that dropout draws."""
    threads: int = field(default_factory=torch.get_num_threads)


def record(
    work: Callable[[], Mapping[str, Tensor]], sizes: Mapping[str, int], inputs: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], Recording]:
    """Computes a pass, and returns its outputs and the recording.

    Args:
        work: The pass.
        sizes: Sizes of the batch by name.
        inputs: Contiguous tensors of the batch by name.

    Raises NotRecordableError if torch computes something in the pass.
    """
    recorder = _Recorder(sizes, inputs)
    with native.watch_calls(recorder.call), recorder:
        outputs = work()
    recorder.recording.outputs = {name: recorder.locate(value) for name, value in outputs.items()}
    return outputs, recorder.recording


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes the calls of a pass to a recording."""

    def __init__(self, sizes: Mapping[str, int], inputs: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording(sizes)
        self._inputs = {value.data_ptr(): name for name, value in inputs.items()}
        self._temporaries: dict[int, int] = {}  # numbers, by the addresses of storages; the last one at each
        self._read: set[int] = set()
        self._keys: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _ALLOCATES:
            self._temporaries[_storage(found)] = len(self.recording.temporaries)
            self.recording.temporaries.append((found.untyped_storage().nbytes(), found.dtype))
            self._read.discard(_storage(found))
        elif func is _aten.random_.default:
            self._keys[int(found)] = self.recording.keys
            self.recording.keys += 1
            self._read.add(_storage(found))
        elif func is _EXTREMES:
            self._read.update(map(_storage, found))
        elif func in _IN_PLACE and not kwargs:
            self._write(_IN_PLACE[func], *args)
        elif func not in _VIEWS and not (func is _NUMBER and _storage(args[0]) in self._read):
            raise NotRecordableError(str(func))
        return found

    def _write(self, name: str, to: Tensor, *sources: Any) -> None:
        """Records an operation in place on float32 tensors of one shape."""
        for one in (to, *sources):
            if not isinstance(one, Tensor) or one.dtype != torch.float32 or one.shape != to.shape:
                raise NotRecordableError(name)
            if not one.is_contiguous():
                raise NotRecordableError(name)
        self.call(name, to, *sources, to.numel())

    def call(self, name: str, *arguments: Any) -> None:
        """Records a call of a kernel, or a check."""
        calls = self.recording.checks if name in _CHECKS else self.recording.calls
        calls.append((name, [self._resolve(one) for one in arguments]))

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.locate(value)
        if isinstance(value, native.Integers):
            return tuple(value.array)
        return _Key(self._keys[value]) if type(value) is int and value in self._keys else value

    def locate(self, value: Tensor) -> _Address:
        """Returns the address of a tensor in the pass."""
        storage, address = _storage(value), value.data_ptr()
        if address in self._inputs:
            return _Address("input", self._inputs[address])
        if storage in self._read:
            raise NotRecordableError("a kernel reads what torch computed")
        if storage in self._temporaries:
            return _Address("temporary", self._temporaries[storage], address - storage)
        self.recording.constants.append(value.untyped_storage())
        return _Address("constant", address)


def _names(recording: Recording) -> list[str]:
    return [name for name, _ in recording.calls + recording.checks]


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


class _Multiple(NamedTuple):
    """`factor` times the size `name` of a batch."""

    factor: int
    name: str


class Program:
    """A pass as a table of calls.

    Args:
        first, second: Recordings of the pass for batches that differ in their sizes.

    Raises NotRecordableError if they differ in more than their sizes.
    """

    def __init__(self, first: Recording, second: Recording) -> None:
        if _names(first) != _names(second) or (first.keys, first.threads) != (second.keys, second.threads):
            raise NotRecordableError("two passes call other kernels")
        self._sizes, self._threads = [*second.sizes], second.threads
        self._fixed = {name: size for name, size in second.sizes.items() if first.sizes[name] == size}
        pairs = combinations(self._sizes, 2)
        self._equal = [
            (one, other)
            for one, other in pairs
            if first.sizes[one] == first.sizes[other] and second.sizes[one] == second.sizes[other]
        ]
        self._keys, self._constants = second.keys, second.constants
        self._words: list[Any] = []  # that kernels read
        table = np.zeros((len(second.calls), _WORDS), np.int64)
        found: dict[str, list[tuple[int, Any]]] = {"sizes": [], "inputs": [], "temporaries": [], "keys": []}
        for row, ((name, ones), (_, others)) in enumerate(zip(first.calls, second.calls, strict=True)):
            table[row, 0] = native.address_of(name)
            column = row * _WORDS + 1
            for kind, one, other in zip(SIGNATURES[f"lambert_{name}"].split()[1:], ones, others, strict=True):
                if kind == "f":
                    table[row, -1] = np.float64(_require_equal(one, other)).view(np.int64)
                else:
                    self._place(table.reshape(-1), column, _explain(one, other, first.sizes, second.sizes), found)
                    column += 1
            assert column <= (row + 1) * _WORDS - 1, name
        self._table = table.reshape(-1)
        names = self._names = sorted({address.place for _, address in found["inputs"]})
        self._inputs = _columns([(at, names.index(address.place)) for at, address in found["inputs"]])
        self._key_places = _columns([(at, key.number) for at, key in found["keys"]])
        self._multiples = _columns(
            [(at, multiple.factor, self._sizes.index(multiple.name)) for at, multiple in found["sizes"]], 3
        )
        sizes = [
            _explain(one, other, first.sizes, second.sizes)
            for (one, _), (other, _) in zip(first.temporaries, second.temporaries, strict=True)
        ]
        last = {place: at // _WORDS for at, (_, place, _) in found["temporaries"]}
        if first.outputs != second.outputs or any(one.kind != "temporary" for one in second.outputs.values()):
            raise NotRecordableError("two passes have other outputs")
        last |= dict.fromkeys((one.place for one in second.outputs.values()), len(table))
        buffers = self._assign(sizes, [(at // _WORDS, place) for at, (_, place, _) in found["temporaries"]], last)
        self._temporaries = _columns(
            [(at, buffers[address.place], address.offset) for at, address in found["temporaries"]], 3
        )
        self._outputs = {
            name: (buffers[one.place], second.temporaries[one.place][1], sizes[one.place])
            for name, one in second.outputs.items()
        }
        self._checks = dict.fromkeys(
            (name, *(_explain(*pair, first.sizes, second.sizes) for pair in zip(ones, others, strict=True)))
            for (name, ones), (_, others) in zip(first.checks, second.checks, strict=True)
        )
        if any(address.kind != "input" for _, address, *_ in self._checks):
            raise NotRecordableError("an index is no input")
        self._arena = torch.empty(0, dtype=torch.uint8)

    def _place(self, table: Any, at: int, value: Any, found: dict[str, list[tuple[int, Any]]]) -> None:
        """Writes a constant to the table, or notes what is written before each run."""
        if isinstance(value, _Multiple):
            found["sizes"].append((at, value))
        elif isinstance(value, _Key):
            found["keys"].append((at, value))
        elif isinstance(value, _Address) and value.kind != "constant":
            found["inputs" if value.kind == "input" else "temporaries"].append((at, value))
        elif isinstance(value, _Address):
            table[at] = value.place
        elif isinstance(value, tuple):
            self._words.append(native.Integers(value))
            table[at] = self._words[-1].data_ptr()
        else:
            table[at] = int(value or 0)

    def _assign(self, sizes: Sequence[Any], uses: Sequence[tuple[int, int]], last: Mapping[int, int]) -> dict[int, int]:
        """Returns the buffer of each temporary tensor. A buffer is used again for a tensor of the same size after the
        last use of the former one."""
        buffers: dict[int, int] = {}
        free: dict[Any, list[int]] = {}
        kinds: list[Any] = []
        ends: dict[int, list[int]] = {}
        for place, row in last.items():
            ends.setdefault(row, []).append(place)
        row = 0
        for at, place in uses:
            for done in range(row, at):
                for old in ends.get(done, ()):
                    free.setdefault(sizes[old], []).append(buffers[old])
            row = max(row, at)
            if place not in buffers:
                spare = free.get(sizes[place])
                buffers[place] = spare.pop() if spare else len(kinds)
                if buffers[place] == len(kinds):
                    kinds.append(sizes[place])
        factors = [kind.factor if isinstance(kind, _Multiple) else kind for kind in kinds]
        which = [self._sizes.index(kind.name) if isinstance(kind, _Multiple) else len(self._sizes) for kind in kinds]
        self._buffers = np.array(factors, np.int64), np.array(which, np.int64)
        return buffers

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Returns whether the program computes a batch of these sizes."""
        return (
            self._threads == torch.get_num_threads()
            and all(sizes[name] == size for name, size in self._fixed.items())
            and all(sizes[one] == sizes[other] for one, other in self._equal)
        )

    def run(self, sizes: Mapping[str, int], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Computes the pass for a batch that it fits, and returns its outputs, flat, which the next run overwrites.
        Raises IndexError as the pass does."""
        for check, address, *counts in self._checks:
            _CHECKS[check](
                inputs[address.place],
                *(one.factor * sizes[one.name] if isinstance(one, _Multiple) else one for one in counts),
            )
        numbers = np.array([*(sizes[name] for name in self._sizes), 1], np.int64)
        factors, which = self._buffers
        ends = np.cumsum((factors * numbers[which] + _ALIGNED - 1) // _ALIGNED * _ALIGNED)
        if len(self._arena) < ends[-1]:
            self._arena = torch.empty(0, dtype=torch.uint8)
            native.return_free_memory()  # what passes without a program have freed
            self._arena = torch.empty(int(ends[-1]), dtype=torch.uint8)
        starts = self._arena.data_ptr() + np.concatenate([[0], ends[:-1]])
        table = self._table
        at, factor, name = self._multiples
        table[at] = factor * numbers[name]
        at, number = self._inputs
        table[at] = np.array([inputs[one].data_ptr() for one in self._names], np.int64)[number]
        at, buffer, offset = self._temporaries
        table[at] = starts[buffer] + offset
        at, number = self._key_places
        table[at] = np.array([draw_key() for _ in range(self._keys)], np.int64)[number]
        native.run(table.ctypes.data, len(table) // _WORDS)
        found = {}
        for output, (buffer, dtype, size) in self._outputs.items():
            start = int(starts[buffer]) - self._arena.data_ptr()
            length = size.factor * sizes[size.name] if isinstance(size, _Multiple) else size
            found[output] = self._arena[start : start + length].view(dtype)
        return found


def _columns(rows: Sequence[tuple[int, ...]], width: int = 2) -> Any:
    return np.array(rows, np.int64).reshape(-1, width).T.copy()


def _require_equal(one: Any, other: Any) -> Any:
    if one != other or type(one) is not type(other):
        raise NotRecordableError(f"{one} differs from {other}, which are no sizes of the batch")
    return one


def _explain(one: Any, other: Any, sizes: Mapping[str, int], other_sizes: Mapping[str, int]) -> Any:
    """Returns what is equal in both recordings, or what number of which size differs. Raises NotRecordableError if none
    explains both, or several do."""
    if type(one) is not int or type(other) is not int or one == other:
        return _require_equal(one, other)
    found = [
        _Multiple(one // size, name)
        for name, size in sizes.items()
        if size and one % size == 0 and one // size * other_sizes[name] == other
    ]
    if len({multiple.factor for multiple in found}) != 1:
        return _require_equal(one, other)
    return found[0]  # of sizes that are equal in both, which `fits` requires
