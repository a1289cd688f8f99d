"""Writes docs/reference.md from the docstrings of the names in `lambert.__all__`, docs/settings.md from those of the
settings of all verbs, the types of the package, and tests/golden/messages.txt from the errors: `make reference`."""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import lambert
from lambert.verb import all_verbs, settings_of

DOCS = Path(__file__).parent
HEAD = """# Reference

The names of `lambert`, from their docstrings (`make reference`). [library.md](library.md) says how to use them.
"""


SETTINGS_HEAD = """# Settings

Every setting of every verb, with its default and unit, from the docstrings (`make reference`). `lambert VERB --help`
shows the same. A setting `optim.lr` is `lr` in the table `[optim]` of a recipe, and the flag `--optim.lr`;
[recipes.md](recipes.md) has the rules. What several verbs share is listed at the first of them.
"""


def reference() -> str:
    """The page of the names of `lambert`."""
    return "\n".join([HEAD, *(section(name, getattr(lambert, name)) for name in lambert.__all__)])


def section(name: str, found: Any) -> str:
    """A function with its signature, or a class with its fields, properties and methods."""
    lines = [f"## {name}\n"]
    if inspect.isfunction(found):
        lines += [f"    {name}{signature(found)}\n", markdown(found), ""]
        return "\n".join(lines)
    lines += [markdown(found), ""]
    if dataclasses.is_dataclass(found):
        texts = documented(found)
        lines += [
            f"- `{field.name}`: {linked(texts.get(field.name, 'its settings.'))}" for field in dataclasses.fields(found)
        ]
    for method, value in vars(found).items():
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        text = inspect.getdoc(inner)
        if text and (not method.startswith("_") or method == "__call__") and (
            isinstance(inner, property | cached_property) or inspect.isfunction(inner)
        ):  # fmt: skip
            lines.append(f"- `.{method}`: {linked(' '.join(text.split()))}")
    return "\n".join([*lines, ""])


HEADINGS = {"Args:": "Arguments:", "Raises:": "Raises:", "Returns:": "Returns:", "Yields:": "Yields:"}


def markdown(found: Any) -> str:
    """The docstring of a name, with its arguments and errors as lists."""
    lines = []
    for line in (inspect.getdoc(found) or "").splitlines():
        if line in HEADINGS:
            lines += [HEADINGS[line], ""]
        elif item := re.match(r"    ([\w*]+(?:, \w+)*): (.*)", line):
            lines.append(f"- `{item[1]}`: {item[2]}")
        else:
            lines.append(f"  {line.strip()}" if line.startswith("     ") else line.strip())
    return linked("\n".join(lines))


def linked(text: str) -> str:
    """Text in which the names of pages are links."""
    return re.sub(r"\bdocs/(\w+\.md)", r"[\1](\1)", text)


def signature(function: Any) -> str:
    """Its arguments and what it gives, without the modules of types."""
    return re.sub(r"(?<![\w.])(?:\w+\.)+(?=[A-Z])", "", str(inspect.signature(function)).replace("'", '"'))


def settings() -> str:
    """The page of the settings of all verbs. A setting that several verbs share is listed at the first of them."""
    lines = [SETTINGS_HEAD]
    places: dict[tuple[str, str], str] = {}
    for verb, record in ((name, record) for name, record in all_verbs().items() if record.settings):
        lines += [f"## {verb}\n", f"{record.summary} How to use it: [{page_of(verb)}]({page_of(verb)}).\n"]
        whole = []
        for title, rows in tables(settings_of(record), "", None).items():
            heading = f"{verb} [{title}]" if title else verb
            at = {row: places.setdefault((title, row), heading) for row in rows}
            others = [place for place in dict.fromkeys(at.values()) if place != heading]
            if title and list(at.values()) == others[:1] * len(rows):
                whole.append(f"[`[{title}]`](#{anchor(others[0])})")
                continue
            lines += [f"### {heading}\n"] * bool(title)
            lines += [HEADER + own] if (own := "".join(row for row in rows if at[row] == heading)) else []
            for other in others:
                names = ", ".join(row.split(" | ")[0].removeprefix("| ") for row in rows if at[row] == other)
                lines += [f"As in [{other}](#{anchor(other)}): {names}.\n"]
        lines += [f"Also the tables {', '.join(whole)}.\n"] if whole else []
    return "\n".join(lines)


HEADER = "| setting | value | default | |\n|---|---|---|---|\n"


def page_of(verb: str) -> str:
    """The page that explains a verb."""
    pages = {"import": "convert", "export": "convert", "extend": "adapt", "launch": "cluster", "corpus peek": "prepare",
             "corpus fetch": "prepare", "corpus verify": "prepare"}  # fmt: skip
    return f"{pages.get(verb, verb)}.md"


