"""The verbs as Python functions. The settings are those of the command line, parsed and checked by the same code.

Each function takes a recipe (the path of a TOML file) or a settings dataclass, and keywords that override it: nested
settings are written `optim__lr=1e-3` or `optim={"lr": 1e-3}`; None unsets a setting. All errors are subclasses of
LambertError, and a run that a signal stopped raises SavedAndStopped, a SystemExit. Nothing is printed unless
`log__console=True`, except in a notebook, which shows what a terminal would.
"""

import dataclasses
import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cyclopts.exceptions import CycloptsError

from lambert import cli
from lambert.core import settings as tables
from lambert.core.contents import sha256
from lambert.core.errors import SavedAndStopped, UsageError, printable_line
from lambert.core.files import write_atomic
from lambert.engine.device import keep_current_gpu
from lambert.engine.progress import aside, in_notebook
from lambert.engine.step import Step
from lambert.inference.config import Precisions
from lambert.runs.result import Result, Say, silent
from lambert.text.memory import data_file, data_path, is_path, is_rows
from lambert.verbs import compare as comparison
from lambert.verbs import evaluate as evaluation
from lambert.verbs import finetune as finetuning
from lambert.verbs import pretrain as pretraining
from lambert.verbs import sweep as sweeping
from lambert.verbs import verify as verification
from lambert.verbs.compare import CompareConfig
from lambert.verbs.settings.evaluate import EvaluateConfig
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.settings.pretrain import PretrainConfig
from lambert.verbs.settings.sweep import SweepConfig
from lambert.verbs.settings.training import KINDS
from lambert.verbs.verify.comparison import Verified
from lambert.wings.convert import verb as conversion
from lambert.wings.convert.config import Against
from lambert.wings.convert.settings import ExportConfig, ImportConfig
from lambert.wings.convert.verb import Imported
from lambert.wings.corpus import peek as preview
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.peek import Peeked
from lambert.wings.corpus.verbs import extend as extension
from lambert.wings.corpus.verbs import prepare as preparation
from lambert.wings.plan import verb as planning
from lambert.wings.plan.result import Plan

_KINDS: dict[str, type] = {
    **KINDS, "prepare": PrepareConfig, "evaluate": EvaluateConfig, "sweep": SweepConfig,
}  # fmt: skip


def prepare(recipe: str | Path | PrepareConfig | None = None, /, **settings: Any) -> Result:
    """Converts raw text to a tokenizer and token shards, as `lambert prepare`. The folder of the result is the
    corpus."""
    with _running():
        return preparation.run(_settings("prepare", recipe, settings), _say())


def peek(recipe: str | Path | PrepareConfig | None = None, /, **settings: Any) -> list[Peeked]:
    """Returns ten documents of the inputs after each step, as `lambert prepare --peek` shows them, with the settings of
    `prepare`. Nothing is written, and `out` is not needed."""
    return preview.peek(_settings("prepare", recipe, {**settings, "peek": True}))


def pretrain(recipe: str | Path | PretrainConfig | None = None, /, **settings: Any) -> Result:
    """Trains an encoder on the shards of a corpus, as `lambert pretrain`. Repeating the call continues the run. The
    result has the held-out scores.

    After SIGINT (Ctrl-C), SIGTERM or SIGUSR1 the run is saved and SavedAndStopped is raised, which ends a script with
    128 + the number of the signal.
    """
    with _running():
        return pretraining.run(config := _settings("pretrain", recipe, settings), _say(config))


def finetune(recipe: str | Path | FinetuneConfig | None = None, /, **settings: Any) -> Result:
    """Trains an encoder on labelled data, as `lambert finetune`. Repeating the call continues the run. The result has
    the scores on `dev`.

    `data` and `dev` may be rows instead of files: a table of pandas, polars, pyarrow or Hugging Face's datasets, a list
    of dicts, or a dict of columns. They are written beside the run folder `out`, as OUT-data.jsonl or OUT-data.arrow,
    so that the run can be repeated from its config.toml. Signals are handled as in `pretrain`.
    """
    with _running():
        return finetuning.run(config := _settings("finetune", recipe, settings), _say(config))


def sweep(recipe: str | Path | SweepConfig | None = None, /, **settings: Any) -> Result:
    """Searches for the best settings of a training run, as `lambert sweep`. Repeating the call continues the sweep. The
    result has the best value; best.toml in its folder has the best settings.

    `space` has the settings to vary, as in the table [sweep.space] of a recipe; `base` has the settings of the verb,
    whose `data` and `dev` may be rows as in `finetune`.
    Signals are handled as in `pretrain`.
    """
    with _running():
        return sweeping.run(_settings("sweep", recipe, settings), cli.settings, _say())


def extend(model: str | Path, /, **settings: Any) -> Result:
    """Adds words of a text to the vocabulary of an encoder, as `lambert extend`. The folder of the result is the model
    folder, and its scores have the tokens per word on held-out text, before and now.

    Args:
        model: Run folder or model folder.
        settings: `out`, `input` and `words`, and others of the command.
    """
    return extension.run(_settings("extend", model, settings), _say())


