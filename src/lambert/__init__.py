"""Lambert: pre-train and fine-tune BERT-family encoders, from raw text to an answer.

The names in `__all__` are the public API. Each is imported when it is first used, so `import lambert` does not import
torch.
"""

import os
import sys


def _forget_current_folder() -> None:
    """Removes the current folder from the front of `sys.path`, where `python -m lambert...` puts it, because a json.py
    in that folder would be imported instead of the standard library's. Folders in PYTHONPATH, and the folder of a
    program that imports Lambert, are not removed.

    This must be called before anything that a file of that folder could replace is imported: `python -m` imports a
    module's packages first.
    """
    if sys.argv[:1] != ["-m"]:  # Python sets this value only while it searches the module of `-m`
        return
    module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    try:
        here = os.getcwd()
    except OSError:  # the current folder was deleted
        here = ""
    if module.partition(".")[0] == "lambert" and not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
        del sys.path[0]


_forget_current_folder()

import importlib  # noqa: E402
from typing import Any  # noqa: E402

from lambert.core.version import __version__ as __version__  # noqa: E402
from lambert.verb import collect  # noqa: E402

_MODULES = {
    "inference.text_model": ("load", "TextModel"),
    "runs.result": ("Result",),
    "engine.step": ("Step",),
    "model.encoder": ("Encoder",),
    "model.families": ("build_encoder",),
    "model.heads": ("Model",),
    "model.config": ("EncoderConfig",),
    "core.batch": ("Batch", "Target"),
    "optim.lamb": ("Lamb",),
    "optim.groups": ("decay_groups",),
    "optim.schedule": ("schedule",),
    "optim.config": ("OptimConfig",),
    "runs.config": ("TrainConfig", "LogConfig"),
    "runs.expect": ("ExpectConfig",),
    "tasks.config": ("TaskConfig",),
    "core.errors": ("LambertError", "UsageError", "DataError", "MachineError", "DivergedError", "SavedAndStopped"),
}
_HOME = {name: module for listed in (*collect("NAMES"), _MODULES) for module, names in listed.items() for name in names}
"""The module of each name. The names of verbs are listed beside them."""

__all__ = [*_HOME]  # noqa: PLE0604 - names


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lambert' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"lambert.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
