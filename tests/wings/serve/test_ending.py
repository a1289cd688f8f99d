"""How a service starts, loads its models again, and ends."""

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import HANGS
from safetensors.torch import load_file, save_file

from tests.support.services import Service, changed, copied, post, received, serving, texts

pytest.importorskip("fastapi")
from lambert.core.errors import UsageError
from lambert.wings.serve.config import ServeConfig, read_api_key

pytestmark = pytest.mark.timeout(HANGS)
Lambert = Callable[..., Any]
TEXTS = ["the king found a river near the old road under the bright house"] * 200


@pytest.fixture(scope="module")
def folder(tuned: Callable[[str], Path]) -> Path:
    return tuned("classify")


@pytest.fixture
def model(folder: Path, tmp_path: Path) -> Path:
    return copied(folder, tmp_path / "topics")


@contextmanager
def load(service: Service, clients: int = 4) -> Iterator[Counter[Any]]:
    """Clients that ask without a pause, and count the status and the version of the answers. A connection that is
    refused ends a client and is counted as "refused"; one that breaks is counted as "broken"."""
    found: Counter[Any] = Counter()
    stop = threading.Event()
    request = post("/embed", {"inputs": TEXTS}, "Connection: close")

    def ask() -> None:
        while not stop.is_set():
            try:
                connection = service.connect()
            except OSError:
                found["refused"] += 1
                return
            with connection:
                try:
                    connection.sendall(request)
                    head, _, body = received(connection).partition(b"\r\n\r\n")
                    found[int(head.split()[1]), json.loads(body)["version"]] += 1
                except (OSError, ValueError, IndexError):
                    found["broken"] += 1

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_accepted_is_answered(number: int, folder: Path) -> None:
    with serving(folder, precision="float32", workers=1) as service:
        fresh, ready = service.connect(), service.connect()
        with load(service, 16) as found, fresh, ready:
            while not found:
                time.sleep(0.01)
            service.process.send_signal(number)
            while not found["refused"]:
                time.sleep(0.01)
            ready.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            fresh.sendall(post("/embed", {"inputs": "a"})[:-1])
            time.sleep(0.2)
            fresh.sendall(b"}")
            assert received(fresh).startswith(b"HTTP/1.1 200 ")
            assert received(ready).startswith(b"HTTP/1.1 503 ")
        code, said = service.end(signal.SIGCONT)
    assert (code, said) == (0, "")
    assert {status for status in found if status != "refused"} == {next(iter(found))}
    assert next(iter(found))[0] == 200


def test_a_second_signal_ends_at_once(folder: Path) -> None:
    large = {"max_items": 100_000, "max_waiting_tokens": 10_000_000}
    with serving(folder, precision="float32", workers=1, **large) as service, service.connect() as connection:
        connection.sendall(post("/embed", {"inputs": texts(80_000)}))  # seconds of work
        service.wait_for("lambert_waiting_tokens", lambda tokens: tokens > 0)
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert service.process.poll() is None
        code, said = service.end(signal.SIGTERM)
        assert received(connection) == b""
    assert code == 143
    assert said.count("\n") == 1
    assert "dropped" in said


def test_models_are_loaded_again_under_load(model: Path) -> None:
    other = changed(model)
    with serving(model, precision="float32") as service:
        (first,) = [card["version"] for card in service.ask("/models")[1]]
        with load(service, 2) as found:
            while not found:
                time.sleep(0.01)
            service.process.send_signal(signal.SIGHUP)
            assert "nothing, no file has changed" in service.reads("reloaded")
            model.rename(model.parent / "old")
            other.rename(model)
            service.process.send_signal(signal.SIGHUP)
            service.reads("reloaded: topics")
            (second,) = [card["version"] for card in service.ask("/models")[1]]
            while not found[200, second]:
                time.sleep(0.01)
            (model / "model.safetensors").write_bytes(b"cut")
            service.process.send_signal(signal.SIGHUP)
            assert "warning: topics was not reloaded: " in service.reads("warning")
            assert service.ask("/embed", {"inputs": "a"})[1]["version"] == second
        assert first != second
        assert set(found) == {(200, first), (200, second)}
        reloads = {name: value for name, value in service.metrics().items() if name.startswith("lambert_reloads_total")}
        assert reloads == {
            f'lambert_reloads_total{{result="{result}"}}': 1 for result in ("changed", "unchanged", "failed")
        }
        assert service.end() == (0, "")