def import_model(
    source: str | Path, /, *, out: str | Path | None = None, check: str | Path | None = None, against: Against = "",
    lowercase: bool | None = None, code: Sequence[str] = (),
) -> Imported:  # fmt: skip
    """Converts a folder of Hugging Face, or a checkpoint of Google's BERT, to a model folder, as `lambert import`.

    Args:
        source: The folder, or one checkpoint of several.
        out: Model folder to write; it must not exist. None: the folder is only compared (`check`).
        check: File of texts on which what Lambert computes is compared with what the library computes that made the
            folder. The result has the table (`checks`). DataError is raised if they differ, and nothing is written.
        against: transformers or sentence-transformers; empty: that which made the folder.
        lowercase: Whether the vocabulary is uncased; None: as its files say.
        code: Names of the code from outside that the model folder may import.
    """
    new, texts = (None if path is None else Path(path) for path in (out, check))
    return conversion.run_import(ImportConfig(Path(source), new, texts, against, lowercase, tuple(code)))


def export(
    model: str | Path, /, *, out: str | Path, format: str = "hf", code: Sequence[str] = (),
    precision: Precisions = "float32", calibration: str | Path | None = None,
) -> Result:  # fmt: skip
    """Converts a run folder or model folder to another format, as `lambert export`.

    Args:
        model: The folder.
        out: Folder to write; it must not exist.
        format: Its format.
        code: Names of the code from outside that the model folder may import.
        precision: float32, bfloat16 or int8; not every format has each.
        calibration: Text file from which openvino's int8 learns the ranges of activations.
    """
    texts = None if calibration is None else Path(calibration)
    return conversion.run_export(ExportConfig(Path(model), Path(out), format, tuple(code), precision, texts))


def evaluate(recipe: str | Path | EvaluateConfig | None = None, /, **settings: Any) -> Result:
    """Scores a fine-tuned model on labelled data, as `lambert evaluate`. With `predictions`, also writes that file.
    `data` may be rows as in `finetune`."""
    with ExitStack() as stack:
        stack.enter_context(_running())
        if is_rows(data := settings.get("data")):
            path = stack.enter_context(data_path(data))
            found = evaluation.run(_settings("evaluate", recipe, {**settings, "data": path}), _say())
            return replace(found, notes=tuple(line.replace(str(path), "data") for line in found.notes))
        return evaluation.run(_settings("evaluate", recipe, settings), _say())


def compare(*runs: str | Path, gold: str | Path | None = None) -> dict[str, Any]:
    """Compares the scores of the first fine-tuned model with those of each other one, as `lambert compare`. Returns
    what `--json` prints (docs/compare.md).

    Args:
        runs: Run folders, folders of several seeds, or files of scored examples; with `gold`, the labelled file, also
            files of predictions of other systems.
    """
    return comparison.run(CompareConfig(tuple(map(Path, runs)), Path(gold) if gold is not None else None))


def plan(recipe: str | Path, /, **settings: Any) -> Plan:
    """Predicts the time, memory, energy and cost of a run of pretrain or finetune, as `lambert plan`. Nothing is
    started.

    Args:
        recipe: The TOML file of the run.
        settings: Those of the command, such as `device="H100"`, `devices=8` and `set=["train.batch_size=512"]`.
    """
    with _running():
        return planning.run(_settings("plan", recipe, settings), cli.settings)


def updates(
    recipe: str | Path | PretrainConfig | FinetuneConfig | None = None, /, **settings: Any
) -> Generator[Step, None, None]:
    """Yields every update of a run: pre-training if the settings have `corpus`, fine-tuning if they have `data`. A Step
    has `scores` if held-out scores were computed; the last Step has the final scores.

    Leaving the loop by `break`, or closing the generator, saves a checkpoint after the update that was yielded last;
    the same call continues from it. A run that is complete yields nothing. Between two updates the process has the
    number of threads, the random state and the determinism that it had before. Ctrl-C raises KeyboardInterrupt, and the
    updates since the last checkpoint are lost (see `train__save_every`).

    Raises UsageError at the call if a setting is wrong.
    """
    verb = _verb_of(recipe, settings, "updates")
    config = _settings(verb, recipe, settings)
    return _updates(config)


def verify(
    recipe: str | Path | PretrainConfig | FinetuneConfig, /, *, updates: int = 0, out: str | Path | None = None,
    run: str | Path | None = None, **settings: Any,
) -> Verified:  # fmt: skip
    """Runs the first updates of a recipe and compares them with its table [expect], as `lambert verify`. The result
    says whether the run is `on_curve`, with the `rows` of the comparison and the likely causes (`differences`).

    Args:
        recipe: A recipe with [expect], or a settings dataclass with `expect`.
        updates: How many; 0: up to the last band within the first 100 updates or the first hundredth of the run.
        out: Run folder of these updates; None: a temporary one.
        run: A run folder that is compared instead; nothing is run.
        settings: Settings that override the recipe.
    """
    config = _settings(_verb_of(recipe, settings, "verify"), recipe, {"out": "run", **settings})
    name = str(recipe) if isinstance(recipe, str | Path) else "the recipe"
    own, compared = (None if folder is None else Path(folder) for folder in (out, run))
    with _running():
        return verification.verified(config, name, updates, own, compared, [*settings])


