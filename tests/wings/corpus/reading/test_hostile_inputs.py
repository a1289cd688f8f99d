"""Small files that were made to do harm, through the whole of `prepare`: one line, or documents that are counted.

All are prepared by one process with a limited address space, each beside a file of good documents.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import one_line
from patience import HANGS

from lambert.wings.corpus import documents
from lambert.wings.corpus.reading.readers import Piece, read

Lambert = Callable[..., Any]
arrow = pytest.importorskip("pyarrow")
if find_spec("resiliparse") is None or not Path("/proc/self/status").exists():
    pytest.skip("needs the extra web, and Linux", allow_module_level=True)

SECONDS, MEGABYTES = 30, 1000
GOOD = [f"The river number {number} runs under an old stone bridge near the quiet road to town." for number in range(9)]
RUN = """
import json, resource, sys, time
from pathlib import Path
from lambert.core.errors import LambertError
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
folder, good = map(Path, sys.argv[1:])
for path in sorted(folder.iterdir()):
    begun = time.process_time()
    config = PrepareConfig(
        input=(path, good), out=folder.parent / "out" / path.name, vocabulary=200, workers=1, max_bad=0.9, min_tokens=2,
        heldout=0.0,
    )
    try:
        found = prepare(config)["documents"]
        said = [str(found["kept"]), *found["unreadable"], json.dumps(found["passed_over"])]
    except LambertError as error:
        said = [f"error {error.exit_code}", str(error)]
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
    print(json.dumps([path.name, said, time.process_time() - begun, peak]), flush=True)
