"""Ranks for the tests of faults: the real command, in processes forked from one that has imported it."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from patience import HANGS  # type: ignore[import-not-found]
from tiny import free_port  # type: ignore[import-not-found]

Lambert = Callable[..., Any]
Settings = Mapping[str, object]
SLOWEST = HANGS
"""Seconds after which every rank must have ended."""


@dataclass(frozen=True)
class Ended:
    """What a rank left."""

    code: int
    text: str

    @property
    def line(self) -> str:
        """The one line of its failure."""
        lines = [line for line in self.text.splitlines() if line.startswith("lambert: ")]
        assert len(lines) == 1, self.text
        assert "Traceback" not in self.text
        return lines[0].removeprefix("lambert: ")


@dataclass(frozen=True)
class Start:
    """How a rank is started."""

    tokens: list[str]
    environment: dict[str, str]
    folder: Path
    """Its working directory."""
    said: Path
    """Where its output goes."""
    fault: Callable[[], None] | None


def begin(how: Start) -> None:
    from lambert import cli

    os.environ.update(how.environment)
    os.chdir(how.folder)
    said = os.open(how.said, os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    if how.fault is not None:
        how.fault()
    sys.argv = ["lambert", *how.tokens]
    cli.main()


def flags(settings: Settings) -> list[str]:
    return [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in settings.items()]


class Cluster:
    """Ranks of one verb; what is given for a rank alone overrides what all have."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        self._context: Any = get_context("forkserver")
        self._context.set_forkserver_preload(["torch._dynamo", "lambert.cli", "lambert.verbs.pretrain"])
        self._started = 0
        self.processes: list[Any] = []

    def start(
        self,
        rank: int,
        world: int,
        port: int,
        settings: Settings,
        *,
        verb: str = "pretrain",
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        fault: Callable[[], None] | None = None,
    ) -> tuple[Any, Path]:
        """One rank: its process, and the file with what it says."""
        self._started += 1
        said = self.folder / f"said-{self._started}"
        place = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        surroundings = {name: str(value) for name, value in place.items()}
        surroundings |= {"OMP_NUM_THREADS": "1", "GLIBC_TUNABLES": ""}  # set: the command is not started once more
        surroundings |= environment or {}
        tokens = [verb, *flags({**(self.settings if verb == "pretrain" else {}), **settings})]
        how = Start(tokens, surroundings, folder or self.folder, said, fault)
        process = self._context.Process(target=begin, args=(how,), daemon=True)
        process.start()
        self.processes.append(process)
        return process, said

    def run(
        self, world: int = 2, *, each: Mapping[int, Mapping[str, Any]] | None = None, **settings: object
    ) -> list[Ended]:
        """What every rank left. `each` gives arguments of `start` to a rank, its `settings` among them."""
        port = free_port()
        started = []
        for rank in range(world):
            own = dict((each or {}).get(rank, {}))
            started.append(self.start(rank, world, port, {**settings, **own.pop("settings", {})}, **own))
        return ended(started)


def ended(started: list[tuple[Any, Path]]) -> list[Ended]:
    until = time.monotonic() + SLOWEST
    for process, _ in started:
        process.join(max(0.0, until - time.monotonic()))
    found = [Ended(process.exitcode, said.read_text()) for process, said in started]
    assert all(process.exitcode is not None for process, _ in started), f"a rank still runs: {found}"
    return found


def assert_all(ranks: list[Ended], code: int, gist: str) -> None:
    assert [rank.code for rank in ranks] == [code] * len(ranks), [rank.text for rank in ranks]
    assert not [rank.line for rank in ranks if gist not in rank.line]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 4
    path.write_bytes(data)


def trained(run: Path) -> Any:
    """The weights of a run's last checkpoint, in one vector."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(max((run / "checkpoints").glob("step-??????")) / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]).numpy()


def rows(run: Path) -> list[dict[str, float]]:
    """Step, loss and norm of every update."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in ("step", "loss", "grad_norm")} for row in lines if "loss" in row]
