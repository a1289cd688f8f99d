"""The way of a configuration through the source: which functions receive it, or a part of it, while a run is made."""

import ast
import dataclasses
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, get_type_hints

import lambert

ROOT = Path(lambert.__file__).parent
DIAGRAM = Path(__file__).parents[1] / "test_imports.py"


def layers() -> dict[str, int]:
    """The layer of each room in the diagram of tests/test_imports.py, the lowest being 0."""
    text = ast.get_docstring(ast.parse(DIAGRAM.read_text(encoding="utf-8"))) or ""
    lines = text.split("\n\n")[1].splitlines()
    found = {room: level for level, line in enumerate(reversed(lines)) for room in line.partition("(")[0].split()}
    return found | {"wings": found["wings:"]}


@dataclasses.dataclass
class Way:
    """The functions that received a configuration, in the order of their first calls."""

    functions: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    """The file, below src/lambert, the function, and the types that it received."""

    @property
    def files(self) -> list[str]:
        """The files of the functions, in order."""
        return [*dict.fromkeys(file for file, _, _ in self.functions)]

    @property
    def climbs(self) -> list[tuple[str, str]]:
        """The pairs of files, one after the other on the way, of which the second is in a higher layer."""
        level, files = layers(), [file for file, _, _ in self.functions]
        return [(a, b) for a, b in pairwise(files) if level[_room(a)] < level[_room(b)]]


def follow(kind: type, call: Callable[[], Any]) -> Way:
    """Calls `call`, and returns the way of the settings dataclass `kind` and of the dataclasses in its fields.
    An argument `self` of these classes does not count."""
    kinds, way, seen = {*_parts(kind)}, Way(), set[CodeType]()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not code.co_filename.startswith(str(ROOT)):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names if name != "self"]
        if received := {type(value).__name__ for value in values if type(value) in kinds}:
            seen.add(code)
            file = str(Path(code.co_filename).relative_to(ROOT))
            way.functions.append((file, code.co_qualname, ", ".join(sorted(received))))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return way


def _parts(kind: type) -> Iterator[type]:
    yield kind
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        for part in (hints[field.name], *getattr(hints[field.name], "__args__", ())):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                yield from _parts(part)


def _room(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")
