"""The command line: verbs, recipes with dotted overrides, and every failure as one line with an exit code.

A verb's code is imported when all its settings are known to be right, so neither `--help` nor a mistyped flag waits for
torch.
"""

import dataclasses
import errno
import os
import sys
import traceback
from collections.abc import Callable, Mapping
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

from lambert.cli_errors import missing, no_recipe, other_verb, place_of, stray
from lambert.core import launcher, signals
from lambert.core.crash import save_traceback
from lambert.core.errors import EXPLAINED, UsageError, printable_line
from lambert.core.files import DISK
from lambert.core.imports import imported
from lambert.core.limits import check_limits
from lambert.core.other_names import our_setting
from lambert.core.settings import (
    check_flags,
    check_names,
    check_numbers,
    dotted,
    read,
    unknown_name,
    with_names,
    with_tables,
    without,
    wrong_type,
)
from lambert.core.urls import public_word
from lambert.core.version import __version__
from lambert.runs.expect import TABLE, expectation
from lambert.verb import Verb, all_verbs, find, load, settings_of

Recipe = Annotated[Path | None, Parameter(help="TOML file with the settings below; flags override it.")]
Runs = Annotated[
    list[Path], Parameter(help="Run folders; for report also sweeps and corpora, for compare also seeds and files.")
]
RunRecipe = Annotated[Path, Parameter(help="TOML file: the recipe of a run of pretrain or finetune.")]
Folder = Annotated[Path, Parameter(help="The folder.")]
Inner = Annotated[str, Parameter(help="The verb that each process runs, followed by its own arguments.")]

NOT_YET = {
    "embed": "In Python, lambert.load(FOLDER).encode(texts) gives a vector for each text (docs/library.md).",
}
"""Verbs that users may expect but that do not exist, with what to do instead."""

HELP_FLAGS = {"--help", "-h"}