"""


def zstd(data: bytes) -> bytes:
    module = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    return bytes(module.compress(data))


def mediawiki(*pages: bytes, head: bytes = b"") -> bytes:
    return head + b"<mediawiki>\n" + b"".join(pages) + b"</mediawiki>\n"


def page(text: bytes, title: bytes = b"Title") -> bytes:
    return b"<page><title>%s</title><ns>0</ns><revision><text>%s</text></revision></page>\n" % (title, text)


def parquet(values: list[Any], **options: Any) -> bytes:
    from pyarrow.parquet import write_table

    out = io.BytesIO()
    write_table(arrow.table({"text": values}), out, **options)
    return out.getvalue()


def stream(values: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    table = arrow.table({"text": values})
    with arrow.ipc.new_stream(out, table.schema, options=arrow.ipc.IpcWriteOptions(**options)) as file:
        file.write_table(table)
    return out.getvalue()


def warc(content: bytes, url: str = "http://a.org/", length: int | None = None, kind: str = "response") -> bytes:
    size = len(content) if length is None else length
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nContent-Type: application/http\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode() + content + b"\r\n\r\n"


def http(body: bytes, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{lines}\r\n".encode() + body


SENTENCE = b"The old king found a river near the bright road and walked home. "
ZEROS = bytes(66 << 20)
"""More than 64 MiB, which every file may have."""
ENTITIES = b"<!DOCTYPE mediawiki [<!ENTITY a 'aaaaaaaaaa'>" + b"".join(
    b"<!ENTITY %c '%s'>" % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(12)
) + b"]>"  # fmt: skip
CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    # compression
    "bomb.txt.gz": (lambda: gzip.compress(ZEROS, 1), "expands to more than 100"),
    "bomb.txt.bz2": (lambda: bz2.compress(ZEROS), "expands to more than 100"),
    "bomb.txt.xz": (lambda: lzma.compress(ZEROS, preset=0), "expands to more than 100"),
    "bomb.txt.zst": (lambda: zstd(ZEROS), "expands to more than 100"),
    "bomb.jsonl.gz": (lambda: gzip.compress(b'{"text": "' + ZEROS, 1), "is longer than 64 MiB"),
    "bomb.csv.gz": (lambda: gzip.compress(b'text\n"' + ZEROS, 1), "expands to more than 100"),
    "bomb.xml.bz2": (lambda: bz2.compress(mediawiki(page(ZEROS))), "expands to more than 100"),
    "bomb.warc.gz": (lambda: gzip.compress(warc(http(ZEROS)), 1), "expands to more than 100"),
    "bomb.html.gz": (lambda: gzip.compress(ZEROS, 1), "is longer than 16 MiB"),
    "bomb.parquet.gz": (lambda: gzip.compress(ZEROS, 1), "expands to more than 100"),
    "twice.txt.gz": (lambda: gzip.compress(gzip.compress(SENTENCE)), "more than once, and is gz inside"),
    "twice.txt.gz.gz": (lambda: gzip.compress(bz2.compress(SENTENCE)), "more than once, and is bz2 inside"),
    "twice.jsonl.gz": (lambda: gzip.compress(gzip.compress(b"{}")), "more than once, and is gz inside"),
    "twice.jsonl.bz2": (lambda: bz2.compress(bz2.compress(b"{}")), "more than once, and is bz2 inside"),
    "twice.csv.xz": (lambda: lzma.compress(gzip.compress(b"text\n")), "more than once, and is gz inside"),
    "table.jsonl": (lambda: parquet(GOOD), "is a Parquet file (it begins with PAR1): name it .parquet"),
    "table.txt.gz": (lambda: gzip.compress(parquet(GOOD)), "is a Parquet file (it begins with PAR1)"),
    "plain.txt.gz": (lambda: SENTENCE, "10"),
    "other.txt.gz": (lambda: bz2.compress(SENTENCE), "10"),
    "packed.txt": (lambda: lzma.compress(SENTENCE), "10"),
    "cut.txt.xz": (lambda: lzma.compress(os.urandom(9999).hex().encode())[:-500], "is damaged or truncated after this"),
    "behind.txt.gz": (lambda: gzip.compress(SENTENCE) + b"not gzip", "is damaged or truncated after this"),
    "only-magic.gz": (lambda: b"\x1f\x8b", "is damaged or truncated after this"),
    "archive.txt": (lambda: b"PK\x03\x04" + bytes(99), "is a ZIP archive"),
    "document.txt": (lambda: b"%PDF-1.7\n", "is a PDF document"),
    # dumps
    "entities.xml": (lambda: mediawiki(page(b"&m;"), page(SENTENCE), head=ENTITIES), "broken XML (undefined entity)"),
    "page-entities.xml": (lambda: mediawiki(ENTITIES + page(b"&m;"), page(SENTENCE)), "broken XML (undefined entity)"),
    "nested.xml": (lambda: mediawiki(page(b"<x>" * 99_999), page(SENTENCE)), "is broken XML"),
    "templates.xml": (lambda: mediawiki(page(b"{{" * 99_999 + SENTENCE), page(SENTENCE)), "1"),
    "invalid.xml": (lambda: mediawiki(page(b"\xff"), page(SENTENCE)), "is not UTF-8 text (byte 0xff)"),
    "title.xml": (lambda: mediawiki(page(b"\0", b"../../etc/passwd")), "is broken XML (not well-formed"),
    # text, JSON and tables
    "invalid.txt": (lambda: SENTENCE + b"\xff" + SENTENCE, "is not UTF-8 text (byte 0xff)"),
    "empty.txt": (lambda: b"", "9"),
    "controls.txt": (lambda: bytes(range(32)) * 99, "9"),
    "nested.jsonl": (lambda: b'{"text": ' + b"[" * 99_999 + b"\n", "is not JSON"),
    "digits.jsonl": (lambda: b'{"text": 1' + b"0" * 99_999 + b"}\n", "has a number of thousands of digits"),
    "end.jsonl": (lambda: b'{"text": "a b c"}\n{"text": "a b', "Unterminated string): the file ends within it"),
    "surrogates.jsonl": (lambda: b'{"text": "\\ud800"}\n', "half of a surrogate pair"),
    "open.csv": (lambda: b'text,id\n"' + SENTENCE * 999, "quotation mark that is never closed"),
    "columns.csv": (lambda: b"body," * 99_999 + b"\n", "has no column 'text'"),
    "cells.csv": (lambda: b"text,id\n" + b"a," * 99_999 + b"\n", "has 100000 cells where the first line has 2"),
    "names.csv": (lambda: b"text,text\na,b\n", "has two columns 'text'"),
    # Parquet and Arrow
    "bomb.parquet": (lambda: parquet(["a" * (66 << 20)], compression="zstd"), "has a row group of"),
    "cut.parquet": (lambda: parquet(GOOD)[:-9], "is damaged or not Parquet"),
    "magic.parquet": (lambda: b"PAR1" + b"\xff" * 99 + b"PAR1", "is damaged or not Parquet"),
    "numbers.parquet": (lambda: parquet([1, 2]), "has a number in the field 'text', not text"),
    "bomb.arrow": (lambda: stream(["a" * (66 << 20)], compression="zstd"), "has compressed record batches"),
    "dictionary.arrow": (
        lambda: stream(arrow.DictionaryArray.from_arrays(arrow.array([0] * 9), arrow.array(["a b " * (1 << 18)]))), "10"
    ),
    "body.arrow": (lambda: stream(GOOD)[:-200].replace(b"\0\0\0\0", b"\0\0\xff\x7f", 9), "is damaged or not Arrow"),
    # pages and archives
    "deep.html": (lambda: b"<div>" * 999_999, "has more than 2,000 nested elements"),
    "tags.html": (lambda: b"<" * 999_999 + b"<b>" * 99_999 + SENTENCE, "10"),
    "huge.warc": (lambda: warc(http(SENTENCE), length=10**14), "has fewer bytes than its Content-Length"),
    "path.warc": (lambda: warc(http(b"\xff"), "file:///../../etc/passwd\x1b[2J"), "(file:///../../etc/passwd?[2J)"),
    "packed.warc": (lambda: warc(http(gzip.compress(ZEROS, 1), Content_Encoding="gzip")), "longer than 16 MiB when"),
    "brotli.warc": (lambda: warc(http(b"\xff" * 99, Content_Encoding="br")), "is not br"),
    "chunks.warc": (lambda: warc(http(b"ffffffff\r\nx", Transfer_Encoding="chunked")), "9"),
    "header.warc": (lambda: b"WARC/1.0\r\n" + b"a" * (1 << 20), "has a header of more than 256 KiB"),
    "lines.warc": (lambda: b"WARC/1.0\r\n\r\n" * 9_999, "has no valid Content-Length"),
    "short-lines.warc": (lambda: b"WARC/1.0\r\n" + b"a\n" * (1 << 18), "has a header of more than 256 KiB"),
    "length.warc": (lambda: warc(b"", length=10**9) + warc(b"", kind="request") * 60_000, "has fewer bytes than its"),
    "lengths.warc": (lambda: warc(b"", length=10**9) * 60_000, "has fewer bytes than its Content-Length"),
}  # fmt: skip


LARGE = {name for name in CASES if name.startswith("bomb.")}
LARGE |= {"packed.warc", "dictionary.arrow", "length.warc", "lengths.warc"}
"""What takes seconds, most of them because they have 66 MB when unpacked. faults/test_bombs.py has quicker ones."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], dict[str, tuple[list[str], float, int]]]:
    """What `prepare` said of each small or large file, its processor seconds, and the memory of the process after it in
    MB."""

    @cache
    def find(large: bool) -> dict[str, tuple[list[str], float, int]]:
        root = tmp_path_factory.mktemp("hostile")
        (root / "in").mkdir()
        for name, (make, _) in CASES.items():
            if (name in LARGE) == large:
                (root / "in" / name).write_bytes(make())
        (root / "good.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in GOOD))
        command = [sys.executable, "-c", RUN, str(root / "in"), str(root / "good.jsonl")]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANGS)
        assert done.returncode == 0, done.stdout[-500:] + done.stderr
        assert not list(root.rglob("crash.txt"))
        lines = map(json.loads, done.stdout.splitlines())
        return {name: (said, seconds, peak) for name, said, seconds, peak in lines}

    return find


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in CASES]
)
def test_a_hostile_file(name: str, found: Callable[[bool], dict[str, tuple[list[str], float, int]]]) -> None:
    said, seconds, peak = found(name in LARGE)[name]
    text = " | ".join(said)
    assert CASES[name][1] in text, text
    assert "\n" not in text
    assert max(map(len, said)) < 1000
    assert said[0].isdecimal() or said[0] == "error 3"
    assert seconds < SECONDS
    assert peak < MEGABYTES