def anchor(heading: str) -> str:
    """The anchor of a heading, as browsers of repositories make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def tables(kind: Any, title: str, defaults: Any) -> dict[str, list[str]]:
    """The rows of a settings class and of the tables in it, by their dotted names. `defaults` is an instance, if the
    class has one."""
    rows: list[str] = []
    inner: dict[str, list[str]] = {}
    hints, texts = get_type_hints(kind), documented(kind)
    for field in dataclasses.fields(kind):
        hint, value = hints[field.name], default(field, defaults)
        part = next((part for part in (hint, *get_args(hint)) if dataclasses.is_dataclass(part)), None)
        name = f"{title}.{field.name}".lstrip(".")
        if part is not None:
            inner |= tables(part, name, value if dataclasses.is_dataclass(value) else None)
        else:
            text = linked(texts.get(field.name, "")).replace("|", "\\|").replace("*", "\\*").replace("<", "\\<")
            rows.append(f"| `{name}` | {values(hint)} | {shown(value)} | {text} |\n")
    return {title: rows, **inner}


def default(field: Any, defaults: Any) -> Any:
    """The default of a field: that of the instance, or of the class; MISSING if it is required."""
    if defaults is not None:
        return getattr(defaults, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def shown(value: Any) -> str:
    """A default as text."""
    if value is dataclasses.MISSING:
        return "required"
    if value in (None, "", (), {}, Path()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


KINDS = {bool: "true, false", int: "whole number", float: "number", str: "text", Path: "path"}


def values(hint: Any) -> str:
    """What a setting may be, in words."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" if value != "" else "empty" for value in get_args(hint))
    parts = [values(part) for part in get_args(hint) if part not in (type(None), Ellipsis)]
    if get_origin(hint) is tuple:
        several = "several" if Ellipsis in get_args(hint) else str(len(parts))
        return f"{several}: {parts[0]}"
    return " or ".join(dict.fromkeys(parts)) or KINDS.get(hint, "text")


def documented(kind: type) -> dict[str, str]:
    """The docstring under each field, in one line. A class that gives a field another default may document it anew."""
    found = {}
    for one in kind.__mro__[-2::-1]:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(tree, ast.ClassDef)
        for node, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(node.target)] = " ".join(str(text.value.value).split())
    return found


def stub() -> str:
    """The types of the package `lambert`, which imports its names when they are first used."""
    found = (getattr(lambert, name) for name in lambert.__all__)
    names = sorted((one.__module__, one.__name__) for one in found)
    names.append(("lambert.core.version", "__version__"))
    lines = [f"from {module} import {name} as {name}" for module, name in names]
    return "\n".join(['"""The public names (`make reference`)."""', "", *sorted(lines), "", "__all__: list[str]", ""])


def messages() -> str:
    """The messages of all errors in the source, so that a changed sentence is seen in one place. An expression in a
    message is a name, or `...`."""
    lines = []
    for path in sorted(PACKAGE.rglob("*.py")):
        found = [text for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if (text := message(call))]
        lines += [f"{path.relative_to(PACKAGE).as_posix()}", *sorted(f"    {text}" for text in found)] if found else []
    return "\n".join(lines) + "\n"


def message(node: ast.AST) -> str:
    """The message of a call such as UsageError(f"..."), with its line ends escaped; "" for everything else."""
    match node:
        case ast.Call(ast.Name(name), [ast.JoinedStr(values), *_]) if name.endswith("Error"):
            parts = [one.value if isinstance(one, ast.Constant) else f"{{{named(one)}}}" for one in values]
            return "".join(map(str, parts)).replace("\n", "\\n")
        case ast.Call(ast.Name(name), [ast.Constant(str(text)), *_]) if name.endswith("Error"):
            return text.replace("\n", "\\n")
    return ""


def named(value: ast.expr) -> str:
    match value:
        case ast.FormattedValue(ast.Name(name) | ast.Attribute(attr=name) | ast.Call(_, [ast.Name(name)])):
            return name
    return "..."


PACKAGE = Path(lambert.__file__).parent
PAGES = {
    DOCS / "reference.md": reference, DOCS / "settings.md": settings, PACKAGE / "__init__.pyi": stub,
    DOCS.parent / "tests/golden/messages.txt": messages,
}  # fmt: skip

if __name__ == "__main__":
    for path, made in PAGES.items():
        path.write_text(made(), encoding="utf-8")
        print(path, file=sys.stderr)
