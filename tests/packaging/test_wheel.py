"""The source distribution and the wheel are complete, and the wheel works in an environment without a checkout.

`make test-wheel` runs this. The wheel is built from the source distribution, which is built from a copy of the files
that it may use, so nothing that lies elsewhere in the checkout gets in. Nothing is fetched.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lambert import __version__

ROOT = Path(__file__).parents[2]
OTHERS = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
COMPILED = "lambert/native/kernels.so"
COMPILES = sys.platform == "linux" and platform.machine() == "x86_64"
MEGABYTES = 6
"""The largest wheel: the compressed texts of the demo have 2.2, the kernels 1.8, the rest 0.8."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in OTHERS:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "*.so"))
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source])
    return out


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel, what it requires, the extra `report`, and nothing else.

    The files of the requirements are those of the environment that runs the tests, by links: fetching torch again would
    take a minute.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel])
    (site,) = folder.glob("lib/python*/site-packages")
    (installed,) = metadata.distributions(name="lambert-bert", path=[str(site)])
    for name in required(installed.requires or [], extra="report"):
        files = metadata.distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(metadata.distribution(name).locate_file(top))
    return python.parent


def required(requirements: Iterable[str], extra: str = "") -> set[str]:
    """The names of the distributions of these requirements, those of `extra` among them, and of theirs."""
    found: set[str] = set()
    for requirement in map(Requirement, requirements):
        if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
            found |= {requirement.name} | required(metadata.requires(requirement.name) or [])
    return found


def run(words: Iterable[object], folder: Path | None = None) -> str:
    """Runs a command and returns its output. It does not see the variables of the tests, nor PYTHONPATH."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    done = subprocess.run([*map(str, words)], cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def sources() -> set[str]:
    """The files of the package in the checkout, relative to src."""
    found = (path.relative_to(ROOT / "src") for path in (ROOT / "src" / "lambert").rglob("*") if path.is_file())
    return {path.as_posix() for path in found if path.suffix != ".so" and "__pycache__" not in path.parts}


def test_the_source_distribution_has_every_source(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.removeprefix("src/") for name in names if name.startswith("src/lambert/")} >= sources()
    assert names >= {*OTHERS}
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_the_wheel_has_every_file_but_the_sources_of_the_kernels(dist: Path) -> None:
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        about = {name.partition("/")[2] for name in names if ".dist-info/" in name}
    expected = {name for name in sources() if not name.endswith((".cpp", ".h"))}
    assert {name for name in names if ".dist-info/" not in name} == expected | ({COMPILED} if COMPILES else set())
    assert {"licenses/LICENSE", "entry_points.txt"} <= about
    assert "lambert/verbs/demo/data/README.md" in names  # the sources of the texts
    assert path.name.startswith(f"lambert_bert-{__version__}-py3-none-")
    assert path.stat().st_size < MEGABYTES * 1e6


def test_the_wheel_runs_the_demo_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    where = run([installed / "python", "-c", "import lambert; print(lambert.__file__)"], tmp_path)
    assert Path(where).is_relative_to(installed.parent), where
    assert run([installed / "lambert", "--version"], tmp_path) == f"{__version__}\n"
    findings = {
        finding["what"]: finding for finding in json.loads(run([installed / "lambert", "doctor", "--json"], tmp_path))
    }
    assert findings["lambert"]["found"] == __version__
    assert [what for what, finding in findings.items() if finding["state"] == "missing"] == []
    printed = run([installed / "lambert", "demo", "--short", "--out", "tried"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tried"]
    assert "on the curve\n" in printed  # of [expect], for the first 200 updates
    assert "All commands ran" in printed
    assert "warning" not in printed
    for name in ("names-pretrained/seed-1/model/model.safetensors", "report.html"):
        assert (tmp_path / "tried" / name).stat().st_size > 10_000, name
