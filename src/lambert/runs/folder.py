"""The run folder: its lock, its record of settings and data, and the check of which run may continue in it."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lambert.core import settings
from lambert.core.errors import UsageError
from lambert.core.files import is_temporary, parse_json, read_file, write_atomic
from lambert.core.lock import lock_folder
from lambert.core.world import World
from lambert.distributed import agreement
from lambert.engine import archive
from lambert.engine.metrics_file import METRICS
from lambert.model.heads import Model
from lambert.runs.config import RunConfig
from lambert.text.tokenizers import tokenizer as tokenizers

CONFIG = "config.toml"
DATA = "data.json"
"""Holds the result of `fingerprints` at the start of the run."""
INITIAL_WEIGHTS = "the initial weights"
"""The key of the hash of the model that `init` names."""
FREE = (
    "out",
    "seeds",
    "cache",
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
    "expect.",
    "train.save_every",
    "train.evaluate_",
    "train.keep_checkpoints",
)
"""Prefixes of settings that may change when a run continues. They affect the result only by rounding, by the draw of
dropout masks, and by the exchange method."""
UNSET = "not set"
BEGUN = (METRICS, "checkpoints", "model")
"""Files of a run that has started. A folder without any of them holds at most the settings of a run that never did."""


def fingerprints(model: Model, tokenizer: Any, hashes: Mapping[str, str]) -> dict[str, object]:
    """Returns the inputs of a run that must be the same on all ranks and whenever the run continues: the shape of the
    model, the tokenizer and the `hashes` of the data, by name."""
    shape = {f"the model's {name}": value for name, value in dataclasses.asdict(model.config).items()}
    return {**shape, **hashes, "the tokenizer": tokenizers.fingerprint(tokenizer)}


@contextmanager
def open_run(config: RunConfig, world: World, data: Mapping[str, object]) -> Iterator[None]:
    """Locks the run folder and writes config.toml and data.json, or compares them if the run continues.

    Raises UsageError, on all ranks, if a path of the settings is not UTF-8; if the folder is in use, belongs to a run
    with other settings or other `data` (see `fingerprints`), or holds something else; and if ranks differ in settings,
    `data`, code or libraries.
    """
    text = settings.text(config)  # raises for paths that it cannot hold
    agreement.compare(world, settings.flatten(settings.as_dict(config)) | dict(data) | agreement.software())
    world.run_on_first(lambda: _check_folder(config, data))
    with lock_run(config.out, world):
        if world.is_first:
            write_atomic(config.out / CONFIG, text)
            write_atomic(config.out / DATA, json.dumps(dict(data), indent=1) + "\n")
        yield


def _check_folder(config: RunConfig, data: Mapping[str, object]) -> None:
    """Raises UsageError if the run folder does not belong to this run."""
    out, path = config.out, config.out / CONFIG
    check_place(out)
    if path.is_file() and any((out / name).exists() for name in BEGUN):
        if changed := changes(config, path):
            listed = "; ".join(f"{name} {before} -> {now}" for name, before, now in changed[:5])
            more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
            raise UsageError(
                f"{out} holds a run with other settings: {listed}{more}. Restore them, or choose another --out."
            )
        _check_data(out, data)


def check_place(out: Path) -> None:
    """Raises UsageError if a path is neither free nor a run folder."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"{out} is a file. Choose another --out.")
    if not (out / CONFIG).is_file() and not all(
        found.name == "lock.json" or is_temporary(found) for found in out.iterdir()
    ):
        raise UsageError(f"{out} exists and is not a run folder (it has no {CONFIG}). Choose another --out.")


def changes(config: RunConfig, path: Path, free: tuple[str, ...] = FREE) -> list[tuple[str, Any, Any]]:
    """Returns the dotted names of the settings in which `config` differs from the config.toml at `path`, with the value
    there and that of `config`; UNSET for none. Names that begin with one of `free` are left out."""
    before, now = settings.flatten(settings.read(path)), settings.flatten(settings.as_dict(config))
    before = settings.flatten(settings.defaults(config)) | before  # of settings that an older version did not have
    names = [name for name in sorted(before | now) if before.get(name) != now.get(name) and not name.startswith(free)]
    return [(name, before.get(name, UNSET), now.get(name, UNSET)) for name in names]


def _check_data(out: Path, data: Mapping[str, object]) -> None:
    """Raises UsageError if the run in `out` has other data. Data that an older version did not record is not
    compared."""
    path = out / DATA
    if not path.exists():
        return
    try:
        before = dict(parse_json(read_file(path)))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{path}, the record of the run's data, is damaged ({error}). Restore it from a copy, or remove it."
        ) from error
    changed = [name for name in sorted(before.keys() & data.keys()) if before[name] != data[name]]
    if changed:
        listed = ", ".join(f"{n} ({str(before[n])[:12]} -> {str(data[n])[:12]})" for n in changed[:5])
        raise UsageError(
            f"{out} holds a run on other data: {listed}. {path} records what the run began with. Restore that data, "
            "or choose another --out."
        )


@contextmanager
def lock_run(run: Path, world: World | None = None) -> Iterator[None]:
    """A context that creates the folder `run`, locks it, and removes files that a killed process left incomplete.

    All ranks must enter the context; rank 0 holds the lock (`core/lock.py`) for all.

    Raises UsageError, which names the holder of the lock, or why the folder cannot be written, and MachineError if its
    disk is full or broken.
    """
    with ExitStack() as held:

        def lock() -> None:
            held.enter_context(lock_folder(run))
            archive.clean(run)

        (world or World()).run_on_first(lock)
        yield
