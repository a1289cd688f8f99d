"""`lambert demo`: raw text to a scored model in a minute and a half. Prepares, pre-trains, fine-tunes and compares.

Recipes and texts are in this package. They are copied to the output folder, so the commands that the demo prints can be
given again, with other settings.
"""

import shlex
import shutil
import time
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lambert.commands import parse
from lambert.core.errors import UsageError
from lambert.core.files import atomic_folder, delete_folder, is_temporary, json_text, remove_all_leftovers, write_atomic
from lambert.core.lock import LOCK, lock_folder
from lambert.runs.result import Result, Say, silent

PACKAGE = Path(__file__).parent
RECIPES, DATA, REPORT = "recipes", "data", "report.html"
DEFAULT_OUT = Path("runs/demo")
"""The folder in the paths of the recipes."""
ENCODER, TUNED = "pretrain", "names-pretrained"
"""The runs of pre-training, and of fine-tuning after it."""
WRITTEN = {LOCK, RECIPES, DATA, "corpus", ENCODER, TUNED, "names-scratch", REPORT}
"""The files and folders that a demo writes."""


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The demo: raw text to a scored model."""

    out: Path = DEFAULT_OUT
    """Folder to write. The files of an earlier demo in it are deleted first; nothing is written elsewhere."""
    short: bool = False
    """A check of the installation in a few seconds: all its commands run, with few updates, and pre-training is
    compared with the curve that its recipe expects. The models are not compared."""


def run(config: DemoConfig, say: Say = silent) -> Result:
    """Runs the commands that it prints, one after the other, in this process. Returns the scores, and the folder of the
    first fine-tuned model.

    Raises:
        UsageError: The folder contains files that no demo wrote, or another demo is writing to it.
        SavedAndStopped: A signal stopped one of the commands. Another demo starts from the beginning.
        DivergedError: The pre-training of a short demo is not on the curve of its recipe.
    """
    began = time.monotonic()
    _check(config.out)
    with lock_folder(config.out):
        _clear(config.out)
        _unpack(config.out)
        commands = tomllib.loads(_read_moved(PACKAGE / "commands.toml", config.out))
        outcome = None
        for words in commands["short" if config.short else "whole"]:
            outcome = _lambert(words, say)

        from lambert.verbs.demo import results

        found = results.read_results(config.out, None if config.short else outcome)
        write_atomic(config.out / ENCODER / "summary.json", json_text(found.summary(), indent=1))  # for the report
        if find_spec("matplotlib") is None:
            say("")
            say("A report of the runs needs matplotlib: pip install 'lambert-bert[report]'.")
        else:
            _lambert(commands["report"], say)
        if config.short:
            _lambert(commands["check"], say)
    found.show(time.monotonic() - began)
    return Result(found.run, found.scores())


def _lambert(words: list[str], say: Say) -> Any:
    """Prints and runs a command line. Returns its result."""
    say("")
    say(f"$ lambert {shlex.join(words)}")
    return parse.call(words)


def _check(out: Path) -> None:
    """Raises UsageError if a folder has anything that no demo wrote, or a name that a recipe cannot contain."""
    if (name := str(out)) != name.encode(errors="replace").decode():
        raise UsageError(f"{name!r} is not UTF-8. Give another folder with --out.")
    there = {path.name for path in out.glob("*") if not is_temporary(path)}
    recipe = Path(RECIPES, "names.toml")
    ours = there <= {LOCK} or ((out / recipe).is_file() and _title(out / recipe) == _title(PACKAGE / recipe))
    if foreign := sorted(there - WRITTEN if ours else there):
        raise UsageError(f"{out} has files that no demo wrote ({foreign[0]}). Give another folder with --out.")


def _clear(out: Path) -> None:
    """Deletes the files of an earlier demo, and last the recipes, by which `_check` recognises the folder."""
    remove_all_leftovers(out)
    for name in sorted(WRITTEN - {LOCK}, key=lambda name: name == RECIPES):
        path = out / name
        if path.is_dir():
            delete_folder(path)
        else:
            path.unlink(missing_ok=True)


def _title(recipe: Path) -> bytes:
    return recipe.read_bytes().partition(b"\n")[0]


def _unpack(out: Path) -> None:
    """Writes the recipes, with their paths in `out`, and the texts."""
    with atomic_folder(out / RECIPES) as folder:
        for path in sorted((PACKAGE / RECIPES).glob("*.toml")):
            (folder / path.name).write_text(_read_moved(path, out), encoding="utf-8")
    with atomic_folder(out / DATA) as folder:
        for path in (PACKAGE / DATA).iterdir():
            shutil.copyfile(path, folder / path.name)


def _read_moved(path: Path, out: Path) -> str:
    """Returns the text of a TOML file of the package, with its paths in `out`."""
    inside = json_text(out.as_posix())[:-1] + "/"  # a string of JSON is one of TOML
    return path.read_text(encoding="utf-8").replace(f'"{DEFAULT_OUT.as_posix()}/', inside)
