"""Every compression gives the same stream, and damage is reported after all data before it."""

import bz2
import gzip
import io
import json
import lzma
import random
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lambert.core.errors import UsageError
from lambert.text.streams import Stream, is_damage, unpack
from lambert.wings.corpus.reading.readers import Layout, read


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd").compress(data)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}
COMPRESSED = [suffix for suffix in PACKERS if suffix]


def stream(suffix: str, packed: bytes) -> Stream:
    return Stream(unpack(Path(f"a.txt{suffix}"), io.BytesIO(packed))[0])


@pytest.mark.parametrize("suffix", PACKERS)
def test_compression_is_transparent(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACKERS[suffix](b'{"text": "one"}\n\n{"text": "tw\\u00f6"}'))
    assert [(piece.text, piece.error) for piece in read(path, Layout())] == [("one", ""), ("twö", "")]


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_truncated_file_keeps_what_came_before_and_says_so(tmp_path: Path, suffix: str) -> None:
    rows = "".join(json.dumps({"text": f"{number} {number * 7919**5 % 10**12}"}) + "\n" for number in range(20_000))
    whole = PACKERS[suffix](rows.encode())
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    pieces = list(read(path, Layout()))
    assert "damaged or truncated" in pieces[-1].error
    assert [piece.text.split()[0] for piece in pieces[:-1]] == [str(number) for number in range(len(pieces) - 1)]
    assert len(pieces) > 1000 or suffix == ".bz2"


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("own", PACKERS)
def test_the_first_bytes_say_how_a_file_is_compressed(tmp_path: Path, suffix: str, own: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKERS[own]("Plain text, n\u00e4mlich, whatever the name says.".encode() * 99))
    (piece,) = read(path, Layout())
    assert (piece.text[:10], piece.error) == ("Plain text", "")


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_what_is_neither_compressed_nor_text_is_damaged(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"\xff\0" + PACKERS[suffix](b"text")[2:])
    (piece,) = read(path, Layout())
    assert "damaged or truncated" in piece.error


def test_the_suffix_of_the_compression_is_removed() -> None:
    raw = io.BytesIO(gzip.compress(b"text"))
    opened, suffix = unpack(Path("corpus.v2/A.JSONL.GZ"), raw)
    assert (opened.read(), suffix) == (b"text", ".jsonl")
    plain = io.BytesIO(b"text")
    assert unpack(Path("a.tar.TXT"), plain) == (plain, ".txt")
    assert unpack(Path("wiki_00"), io.BytesIO(b""))[1] == ""


@pytest.mark.parametrize("suffix", PACKERS)
def test_blocks_do_not_depend_on_the_compression(suffix: str) -> None:
    data = random.Random(0).randbytes(150_000)
    opened = stream(suffix, PACKERS[suffix](data))
    assert data.startswith(opened.peek())
    assert opened.peek()
    assert opened.read(70_000) == data[:70_000]
    assert opened.read(70_000) == data[70_000:140_000]
    assert opened.read(70_000) == data[140_000:]
    assert opened.read(70_000) == b""


class Cut:
    """An opened file that fails once after some data, and then goes on."""

    def __init__(self, data: bytes, error: Exception) -> None:
        self._answers = iter([data, error, b"beyond the damage"])

    def read1(self, size: int) -> bytes:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def cut(data: bytes, error: Exception) -> Stream:
    whole: Any = Cut(data, error)
    return Stream(whole)


def test_damage_is_raised_after_the_data_before_it_and_again() -> None:
    opened = cut(b"one\ntwo\nthr", EOFError("cut"))
    assert opened.read(6) == b"one\ntw"
    assert opened.read(6) == b"o\nthr"
    for _ in range(2):
        with pytest.raises(EOFError, match="cut"):
            opened.read(6)


def test_a_line_that_damage_ends_is_not_returned() -> None:
    opened = cut(b"one\ntwo\nthr", EOFError("cut"))
    assert [opened.readline(99), opened.readline(2), opened.readline(99)] == [b"one\n", b"tw", b"o\n"]
    with pytest.raises(EOFError, match="cut"):
        opened.readline(99)
    whole = stream("", b"one\nthr")
    assert [whole.readline(99) for _ in range(3)] == [b"one\n", b"thr", b""]


def test_other_errors_are_no_damage() -> None:
    zstd_error = type("ZstdError", (Exception,), {})
    for error in (EOFError(), OSError(), lzma.LZMAError(), zlib.error(), zstd_error()):
        assert is_damage(error), error
    for error in (ValueError("ours"), MemoryError(), UsageError("ours")):
        assert not is_damage(error), error
    with pytest.raises(ValueError, match="ours"):
        cut(b"one\n", ValueError("ours")).read(99)
