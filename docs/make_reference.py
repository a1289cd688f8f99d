"""Writes docs/reference.md from the docstrings of the names in `lambert.__all__`: `make reference`."""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import lambert

PAGE = Path(__file__).with_name("reference.md")
HEAD = "# Reference\n\nThe names of `lambert`, from their docstrings (`make reference`). How to use them: library.md.\n"


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(name, getattr(lambert, name)) for name in lambert.__all__)])


def section(name: str, found: Any) -> str:
    """A function with its signature, or a class with its fields, properties and methods."""
    lines = [f"## {name}\n"]
    if inspect.isfunction(found):
        lines += [f"    {name}{signature(found)}\n", inspect.getdoc(found) or "", ""]
        return "\n".join(lines)
    lines += [inspect.getdoc(found) or "", ""]
    if dataclasses.is_dataclass(found):
        texts = documented(found)
        lines += [f"- `{field.name}`: {texts.get(field.name, 'its settings.')}" for field in dataclasses.fields(found)]
    for method, value in vars(found).items():
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        text = inspect.getdoc(inner)
        if text and (not method.startswith("_") or method == "__call__") and (
            isinstance(inner, property) or inspect.isfunction(inner)
        ):  # fmt: skip
            lines.append(f"- `.{method}`: {' '.join(text.split())}")
    return "\n".join([*lines, ""])


def signature(function: Any) -> str:
    """Its arguments and what it gives, without the modules of types."""
    return re.sub(r"(?<![\w.])(?:\w+\.)+(?=[A-Z])", "", str(inspect.signature(function)).replace("'", '"'))


def documented(kind: type) -> dict[str, str]:
    """The docstring under each field, in one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(node.target)] = " ".join(str(text.value.value).split())
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)
