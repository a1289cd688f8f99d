"""The process of a service: its socket, its threads, and how it ends."""

import asyncio
import ctypes
import gc
import logging
import math
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from lambert.core.errors import LambertError, MachineError, UsageError
from lambert.core.signals import HANGUPS, block_signals, unblock_signals
from lambert.runs.result import Say, silent
from lambert.wings.serve.config import LOOPBACK, ServeConfig, read_api_key

if TYPE_CHECKING:
    from lambert.wings.serve.building import Service

_FILES = 65_536
"""Number of open files that the process requests; each connection is one."""
_RESERVED_FILES = 128
_SEND_BYTES = 262_144
"""Bytes of an answer that the system buffers for a client that does not read (Linux doubles them). The default on Linux
is 4 MB, and a smaller answer would count as read."""
_ACCEPT_SECONDS = 1.0
"""Maximum time in which an ending service accepts the connections that wait in the queue of the socket."""
_ACCEPTED = 16
"""Number of new connections that are accepted between two rounds of the event loop. libuv accepts one for each
listening socket (since 1.45, `uv__server_io`), so thousands of new ones would wait for seconds."""
_SO_ATTACH_FILTER, _BPF_RETURN = 26, 0x06
"""Of Linux: asm-generic/socket.h, linux/bpf_common.h (BPF_RET | BPF_K: return a constant, the bytes to keep)."""
_NEW_OBJECTS = 50_000
"""Number of new objects after which Python searches them for garbage; its default is 700. A request leaves a few in
cycles."""


class Ended(LambertError):
    """A second signal ended the service before it had answered all requests."""

    def __init__(self, number: int) -> None:
        super().__init__("The service was stopped at once: unanswered requests were dropped.")
        self.exit_code = 128 + number


def load(config: ServeConfig, say: Say = silent) -> "Service":
    """Loads the models, computes a batch with each, and returns the service. Raises as `serve` does."""
    try:
        from lambert.wings.serve.building import build
    except ImportError as error:
        raise _explain_missing(error) from error
    return build(config, read_api_key(config), say)


def serve(config: ServeConfig, say: Say = silent) -> None:
    """Serves until SIGTERM or SIGINT, then answers the requests that were accepted. SIGHUP loads changed models again.

    Raises:
        UsageError: A setting is wrong, or a package is missing.
        DataError: A model cannot be read.
        MachineError: The port is in use.
        Ended: A second signal came before all requests were answered.
    """
    try:
        import uvicorn

        from lambert.wings.serve.protocol import LimitedProtocol, Limits
    except ImportError as error:
        raise _explain_missing(error) from error
    if not read_api_key(config) and config.host not in LOOPBACK:
        raise UsageError(
            f"host = {config.host!r} lets other machines connect, and there is no API key: set LAMBERT_API_KEY or "
            "--api-key-file."
        )
    listener = _bind(config)
    block_signals(HANGUPS)
    service = load(config, say)
    limits = Limits(config, _count_connections(), service.app.admission, service.metrics, say)
    settings = uvicorn.Config(
        service.app, http=partial(LimitedProtocol, limits),  # type: ignore[arg-type]
        ws="none", log_level="error", access_log=False, lifespan="off", server_header=False, timeout_keep_alive=10,
        timeout_graceful_shutdown=math.ceil(config.seconds) + 2,
    )  # fmt: skip
    with _close_on_error(listener, config):
        listener.listen(2048)
    host, port = listener.getsockname()[:2]
    for served in service.models:
        what = f"{served.name} ({served.task or 'no task'}, {served.model.precision})"
        say(f"model    {what}  {served.path}")
    say(f"serving  http://{f'[{host}]' if ':' in host else host}:{port}")
    ended = [0, 0]
    try:
        with _limit_garbage_collection(), asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
            runner.run(_run(uvicorn.Server(settings), listener, service, _Reload(service, say), ended))
    finally:
        service.close(now=True)  # all requests have been answered or dropped
    early = Ended(ended[1]) if ended[1] else None
    _end_process(early)
    if early:
        raise early