# --- files that are not what they seem ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of good documents."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in GOOD))
    return tmp_path / "in"


def prepared(lambert: Lambert, *inputs: Path, **settings: Any) -> Any:
    fixed = {"out": inputs[0].parent / "corpus", "vocabulary": 200, "workers": 1, "min_tokens": 2, "max_bad": 0.9}
    return lambert("prepare", "--input", *inputs, **fixed | settings)


@pytest.mark.parametrize("name", ["pipe", "pipe.xml", "pipe.csv", "pipe.txt.gz"])
@pytest.mark.timeout(60)
def test_pipes_and_devices(name: str, folder: Path, lambert: Lambert) -> None:
    os.mkfifo(folder / name)
    one_line(prepared(lambert, folder / name), 3, "is not a regular file")
    one_line(prepared(lambert, Path("/dev/zero"), out=folder.parent / "out"), 3, "/dev/zero is not a regular file")
    done = prepared(lambert, folder)
    assert "files       1 (" in done.out
    assert "1 of another kind" in done.out


def test_links_in_circles(folder: Path, lambert: Lambert) -> None:
    (folder / "loop").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "gone.txt").symlink_to(folder / "nothing.txt")
    one_line(prepared(lambert, folder / "self.txt"), 3, "is not a regular file")
    one_line(prepared(lambert, folder / "gone.txt"), 3, "is not a regular file")
    done = prepared(lambert, folder)
    assert "files       1 (" in done.out
    assert "2 of another kind" in done.out