def _say(config: PretrainConfig | FinetuneConfig | None = None) -> Say:
    """Returns what receives the lines of a verb: in a notebook they are printed, unless log.console is false."""
    if not in_notebook() or (config is not None and config.log.console is False):
        return silent
    return lambda line: print(printable_line(line), flush=True)


def _updates(config: PretrainConfig | FinetuneConfig) -> Generator[Step, None, None]:
    with keep_current_gpu():
        yield from pretraining.updates(config) if isinstance(config, PretrainConfig) else finetuning.updates(config)


def _verb_of(recipe: object, settings: Mapping[str, Any], caller: str) -> str:
    """Returns the verb of KINDS that these settings are for. An error is in the name of the `caller`."""
    for verb, kind in KINDS.items():
        if isinstance(recipe, kind):
            return verb
    is_file = isinstance(recipe, str | Path) and Path(recipe).is_file()
    values = {**(tables.read(Path(str(recipe))) if is_file else {}), **settings}
    named = {name for name, value in values.items() if value is not None}
    if ("corpus" in named) == ("data" in named):
        raise UsageError(
            f"{caller}: give corpus for pre-training or data for fine-tuning, in the recipe or in the call."
        )
    return "pretrain" if "corpus" in named else "finetune"


def _settings(verb: str, recipe: object, given: Mapping[str, Any]) -> Any:
    """Returns the settings of a verb. Raises UsageError with the message of the command line."""
    tokens, values = [verb], _nested(_with_files(verb, recipe, given))
    if dataclasses.is_dataclass(recipe):
        if not isinstance(recipe, _KINDS[verb]):
            raise UsageError(f"{verb} takes a {_KINDS[verb].__name__}, not a {type(recipe).__name__}.")
        if not values:
            return recipe
        values = _merged(tables.as_dict(recipe), values)
    elif recipe is not None:
        path = str(recipe)
        tokens.append(f"./{path}" if path.startswith("-") else path)  # so that it is not parsed as a flag
    try:
        return cli.settings(tokens, values)
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split())) from error


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keywords as nested tables of plain values: `optim__lr` is `lr` in the table `optim`."""
    tables_found: dict[str, Any] = {}
    for name, value in given.items():
        first, _, rest = name.partition("__")
        if rest:
            value = {rest: value}  # noqa: PLW2901
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = tables.as_dict(value)  # noqa: PLW2901
        value = _nested(value) if isinstance(value, Mapping) else tables.plain(value)  # noqa: PLW2901
        tables_found = _merged(tables_found, {first: value})
    return tables_found


def _merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested tables merged; a value of `over` takes precedence."""
    found = dict(values)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = _merged(found[name], value) if both else value
    return found


_ROWS = {"finetune": ("data", "dev"), "sweep": ("base__data", "base__dev")}
"""The settings of a verb that may be rows."""


@contextmanager
def _running() -> Iterator[None]:
    """A context in which the current GPU of torch is kept, and a signal that ends the work is said on stderr: a script
    that ends by SavedAndStopped says nothing itself."""
    try:
        with keep_current_gpu():
            yield
    except SavedAndStopped as stop:
        aside(str(stop))
        raise


def _with_files(verb: str, recipe: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keywords with the paths of files, which are written beside the run folder, instead of rows."""
    base = given.get("base") if verb == "sweep" else None
    nested = {f"base__{name}": value for name, value in base.items()} if isinstance(base, Mapping) else {}
    found = {name: value for name, value in given.items() if not nested or name != "base"} | nested
    for name in _ROWS.get(verb, ()):
        if is_rows(found.get(name)):
            found[name] = _written(found[name], name.rpartition("__")[2], _out(verb, recipe, given))
    return found


def _out(verb: str, recipe: object, given: Mapping[str, Any]) -> Path | None:
    """Returns the run folder that the keywords name, or the recipe."""
    out = given.get("out", getattr(recipe, "out", None))
    if out is None and isinstance(recipe, str | Path) and Path(recipe).is_file():
        table = tables.read(Path(recipe))
        out = (table.get("sweep", {}) if verb == "sweep" else table).get("out")
    return Path(out) if is_path(out) else None


def _written(rows: Any, name: str, out: Path | None) -> Path:
    """Writes rows to a file beside the run folder and returns its path."""
    if out is None:
        raise UsageError(f"{name} is in memory, and is written beside the run folder: also give out.")
    suffix, content = data_file(rows, name)
    path = out.with_name(f"{out.name}-{name}{suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir() and path.is_file() and hashlib.sha256(content).hexdigest() != sha256(path):
        raise UsageError(f"{name} differs from {path}, with which the run in {out} began: choose another out.")
    return write_atomic(path, content)
