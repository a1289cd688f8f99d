"""A running service for tests: `lambert serve` in a process of its own, and a client."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Service:
    """A process that serves, at `url`."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process, self.url = process, url

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Returns the status and the content, parsed if it is JSON. A body that is bytes is sent as it is."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, _content(answer)
        except urllib.error.HTTPError as error:
            return error.code, _content(error)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Sends a signal and returns the exit code and what was printed after the address."""
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=60)
        return self.process.returncode, said


def _content(answer: Any) -> Any:
    text = answer.read().decode()
    return json.loads(text) if answer.headers.get("Content-Type", "").startswith("application/json") else text


@contextmanager
def serving(*models: str | Path, env: dict[str, str] | None = None, **settings: Any) -> Iterator[Service]:
    """A service of the models on a free port, killed at the end if it still runs."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "lambert", "serve", "--port=0", *flags]
    command += [f"--model={model}" for model in models]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"serving\s+(http://\S+)", line):
                yield Service(process, found[1])
                return
        raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
