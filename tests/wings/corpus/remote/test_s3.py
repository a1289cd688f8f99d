"""Inputs and corpora in S3: s3fs, which fsspec uses for s3://, with a server of moto on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import last_line

from lambert.core.errors import DataError, UsageError
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.remote.fetch import fetch
from lambert.wings.corpus.remote.servers import source_of

pytest.importorskip("pyarrow")
s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")
ROWS = [{"text": f"The river number {number} runs under an old stone bridge to town."} for number in range(400)]
DATA = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def fetched(folder: Path, url: str) -> list[Path]:
    found, _, urls = fetch([url], folder, source_of, "", lambda *_: None)
    assert [urls[str(path)] for path in found] == sorted(urls.values())
    return [Path(path) for path in found]


def test_files_globs_and_folders(bucket: Any, tmp_path: Path) -> None:
    files, name = bucket
    for path in ("texts/b.jsonl", "texts/deep/a.jsonl", "texts/c.bin", "other/d.jsonl"):
        files.pipe(f"{name}/{path}", DATA)
    for path, names in (
        ("texts/b.jsonl", ["b.jsonl"]), ("texts/*.jsonl", ["b.jsonl"]), ("texts", ["b.jsonl", "a.jsonl"]),
        ("texts/", ["b.jsonl", "a.jsonl"]), ("**/*.jsonl", ["d.jsonl", "b.jsonl", "a.jsonl"]),
        ("", ["d.jsonl", "b.jsonl", "a.jsonl"]), ("texts/c.bin", ["c.bin"]),
    ):  # fmt: skip
        found = fetched(tmp_path, f"s3://{name}/{path}")
        assert [path.name for path in found] == names
        assert all(path.read_bytes() == DATA for path in found)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s3://{}/none.jsonl", "No such file: s3://{}/none.jsonl."),
        ("s3://{}/*.none", "No such files: s3://{}/*.none."),
        ("s3://no-such-bucket/a.jsonl", "No such file: s3://no-such-bucket/a.jsonl."),
        ("s3://no-such-bucket/*.jsonl", "No such files: s3://no-such-bucket/*.jsonl."),
    ],
)
def test_what_is_missing_is_one_line(path: str, words: str, bucket: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        fetched(tmp_path, path.format(bucket[1]))
    assert str(raised.value) == words.format(bucket[1])


def test_no_credentials(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lambert: Callable[..., Any]
) -> None:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    s3fs.S3FileSystem.clear_instance_cache()
    for path in ("a.jsonl", "*.jsonl"):
        called = lambert("prepare", input=f"s3://{bucket[1]}/{path}", out=tmp_path / "o", steps="extract,tokens")
        last_line(called, 2, f"s3://{bucket[1]}/{path} needs credentials", "Unable to locate", "AWS_ACCESS_KEY_ID")


def test_nobody_answers(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lambert: Callable[..., Any]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    s3fs.S3FileSystem.clear_instance_cache()
    called = lambert("prepare", input="s3://bucket/a.jsonl", out=tmp_path / "o", steps="extract,tokens")
    line = last_line(called, 4, "s3://bucket/a.jsonl cannot be reached: EndpointConnectionError", "127.0.0.1:1")
    assert "s3cret" not in line


def test_denied(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("Forbidden s3cret")

    monkeypatch.setattr(s3fs.S3FileSystem, "isdir", refuse)
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read: access is denied\.$"):
        fetched(tmp_path, f"s3://{bucket[1]}/a.jsonl")


def test_a_file_that_changes_while_it_is_fetched(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, name = bucket
    old, new = os.urandom(20 << 20), os.urandom(20 << 20)
    files.pipe(f"{name}/a.txt", old)
    wrote = []

    def progress(done: int, total: int, what: str) -> None:
        wrote.append(done)
        if len(wrote) == 3:
            files.pipe(f"{name}/a.txt", new)

    (path,), _, _ = fetch([f"s3://{name}/a.txt"], tmp_path, source_of, "", progress)
    assert Path(path).read_bytes() == new


@pytest.mark.slow
@pytest.mark.parametrize("changed", [False, True])
def test_a_killed_fetch_continues_unless_the_file_changed(
    changed: bool, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, name = bucket
    data = os.urandom(40 << 20)
    files.pipe(f"{name}/a.txt", data)
    code = (
        "import os, signal, sys; from pathlib import Path; from lambert.wings.corpus.remote.fetch import fetch\n"
        "from lambert.wings.corpus.remote.servers import source_of\n"
        "kill = lambda done, total, what: done > 10 << 20 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "fetch([sys.argv[1]], Path(sys.argv[2]), source_of, '', kill)"
    )
    killed = subprocess.run([sys.executable, "-c", code, f"s3://{name}/a.txt", str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (part,) = tmp_path.rglob("*.part")
    kept = part.stat().st_size
    assert 10 << 20 < kept < 40 << 20
    if changed:
        time.sleep(1)  # the times of S3 have no fractions
        data = os.urandom(40 << 20)
        files.pipe(f"{name}/a.txt", data)
    sizes: list[int] = []
    (path,), _, _ = fetch([f"s3://{name}/a.txt"], tmp_path, source_of, "", lambda done, *_: sizes.append(done))
    assert Path(path).read_bytes() == data
    assert (sizes[0] > kept) is not changed


def config(tmp_path: Path, *inputs: str | Path, **more: Any) -> PrepareConfig:
    fixed: dict[str, Any] = {"vocabulary": 120, "workers": 1, "min_tokens": 2, "steps": ("extract", "tokens")}
    return PrepareConfig(**{"input": inputs, "out": tmp_path / "corpus"} | fixed | more)


def test_inputs_in_s3_are_prepared_like_local_ones(bucket: Any, tmp_path: Path) -> None:
    files, name = bucket
    files.pipe(f"{name}/texts/a.jsonl", DATA)
    manifest = prepare(config(tmp_path, f"s3://{name}/texts"))
    assert [entry["file"] for entry in manifest["inputs"]] == [f"s3://{name}/texts/a.jsonl"]
    (tmp_path / "a.jsonl").write_bytes(DATA)
    assert prepare(config(tmp_path / "local", tmp_path / "a.jsonl"))["splits"] == manifest["splits"]
    files.pipe(f"{name}/texts/a.jsonl", DATA[: len(DATA) // 2])  # a complete file is not asked for again
    assert prepare(config(tmp_path, f"s3://{name}/texts"))["manifest_sha256"] == manifest["manifest_sha256"]
    files.pipe(f"{name}/texts/b.jsonl", DATA)  # but a folder is
    with pytest.raises(UsageError, match=r"other inputs: s3://.*/b\.jsonl is new|their order changed"):
        prepare(config(tmp_path, f"s3://{name}/texts"))
    found = [path.read_text(errors="replace") for path in tmp_path.rglob("*.json")]
    assert not any("s3cret" in text for text in found)
