"""The command line: verbs, recipes with dotted overrides, and every failure as one line with an exit code.

A verb is a module of `lambert.verbs` with a function `run`, and a settings dataclass. The module is imported when all
settings are known to be right, so neither `--help` nor a mistyped flag waits for torch.
"""

import dataclasses
import errno
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

from cyclopts import App, Parameter
from cyclopts.config import Dict
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from lambert import __version__
from lambert.core import launcher, signals
from lambert.core.errors import LambertError, UsageError
from lambert.core.imports import imported
from lambert.core.limits import check_limits
from lambert.core.settings import (
    check_flags,
    check_names,
    check_numbers,
    dotted,
    dotted_names,
    read,
    required,
    unknown_name,
    without,
    wrong_type,
)
from lambert.engine.process import COMPUTES
from lambert.runs.expect import TABLE, expectation


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb: its module, its settings dataclass (module:name in `lambert.verbs`), the line that explains it, and its
    arguments before the flags."""

    module: str
    settings: str
    line: str
    takes: str = "recipe"
    """"recipe": an optional TOML file; "sweep": one with a table [sweep] of these settings; "runs": run folders;
    "plan": a recipe of pretrain or finetune, and "verify" also flags of its settings; "model": a model folder; "verb":
    after its flags, another verb; "script": arguments that are not Lambert's; "": none."""


Recipe = Annotated[Path | None, Parameter(help="TOML file with the settings below; flags override it.")]
Runs = Annotated[
    list[Path], Parameter(help="Run folders; for report also sweeps and corpora, for compare also seeds and files.")
]
PlanRecipe = Annotated[Path, Parameter(help="TOML file: the recipe of a run of pretrain or finetune.")]
ModelFolder = Annotated[Path, Parameter(help="Run folder or model folder of the encoder.")]
Inner = Annotated[str, Parameter(help="The verb that each process runs, followed by its own arguments.")]

VERBS = {
    "prepare": Verb("prepare", "prepare:PrepareConfig", "Raw text to a tokenizer and token shards."),
    "pretrain": Verb(
        "pretrain", "settings.pretrain:PretrainConfig", "Shards to an encoder; the same command again continues."
    ),
    "finetune": Verb(
        "finetune", "settings.finetune:FinetuneConfig", "Encoder and labelled data to a task model and its scores."
    ),
    "sweep": Verb(
        "sweep", "settings.sweep:SweepConfig", "Search for the best settings of a training run.", takes="sweep"
    ),
    "evaluate": Verb(
        "evaluate", "settings.evaluate:EvaluateConfig", "Model and labelled data to official scores and predictions."
    ),
    "predict": Verb("predict", "settings.predict:PredictConfig", "JSON lines in, JSON lines out, streaming.", takes=""),
    "serve": Verb("serve", "serve:ServeConfig", "An HTTP service of models, with a page to try them on.", takes=""),
    "import": Verb(
        "convert",
        "settings.convert:ImportConfig",
        "A Hugging Face folder, or Google's, to a model folder, verified.",
        takes="",
    ),
    "export": Verb("convert", "settings.convert:ExportConfig", "A model folder to another format, verified.", takes=""),
    "extend": Verb(
        "extend", "settings.extend:ExtendConfig", "Words of a domain into the vocabulary of an encoder.", takes="model"
    ),
    "bench": Verb(
        "bench",
        "settings.bench:BenchConfig",
        "Speed of each kind of work, share of this device's ceiling, memory, peers.",
    ),
    "plan": Verb(
        "plan", "settings.plan:PlanConfig", "Time, memory and cost of a run, before it is started.", takes="plan"
    ),
    "verify": Verb(
        "verify",
        "settings.verify:VerifyConfig",
        "Whether the beginning of a run is on the curve that its recipe expects.",
        takes="verify",
    ),
    "launch": Verb("launch", "launch:LaunchConfig", "A verb in several processes and machines at once.", takes="verb"),
    "horovodrun": Verb("", "", "A Horovod script in several processes, with Horovod's own options.", takes="script"),
    "report": Verb(
        "report", "report:ReportConfig", "Runs, sweeps and corpora to one self-contained HTML page.", takes="runs"
    ),
    "compare": Verb(
        "compare", "compare:CompareConfig", "Fine-tuned models: differences of scores with their errors.", takes="runs"
    ),
    "doctor": Verb(
        "doctor", "doctor:DoctorConfig", "What this machine has, what is missing, what will be used.", takes=""
    ),
}

