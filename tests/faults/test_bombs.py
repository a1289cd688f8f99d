"""Small files that hold very much when they are decompressed: read in bounded memory, or refused in one line."""

import bz2
import gzip
import importlib
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import HANGS

BYTES = 72 * 10**6
"""Of each bomb, decompressed: more than 64 MiB, which every file may have."""
READ_TEXT = """
from lambert.wings.corpus.reading.readers import Layout, read
def read_all(path):
    return [piece.error for piece in read(path, Layout(max_ratio=RATIO)) if piece.error]
"""
READ_ANY, READ_TEXT = READ_TEXT.replace("RATIO", "10**6"), READ_TEXT.replace("RATIO", "100")
READ_LABELLED = """
from lambert.core.errors import DataError
from lambert.tasks.config import Columns
from lambert.tasks.squad.text import read_squad
from lambert.tasks.reading.table import read_rows
def read_all(path):
    try:
        read_squad(path) if ".json." in path.name else sum(1 for _ in read_rows(path, Columns()))
    except DataError as error:
        return [str(error)]
"""
MEASURE = """
import json, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
print(json.dumps([[path.name, read_all(path), peak() - before] for path in map(Path, sys.argv[1:])]))
"""


def zstd_open(path: Path, mode: str) -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name).open(path, mode)
        except ImportError:
            continue
    raise AssertionError("the tests need backports.zstd")


OPEN: dict[str, Callable[[Path, str], Any]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open, "zst": zstd_open}


def bomb(path: Path, begin: bytes = b"") -> Path:
    """Writes one line of BYTES letters, compressed as the name says."""
    with OPEN[path.suffix[1:]](path, "wb") as file:
        file.write(begin)
        for _ in range(BYTES // 10**6):
            file.write(b"a" * 10**6)
    return path


def parquet_bombs(folder: Path) -> list[Path]:
    """A text of BYTES letters; and one of 20 MB in a dictionary to which 100 rows refer."""
    import pyarrow
    import pyarrow.parquet

    one, many = folder / "one.parquet", folder / "many.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a" * BYTES]}), one, compression="zstd")
    text = pyarrow.array(["a" * (20 * 10**6)]).dictionary_encode().take(pyarrow.array([0] * 100))
    pyarrow.parquet.write_table(pyarrow.table({"text": text}), many, compression="zstd", store_schema=False)
    return [one, many]


def measured(read: str, *paths: Path) -> dict[str, tuple[list[str], int]]:
    """What was said of each file, and by how many megabytes the memory had grown after it."""
    command = [sys.executable, "-c", read + MEASURE, *map(str, paths)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    return {name: (said, grown) for name, said, grown in json.loads(done.stdout)}


@pytest.mark.parametrize("suffixes", [("gz", "zst"), pytest.param(("bz2", "xz"), marks=pytest.mark.slow)])
def test_raw_text(suffixes: tuple[str, ...], tmp_path: Path) -> None:
    texts = [bomb(tmp_path / f"a.txt.{suffix}") for suffix in suffixes]
    lines = bomb(tmp_path / "a.jsonl.gz", b'{"text": "')
    refused = measured(READ_TEXT, *texts, lines)
    found = measured(READ_ANY, *texts, lines)
    for each in (refused, found):
        assert all(grown < 60 for name, (_, grown) in each.items() if "txt" in name), each
    assert all(said == [] for name, (said, _) in found.items() if "txt" in name)
    assert all("expands to more than 100 times its size" in said[-1] for said, _ in refused.values())
    said, grown = found["a.jsonl.gz"]
    assert said == ["is longer than 64 MiB"]
    assert grown < 250


@pytest.mark.parametrize(
    "names",
    [("rows.tsv.gz", "rows.json.gz"), pytest.param(("rows.csv.bz2", "rows.jsonl.xz"), marks=pytest.mark.slow)],
)
def test_labelled(names: tuple[str, ...], tmp_path: Path) -> None:
    found = measured(READ_LABELLED, *(bomb(tmp_path / name) for name in names))
    for name, (said, grown) in found.items():
        (line,) = said
        assert line.startswith(f"{tmp_path / name} "), line
        assert "expands to more than 200 times its size" in line or "no line end in its first 1 MiB" in line
        assert grown < 300, found


@pytest.mark.parametrize(
    "read", [pytest.param(READ_TEXT, id="text"), pytest.param(READ_LABELLED, id="labelled", marks=pytest.mark.slow)]
)
def test_parquet(read: str, tmp_path: Path) -> None:
    found = measured(read, *parquet_bombs(tmp_path))
    (said,) = found["one.parquet"][0]
    assert f"has a row group of {BYTES // 10**6}," in said
    assert not found["many.parquet"][0]
    assert found["many.parquet"][1] < 600, found