WRONG_PATH = (
    errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS,
)  # fmt: skip
"""Errors of the operating system that are no bugs, and against which only another path helps."""

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
    verb = find(tokens)
    advice = verb.less_memory if verb else Verb.less_memory
    try:
        if verb and verb.computes:
            check_limits()
        call(tokens)
    except CycloptsError as error:
        _leave(str(error), 2, debug)
    except EXPLAINED as error:
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
        if error.errno not in DISK:
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
    verbs = all_verbs()
    verb = find(tokens)
    if verb and " " in verb.name:  # two words, which are one command to the parser
        tokens = [verb.name, *tokens[2:]]
    chosen = tokens[0] if tokens else ""
    groups = {name.partition(" ")[0] for name in verbs if " " in name}
    if verb is None and chosen in groups:
        listed = ", ".join(name for name in verbs if name.startswith(f"{chosen} "))
        raise UsageError(f"{chosen} is the first word of {listed}: give both words.")
    if verb is None and chosen in NOT_YET:
        raise UsageError(f"There is no verb {chosen} yet. {NOT_YET[chosen]}")
    if verb and not verb.settings:
        _exit(load(verb.run)(tokens[1:]))
    kind = settings_of(verb) if verb else None
    takes = verb.takes if verb else ""
    trains = verb is not None and bool(verb.updates)
    if trains:
        tokens = with_names(kind, tokens)
    app = App(
        name="lambert", help=HELP, version=__version__, result_action="return_value", suppress_keyboard_interrupt=False
    )
    app.default_parameter = Parameter(
        negative_iterable=(), consume_multiple=True, json_list=False, show_default=_shown_default
    )
    beside: dict[str, Any] = {}
    for place, (name, other) in enumerate(verbs.items()):
        if name == chosen:
            app.command(_command(other, tokens, run, beside), name=name, sort_key=place)
            common = getattr(sys.modules[kind.__module__], "COMMON", ())
            if common and HELP_FLAGS & set(tokens):  # imports rich
                from lambert.help_panels import ByTable

                app[name].help_formatter = ByTable(common)
        else:
            app.command(App(name=name, help=other.summary, sort_key=place))
    given: set[str] = set()
    sources = []
    if values and takes == "sweep":
        beside |= {name: values[name] for name in ("space", "base") if values.get(name) is not None}
        values = {name: value for name, value in values.items() if name not in ("space", "base")}
    if values and trains:
        values = with_tables(kind, _split_expectation(values, source, beside))
    if values:
        check_names(dotted(values), source.capitalize())
        check_numbers(kind, values, as_text=True)
        given.update(dotted(values))
        sources.append(Dict({chosen: without(values, values)}, source=source))
    if takes in ("recipe", "sweep") and len(tokens) > 1 and not tokens[1].startswith("-"):
        recipe = Path(tokens[1])
        if recipe.suffix != ".toml" or not recipe.is_file():
            raise no_recipe(recipe, kind)
        found = read(recipe)
        if verb and takes == "sweep":
            found, parts = load(verb.split)(found, str(recipe))
            beside |= parts | beside
        if trains:
            found = with_tables(kind, _split_expectation(found, str(recipe), beside))
        given.update(dotted(found))
        check_names(given, str(recipe))
        check_numbers(kind, found)
        sources.append(Dict({chosen: without(found, values or {})}, source=str(recipe.absolute())))
    app.config = tuple(sources)
    flags = {token[2:].partition("=")[0].replace("-", "_") for token in tokens if token.startswith("--")}
    if trains:
        check_names(flags, "The command")
    if verb:
        check_flags(kind, tokens)
    if verb and verb.split and takes != "sweep":
        tokens, parts = load(verb.split)(tokens)
        beside |= parts
    try:
        return app(tokens, exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        raise (missing(error, verb, kind, given | flags) if verb else error) from error
    except UnknownOptionError as error:
        known = [name[2:].replace("-", "_") for argument in error.argument_collection for name in argument.names]
        if error.token.source == "cli":
            flag = str(error.token.keyword or error.token.value)
            if not (ours := our_setting(flag.lstrip("-").replace("-", "_"), known)):
                raise
            raise UsageError(f"Unknown option: {flag}. Did you mean --{ours.replace('_', '-')}?") from error
        where, setting = place_of(error.token, tokens, source)
        raise other_verb(where, given) or unknown_name(where, setting, known) from error
    except CoercionError as error:
        if error.token is None or error.target_type is None:
            raise
        raise wrong_type(*place_of(error.token, tokens, source), error.token.value, error.target_type) from error
    except UnusedCliTokensError as error:
        raise stray(tokens, (error.unused_tokens or tokens[-1:])[0], verb) from error


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


def _command(
    verb: Verb, tokens: list[str], run: Callable[..., Any] | None, beside: Mapping[str, Any]
) -> Callable[..., Any]:
    """Returns the function of a verb's command. `beside` has settings that are not parsed."""
    kind = settings_of(verb)

    def run_verb(*given: Any, **named: Any) -> Any:
        called = run or getattr(imported(f"lambert.{verb.run.partition(':')[0]}"), verb.run.partition(":")[2])
        return called(*given, **named)

    def with_recipe(recipe: Recipe = None, /, *, config: Any) -> Any:
        if recipe is not None and Path(tokens[1]) != recipe:
            raise stray(tokens, next(token for token in reversed(tokens) if Path(token) == recipe), verb)
        chosen = config or kind()
        return run_verb(dataclasses.replace(chosen, **beside) if beside else chosen, say=_say)

    def with_sweep(recipe: Recipe = None, /, *, config: Any) -> Any:
        return run_verb(dataclasses.replace(config, **beside), settings, say=_say)

    def with_runs(runs: Runs, /, *, config: Any) -> Any:
        return run_verb(dataclasses.replace(config or kind(), runs=tuple(runs)), say=_say)

    def with_folder(folder: Folder, /, *, config: Any) -> Any:
        return run_verb(dataclasses.replace(config or kind(), **{verb.first: folder}), say=_say)

    def with_run_recipe(recipe: RunRecipe, /, *, config: Any) -> Any:
        if recipe.suffix != ".toml" or not recipe.is_file():
            raise no_recipe(recipe, None)
        return run_verb(dataclasses.replace(config or kind(), recipe=recipe, **beside), settings, say=_say)

    def with_verb(verb: Inner, /, *, config: Any) -> Any:
        return run_verb(config or kind(), tokens, settings, say=_say)

    def with_calls(*, config: Any) -> Any:
        return run_verb(config or kind(), call, say=_say)

    def flags_only(*, config: Any) -> Any:
        return run_verb(config or kind(), say=_say)

    commands = {
        "recipe": with_recipe, "sweep": with_sweep, "runs": with_runs, "folder": with_folder, "verb": with_verb,
        "recipe of a run": with_run_recipe, "calls": with_calls, "flags": flags_only,
    }  # fmt: skip
    command: Any = commands[verb.takes]
    optional = not any(field.default is field.default_factory for field in dataclasses.fields(kind))
    # cyclopts validates None too, where pydantic has been imported
    command.__annotations__["config"] = Annotated[kind | None if optional else kind, Parameter(name="*")]
    command.__doc__ = verb.summary
    if optional:
        command.__kwdefaults__ = {"config": None}
    return cast(Callable[..., Any], command)


def _say(line: str) -> None:
    print(printable_line(line), flush=True)


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
    where = save_traceback(" ".join(map(public_word, tokens)), text)
    _exit(launcher.report_end(1, f"bug: {' '.join(text.splitlines()[-1].split())}. {where}"))
