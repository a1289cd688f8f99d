"""The process of a service: its socket, its threads, and how it ends."""

import asyncio
import math
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lambert.core.errors import LambertError, MachineError, UsageError
from lambert.core.world import World
from lambert.engine.device import device_named
from lambert.engine.precision import resolved
from lambert.inference.config import InferenceConfig
from lambert.inference.scheduler import Scheduler
from lambert.serving.config import ServeConfig
from lambert.serving.gate import LOOPBACK, Gate
from lambert.serving.models import Models

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Built:
    """A service that no server runs yet."""

    app: Any
    """The ASGI application."""
    state: Any
    """`ready`: whether it takes requests."""
    models: Models
    close: Callable[[], None]
    """Computes what was accepted, then ends the threads."""


def built(config: ServeConfig) -> Built:
    """Loads the models and returns the service. Raises as `serve` does."""
    try:
        from lambert.serving.answering import Answering
        from lambert.serving.app import application
    except ImportError as error:
        raise _missing(error) from error
    key = api_key(config)
    world = World(device=device_named(config.device, 0))
    precision: Any = resolved(config.precision, world) if config.precision == "auto" else config.precision
    models = Models(config.models, InferenceConfig(precision, device=config.device), config.code, world)
    scheduler = Scheduler(world, workers=config.workers, most_tokens=config.max_waiting_tokens)
    answering = Answering(scheduler, config.seconds)
    app = application(config, models, answering)
    gate = Gate(app, _hosts(config), key, most_bytes=int(config.max_body_megabytes * 1e6), seconds=config.seconds)
    return Built(gate, app.state, models, answering.close)


def serve(config: ServeConfig, say: Say) -> None:
    """Serves until SIGTERM or SIGINT, then answers the requests that were accepted. SIGHUP loads changed models again.

    Raises:
        UsageError: A setting is wrong, or a package is missing.
        DataError: A model cannot be read.
        MachineError: The port is in use.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise _missing(error) from error
    if not api_key(config) and config.host not in LOOPBACK:
        raise UsageError(
            f"host = {config.host!r} lets other machines connect, and there is no API key: set LAMBERT_API_KEY or "
            "--api-key-file."
        )
    listener = _listener(config)
    service = built(config)
    settings = uvicorn.Config(
        service.app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=10,
        timeout_graceful_shutdown=math.ceil(config.seconds),
    )  # fmt: skip
    server = uvicorn.Server(settings)
    host, port = listener.getsockname()[:2]
    for served in service.models:
        say(f"model    {served.name} ({served.task or 'no task'}, {served.model.precision})  {served.path}")
    say(f"serving  http://{f'[{host}]' if ':' in host else host}:{port}")
    try:
        with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
            runner.run(_run(server, listener, service.state, partial(_reload, service.models, say)))
    finally:
        service.close()


async def _run(server: Any, listener: socket.socket, state: Any, reload: Callable[[], None]) -> None:
    """Runs until a signal ends the service. A second signal closes the connections at once."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        state.ready = False
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, reload))
    await server._serve([listener])  # `serve` would raise the signals again at the end


def _reload(models: Models, say: Say) -> None:
    try:
        say(f"loaded again: {', '.join(models.reload()) or 'nothing, no file has changed'}")
    except LambertError as error:
        say(f"warning: {error}")


def _missing(error: ImportError) -> UsageError:
    return UsageError(f"serve needs {error.name}: pip install 'lambert-bert[serve]'.")


def api_key(config: ServeConfig) -> str:
    """Returns the API key, empty if none was given. Raises UsageError for an empty file."""
    if config.api_key_file is None:
        return os.environ.get("LAMBERT_API_KEY", "")
    key = Path(config.api_key_file).read_text(encoding="utf-8").strip()
    if not key:
        raise UsageError(f"{config.api_key_file} is empty: write the API key to it.")
    return key


def _hosts(config: ServeConfig) -> set[str]:
    own = {config.host.lower()} - {"0.0.0.0", "::"}
    return {*LOOPBACK, *own, *(name.lower() for name in config.hosts)}


def _listener(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise MachineError(
            f"{config.host}:{config.port} cannot be used: {error.strerror}. Choose another port with --port."
        ) from error
    return listener
