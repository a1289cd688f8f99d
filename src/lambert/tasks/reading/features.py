"""The file of features: labelled data as the model reads it, so that other runs need neither parse nor encode the text.

    {"lambert_features": 1, "sha256": ..., "header": BYTES}     a line; the hash is that of the rest of the file
    {"value": ..., "arrays": [[dtype, shape, offset], ...]}     JSON; offsets are from the end of the header
    arrays                                                      each from a multiple of 64 bytes

The value is JSON in which {"array": N}, {"tuple": [...]} and the like stand for values that JSON does not have. Arrays
are mapped when the file is read, so processes share them. Only dataclasses and sources of `lambert.tasks` are made from
a file.
"""

import hashlib
import importlib
import json
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lambert.core.files import atomic_file, open_regular
from lambert.tasks.reading.segments import Segments

FORMAT = 1
_ALIGNED = 64  # bytes; a cache line
_PACKAGE = ("lambert.tasks.", "lambert.core.specials")
_Array = npt.NDArray[Any]

T = TypeVar("T")


class Damaged(ValueError):
    """A file is not what `write` has written."""


class Later(Generic[T]):
    """A value that is made when it is first used, such as the texts of questions, which training does not need."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    @cached_property
    def value(self) -> T:
        return self._make()


def write(path: Path, value: Any) -> None:
    """Writes a value atomically. Raises OSError, and TypeError for a value that is not labelled data."""
    writer = _Writer()
    plain = writer.plain(value)
    offsets = np.cumsum([0, *(_round_up(array.nbytes) for array in writer.arrays)]).tolist()
    described = [[one.dtype.str, one.shape, at] for one, at in zip(writer.arrays, offsets, strict=False)]
    header = json.dumps({"value": plain, "arrays": described}).encode()
    header += b" " * (_round_up(len(header)) - len(header))
    digest = hashlib.sha256(header)
    for array in writer.arrays:
        digest.update(_bytes(array))
    first = {"lambert_features": FORMAT, "sha256": digest.hexdigest(), "header": len(header)}
    with atomic_file(path) as new, new.open("wb") as file:
        file.write(json.dumps(first).encode().ljust(2 * _ALIGNED - 1) + b"\n" + header)
        for array in writer.arrays:
            file.write(_bytes(array))


_OF_DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, RuntimeError, StopIteration,
)  # fmt: skip


def read(path: Path) -> Any:
    """Returns what `write` has written; arrays are copied on write. Raises FileNotFoundError or Damaged."""
    try:
        with open_regular(path) as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        begin = data.find(b"\n") + 1
        first = json.loads(data[:begin])
        if first["lambert_features"] != FORMAT:
            raise Damaged(f"format {first['lambert_features']}")
        with memoryview(data) as view:
            if hashlib.sha256(view[begin:]).hexdigest() != first["sha256"]:
                raise Damaged("its SHA-256 is another")
        at = begin + int(first["header"])
        header = json.loads(data[begin:at])
        return _Reader([_map_array(data, at, *one) for one in header["arrays"]]).value(header["value"])
    except (FileNotFoundError, Damaged):
        raise
    except _OF_DAMAGE as error:
        raise Damaged(str(error) or type(error).__name__) from error


class _Writer:
    """Converts values to JSON and `arrays`. An array that occurs twice is written once."""

    def __init__(self) -> None:
        self.arrays: list[_Array] = []
        self._numbers: dict[int, int] = {}

    def plain(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return self._rows(value) if value and is_dataclass(value[0]) else [*map(self.plain, value)]
        if kind is tuple:
            return {"tuple": [*map(self.plain, value)]}
        if kind is frozenset:
            return {"frozenset": sorted(value)}
        if kind is dict and all(type(key) is str for key in value):
            return {"dict": {key: self.plain(item) for key, item in value.items()}}
        if isinstance(value, np.ndarray):
            return {"array": self._number(value)}
        if isinstance(value, torch.Tensor):
            return {"tensor": self._number(value.numpy())}
        if isinstance(value, Later):
            text = json.dumps(self.plain(value.value)).encode()
            return {"later": self._number(np.frombuffer(text, dtype=np.uint8))}
        if is_dataclass(value) or isinstance(value, Segments):
            return {"object": _name(kind), "values": {k: self.plain(v) for k, v in _values(value).items()}}
        raise TypeError(f"{kind.__name__} cannot be stored")

    def _rows(self, rows: Sequence[Any]) -> Any:
        """Returns a list of dataclasses by columns."""
        if len({type(row) for row in rows}) > 1:
            raise TypeError("a list of different classes cannot be stored")
        names = [field.name for field in fields(rows[0])]
        return {"rows": _name(type(rows[0])), "columns": {n: [self.plain(getattr(r, n)) for r in rows] for n in names}}

    def _number(self, array: _Array) -> int:
        if id(array) not in self._numbers:
            self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)  # and stays alive, so that its id is unique
        return self._numbers[id(array)]


class _Reader:
    """The inverse of _Writer."""

    def __init__(self, arrays: Sequence[_Array]) -> None:
        self._kinds: dict[str, Callable[..., Any]] = {
            "tuple": lambda items: tuple(map(self.value, items)),
            "frozenset": frozenset,
            "dict": lambda items: {key: self.value(item) for key, item in items.items()},
            "array": arrays.__getitem__,
            "tensor": lambda number: torch.from_numpy(arrays[number]),
            "later": lambda number: Later(lambda: self.value(json.loads(arrays[number].tobytes()))),
            "object": self._object,
            "rows": self._rows,
        }

    def value(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [*map(self.value, plain)]
        if not isinstance(plain, dict):
            return plain
        kind, *_ = plain
        return self._kinds[kind](*plain.values())

    def _object(self, name: str, values: Mapping[str, Any]) -> Any:
        kind, found = _class(name), {key: self.value(item) for key, item in values.items()}
        if not issubclass(kind, Segments):
            return kind(**found)
        data = kind.__new__(kind)
        vars(data).update(found)
        return data

    def _rows(self, name: str, columns: Mapping[str, list[Any]]) -> list[Any]:
        kind = _class(name)
        return [kind(*row) for row in zip(*map(self.value, columns.values()), strict=True)]


def _values(value: Any) -> Mapping[str, Any]:
    return vars(value) if isinstance(value, Segments) else {f.name: getattr(value, f.name) for f in fields(value)}


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_PACKAGE):
        raise TypeError(f"{kind.__module__}.{kind.__name__} cannot be stored")
    return f"{kind.__module__}:{kind.__name__}"


def _class(name: str) -> Any:
    module, _, own = name.partition(":")
    found = getattr(importlib.import_module(module), own) if module.startswith(_PACKAGE) else None
    if not isinstance(found, type) or not (is_dataclass(found) or issubclass(found, Segments)):
        raise Damaged(f"it names {name}, which is not a class of labelled data")
    return found


def _map_array(data: mmap.mmap, begin: int, dtype: str, shape: list[int], offset: int) -> _Array:
    kind = np.dtype(dtype)
    if kind.hasobject or offset < 0:
        raise Damaged(f"it has an array of {dtype} at {offset}")
    return np.frombuffer(data, kind, prod(shape), begin + offset).reshape(shape)


def _bytes(array: _Array) -> bytes:
    return np.ascontiguousarray(array).tobytes().ljust(_round_up(array.nbytes), b"\0")


def _round_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