def test_a_reload_that_is_asked_for_during_the_start_happens_after_it(folder: Path) -> None:
    service = serving(folder, precision="float32", before=lambda process: process.send_signal(signal.SIGHUP))
    with service as running:
        assert "nothing, no file has changed" in running.reads("reloaded")
        assert running.end() == (0, "")


def test_weights_that_are_overwritten_are_not_served(model: Path) -> None:
    with serving(model, precision="float32") as service:
        before = service.ask("/embed", {"inputs": TEXTS[:1]})
        size = (model / "model.safetensors").stat().st_size
        with (model / "model.safetensors").open("r+b") as opened:
            opened.write(bytes(size))
        assert service.ask("/embed", {"inputs": TEXTS[:1]}) == before
        os.truncate(model / "model.safetensors", 0)
        assert service.ask("/embed", {"inputs": TEXTS[:1]}) == before


def test_a_port_in_use_is_one_line(folder: Path, lambert: Lambert) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = lambert("serve", model=folder, port=other.getsockname()[1])
    assert done.code == 4
    assert done.err.count("\n") == 1
    assert "--port" in done.err


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_key_is_not_read_from_a_pipe_or_a_device(make: Callable[[Path], Any], tmp_path: Path) -> None:
    make(tmp_path / "key")
    with pytest.raises(UsageError, match="key is not a file"):
        read_api_key(ServeConfig(("model",), api_key_file=tmp_path / "key"))


@pytest.mark.parametrize("key", [b"\xff\xfe", "schlüssel".encode(), b"two\nlines", b"k" * 5000])
def test_a_key_that_no_header_has_is_refused(key: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(key)
    monkeypatch.setenv("LAMBERT_API_KEY", os.fsdecode(key))
    for file in (tmp_path / "key", None):
        with pytest.raises(UsageError, match="has no API key"):
            read_api_key(ServeConfig(("model",), api_key_file=file))
    monkeypatch.setenv("LAMBERT_API_KEY", " good \n")
    assert read_api_key(ServeConfig(("model",))) == "good"


@pytest.mark.parametrize(("content", "gist"), [(None, "cannot be read: No such file"), ("", "has no API key")])
def test_a_file_without_a_key_is_one_line(
    content: str | None, gist: str, folder: Path, tmp_path: Path, lambert: Lambert
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_text(content)
    done = lambert("serve", model=folder, port=0, api_key_file=key)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert gist in done.err


def _cut(model: Path) -> None:
    os.truncate(model / "model.safetensors", 1000)


def _nan(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    save_file(
        {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}, model / "model.safetensors"
    )


def _foreign(model: Path) -> None:
    for path in model.iterdir():
        path.unlink()
    (model / "readme.txt").write_text("nothing")


def _pipe(model: Path) -> None:
    os.mkfifo(model / "special_tokens.json")


def _other_task(model: Path) -> None:
    settings = json.loads((model / "config.json").read_text())
    settings["lambert"]["task"]["name"] = "nowhere:Task"
    (model / "config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("damage", [shutil.rmtree, _cut, _nan, _foreign, _pipe, _other_task])
def test_a_folder_without_a_model_is_one_line(damage: Callable[[Path], Any], model: Path, lambert: Lambert) -> None:
    damage(model)
    done = lambert("serve", model=model, port=0, precision="float32")
    assert done.code in (2, 3)
    assert done.err.count("\n") == 1
    assert str(model) in done.err
    assert "serving" not in done.out
