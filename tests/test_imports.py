"""The diagram of the packages, checked: imports point down, siblings do not import one another, there is no circle, no
room of the house imports a wing, and no wing another.

wings: bench  convert  corpus  horovod  plan  serve (each may use every room)
cli
verbs
library
commands
runs         inference     measure
distributed  tasks         planning
engine  data  model  optim
text
ops
core  native  verb
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from graphlib import TopologicalSorter
from pathlib import Path

import lambert

ROOT = Path(lambert.__file__).parent
SIBLINGS = {"data", "model", "optim", "engine"}
BELOW = {
    "core": set(),
    "native": set(),
    "ops": {"core", "native"},
    "verb": set(),
    "text": {"core"},
    **{key: {"core"} for key in SIBLINGS},
    "model": {"core", "native", "ops"},
    "optim": {"core", "ops"},
    "engine": {"core", "native", "ops"},
    "distributed": {"core", "engine"},
    "tasks": {"core", "text", "data", "model"},
    "planning": {"core", "model"},
    "measure": {"core", "native", *SIBLINGS, "planning"},
    "inference": {"core", "native", "text", *SIBLINGS, "distributed", "tasks", "planning"},
    "runs": {"core", "native", "ops", "text", *SIBLINGS, "distributed", "tasks", "planning"},
    "commands": {"core", "engine", "runs", "verb"},
    "cli": {"core", "engine", "verb", "commands"},
    "library": {"core", "text", "engine", "runs", "verb", "commands"},
    "verbs": {
        "core", "native", "verb", "text", *SIBLINGS, "distributed", "tasks", "planning", "inference", "runs",
        "commands", "library",
    },
}  # fmt: skip
"""The packages and modules that each of the house may import beside itself."""
DOORS = {"lambert.horovod": "horovod"}
"""Packages of public names of a wing, which import it."""


def modules() -> dict[str, Path]:
    """Every module of lambert by its dotted name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("lambert", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(path: Path, *, within: bool) -> Iterator[str]:
    """Modules of lambert that a file imports; `within` also those that it imports inside of functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if within else tree.body:
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name in MODULES)


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def wing(module: str) -> str:
    """The wing that a module belongs to; "" for a module of the house."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "wings" else ""


def test_every_package_is_in_the_diagram() -> None:
    found = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    assert found - {"wings", *map(package, DOORS)} == {name for name in BELOW if (ROOT / name).is_dir()}


def test_imports_point_down() -> None:
    for module, path in MODULES.items():
        own = package(module)
        if own in BELOW:
            wrong = {package(name) for name in imported(path, within=True)} - BELOW[own] - {own, ""}
            assert not wrong, f"{module} imports {sorted(wrong)}"


def test_a_wing_is_imported_by_itself_alone() -> None:
    for module, path in MODULES.items():
        own = next((name for door, name in DOORS.items() if f"{module}.".startswith(f"{door}.")), wing(module))
        wrong = {name for name in imported(path, within=True) if wing(name)} - {
            name for name in MODULES if wing(name) == own
        }
        assert not wrong, f"{module} imports {sorted(wrong)}"


def test_no_import_is_a_circle() -> None:
    """Of modules, so of subpackages too."""
    graph = {module: set(imported(path, within=False)) for module, path in MODULES.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert (
        order.index("lambert.core.errors") < order.index("lambert.runs.updates") < order.index("lambert.verbs.pretrain")
    )


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """The strongly connected components of a graph that have several nodes.

    Source: Tarjan, "Depth-first search and linear graph algorithms", 1972, section 4.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for after in graph[node]:
            if after not in number:
                visit(after)
            if after in path:
                lowest[node] = min(lowest[node], lowest[after])
        if lowest[node] == number[node]:
            start = path.index(node)
            found.append(sorted(path[start:]))
            del path[start:]

    for node in graph:
        if node not in number:
            visit(node)
    return [nodes for nodes in found if len(nodes) > 1]


def test_a_circle_of_imports_inside_functions_is_small() -> None:
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set()}) == [["a", "b", "c"]]
    graph = {module: set(imported(path, within=True)) for module, path in MODULES.items()}
    assert [nodes for nodes in circles(graph) if len(nodes) > 3] == []


def test_a_group_knows_nothing_of_what_it_exchanges() -> None:
    starting = ("detection", "group", "rendezvous", "launch_environment", "agent")
    for module in (*starting, "failure_detector", "agreement", "stragglers"):
        names = imported(MODULES[f"lambert.distributed.{module}"], within=True)
        assert not [name for name in names if ".exchange" in name and "engine" not in name], module


def test_pretrain_imports_nothing_that_only_several_processes_need() -> None:
    found, new = set(), {"lambert.verbs.pretrain"}
    while new:
        found |= new
        new = {name for module in new for name in imported(MODULES[module], within=False)} - found
    assert "lambert.distributed.detection" in found
    needless = {"lambert.distributed." + name for name in ("group", "rendezvous", "failure_detector", "agent")}
    assert not needless & found


def test_help_does_not_wait_for_torch() -> None:
    call = "try: lambert.cli.main(['--help'])\nexcept SystemExit: pass"
    code = f"import sys, lambert.cli\n{call}\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
