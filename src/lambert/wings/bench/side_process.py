"""A side of a measurement in a process of its own, with the environment that is best for it.

`SideProcess` starts `main` in a new process, which makes a `Side` and answers requests. A request is a line with a
word, and its answer a line of JSON. The sides take turns, and a side that waits for its turn sleeps.
"""

import json
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lambert.core import errors
from lambert.core.errors import LambertError, MachineError
from lambert.distributed.detection import detect
from lambert.engine.precision import PRECISIONS
from lambert.measure.ceilings import Ceilings, Rates
from lambert.measure.training import Step
from lambert.wings.bench.profile import profile
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.work import Checked, Times
from lambert.wings.bench.works import work_of

CEILINGS = "ceilings"
"""Name of the process that measures the ceilings of the device."""
PAUSE = 0.02
"""Seconds before a turn: threads of the side before it may still spin for some milliseconds."""
_START = "from lambert.wings.bench.side_process import main; main()"


class Side:
    """The methods that the process of a side offers."""

    def __init__(self, config: BenchConfig, name: str) -> None:
        if config.threads:
            torch.set_num_threads(config.threads)
        self._config, self._name, self._world = config, name, detect(config.device)
        torch.manual_seed(config.seed)
        self._step: Step | None = None
        self._ceilings: Ceilings | None = None

    def build(self) -> dict[str, float]:
        """Builds the side, runs its first round and one more, and returns the values of `Times`."""
        self._work, device = work_of(self._config, self._world), self._world.device
        side = self._work.sides[self._name]
        cuda, before = device.type == "cuda", 0
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        began = time.perf_counter()
        self._step = side()
        built = time.perf_counter()
        check = self._step()
        first = time.perf_counter() - built
        self._step()
        memory = (torch.cuda.max_memory_allocated(device) - before) // 2**20 if cuda else _peak_mb()
        if isinstance(self._step, Checked):
            self._step.compare()
        return {"build": built - began, "first": first, "check": check, "memory_mb": memory}

    def round(self) -> float:
        """Runs a round and returns its seconds."""
        assert self._step is not None
        step = self._work.sides[self._name]() if self._work.rebuilt else self._step
        began = time.perf_counter()
        step()
        return time.perf_counter() - began

    def profile(self) -> dict[str, Any]:
        """Returns the costs of Lambert's side under torch's profiler."""
        return profile(self._config, work_of(self._config, self._world), self._world)

    def ceilings(self) -> dict[str, float]:
        """Measures the ceilings once more, and returns them."""
        if self._ceilings is None:
            if self._config.work == "run":
                from lambert.wings.bench.runs import ceiling_shapes

                shapes, products = ceiling_shapes(self._config), True
            else:
                work = work_of(self._config, self._world)
                shapes, products = work.shapes, work.operations > 0
            dtype = PRECISIONS.get(self._config.precision, torch.bfloat16)
            self._ceilings = Ceilings(self._world.device, dtype, shapes, products=products)
        return asdict(self._ceilings.measure())


class SideProcess:
    """The process of a side, or of the ceilings. Ends with the `with` block."""

    def __init__(self, config: BenchConfig, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self._send(pickle.dumps((config, name)).hex())
        self._answer()  # so that it imports nothing while another side is measured

    def __enter__(self) -> "SideProcess":
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()

    def build(self) -> Times:
        """Builds the side; see `Side.build`. Raises the error with which this fails."""
        return Times(**self.ask("build"))

    def round(self) -> float:
        """Returns the seconds of a round."""
        time.sleep(PAUSE)
        seconds: float = self.ask("round")
        return seconds

    def ask(self, request: str) -> Any:
        """Returns the answer of a method of `Side`. Raises its LambertError, and MachineError if the process ends."""
        self._send(request)
        return self._answer()

    def ceilings(self) -> Rates:
        """Measures the ceilings once more, and returns them."""
        return Rates(**self.ask("ceilings"))

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._read_error()
        answer = json.loads(line)
        if "error" in answer:
            raise getattr(errors, answer["error"], errors.MachineError)(answer["message"])
        return answer["value"]

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _read_error(self) -> MachineError:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        last = (lines or ["killed, perhaps for memory"])[-1].strip()
        return MachineError(
            f"The process of {self._name} ended: {last}. If it lacked memory, lower --sequences or --length."
        )


def _peak_mb() -> int:
    """Returns the peak of the resident memory of this process, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss starts at the peak of the parent process
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) // 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 2**20)


def main() -> None:
    """Reads the settings and the name of a side from standard input, then requests, and answers each."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not be read as an answer
    side = Side(*pickle.loads(bytes.fromhex(sys.stdin.readline())))
    print(json.dumps({"value": None}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = {"value": getattr(side, line.strip())()}
        except LambertError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), file=answers, flush=True)