NOT_YET = {
    "embed": "In Python, lambert.load(FOLDER).encode(texts) gives a vector for each text (docs/library.md).",
}
"""Verbs that users may expect but that do not exist, with what to do instead."""

EXAMPLES = {
    "runs": ("RUN folder", "runs/NAME"),
    "plan": ("RECIPE", "recipes/bert-base-128.toml --device A100-80GB --devices 8"),
    "verify": ("RECIPE", "recipes/demo/pretrain-32.toml --updates 100"),
    "model": ("MODEL folder", "runs/NAME --input TEXT --out FOLDER --words 1000"),
    "verb": ("VERB", "-np 2 pretrain ..."),
}
"""What a verb takes before its flags, with an example."""

HELP_FLAGS = {"--help", "-h"}
_SAY = functools.partial(print, flush=True)
RUNS = ("pretrain", "finetune")
"""Verbs that train."""

ONE_OF = {"pretrain": (("init", "model."), ("train.steps", "train.epochs"))}
"""Groups of settings or tables of which at least one must be given."""

WRONG_PATH = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.EIO)
"""Errors of the operating system that are not bugs: impossible paths, and disks that refuse to write."""

_SMALLER = "or take a smaller model, if its weights alone do not fit"
LESS_MEMORY = {
    "prepare": "Lower workers or sample_megabytes.",
    "pretrain": f"Lower train.micro_tokens or packing.sequence_length; {_SMALLER}.",
    "finetune": f"Lower train.micro_tokens or task.max_length; {_SMALLER}.",
    "sweep": f"Lower jobs, or the tokens of a micro-batch in the recipe; {_SMALLER}.",
    "evaluate": f"Lower inference.micro_tokens; {_SMALLER}.",
    "predict": f"Lower inference.micro_tokens or chunk; {_SMALLER}.",
    "serve": "Lower max_waiting_tokens or workers, or serve fewer models.",
    "extend": "Lower sample_megabytes.",
    "bench": "Lower sequences, length or size.",
    "verify": f"Lower the tokens of a micro-batch in the recipe; {_SMALLER}.",
}
"""Advice for each verb that runs out of memory."""

