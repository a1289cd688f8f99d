"""Command lines in processes of their own, forked from one that has imported torch."""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from commands import Called
from patience import HANGS

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "torch._dynamo", "safetensors.torch", "lambert.wings.horovod", "lambert.wings.serve.server",
        *(f"lambert.verbs.{verb}" for verb in ("launch", "pretrain", "finetune", "evaluate", "predict")),
    ]
)  # fmt: skip


class Forked:
    """`lambert TOKENS` in a process of its own, with these variables added to those of this process. There,
    `prepare(*arguments)` is called first."""

    def __init__(
        self, *tokens: str, variables: Mapping[str, str] | None = None, prepare: Callable[..., None] | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        self._folder = tempfile.TemporaryDirectory()
        outputs = tuple(Path(self._folder.name, name) for name in ("out", "err"))
        self.process = _start(outputs, tokens, variables, prepare, arguments)

    def called(self, seconds: float = HANGS) -> Called:
        """Waits for its end, and kills it after so many seconds."""
        self.process.join(seconds)
        self.process.kill()
        self.process.join()
        out, err = (Path(self._folder.name, name).read_text() for name in ("out", "err"))
        self._folder.cleanup()
        return Called(self.process.exitcode, out, err)


class Piped:
    """The same as subprocess.Popen gives it, with both outputs in one pipe."""

    def __init__(self, *tokens: str, variables: Mapping[str, str] | None = None) -> None:
        reader, writer = FORKS.Pipe(duplex=False)
        self._process = _start((writer, writer), tokens, variables)
        writer.close()
        self.pid: int = self._process.pid
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        self._process.join(0)
        code: int | None = self._process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.poll()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        said = self.stdout.read()
        self.wait(timeout)
        return said, None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _start(
    outputs: tuple[Path | Connection, ...], tokens: tuple[str, ...], variables: Mapping[str, str] | None,
    prepare: Callable[..., None] | None = None, arguments: tuple[Any, ...] = (),
) -> Any:  # fmt: skip
    given = outputs, tokens, {**os.environ, **(variables or {})}, Path.cwd(), prepare, arguments
    process = FORKS.Process(target=_call, args=given, daemon=True)
    process.start()
    return process


def _call(
    outputs: tuple[Path | Connection, ...], tokens: tuple[str, ...], environment: dict[str, str], cwd: Path,
    prepare: Callable[..., None] | None, arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    for number, output in enumerate(outputs, 1):
        path = isinstance(output, Path)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if path else output.fileno(), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["lambert", *tokens]
    import torch

    from lambert import __main__

    torch.set_num_threads(1)
    if prepare is not None:
        prepare(*arguments)
    with mock.patch("lambert.engine.process.replace"):  # another allocator is not worth another start
        __main__.main()
