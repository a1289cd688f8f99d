"""`lambert demo`: raw text to a scored model in a minute and a half. Prepares, pre-trains, fine-tunes and compares.

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
ENCODER, TUNED, SCRATCH = "pretrain", "names-pretrained", "names-scratch"
"""The runs: pre-training, and fine-tuning with and without it."""
SEEDS = (1, 2, 3)
SHORT_UPDATES, SHORT_TUNING = 350, 100
"""Updates of a short demo. The first 280 of pre-training have the learning rates of the whole recipe. After 250, an
encoder knows little more than the frequencies of words (docs/log.md)."""
WRITTEN = {LOCK, RECIPES, DATA, "corpus", ENCODER, TUNED, SCRATCH, REPORT}
"""What a demo leaves in its folder."""

Call = Callable[[list[str]], Any]


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The demo: raw text to a scored model."""

    out: Path = DEFAULT_OUT
    """Folder to write; what an earlier demo left in it is deleted first. Nothing is written elsewhere."""
    short: bool = False
    """A check of the installation in a few seconds: every step runs, with few updates, and pre-training is compared
    with the curve that its recipe expects. The models are not compared."""


def run(config: DemoConfig, call: Call, say: Say = silent) -> Result:
    """Runs the commands that it prints, one after the other, in this process. Returns the scores, and the folder of the
    first fine-tuned model.

    Args:
        call: Runs the words of a command line, and returns the result of its verb.

    Raises:
        UsageError: The folder contains files that no demo wrote, or another demo is writing to it.
        SavedAndStopped: A signal stopped one of the commands. Another demo starts anew.
        DivergedError: The pre-training of a short demo is not on the curve of its recipe.
    """
    began = time.monotonic()
    _check(config.out)
    with lock_folder(config.out):
        _clear(config.out)
        _unpack(config.out)
        outcome = _train(config, call, say)

        from lambert.verbs.demo import results

        found = results.results(config.out, outcome)
        _report(config.out, found.summary(), call, say)
        if config.short:
            _lambert(["verify", config.out / RECIPES / "pretrain.toml", "--run", config.out / ENCODER], call, say)
    found.show(time.monotonic() - began)
    return Result(found.run, found.scores())


def _train(config: DemoConfig, call: Call, say: Say) -> Mapping[str, Any] | None:
    """Returns the comparison of the models with those from scratch (docs/compare.md); None in a short demo, which has
    none."""
    recipes, tuned, scratch = config.out / RECIPES, config.out / TUNED, config.out / SCRATCH

    def tune(out: Path, seeds: Iterable[int], *flags: object) -> None:
        _lambert(["finetune", recipes / "names.toml", "--out", out, "--seeds", *seeds, *flags], call, say)

    _lambert(["prepare", recipes / "prepare.toml"], call, say)
    if config.short:
        flags = ["--train.steps", SHORT_UPDATES, "--train.evaluate-sequences", 256]
        _lambert(["pretrain", recipes / "pretrain.toml", *flags], call, say)
        tune(tuned, SEEDS[:1], "--train.steps", SHORT_TUNING)
        return None
    _lambert(["pretrain", recipes / "pretrain.toml"], call, say)
    tune(tuned, SEEDS)
    tune(scratch, SEEDS, "--random-init")
    outcome: Mapping[str, Any] = _lambert(["compare", scratch, tuned], call, say)
    return outcome


def _report(out: Path, summary: Mapping[str, Any], call: Call, say: Say) -> None:
    """Writes report.html, which also shows the summary."""
    write_atomic(out / ENCODER / "summary.json", json_text(summary, indent=1))
    if find_spec("matplotlib") is None:
        say("")
        say("A report of the runs needs matplotlib: pip install 'lambert-bert[report]'.")
    else:
        _lambert(["report", out / ENCODER, "--out", out / REPORT], call, say)


def _lambert(words: Iterable[object], call: Call, say: Say) -> Any:
    """Prints and runs a command line. Returns its result."""
    tokens = [str(word) for word in words]
    say("")
    say(f"$ lambert {shlex.join(tokens)}")
    return call(tokens)


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
