"""Remote inputs: a server that lies, ends early, changes or is not there."""

import hashlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import last_line

from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.urls import public
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.remote import fetch as module
from lambert.wings.corpus.remote.fetch import fetch, name_of
from lambert.wings.corpus.remote.servers import source_of

pytest.importorskip("pyarrow")
ROWS = [{"text": f"The river number {number} runs under an old stone bridge to town."} for number in range(400)]
DATA = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves DATA in the ways that the path names."""

    protocol_version = "HTTP/1.1"
    requests: list[tuple[str, str | None]] = []  # noqa: RUF012
    answers: dict[str, Any] = {}  # noqa: RUF012

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        way, asked = self.path.split("/")[1], self.headers.get("Range")
        self.requests.append((self.path, asked))
        data, etag = self.answers.get("data", DATA), self.answers.get("etag", '"one"')
        if way in ("404", "503", "403"):
            self.answer(int(way), b"no")
        elif way == "circle":
            self.answer(302, b"", Location=f"/circle/{len(self.requests) % 2}")
        elif way == "file":
            self.answer(302, b"", Location="file:///etc/passwd")
        elif way == "once" and len(self.requests) == 1:
            self.answer(503, b"")
        elif way == "sums":
            self.answer(200, self.answers["sums"])
        elif way == "user":
            known = self.headers.get("Authorization") == "Basic bWU6cEBzcw=="
            self.answer(200 if known else 401, data)
        else:
            begin = int(asked[6:-1]) if asked and way != "ignores" and self.headers.get("If-Range", etag) == etag else 0
            if begin >= len(data):
                return self.answer(416, b"", **{"Content-Range": f"bytes */{len(data)}"})
            rest = data[begin:]
            headers = {"ETag": etag} if way != "unmarked" else {}
            if begin:
                first = begin + 1 if way == "shifted" else begin
                headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
            short = way == "short" or (way in ("cut", "ignores", "unmarked", "shifted") and len(self.requests) < 3)
            self.answer(206 if begin else 200, rest[: len(rest) // 2] if short else rest, length=len(rest), **headers)
        return None

    def answer(self, code: int, body: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(module, "BACKOFF", 0.001)
    Handler.requests.clear()
    Handler.answers.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def fetched(folder: Path, url: str, checksums: str = "") -> Path:
    (path,), (number,), urls = fetch([url], folder, source_of, checksums, lambda *_: None)
    assert list(urls.values()) == [public(url)]
    assert number == 0
    return Path(path)


@pytest.mark.parametrize("way", ["good", "once", "cut", "ignores", "unmarked"])
def test_a_file_is_fetched_whole(way: str, server: str, tmp_path: Path) -> None:
    path = fetched(tmp_path, f"{server}/{way}/a.jsonl")
    assert path.read_bytes() == DATA
    assert path.name == "a.jsonl"
    record = json.loads((path.parent / "record.json").read_text())
    assert record["sha256"] == hashlib.sha256(DATA).hexdigest()
    assert (record["bytes"], record["url"]) == (len(DATA), f"{server}/{way}/a.jsonl")
    ranges = [asked for _, asked in Handler.requests]
    assert any(ranges) == (way in ("cut", "ignores"))
    assert {child.name for child in path.parent.iterdir()} == {"a.jsonl", "record.json"}
    count = len(Handler.requests)
    assert fetched(tmp_path, f"{server}/{way}/a.jsonl") == path
    assert len(Handler.requests) == count
    path.write_bytes(DATA[:-1])
    assert fetched(tmp_path, f"{server}/{way}/a.jsonl").read_bytes() == DATA


@pytest.mark.parametrize(
    ("way", "error", "words"),
    [
        ("404", DataError, "the server answers 404"),
        ("403", DataError, "the server answers 403"),
        ("circle", DataError, "is redirected in a circle"),
        ("file", DataError, "is not allowed"),
        ("shifted", DataError, "cannot be continued"),
        ("503", MachineError, "in 5 tries: the server answers 503"),
        ("short", MachineError, "in 5 tries: it ended after"),
    ],
)
def test_a_server_that_fails(way: str, error: type[Exception], words: str, server: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words) as raised:
        fetched(tmp_path, f"{server}/{way}/a.jsonl")
    assert "\n" not in str(raised.value)
    assert len(Handler.requests) <= (5 if error is MachineError else 15)
    assert not list(tmp_path.rglob("a.jsonl"))


def test_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", 0.001)
    for url in ("http://127.0.0.1:1/a.txt", "http://no.such.host.invalid/a.txt"):
        with pytest.raises(MachineError, match="cannot be fetched in 5 tries"):
            fetched(tmp_path, url)
    with pytest.raises(DataError, match="is not a URL"):
        fetched(tmp_path, "http://host:port/a.txt")


@pytest.mark.parametrize("name", ["dump.xml", "rows.jsonl"])
def test_a_page_instead_of_a_file_is_named_with_its_url(name: str, server: str, tmp_path: Path) -> None:
    Handler.answers["data"] = b"<!DOCTYPE html><html><body>Log in</body></html>"
    config = PrepareConfig((f"{server}/good/{name}",), tmp_path / "out", steps=("extract", "tokens"))
    with pytest.raises(DataError, match=rf"^{server}/good/{name} gave an HTML page.* delete the copy .*{name}\.$"):
        prepare(config)


def test_a_further_try_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", 0.001)
    told: list[str] = []
    with pytest.raises(MachineError):
        fetch(["http://127.0.0.1:1/a.txt"], tmp_path, source_of, "", lambda done, total, phase: told.append(phase))
    assert told == [f"fetching a.txt: Connection refused; trying again, {n} of 5" for n in (2, 3, 4, 5)]


@pytest.mark.parametrize("changed", [b"", b"other" * 9])
def test_a_killed_fetch_continues_unless_the_file_changed(changed: bytes, server: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"to continue after [\d,]+ bytes"):
        fetched(tmp_path, f"{server}/short/a.jsonl")
    (part,) = tmp_path.rglob("*.part")
    kept = part.stat().st_size
    Handler.requests.clear()
    Handler.answers.update({"data": changed, "etag": '"two"'} if changed else {})
    url = f"{server}/short/a.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "do_GET", lambda self: (setattr(self, "path", "/good/a.jsonl"), WAY(self)))
        assert fetched(tmp_path, url).read_bytes() == (changed or DATA)
    assert Handler.requests[0][1] == f"bytes={kept}-"


WAY: Callable[[Handler], None] = Handler.do_GET


def test_checksums(server: str, tmp_path: Path) -> None:
    sums = tmp_path / "sums.txt"
    for digest in ("md5", "sha1", "sha256"):
        right = hashlib.new(digest, DATA).hexdigest()
        for line in (f"{right}  a.jsonl", f"{right.upper()} *dumps/a.jsonl", f"X (a.jsonl) = {right}"):
            sums.write_text(f"{'0' * len(right)}  b.jsonl\n{line}\n")
            assert fetched(tmp_path / digest, f"{server}/good/a.jsonl", str(sums)).read_bytes() == DATA
        sums.write_text(f"{'0' * len(right)}  a.jsonl\n")
        with pytest.raises(DataError, match=f"has the {digest.upper()} {right}, not 0000.* The file was deleted"):
            fetched(tmp_path / digest, f"{server}/good/a.jsonl", str(sums))
        assert not list((tmp_path / digest).rglob("a.jsonl*"))
    Handler.answers["sums"] = f"{hashlib.sha1(DATA).hexdigest()}  a.jsonl\n".encode()
    assert fetched(tmp_path / "web", f"{server}/good/a.jsonl", f"{server}/sums/sums").read_bytes() == DATA
    for content, words in (("0" * 40 + "  b.jsonl\n", "has no checksum of a.jsonl"), ("<html>", "is not a list")):
        sums.write_text(content)
        with pytest.raises(DataError, match=words):
            fetched(tmp_path / "more", f"{server}/good/a.jsonl", str(sums))
    with pytest.raises(DataError, match="No such file"):
        fetched(tmp_path / "more", f"{server}/good/a.jsonl", str(tmp_path / "none"))


def test_a_full_disk(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPARE", 10**18)
    with pytest.raises(MachineError, match=r"[GT]B free, and .* needs \d+\.\d TB"):
        fetched(tmp_path, f"{server}/good/a.jsonl")


def test_passwords_are_sent_but_not_shown(server: str, tmp_path: Path) -> None:
    url = f"{server.replace('//', '//me:p%40ss@')}/user/a.jsonl?X-Amz-Signature=s3cret&part=1&token=s3cret#s3cret"
    path = fetched(tmp_path, url)
    texts = [file.read_text() for file in path.parent.iterdir()] + [str(path)]
    assert not any("p%40ss" in text or "s3cret" in text or "p@ss" in text for text in texts)
    assert public(url).endswith("/user/a.jsonl?part=1")
    with pytest.raises(DataError) as raised:
        fetched(tmp_path, url.replace("user", "404"))
    assert "s3cret" not in str(raised.value)
    assert "me:" not in str(raised.value)


def test_names_cannot_leave_their_folder() -> None:
    for url, name in (
        ("http://h/a%2F..%2F..%2Fetc", "etc"), ("http://h/..", "index.html"), ("http://h/", "index.html"),
        ("http://h/.hidden.txt", "hidden.txt"), ("http://h/d%00a%0Ab.txt", "d_a_b.txt"), ("s3://b/x/ü.txt", "_.txt"),
    ):  # fmt: skip
        assert name_of(url) == name


def test_files_of_fsspec(tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for name in ("texts/b.jsonl", "texts/deep/a.jsonl", "texts/c.bin"):
        memory.pipe(f"/bucket/{name}", DATA)
    for url, names in (
        ("memory://bucket/texts", ["b.jsonl", "a.jsonl"]), ("memory://bucket/texts/*.jsonl", ["b.jsonl"]),
        ("memory://bucket/texts/c.bin", ["c.bin"]),
    ):  # fmt: skip
        files, numbers, _ = fetch([url], tmp_path / "fetch", source_of, "", lambda *_: None)
        assert [Path(file).name for file in files] == names
        assert numbers == [0] * len(names)
        assert all(Path(file).read_bytes() == DATA for file in files)
    with pytest.raises(DataError, match="No such file"):
        fetched(tmp_path, "memory://bucket/none.txt")
    with pytest.raises(DataError, match="No such files"):
        fetched(tmp_path, "memory://bucket/*.none")
    with pytest.raises(UsageError, match="cannot be read"):
        fetched(tmp_path, "nosuch://bucket/a.txt")


def config(tmp_path: Path, *inputs: str | Path, **more: Any) -> PrepareConfig:
    fixed: dict[str, Any] = {"vocabulary": 120, "workers": 1, "min_tokens": 2, "steps": ("extract", "tokens")}
    return PrepareConfig(input=inputs, out=tmp_path / "corpus", **fixed | more)


def test_a_remote_file_is_prepared_like_a_local_one(server: str, tmp_path: Path, lambert: Callable[..., Any]) -> None:
    url = f"{server}/good/a.jsonl"
    manifest = prepare(config(tmp_path, url))
    assert [entry["file"] for entry in manifest["inputs"]] == [url]
    assert prepare(config(tmp_path, url))["manifest_sha256"] == manifest["manifest_sha256"]
    assert len(Handler.requests) == 1
    (tmp_path / "a.jsonl").write_bytes(DATA)
    local = prepare(config(tmp_path / "local", tmp_path / "a.jsonl"))
    assert local["splits"] == manifest["splits"]
    with pytest.raises(UsageError, match="is remote: set steps = extract, tokens"):
        config(tmp_path, url, steps=())
    called = lambert("prepare", input=f"{server}/404/a.txt", out=tmp_path / "o", steps="extract,tokens")
    last_line(called, 3, "/404/a.txt", "404")
