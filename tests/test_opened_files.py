"""Files that others may have placed are opened by `core.files.open_regular` alone, which neither waits for a named pipe
nor reads a device."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lambert

ROOT = Path(lambert.__file__).parent
OWN = {
    "core/files.py": "open_regular itself, and temporary files",
    "core/launcher.py": "reports of its own workers",
    "wings/corpus/reading/wikis/locale.py": "data of the package",
    "wings/corpus/remote/fetch.py": "bodies of servers, and a lock in its own folder",
    "wings/corpus/remote/servers.py": "files of object storage",
    "wings/corpus/remote/store.py": "files of object storage",
    "wings/corpus/tokens/vocabulary.py": "a temporary file",
    "distributed/agreement.py": "the source of the package",
    "engine/device.py": "/proc and /sys",
    "engine/environment.py": "/proc",
    "engine/process.py": "/dev/null",
    "wings/convert/checking.py": "the result of its own process",
    "wings/convert/source_library.py": "the job of its own process",
    "wings/horovod/run/function.py": "the function and the results of its own workers",
    "wings/horovod/run/hosts.py": "a list of hosts, which may be a pipe, as with mpirun",
    "native/__init__.py": "/proc",
    "wings/serve/page/__init__.py": "data of the package",
    "wings/bench/side_process.py": "/proc",
    "wings/bench/peer_run.py": "files of its own process",
    "wings/bench/runs.py": "output of its own process",
    "verbs/demo/__init__.py": "data of the package, and its own recipes",
    "verbs/demo/results.py": "results of its own runs",
    "verbs/doctor.py": "/sys",
}
"""Modules that open files which only Lambert or the system writes, with those files."""


def opened(path: Path) -> Iterator[int]:
    """Yields the lines with calls that open a file for reading or appending."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [one.value for one in (*node.args, *(k.value for k in node.keywords)) if isinstance(one, ast.Constant)]
        new = any(isinstance(mode, str) and mode[:1] in "wx" for mode in modes)
        whole = name in ("read_text", "read_bytes") and isinstance(node.func, ast.Attribute)
        if whole or (name == "open" and not new):
            yield node.lineno
        elif name in ("from_file", "memmap", "load_file") and ast.unparse(node.func).startswith(("np.", "Tokenizer.")):
            yield from [] if "check_regular" in ast.unparse(node) else [node.lineno]


def modules() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("name", [name for name in modules() if name not in OWN])
def test_files_are_opened_by_one_function(name: str) -> None:
    assert [f"{name}:{line}" for line in opened(ROOT / name)] == []


def test_each_exception_opens_a_file() -> None:
    assert [name for name in OWN if not [*opened(ROOT / name)]] == []
