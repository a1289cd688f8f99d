"""The diagram of the packages, checked: an import points down, and siblings do not know one another."""

import ast
import subprocess
import sys
from pathlib import Path

import lambert

ROOT = Path(lambert.__file__).parent
BELOW = {
    "core": {"core"},
    "corpus": {"core"},
    "data": {"core"},
    "model": {"core"},
    "optim": {"core"},
    "engine": {"core"},
    "horovod": {"core"},
    "tasks": {"core", "corpus", "data", "model", "optim", "engine"},
    "stages": {"core", "corpus", "data", "model", "optim", "engine", "tasks"},
}


def imported(path: Path) -> set[str]:
    """Packages of lambert that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    parts = (name.split(".") for name in names)
    return {part[1] for part in parts if part[0] == "lambert" and len(part) > 1 and (ROOT / part[1]).is_dir()}


def test_imports_point_down() -> None:
    seen = 0
    for package, below in BELOW.items():
        for path in (ROOT / package).rglob("*.py"):
            wrong = imported(path) - below - {package}
            assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"
            seen += 1
    assert seen > 30


def test_help_does_not_wait_for_torch() -> None:
    call = "try: lambert.cli.main(['--help'])\nexcept SystemExit: pass"
    code = f"import sys, lambert.cli\n{call}\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
