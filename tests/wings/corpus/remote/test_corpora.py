"""Corpora that are copied to an object store and back: complete or absent in both places."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import last_line, one_line

from lambert.core.errors import DataError, MachineError, UsageError
from lambert.wings.corpus.config import FetchCorpusConfig, PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.remote import corpora, store
from lambert.wings.corpus.remote.corpora import MANIFEST, MARK, fetch_corpus, publish
from lambert.wings.corpus.remote.store import Store

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
ROWS = [{"text": f"The river number {number} runs under an old stone bridge to town."} for number in range(400)]


class Place:
    """A folder of a store, with a record of what is written to it."""

    def __init__(self, files: Any, url: str, patch: pytest.MonkeyPatch) -> None:
        self.files, self.url, self.written = files, url, list[str]()
        self.path = url.partition("://")[2]
        write = Store.write

        def recorded(own: Store, name: str, path: Path) -> None:
            self.written.append(name)
            write(own, name, path)

        patch.setattr(Store, "write", recorded)

    def content(self) -> dict[str, bytes]:
        self.files.invalidate_cache()
        found = self.files.find(self.path)
        return {name.lstrip("/").removeprefix(self.path + "/"): self.files.cat_file(name) for name in found}


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "s3":
        files, bucket = request.getfixturevalue("bucket")
        yield Place(files, f"s3://{bucket}/corpora/one", monkeypatch)
        return
    files = fsspec.filesystem("memory")
    yield Place(files, "memory://bucket/corpora/one", monkeypatch)
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def config(rows: Path, out: str | Path, **more: Any) -> PrepareConfig:
    fixed: dict[str, Any] = {"vocabulary": 120, "workers": 1, "min_tokens": 2, "work": rows.parent / "work"}
    return PrepareConfig(**{"input": (rows,), "out": out} | fixed | more)


def local(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("steps", [(), ("extract", "tokens")])
def test_a_corpus_is_copied_and_fetched_back(steps: tuple[str, ...], place: Place, rows: Path, tmp_path: Path) -> None:
    plain = prepare(config(rows, tmp_path / "plain", steps=steps, work=tmp_path / "other" if steps else None))
    manifest = prepare(config(rows, place.url, steps=steps))
    assert {**manifest, "steps": 0} == {**plain, "steps": 0}
    assert place.content() == local(tmp_path / "plain")
    assert place.written[0] == MARK
    assert place.written[-1] == MANIFEST
    assert len(place.written) == len(place.content()) + 1
    fetched = fetch_corpus(place.url, tmp_path / "back", lambda *_: None)
    assert fetched["manifest_sha256"] == manifest["manifest_sha256"]
    assert local(tmp_path / "back") == local(tmp_path / "plain")
    assert not (tmp_path / "back.fetch").exists()
    assert fetch_corpus(place.url, tmp_path / "back", lambda *_: None) == fetched


def test_a_finished_corpus_is_neither_made_nor_copied_again(
    place: Place, rows: Path, tmp_path: Path, lambert: Callable[..., Any]
) -> None:
    settings = {"input": rows, "out": place.url, "work": tmp_path / "work", "vocabulary": 120, "min_tokens": 2}
    first = lambert("prepare", **settings)
    assert first.code == 0, first.err
    assert f"corpus  {place.url}  (" in first.out
    assert "local copy" in first.out
    place.written.clear()
    assert [path.name[:7] for path in (tmp_path / "work").iterdir()] == ["corpus-"]
    shutil.rmtree(tmp_path / "work")
    place.files.pipe(f"{place.path}/{MARK}", b"of a command that was killed after it had written the manifest")
    again = lambert("prepare", **settings)
    assert again.code == 0, again.err
    assert f"already prepared: {place.url}" in again.out
    assert place.written == []
    assert MARK not in place.content()
    assert not (tmp_path / "work").exists()
    one_line(lambert("prepare", **settings | {"seed": 7}), 2, place.url, "was prepared with seed = 42, not 7")
    rows.write_text(rows.read_text() + json.dumps({"text": "One more document in the file."}) + "\n")
    with pytest.raises(UsageError, match=r"other inputs: .*rows\.jsonl has changed"):
        prepare(config(rows, place.url))
    assert place.written == []


def test_only_what_is_missing_or_differs_is_copied(place: Place, rows: Path) -> None:
    prepare(config(rows, place.url))
    before = place.content()
    for name in ("train/index.npy", "train/00000.bin"):
        place.written.clear()
        place.files.rm(f"{place.path}/{name}")
        prepare(config(rows, place.url))
        assert place.written == [MARK, name]
        assert place.content() == before
    place.written.clear()
    changed = bytes(len(before["train/00000.bin"]))
    place.files.pipe(f"{place.path}/train/00000.bin", changed)
    place.files.rm(f"{place.path}/{MANIFEST}")
    place.files.pipe(f"{place.path}/{MARK}", b"")
    place.files.pipe(f"{place.path}/train/00007.bin", b"of a longer corpus")
    prepare(config(rows, place.url))
    assert place.written == [MARK, "train/00000.bin", MANIFEST]
    assert place.content() == before


@pytest.mark.parametrize("fails", range(8))
def test_a_copy_that_fails_is_absent_and_continues(
    fails: int, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fsspec.filesystem("memory")
    files.store.clear()
    place = Place(files, "memory://bucket/one", monkeypatch)
    write, count = files.put_file, iter(range(100))

    def put(*arguments: Any, **options: Any) -> None:
        if next(count) == fails:
            raise ConnectionError("lost")
        write(*arguments, **options)

    monkeypatch.setattr(type(files), "put_file", staticmethod(put))
    with pytest.raises(MachineError, match=r"memory://bucket/one/.* cannot be reached: ConnectionError: lost"):
        prepare(config(rows, place.url))
    assert MANIFEST not in place.content()
    with pytest.raises(DataError, match="No prepared corpus at memory://bucket/one"):
        fetch_corpus(place.url, tmp_path / "back", lambda *_: None)
    place.written.clear()
    manifest = prepare(config(rows, place.url))
    assert len(place.written) == 9 - max(0, fails - 1)
    assert json.loads(place.content()[MANIFEST]) == manifest
    files.store.clear()


def test_what_is_there_is_not_overwritten(place: Place, rows: Path, lambert: Callable[..., Any]) -> None:
    place.files.pipe(f"{place.path}/vocab.txt", b"mine")
    settings = {"input": rows, "out": place.url, "work": rows.parent / "work", "vocabulary": 120}
    one_line(
        lambert("prepare", **settings), 2, f"{place.url} exists and is not a prepared corpus: choose another --out"
    )
    place.files.pipe(f"{place.path}/{MANIFEST}", b'{"format_version": 1}')
    one_line(lambert("prepare", **settings), 3, f"{place.url}/manifest.json is damaged, or of another version")
    assert place.written == []


def test_a_store_that_keeps_something_else(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "holds", lambda *_: False)
    with pytest.raises(MachineError, match=r"memory://other/two/.* differs from .* copies it again"):
        prepare(config(rows, "memory://other/two"))


def test_a_bucket_that_cannot_be_written_is_found_before_the_work(
    bucket: Any, rows: Path, lambert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, name = bucket
    settings = {"input": rows, "work": rows.parent / "work", "vocabulary": 120}
    called = lambert("prepare", out="s3://no-such-bucket/corpus", **settings)
    last_line(called, 4, "s3://no-such-bucket/corpus/", "cannot be written: The specified bucket does not exist")
    assert not list((rows.parent / "work").glob("corpus-*"))

    call = type(files)._call_s3

    async def refuse(own: Any, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "put_object":
            raise PermissionError("Access Denied")
        return await call(own, method, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(files), "_call_s3", refuse)
        called = lambert("prepare", out=f"s3://{name}/corpus", **settings)
    last_line(called, 4, f"s3://{name}/corpus/", "cannot be written: Access Denied. Choose another --out.")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    type(files).clear_instance_cache()
    last_line(lambert("prepare", out=f"s3://{name}/corpus", **settings), 2, f"s3://{name}/corpus needs credentials")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"out": "s3://b/c", "work": None}, "s3://b/c is remote: set work, a local folder"),
        ({"out": Path("s3://b/c"), "work": None}, "s3://b/c is remote: set work, a local folder"),
        ({"out": "s3://b/c", "work": Path("s3://b/w")}, "work = s3://b/w is remote: name a local folder."),
        ({"out": "https://h/c"}, "https://h/c: such a server cannot be written to"),
        ({"out": "sftp://me:s3cret@h/c", "work": None}, "^sftp://h/c is remote"),
        ({"out": "s3://b/in/c", "input": ("s3://b/in/",), "steps": ("extract,tokens",)}, "is in the input folder"),
    ],
)
def test_settings(settings: dict[str, Any], words: str, rows: Path) -> None:
    with pytest.raises(UsageError, match=words):
        config(rows, **settings)


@pytest.mark.parametrize(
    ("source", "out", "words"),
    [
        ("s3://b/c", "s3://b/c", "--out s3://b/c is remote: name a local folder."),
        ("corpus", "c", "--from corpus is not a URL, such as s3://bucket/corpus."),
    ],
)
def test_settings_of_fetch(source: str, out: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        FetchCorpusConfig(source, Path(out))


def test_fetching(place: Place, rows: Path, tmp_path: Path, lambert: Callable[..., Any]) -> None:
    prepare(config(rows, place.url))
    called = lambert("corpus", "fetch", "--from", place.url, out=tmp_path / "back")
    assert called.code == 0, called.err
    assert called.out.startswith(f"corpus  {tmp_path / 'back'}  (")
    assert local(tmp_path / "back") == place.content()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    called = lambert("corpus", "fetch", "--from", place.url, out=tmp_path / "mine")
    one_line(called, 2, "mine exists and is not the corpus at")
    none = f"{place.url}-none"
    one_line(lambert("corpus", "fetch", "--from", none, out=tmp_path / "none"), 3, f"No prepared corpus at {none}")
    size = len(place.content()["train/00000.bin"])
    place.files.pipe(f"{place.path}/train/00000.bin", bytes(size))
    called = lambert("corpus", "fetch", "--from", place.url, out=tmp_path / "damaged")
    last_line(called, 3, f"{place.url}/train/00000.bin is damaged: its SHA-256 is not that of the manifest")
    place.files.rm(f"{place.path}/train/00000.bin")
    called = lambert("corpus", "fetch", "--from", place.url, out=tmp_path / "damaged")
    last_line(called, 3, f"{place.url}/train/00000.bin is missing: repeat the command that made the corpus")
    assert not (tmp_path / "damaged").exists()
    prepare(config(rows, place.url))
    assert lambert("corpus", "fetch", "--from", place.url, out=tmp_path / "damaged").code == 0
    assert local(tmp_path / "damaged") == local(tmp_path / "back")


def test_a_verb_that_reads_a_corpus_says_how_to_fetch_it(tmp_path: Path, lambert: Callable[..., Any]) -> None:
    called = lambert("pretrain", "recipes/mini-laptop.toml", corpus="s3://b/wiki", out=tmp_path / "run")
    one_line(called, 3, "s3://b/wiki is remote", "lambert corpus fetch --from s3://b/wiki --out wiki")


@pytest.mark.parametrize("mebibytes", [0, 1, 120])
def test_the_checksums_of_s3_are_known(
    mebibytes: int, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of one part and of several are compared without being read."""
    files, name = bucket
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20) * mebibytes)
    found = Store(f"s3://{name}/folder")
    found.write("file", path)
    with monkeypatch.context() as patch:
        patch.setattr(type(files), "open", None)
        assert found.holds("file", path)
        assert not found.holds("none", path)
    if mebibytes == 1:
        monkeypatch.setattr(store, "_same_md5", lambda *_: False)  # as in a bucket that encrypts
        assert found.holds("file", path)
        with path.open("r+b") as file:
            file.write(b"other")
        assert not found.holds("file", path)


def test_the_checksum_of_google_is_known(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    assert store._same_md5({"md5Hash": "XUFAKrxLKna5cZ2REBfFkg=="}, tmp_path / "file")
    assert not store._same_md5({"md5Hash": "AUFAKrxLKna5cZ2REBfFkg=="}, tmp_path / "file")


def test_a_copy_that_is_killed_continues(bucket: Any, rows: Path, tmp_path: Path) -> None:
    files, name = bucket
    url = f"s3://{name}/corpus"
    made = prepare(config(rows, tmp_path / "plain", work=None))
    code = (
        "import os, signal, sys; from pathlib import Path; from lambert.wings.corpus.remote.corpora import publish\n"
        "kill = lambda done, total, what: done and os.kill(os.getpid(), signal.SIGKILL)\n"
        "publish(Path(sys.argv[1]), sys.argv[2], kill)"
    )
    corpora.begin(url, tmp_path / "work")
    arguments = [sys.executable, "-c", code, str(tmp_path / "plain"), url]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    assert corpora.find_published(url, lambda found: None) is None
    publish(tmp_path / "plain", url, lambda *_: None)
    assert corpora.find_published(url, lambda found: None) == made
    files.invalidate_cache()
    assert not files.exists(f"{name}/corpus/{MARK}")