HELP = """Pre-train and fine-tune BERT-family encoders, from raw text to an answer.

Every verb takes an optional TOML recipe, then dotted flags that override it:
`lambert pretrain recipes/bert-base-128.toml --train.batch-size 256`. `lambert VERB --help` explains each setting.
"""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 ok, 1 bug, 2 usage, 3 bad data, 4 machine, 5 diverged, 75 saved and to be
    requeued, 130 interrupted and saved."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        signals.exit_on_signals()
        signals.restore_keyboard_interrupt()
        # When a rank loses its peers, torch prints about twenty lines. Lambert reports the failure in one line.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        launcher.follow()
    debug = "--debug" in tokens
    if tokens[:1] != ["launch"]:  # launch passes --debug to its ranks
        tokens = [token for token in tokens if token != "--debug"]
    advice = LESS_MEMORY.get(tokens[0] if tokens else "", "Free memory that other programs use.")
    try:
        if tokens and tokens[0] in COMPUTES:
            check_limits()
        call(tokens)
    except CycloptsError as error:
        _leave(str(error), 2, debug)
    except LambertError as error:
        _leave(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        _leave("Interrupted.", 130, debug)
    except BrokenPipeError:
        # The reader of standard output is gone. Without this, Python would flush into the pipe again at exit and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except MemoryError:
        _leave(f"Out of memory. {advice}", 4, debug)
    except RuntimeError as error:  # torch's CPU allocator raises no class of its own
        from lambert.engine.device_memory import ran_out

        if not ran_out(error):
            _crash(tokens)
        _leave(f"Out of memory. {advice}", 4, debug)
    except OSError as error:
        place = error.filename or "the output folder"
        if error.errno in WRONG_PATH:
            _leave(f"{error.strerror}: {place}. Choose another path.", 2, debug)
        if error.errno not in MACHINE:
            _crash(tokens)
        _leave(f"{error.strerror}: {place}. Free space or choose another folder.", 4, debug)
    except Exception:  # a bug in Lambert: the only place that catches everything
        _crash(tokens)
    sys.exit(0)


def call(
    tokens: list[str],
    run: Callable[..., Any] | None = None,
    values: Mapping[str, Any] | None = None,
    source: str = "the call",
) -> Any:
    """Parses a command line and calls `run` of its verb, or `run` if given, with the settings. Returns its result.

    `values` are nested settings that override the recipe; errors say that they are from the `source`. None unsets a
    setting.
    """
    chosen = tokens[0] if tokens else ""
    if chosen in NOT_YET and chosen not in VERBS:
        raise UsageError(f"There is no verb {chosen} yet. {NOT_YET[chosen]}")
    if chosen == "horovodrun":
        from lambert.horovod.run import main as horovodrun

        _exit(horovodrun(tokens[1:]))
    app = App(
        name="lambert", help=HELP, version=__version__, result_action="return_value", suppress_keyboard_interrupt=False
    )
    app.default_parameter = Parameter(
        negative_iterable=(), consume_multiple=True, json_list=False, show_default=_shown_default
    )
    beside: dict[str, Any] = {}
    for place, (name, verb) in enumerate(VERBS.items()):
        if name == chosen:
            app.command(_command(verb, tokens, run, beside), name=name, sort_key=place)
            common = getattr(sys.modules[settings_of(verb).__module__], "COMMON", ())
            if common and HELP_FLAGS & set(tokens):  # imports rich
                from lambert.help_panels import ByTable

                app[name].help_formatter = ByTable(common)
        else:
            app.command(App(name=name, help=verb.line, sort_key=place))
    given: set[str] = set()
    sources = []
    takes = VERBS[chosen].takes if chosen in VERBS else ""
    if values and takes == "sweep":
        beside |= {name: values[name] for name in ("space", "base") if values.get(name) is not None}
        values = {name: value for name, value in values.items() if name not in ("space", "base")}
    if values and chosen in RUNS:
        values = _split_expectation(values, source, beside)
    if values:
        check_names(dotted(values), source.capitalize())
        check_numbers(settings_of(VERBS[chosen]), values, as_text=True)
        given.update(dotted(values))
        sources.append(Dict(without(values, values), source=source, use_commands_as_keys=False))
    if takes in ("recipe", "sweep") and len(tokens) > 1 and not tokens[1].startswith("-"):
        recipe = Path(tokens[1])
        if recipe.suffix != ".toml" or not recipe.is_file():
            raise _no_recipe(recipe, chosen)
        found = read(recipe)
        if takes == "sweep":
            from lambert.verbs.settings.sweep import split

            found, parts = split(found, str(recipe))
            beside |= parts | beside
        if chosen in RUNS:
            found = _split_expectation(found, str(recipe), beside)
        given.update(dotted(found))
        check_names(given, str(recipe))
        check_numbers(settings_of(VERBS[chosen]), found)
        sources.append(Dict(without(found, values or {}), source=str(recipe.absolute()), use_commands_as_keys=False))
    app.config = tuple(sources)
    flags = {token[2:].partition("=")[0].replace("-", "_") for token in tokens if token.startswith("--")}
    if chosen in RUNS:
        check_names(flags, "The command")
    if chosen in VERBS:
        check_flags(settings_of(VERBS[chosen]), tokens)
    if chosen == "launch":
        from lambert.verbs.launch import own

        tokens = own(tokens)
    if takes == "verify":
        from lambert.verbs.settings.verify import own_flags

        tokens, beside["overrides"] = own_flags(tokens)
    try:
        return app(tokens, exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        raise _missing(error, chosen, given | flags) from error
    except UnknownOptionError as error:
        if error.token.source == "cli":
            raise
        known = [name[2:].replace("-", "_") for argument in error.argument_collection for name in argument.names]
        where, setting = _place(error.token, tokens, source)
        raise _other_verb(where, given) or unknown_name(where, setting, known) from error
    except CoercionError as error:
        if error.token is None or error.target_type is None:
            raise
        raise wrong_type(*_place(error.token, tokens, source), error.token.value, error.target_type) from error
    except UnusedCliTokensError as error:
        raise _stray(tokens, (error.unused_tokens or tokens[-1:])[0]) from error


def _split_expectation(values: Mapping[str, Any], source: str, beside: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run without its table [expect], which is put into `beside` unless that has one."""
    if TABLE in values and TABLE not in beside:
        beside[TABLE] = None if values[TABLE] is None else expectation(values[TABLE], source)
    return {name: value for name, value in values.items() if name != TABLE}


def _shown_default(value: Any) -> str | None:
    """Returns a default for the help, or None if it stands for a setting that is not set."""
    return None if value in (None, "", (), Path()) else str(value)


def settings(tokens: list[str], values: Mapping[str, Any] | None = None, source: str = "the call") -> Any:
    """Returns the settings of a command line, or None if it asks for help, which is printed. `values` and `source` are
    as in `call`."""
    tokens = [token for token in tokens if token != "--debug"]
    return call(tokens, run=lambda config, *_, **__: config, values=values, source=source)


def _place(token: Any, tokens: list[str], source: str) -> tuple[str, str]:
    """Returns where a setting was given, "" for a flag, and its name there. `source` is as in `call`."""
    place = {"cli": "", source: source}.get(token.source, (*tokens, "", "")[1])
    return place, (token.keyword or token.value).strip("[]").replace("][", ".")


def _other_verb(place: str, given: Collection[str]) -> UsageError | None:
    """Returns the error for a recipe of another verb: one that has all settings that are `given` in the recipe."""
    recipes = [name for name, verb in VERBS.items() if verb.takes == "recipe"]
    fitting = [name for name in recipes if {*given} <= {*dotted_names(settings_of(VERBS[name]))}]
    if not fitting or not Path(place).is_file():
        return None
    return UsageError(f"{place} is a recipe of {fitting[0]}: lambert {fitting[0]} {place}")


def settings_of(verb: Verb) -> Any:
    """Returns the settings dataclass of a verb."""
    module, _, name = verb.settings.partition(":")
    return getattr(importlib.import_module(f"lambert.verbs.{module}"), name)


def _no_recipe(recipe: Path, verb: str) -> LambertError:
    import difflib

    near = difflib.get_close_matches(
        str(recipe), map(str, [*Path().glob("*.toml"), *Path().glob("recipes/**/*.toml")]), 1
    )
    settings = settings_of(VERBS[verb])
    first = next(required(settings, ()), f"--{dataclasses.fields(settings)[0].name}") if recipe.exists() else ""
    if first and not near:
        return UsageError(f"{recipe} is not a recipe (a TOML file). Settings are flags: {first} {recipe}.")
    hint = f" Did you mean {near[0]}?" if near else " A recipe is a TOML file; see recipes/."
    return UsageError(f"No such recipe: {recipe}.{hint}")


def _missing(error: MissingArgumentError, verb: str, given: Collection[str]) -> LambertError:
    """Returns the error for a flag without its value, or for all required settings that are missing."""
    if error.keyword is not None:
        return UsageError(f"{error.keyword} requires a value, and none follows it.")
    takes = VERBS[verb].takes
    if takes in EXAMPLES and not (takes == "model" and error.argument and error.argument.name.startswith("--")):
        what, example = EXAMPLES[takes]
        return UsageError(f"{verb} requires a {what}: lambert {verb} {example}")
    lacking = list(required(settings_of(VERBS[verb]), given)) or [error.argument.name if error.argument else "a value"]
    for names in ONE_OF.get(verb, ()):
        if not any(name.startswith(names) for name in given):
            lacking.append("(" + " or ".join(f"--{name}{'*' * name.endswith('.')}" for name in names) + ")")
    listed = " and ".join([", ".join(lacking[:-1]), lacking[-1]] if lacking[1:] else lacking)
    where = {"recipe": " as flags or in a recipe", "sweep": " as flags or in [sweep] of a recipe"}.get(takes, "")
    return UsageError(f"{verb} requires {listed}. Give what is missing{where}; `lambert {verb} --help` explains it.")


def _stray(tokens: list[str], word: str) -> LambertError:
    """Returns the error for a word that belongs to no flag."""
    at = len(tokens) - 1 - tokens[::-1].index(word)
    flag = next((place for place in range(at, 0, -1) if tokens[place].startswith("--")), 0)
    if not flag and VERBS[tokens[0]].takes == "model":
        return UsageError(f"{tokens[0]} takes one MODEL folder, and {word} follows it.")
    if not flag or word.endswith(".toml"):
        return UsageError(f"{word} follows a flag. A recipe must come directly after the verb.")
    name, _, value = tokens[flag].partition("=")
    end = next((place for place in range(flag + 1, len(tokens)) if tokens[place].startswith("-")), len(tokens))
    values = [*([value] if value else []), *tokens[flag + 1 : end]]
    if len(values) == 1:
        off = f"{name.rpartition('.')[0]}.no-{name.rpartition('.')[2]}" if "." in name else f"--no-{name[2:]}"
        return UsageError(f"{name} takes no value, and {word} follows it. Its opposite is {off}.")
    more = ""
    if name == "--seed":
        several = " For several seeds, give the command once for each, with its own --out."
        more = f" For several seeds: --seeds {' '.join(values)}." if tokens[0] == "finetune" else several
    return UsageError(f"{name} takes one value, not {len(values)} ({' '.join(values)}).{more}")


def _command(
    verb: Verb, tokens: list[str], run: Callable[..., Any] | None, beside: Mapping[str, Any]
) -> Callable[..., Any]:
    """Returns the function of a verb's command. `beside` has settings that are not parsed."""
    kind = settings_of(verb)
    name = "run" if verb.module != "convert" else f"run_{kind.__name__.removesuffix('Config').lower()}"

    def run_verb(*given: Any, **named: Any) -> Any:
        called = run or getattr(imported(f"lambert.verbs.{verb.module}"), name)
        return called(*given, **named)

    def with_recipe(recipe: Recipe = None, /, *, config: Any) -> Any:
        if recipe is not None and Path(tokens[1]) != recipe:
            raise _stray(tokens, next(token for token in reversed(tokens) if Path(token) == recipe))
        chosen = config or kind()
        return run_verb(dataclasses.replace(chosen, **beside) if beside else chosen, say=_SAY)

    def with_sweep(recipe: Recipe = None, /, *, config: Any) -> Any:
        return run_verb(dataclasses.replace(config, **beside), settings, say=_SAY)

    def with_runs(runs: Runs, /, *, config: Any) -> Any:
        return run_verb(dataclasses.replace(config or kind(), runs=tuple(runs)), say=_SAY)

    def with_model(model: ModelFolder, /, *, config: Any) -> Any:
        return run_verb(dataclasses.replace(config, model=model), say=_SAY)

    def with_plan(recipe: PlanRecipe, /, *, config: Any) -> Any:
        if recipe.suffix != ".toml" or not recipe.is_file():
            raise _no_recipe(recipe, tokens[0])
        return run_verb(dataclasses.replace(config or kind(), recipe=recipe, **beside), settings, say=_SAY)

    def with_verb(verb: Inner, /, *, config: Any) -> Any:
        return run_verb(config or kind(), tokens, settings, say=_SAY)

    def flags_only(*, config: Any) -> Any:
        return run_verb(config or kind(), say=_SAY)

    commands = {
        "recipe": with_recipe, "sweep": with_sweep, "runs": with_runs, "model": with_model, "plan": with_plan,
        "verify": with_plan, "verb": with_verb, "": flags_only,
    }  # fmt: skip
    command: Any = commands[verb.takes]
    optional = not any(field.default is field.default_factory for field in dataclasses.fields(kind))
    # cyclopts validates None too, where pydantic has been imported
    command.__annotations__["config"] = Annotated[kind | None if optional else kind, Parameter(name="*")]
    command.__doc__ = verb.line
    if optional:
        command.__kwdefaults__ = {"config": None}
    return cast(Callable[..., Any], command)


def _leave(message: str, exit_code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    _exit(launcher.report_end(exit_code, " ".join(message.split())))


def _exit(code: int) -> NoReturn:
    """Exits as sys.exit does. In a launcher, and if a process group still exists, the process ends at once, because
    torch's threads may hang or abort when the interpreter shuts down after other ranks have left."""
    distributed = sys.modules.get("torch.distributed")
    in_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if in_group or sys.argv[1:2] == ["launch"]:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _crash(tokens: list[str]) -> NoReturn:
    text = traceback.format_exc()
    try:
        Path("crash.txt").write_text(f"lambert {__version__} {' '.join(tokens)}\n\n{text}", encoding="utf-8")
        where = "The traceback is in crash.txt: please report it."
    except OSError:
        where = text
    _exit(launcher.report_end(1, f"bug: {' '.join(text.splitlines()[-1].split())}. {where}"))
