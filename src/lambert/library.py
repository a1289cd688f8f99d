"""The verbs as Python functions. Settings are those of the command line, parsed and checked by the same code.

Each function takes a recipe (the path of a TOML file) or a settings dataclass, then keywords that override it: nested
settings as `optim__lr=1e-3` or `optim={"lr": 1e-3}`, None for "not set". Errors are kinds of LambertError. Nothing is
printed unless the settings ask for it (`log__console=True`).
"""

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cyclopts.exceptions import CycloptsError

from lambert import cli
from lambert.core import settings as tables
from lambert.core.errors import UsageError
from lambert.core.files import json_text, write_atomic
from lambert.corpus.config import PrepareConfig
from lambert.engine.device import keep_current_gpu
from lambert.engine.step import Step
from lambert.runs.result import Result
from lambert.verbs import evaluate as evaluation
from lambert.verbs import finetune as finetuning
from lambert.verbs import prepare as preparation
from lambert.verbs import pretrain as pretraining
from lambert.verbs.evaluate import EvaluateConfig
from lambert.verbs.finetune import FinetuneConfig
from lambert.verbs.pretrain import PretrainConfig

Rows = Sequence[Mapping[str, Any]]
"""Labelled rows: what a file of JSON lines holds."""
_KINDS: dict[str, type] = {
    "prepare": PrepareConfig, "pretrain": PretrainConfig, "finetune": FinetuneConfig, "evaluate": EvaluateConfig,
}  # fmt: skip


def prepare(recipe: str | Path | PrepareConfig | None = None, /, **settings: Any) -> Result:
    """Raw text to a tokenizer and token shards, as `lambert prepare`. The result's folder is the corpus."""
    return preparation.run(_settings("prepare", recipe, settings))


def pretrain(recipe: str | Path | PretrainConfig | None = None, /, **settings: Any) -> Result:
    """Shards to an encoder, as `lambert pretrain`; the same call again continues. The result has the held-out scores.

    After SIGINT (Ctrl-C), SIGTERM or SIGUSR1 the run is saved and SavedAndStopped is raised.
    """
    with keep_current_gpu():
        return pretraining.run(_settings("pretrain", recipe, settings))


def finetune(recipe: str | Path | FinetuneConfig | None = None, /, **settings: Any) -> Result:
    """An encoder and labelled data to a task model, as `lambert finetune`; the same call again continues. The result
    has the scores on `dev`.

    `data` and `dev` may be rows instead of files: lists of dicts with the keys of a line of JSON. They are written
    beside the run folder `out`, as OUT-data.jsonl and OUT-dev.jsonl, so that the run can be repeated from its
    config.toml. Signals are treated as in `pretrain`.
    """
    with keep_current_gpu():
        return finetuning.run(_settings("finetune", recipe, settings))


def evaluate(recipe: str | Path | EvaluateConfig | None = None, /, **settings: Any) -> Result:
    """A fine-tuned model and labelled data to the official scores, as `lambert evaluate`. With `predictions` it also
    writes that file."""
    with keep_current_gpu():
        return evaluation.run(_settings("evaluate", recipe, settings))


def updates(
    recipe: str | Path | PretrainConfig | FinetuneConfig | None = None, /, **settings: Any
) -> Generator[Step, None, None]:
    """Yields every update of a run: a pre-training where the settings have `corpus`, a fine-tuning where they have
    `data`. A Step has `scores` where held-out scores were taken; the last has the final ones.

    Leaving the loop by `break`, or closing the generator, saves a checkpoint after the update yielded last; the same
    call continues from it. A run that has all its updates yields nothing. Between two updates the process has the
    number of threads, the random state and the determinism that it had before. Ctrl-C raises KeyboardInterrupt: what
    was done since the last checkpoint is lost (`train__save_every`). Raises UsageError at the call for a wrong setting.
    """
    verb = _verb_of(recipe, settings)
    config = _settings(verb, recipe, settings)
    return _updates(config)


def _updates(config: PretrainConfig | FinetuneConfig) -> Generator[Step, None, None]:
    with keep_current_gpu():
        yield from pretraining.updates(config) if isinstance(config, PretrainConfig) else finetuning.updates(config)


def _verb_of(recipe: object, settings: Mapping[str, Any]) -> str:
    """ "pretrain" or "finetune", as the settings tell."""
    if isinstance(recipe, PretrainConfig | FinetuneConfig):
        return "pretrain" if isinstance(recipe, PretrainConfig) else "finetune"
    named = {name for name, value in settings.items() if value is not None}
    if isinstance(recipe, str | Path) and Path(recipe).is_file():
        named |= set(tables.read(Path(recipe)))
    if ("corpus" in named) == ("data" in named):
        raise UsageError("updates: give corpus for a pre-training or data for a fine-tuning, in the recipe or here.")
    return "pretrain" if "corpus" in named else "finetune"


def _settings(verb: str, recipe: object, given: Mapping[str, Any]) -> Any:
    """The settings dataclass of a verb. Raises UsageError as the command line would say it."""
    tokens, values = [verb], _nested(given)
    if dataclasses.is_dataclass(recipe):
        if not isinstance(recipe, _KINDS[verb]):
            raise UsageError(f"{verb} takes a {_KINDS[verb].__name__}, not a {type(recipe).__name__}.")
        if not values:
            return recipe
        values = _merged(tables.as_dict(recipe), values)
    elif recipe is not None:
        path = str(recipe)
        tokens.append(f"./{path}" if path.startswith("-") else path)  # not a flag
    for name in ("data", "dev") if verb == "finetune" else ():
        if isinstance(values.get(name), list | tuple):
            values[name] = str(_written(values[name], name, values, recipe))
    try:
        return cli.settings(tokens, values)
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split())) from error


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as nested tables of plain values: `optim__lr` is `lr` in the table `optim`."""
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
    """Nested tables, `over` where both have a value."""
    found = dict(values)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = _merged(found[name], value) if both else value
    return found


def _written(rows: Rows, name: str, values: Mapping[str, Any], recipe: object) -> Path:
    """The file of JSON lines beside the run folder that holds these rows."""
    out = values.get("out")
    if out is None and isinstance(recipe, str | Path) and Path(recipe).is_file():
        out = tables.read(Path(recipe)).get("out")
    if not isinstance(out, str):
        raise UsageError(f"{name} is a list of rows, which is written beside the run folder: give out, too.")
    if not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(f'{name}: give a path or a list of dicts such as {{"text": "...", "label": "..."}}.')
    path = Path(out).with_name(f"{Path(out).name}-{name}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomic(path, "".join(json_text(dict(row)) + "\n" for row in rows))
