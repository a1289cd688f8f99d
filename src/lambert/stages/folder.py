"""The run folder: whose it is, and which run may go on in it."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lambert.core import config as settings
from lambert.core.errors import UsageError
from lambert.core.files import write_whole
from lambert.core.shards import sha256
from lambert.corpus import tokenizer as tokenizers
from lambert.engine import lock
from lambert.engine.cluster import agreement
from lambert.engine.cluster.dist import World
from lambert.model.heads import Model
from lambert.stages.config import RunConfig, check_together

CONFIG = "config.toml"
FREE = (
    "out",
    "from_scratch",
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
    "train.keep",
)
"""Settings that may change when a run is continued: none of them moves what is learnt beyond rounding, the draw of
dropout's masks, and how the gradients travel on the network there is now."""
BEGUN = ("metrics.jsonl", "checkpoints", "model")
"""What a run leaves: a folder without any of them holds no run yet, only the settings of one that never began."""


def seen(model: Model, tokenizer: Any, files: Mapping[str, Path]) -> dict[str, object]:
    """What of that which a rank has read must be the same on all, for `open_run`; `files` by what they are."""
    shape = {f"the model's {name}": value for name, value in dataclasses.asdict(model.config).items()}
    hashes = {name: sha256(path) for name, path in files.items()}
    return shape | hashes | {"the tokenizer": tokenizers.fingerprint(tokenizer)}


@contextmanager
def open_run(config: RunConfig, world: World, data: Mapping[str, object]) -> Iterator[None]:
    """Holds the run folder and writes config.toml, or compares it where the run goes on.

    Raises UsageError, on all ranks, where settings contradict each other, the folder is in use, belongs to a run with
    other settings, or holds something else; and where ranks differ in settings, `data` (see `seen`), code or libraries.
    """
    check_together(config)
    agreement.compare(world, settings.dotted(settings.as_dict(config)) | dict(data) | agreement.software())
    problem = world.broadcast_text(_foreign(config) if world.is_first else "")
    if problem:
        raise UsageError(problem)
    with lock.hold(config.out, world):
        if world.is_first:
            write_whole(config.out / CONFIG, settings.text(config))
        yield


def _foreign(config: RunConfig) -> str:
    """Why the run folder is not this run's, or nothing."""
    out, path = config.out, config.out / CONFIG
    if not out.exists():
        return ""
    if not out.is_dir():
        return f"{out} is a file. Choose another out."
    if not path.is_file():
        empty = all(found.name == "lock.json" for found in out.iterdir())
        return "" if empty else f"{out} holds something that is no run (no {CONFIG}). Choose another out."
    if not any((out / name).exists() for name in BEGUN):
        return ""
    before, now = settings.dotted(settings.read(path)), settings.dotted(settings.as_dict(config))
    changed = [n for n in sorted(before | now) if before.get(n) != now.get(n) and not n.startswith(FREE)]
    if not changed:
        return ""
    listed = "; ".join(f"{n} {before.get(n, 'not set')} -> {now.get(n, 'not set')}" for n in changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    return f"{out} holds a run with other settings: {listed}{more}. Restore them, or choose another out."
