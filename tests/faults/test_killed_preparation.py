"""Preparation in steps that is killed, loses a worker or has a full disk at random instants: the same command ends in
the same bytes.

LAMBERT_TEST_KILLED_PREPARATIONS says how often; 6 unless it is set (`make test-crash`).
"""

import bz2
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("rensa")

KILLS = int(os.environ.get("LAMBERT_TEST_KILLED_PREPARATIONS", "6"))
pytestmark = pytest.mark.timeout(120 + 30 * KILLS)
FAULTS = ("kill", "kill", "lose a worker", "stop", "full disk")
SMALL = """
import os, resource
most = int(os.environ["LAMBERT_TEST_FILE_BYTES"])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
from lambert.wings.corpus import documents, units
from lambert.wings.corpus.reading import slices
slices.SLICE, slices.STREAMS, slices.WHOLE_BELOW, documents.MARK = 150_000, 30_000, 20_000, 200_000
units.SMALL = 10_000
"""
WORDS = ("river", "stone", "bridge", "quiet", "road", "town", "old", "new", "winter", "market", "letter", "north")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 3 MB of text in files of five kinds, most of them of several slices."""
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(7)

    def sentence() -> str:
        words = draw.choices(WORDS, k=draw.randint(5, 12))
        return f"{' '.join(words).capitalize()} {draw.randint(1, 400)}."

    def article() -> str:
        return "\n\n".join(" ".join(sentence() for _ in range(5)) for _ in range(draw.randint(1, 6)))

    articles = [article() for _ in range(2400)]
    articles[1500:1700] = articles[100:300]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in articles[:1000]).encode()
    (folder / "a.jsonl").write_bytes(rows)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(rows[: len(rows) // 2], mtime=0))
    pages = "".join(
        f"<page><title>P{number}</title><ns>0</ns><revision><text>{text}</text></revision></page>\n"
        for number, text in enumerate(articles[1000:1800])
    )
    dump = f"<mediawiki>\n<siteinfo></siteinfo>\n{pages}</mediawiki>\n".encode()
    streams = [dump[at : at + 50_000] for at in range(0, len(dump), 50_000)]
    (folder / "c.xml.bz2").write_bytes(b"".join(map(bz2.compress, streams)))
    docs = "".join(f'<doc id="{n}" title="t">\n{text}\n</doc>\n' for n, text in enumerate(articles[1800:2200]))
    (folder / "d").write_text(docs)
    for number, text in enumerate(articles[2200:2205]):
        (folder / f"e{number}.txt").write_text(text)
    return folder


class Command:
    """`lambert prepare` in steps, on small slices."""

    def __init__(self, texts: Path, home: Path) -> None:
        self.out = home / "corpus"
        (home / "sitecustomize.py").write_text(SMALL)
        paths = [str(home), str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        self._arguments = [
            *("prepare", "--input", str(texts), "--out", str(self.out), "--workers", "2"),
            *("--steps", "extract,clean,deduplicate,tokens", "--clean", "normalise,prose", "--vocabulary", "300"),
        ]

    def start(self, file_bytes: int = 0) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "lambert", *self._arguments],
            env=self._environment | {"LAMBERT_TEST_FILE_BYTES": str(file_bytes or -1)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def content(self) -> dict[str, bytes]:
        files = [path for path in sorted(self.out.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.out)): path.read_bytes() for path in files}

    def clear(self) -> None:
        for path in self.out.parent.glob("corpus*"):
            shutil.rmtree(path)


def test_killed_at_random_instants_it_ends_in_the_same_bytes(texts: Path, tmp_path: Path) -> None:
    command = Command(texts, tmp_path)
    began = time.monotonic()
    process = command.start()
    _, said = process.communicate()
    assert process.returncode == 0, said
    lasts = time.monotonic() - began
    whole = command.content()
    records = [json.loads(path.read_bytes()) for path in tmp_path.glob("corpus.work/extract/part-*.json")]
    slices = {record["files"][0]["source"] for record in records}
    assert len(list(tmp_path.glob("corpus.work/extract/part-*.json"))) > 2 * len(slices)
    command.clear()
    draw = random.Random(os.environ.get("LAMBERT_TEST_SEED", "1"))
    faults: dict[str, int] = {}
    ended = 0
    while sum(faults.values()) < KILLS or not ended:
        fault = draw.choice(FAULTS) if sum(faults.values()) < KILLS else ""
        size = int(10 ** draw.uniform(2, 6)) if fault == "full disk" else 0
        process = command.start(size)
        if fault and not size:
            time.sleep(draw.uniform(0.3, 1.1) * lasts)
            strike(process, fault)
        said = process.communicate()[1]
        assert "Traceback" not in said, said
        if process.returncode == 0:
            assert command.content() == whole
            command.clear()
            ended += 1
            continue
        # SIGTERM ends Python itself while it starts, before it has imported anything, and when all is written
        early_or_late = not said or command.content() == whole
        codes = {"kill": (-9,), "stop": (75, -15) if early_or_late else (75,)}.get(fault, (4,))
        assert process.returncode in codes, (fault, size, said)
        assert not said or fault == "kill" or len(said.strip().splitlines()[-1]) < 400
        assert command.content() in ({}, whole)
        faults[fault] = faults.get(fault, 0) + 1
    print(f"\n{faults}; {ended} commands ended", flush=True)


def strike(process: "subprocess.Popen[str]", fault: str) -> None:
    if fault == "lose a worker":
        with suppress(psutil.Error, IndexError):  # it may end at this moment
            psutil.Process(process.pid).children()[0].kill()
    elif fault == "kill":
        process.kill()
    elif fault == "stop":
        process.send_signal(signal.SIGTERM)
