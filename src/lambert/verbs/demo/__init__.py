"""`lambert demo`: raw text to a scored model in minutes. Prepares, pre-trains in two stages, fine-tunes and compares.

Recipes and texts are in this package. They are copied to the output folder, so the commands that the demo prints can be
given again, with other settings.
"""

import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lambert.core.errors import UsageError
from lambert.core.files import atomic_folder, delete_folder, is_temporary, json_text, remove_all_leftovers, write_atomic
from lambert.core.lock import LOCK, lock_folder
from lambert.runs.result import Result, Say, silent

PACKAGE = Path(__file__).parent
RECIPES, DATA, REPORT = "recipes", "data", "report.html"
DEFAULT_OUT = Path("runs/demo")
"""The folder in the paths of the recipes."""
SEEDS = (1, 2, 3)
KINDS = {"pretrained": (), "scratch": ("--random-init",)}
"""Flags of the fine-tuning that is compared."""
WRITTEN = {LOCK, RECIPES, DATA, "corpus", "pretrain-32", "pretrain-64", REPORT}
WRITTEN |= {f"names-{kind}-{seed}" for kind in KINDS for seed in SEEDS}
"""What a demo leaves in its folder."""


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The demo: raw text to a scored model."""

    out: Path = DEFAULT_OUT
    """Folder to write; what an earlier demo left in it is deleted first. Nothing is written elsewhere."""
    short: bool = False
    """Few updates and two seeds: a check of the installation, not a result."""


def run(config: DemoConfig, call: Callable[[list[str]], Any], say: Say = silent) -> Result:
    """Runs the commands that it prints, one after the other, in this process. Returns the scores, and the folder of the
    first fine-tuned model.

    Args:
        call: Runs the words of a command line.

    Raises:
        UsageError: The folder contains files that no demo wrote, or another demo is writing to it.
        SavedAndStopped: A signal stopped one of the commands. Another demo starts anew.
    """
    began = time.monotonic()
    _check(config.out)
    with lock_folder(config.out):
        _clear(config.out)
        _unpack(config.out)
        runs = _train(config, call, say)

        from lambert.verbs.demo import results

        found = results.compared(config.out, **runs)
        _report(config.out, found.summary(), call, say)
    found.show(time.monotonic() - began)
    return Result(runs["pretrained"][0], found.scores())


def _train(config: DemoConfig, call: Callable[[list[str]], Any], say: Say) -> dict[str, list[Path]]:
    """Returns the folders of the fine-tuned models by their kind."""

    def steps(short: int) -> list[object]:
        return ["--train.steps", short] if config.short else []

    recipes = config.out / RECIPES
    _lambert(["prepare", recipes / "prepare.toml"], call, say)
    _lambert(["pretrain", recipes / "pretrain-32.toml", *steps(60)], call, say)
    _lambert(["pretrain", recipes / "pretrain-64.toml", *steps(20)], call, say)
    runs: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for seed in SEEDS[:2] if config.short else SEEDS:
        for kind, flags in KINDS.items():
            out = config.out / f"names-{kind}-{seed}"
            words = ["finetune", recipes / "names.toml", "--out", out, "--seed", seed, *flags, *steps(60)]
            _lambert(words, call, say)
            runs[kind].append(out)
    return runs


def _report(out: Path, summary: Mapping[str, Any], call: Callable[[list[str]], Any], say: Say) -> None:
    """Writes report.html, which also shows the summary."""
    stages = (out / "pretrain-32", out / "pretrain-64")
    write_atomic(stages[-1] / "summary.json", json_text(summary, indent=1))
    if find_spec("matplotlib") is None:
        say("")
        say("A report of the runs needs matplotlib: pip install 'lambert-bert[report]'.")
    else:
        _lambert(["report", *stages, "--chain", "--out", out / REPORT], call, say)


def _lambert(words: Iterable[object], call: Callable[[list[str]], Any], say: Say) -> None:
    """Prints and runs a command line."""
    tokens = [str(word) for word in words]
    say("")
    say(f"$ lambert {shlex.join(tokens)}")
    call(tokens)


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
    """Deletes what an earlier demo left, at last the recipes, by which `_check` knows the folder."""
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
            text = path.read_text(encoding="utf-8")
            inside = json_text(out.as_posix())[:-1] + "/"  # a string of JSON is one of TOML
            (folder / path.name).write_text(text.replace(f'"{DEFAULT_OUT.as_posix()}/', inside), encoding="utf-8")
    with atomic_folder(out / DATA) as folder:
        for path in (PACKAGE / DATA).iterdir():
            shutil.copyfile(path, folder / path.name)
