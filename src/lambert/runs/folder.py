"""The run folder: whose it is, and which run may go on in it."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lambert.core import settings
from lambert.core.errors import UsageError
from lambert.core.files import is_temporary, write_atomic
from lambert.core.world import World
from lambert.corpus import tokenizer as tokenizers
from lambert.distributed import agreement
from lambert.engine import lock
from lambert.engine.metrics_file import METRICS
from lambert.model.heads import Model
from lambert.runs.config import RunConfig

CONFIG = "config.toml"
DATA = "data.json"
"""Holds what `seen` gave when the run began."""
INITIAL_WEIGHTS = "the initial weights"
"""What a hash of the files of `init` is called there."""
FREE = (
    "out",
    "restart_damaged",
    "code",
    "verify",
    "log.",
    "guard.",
    "train.micro_tokens",
    "train.compile",
    "train.device",
    "train.shard_optimizer",
    "train.timeout",
    "train.compare_every",
    "exchange.",
    "train.save_every",
    "train.evaluate_",
    "train.keep_checkpoints",
)
"""Settings that may change when a run is continued: none of them moves what is learnt beyond rounding, the draw of
dropout's masks, and how the gradients travel on the network there is now."""
BEGUN = (METRICS, "checkpoints", "model")
"""What a run leaves: a folder without any of them holds no run yet, only the settings of one that never began."""


def seen(model: Model, tokenizer: Any, hashes: Mapping[str, str]) -> dict[str, object]:
    """What of that which a rank has read must be the same on all, and whenever the run goes on, for `open_run`;
    `hashes` of the data by what it is."""
    shape = {f"the model's {name}": value for name, value in dataclasses.asdict(model.config).items()}
    return {**shape, **hashes, "the tokenizer": tokenizers.fingerprint(tokenizer)}


@contextmanager
def open_run(config: RunConfig, world: World, data: Mapping[str, object]) -> Iterator[None]:
    """Holds the run folder and writes config.toml and data.json, or compares them where the run goes on.

    Raises UsageError, on all ranks, where settings contradict each other, the folder is in use, belongs to a run with
    other settings or other `data` (see `seen`), or holds something else; and where ranks differ in settings, `data`,
    code or libraries.
    """
    agreement.compare(world, settings.dotted(settings.as_dict(config)) | dict(data) | agreement.software())
    problem = world.broadcast_text(_foreign(config, data) if world.is_first else "")
    if problem:
        raise UsageError(problem)
    with lock.hold(config.out, world):
        if world.is_first:
            write_atomic(config.out / CONFIG, settings.text(config))
            write_atomic(config.out / DATA, json.dumps(dict(data), indent=1) + "\n")
        yield


def _foreign(config: RunConfig, data: Mapping[str, object]) -> str:
    """Why the run folder is not this run's, or nothing."""
    out, path = config.out, config.out / CONFIG
    if not out.exists():
        return ""
    if not out.is_dir():
        return f"{out} is a file. Choose another out."
    if not path.is_file():
        empty = all(found.name == "lock.json" or is_temporary(found) for found in out.iterdir())
        return "" if empty else f"{out} holds something that is no run (no {CONFIG}). Choose another out."
    if not any((out / name).exists() for name in BEGUN):
        return ""
    before, now = settings.dotted(settings.read(path)), settings.dotted(settings.as_dict(config))
    before = {settings.RENAMED.get(name, name): value for name, value in before.items()}
    changed = [n for n in sorted(before | now) if before.get(n) != now.get(n) and not n.startswith(FREE)]
    if not changed:
        return _other_data(out, data)
    listed = "; ".join(f"{n} {before.get(n, 'not set')} -> {now.get(n, 'not set')}" for n in changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    return f"{out} holds a run with other settings: {listed}{more}. Restore them, or choose another out."


def _other_data(out: Path, data: Mapping[str, object]) -> str:
    """Why the run in the folder `out` is one on other data, or nothing; what an older version did not record may be
    anything."""
    path = out / DATA
    if not path.exists():
        return ""
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        return f"{path}, the record of the run's data, is damaged ({error}). Restore it from a copy, or remove it."
    changed = [name for name in sorted(before.keys() & data.keys()) if before[name] != data[name]]
    if not changed:
        return ""
    listed = ", ".join(f"{n} ({str(before[n])[:12]} -> {str(data[n])[:12]})" for n in changed[:5])
    return (
        f"{out} holds a run that began with something else: {listed}; {path} has the record. Restore what was there, "
        "or choose another out."
    )