@pytest.mark.parametrize("steps", [None, "extract,tokens"])
def test_names_that_are_no_utf8(steps: str | None, folder: Path, lambert: Lambert) -> None:
    with open(os.fsencode(folder) + b"/caf\xe9\n.txt", "wb") as file:
        file.write(SENTENCE)
    with open(os.fsencode(folder) + b"/bad\xe9.txt", "wb") as file:
        file.write(b"\xff")
    done = prepared(lambert, folder, **({"steps": steps} if steps else {}))
    assert done.code == 0, done.err
    assert "10 kept of 11" in done.out
    written = (folder.parent / "corpus" / "manifest.json").read_bytes()
    assert prepared(lambert, folder, **({"steps": steps} if steps else {})).code == 0
    assert (folder.parent / "corpus" / "manifest.json").read_bytes() == written
    manifest = json.loads(written)
    assert any("caf" in entry["file"] for entry in manifest["inputs"])


@pytest.mark.parametrize("change", ["grow", "shrink", "remove", "replace"])
def test_a_file_that_changes_while_it_is_read(
    change: str, folder: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "changing.txt"
    path.write_bytes(SENTENCE * 99_999)

    def changed(*arguments: Any, **more: Any) -> Iterator[Piece]:
        pieces = read(*arguments, **more)
        yield next(pieces)
        if change == "remove":
            path.unlink(missing_ok=True)
        else:
            os.truncate(path, 99) if change == "shrink" else path.write_bytes(b"other")
        yield from pieces

    monkeypatch.setattr(documents, "read", changed)
    called = prepared(lambert, path)
    assert called.code == 3, called.err
    assert called.err.splitlines()[-1].startswith(f"lambert: {path} changed while it was read. Give the command again")
    assert not (folder.parent / "corpus").exists()


def test_a_document_of_500_megabytes(tmp_path: Path) -> None:
    """A sparse file, in bounded memory."""
    path = tmp_path / "sparse.txt"
    with path.open("wb") as file:
        file.write(SENTENCE)
        file.truncate(500 * 10**6)
    code = (
        "import sys; from pathlib import Path; from lambert.wings.corpus.reading.readers import Layout, read; "
        "print(sum(len(p.text) for p in read(Path(sys.argv[1]), Layout())), "
        "int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True, timeout=HANGS)
    size, peak = map(int, done.stdout.split())
    assert size == 500 * 10**6
    assert peak < 200