@contextmanager
def _limit_garbage_collection() -> Iterator[None]:
    """Makes Python search only new objects for garbage, and only when there are many, because all threads wait for a
    search. With the default settings, searches took a quarter of the time of a saturated service."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _end_process(early: Ended | None) -> None:
    """Ends the process if threads still tokenize texts of abandoned requests, for which Python would wait."""
    deadline = time.monotonic() + 1
    while any(thread.name.startswith("lambert-texts") for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            print(early or "", end="\n" if early else "", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(early.exit_code if early else 0)
        time.sleep(0.01)


class _Reload:
    """Reloads changed models in a thread. A request to reload that arrives meanwhile is remembered."""

    def __init__(self, service: "Service", say: Say) -> None:
        self._service, self._say = service, say
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lambert-reload", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        self._asked.set()

    def _work(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            changed, failed = self._service.models.reload()
            self._service.metrics.count_reload("failed" if failed else "changed" if changed else "unchanged")
            for message in failed:
                self._say(f"warning: {' '.join(message.split())}")
            if changed or not failed:
                self._say(f"reloaded: {', '.join(changed) or 'nothing, no file has changed'}")


async def _run(server: Any, listener: socket.socket, service: "Service", reload: _Reload, ended: list[int]) -> None:
    """Runs until a signal ends the service. `ended` gets the first and the second signal; the second closes all
    connections."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    last: list[asyncio.Task[None]] = []

    async def accept_the_last() -> None:
        _drop_new_connections(listener)
        queue = select.poll()  # `select.select` fails on descriptors above 1023
        queue.register(listener, select.POLLIN)
        deadline = loop.time() + _ACCEPT_SECONDS
        while queue.poll(0) and loop.time() < deadline:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)  # the last connections get their protocol, which `should_exit` ends
        server.should_exit = True

    def end(number: int) -> None:
        service.state.ready = False
        if not ended[0]:
            ended[0] = number
            last.append(loop.create_task(accept_the_last()))
            return
        ended[1], server.force_exit = number, True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # uvicorn logs every dropped request
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        if main is not None:
            main.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, reload.ask)
    unblock_signals(HANGUPS)
    try:
        listeners = [listener, *(listener.dup() for _ in range(1, _ACCEPTED))]
        await server._serve(listeners)  # `serve` would raise the signals again at the end
    except asyncio.CancelledError:
        if not ended[1]:
            raise
    finally:
        block_signals(HANGUPS)  # the handlers end with the event loop


def _drop_new_connections(listener: socket.socket) -> None:
    """Makes Linux drop incomplete handshakes; these clients try again and are refused once the socket is closed.
    Otherwise connections that arrive between the last `accept` and `close` would be established and then reset.
    Accepted connections, and those that wait to be accepted, are not affected."""
    if sys.platform != "linux":
        return
    drop_all = ctypes.create_string_buffer(struct.pack("=HBBI", _BPF_RETURN, 0, 0, 0))
    with suppress(OSError):  # a sandbox may forbid filters
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(drop_all)))


def _explain_missing(error: ImportError) -> UsageError:
    return UsageError(f"serve needs {error.name}: pip install 'lambert-bert[serve]'.")


def _bind(config: ServeConfig) -> socket.socket:
    """Returns a socket that is bound to the address and does not listen yet."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # connections inherit it
    with _close_on_error(listener, config):
        listener.bind((config.host, config.port))
    return listener


@contextmanager
def _close_on_error(listener: socket.socket, config: ServeConfig) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        listener.close()
        raise MachineError(
            f"{config.host}:{config.port} cannot be used: {error.strerror}. Choose another address with --host and "
            "--port."
        ) from error


def _count_connections() -> int:
    """Raises the limit of open files if possible. Returns how many connections it allows."""
    try:
        import resource
    except ImportError:
        return 512
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(16, (wanted if soft == resource.RLIM_INFINITY else soft) - _RESERVED_FILES)
