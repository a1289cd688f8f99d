"""Parses command lines: verbs, recipes and dotted flags. Returns the settings from these and from the values of a call.

A verb's code is imported when all its settings are known to be right, so neither `--help` nor a mistyped flag waits for
torch.
"""

import dataclasses
import errno
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from cyclopts import App, Parameter
from cyclopts.config import Dict
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from lambert.commands.errors import explain_missing, explain_no_recipe, explain_other_verb, explain_stray, place_of
from lambert.commands.overview import HELP_FLAGS
from lambert.core.errors import UsageError, printable_line
from lambert.core.files import discard_output
from lambert.core.other_names import our_setting
from lambert.core.settings import (
    check_flags,
    check_numbers,
    divide_lists,
    drop_unset,
    flatten,
    list_dotted_names,
    read,
    unknown_name,
    with_names,
    with_tables,
    wrong_type,
)
from lambert.core.version import __version__
from lambert.engine.process import import_quickly
from lambert.runs.expect import TABLE, expectation
from lambert.verb import Verb, all_verbs, find, list_training, load, settings_of

Recipe = Annotated[Path | None, Parameter(help="TOML file with the settings below; flags override it.")]
Inner = Annotated[str, Parameter(help="The verb that each process runs, followed by its own arguments.")]

NOT_YET = {
    "train": "`lambert pretrain` learns from raw text, `lambert finetune` from labelled rows.",
    "embed": "In Python, lambert.load(FOLDER).encode(texts) gives a vector for each text (docs/library.md).",
}
"""Verbs that users may expect but that do not exist, with what to do instead."""


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
    line = _Line(tokens)
    overrides = line.take_values(values, source) if values else {}
    line.take_recipe(overrides)
    line.check_flags()
    app = line.app(run)
    try:
        return app(line.tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise line.explain(error, source) from error


class _Line:
    """A command line that is being parsed.

    Attributes:
        verb: Its verb, or None if it has none that exists.
        kind: The settings dataclass of the verb.
        tokens: The tokens that the parser reads.
        unparsed: Settings that the parser does not read.
        given: Dotted names of the settings that the recipe and the values of the call give.
    """

    def __init__(self, tokens: list[str]) -> None:
        self.verb = find(tokens)
        if self.verb is None and tokens:
            _refuse_name(tokens[0])
        self.kind: Any = settings_of(self.verb) if self.verb and self.verb.settings else None
        self.takes = self.verb.takes if self.verb else ""
        self.trains = self.verb is not None and bool(self.verb.updates)
        if self.verb and tokens[0] != self.verb.name:  # two words, which are one command to the parser
            tokens = [self.verb.name, *tokens[2:]]
        self.tokens = self._all = with_names(self.kind, tokens) if self.trains else tokens
        self.unparsed: dict[str, Any] = {}
        self.given: set[str] = set()
        self._sources: list[Dict] = []

    def take_values(self, values: Mapping[str, Any], source: str) -> Mapping[str, Any]:
        """Takes the settings of a call, and returns those that the parser reads."""
        if self.takes == "table":
            flags = {name.partition(".")[0] for name in list_dotted_names(self.kind)}
            own = {one.name for one in dataclasses.fields(self.kind)} - flags
            self.unparsed |= {name: values[name] for name in own if values.get(name) is not None}
            values = {name: value for name, value in values.items() if name not in own}
        if self.trains:
            values = with_tables(self.kind, self._without_expectation(values, source))
        if values:
            check_numbers(self.kind, values, as_text=True)
            self._add(values, drop_unset(values, values), source)
        return values

    def take_recipe(self, overrides: Mapping[str, Any]) -> None:
        """Takes the settings of the recipe that follows the verb, if one does, without those that `overrides` has."""
        if self.takes not in ("recipe", "table") or len(self.tokens) < 2 or self.tokens[1].startswith("-"):
            return
        assert self.verb is not None
        recipe = Path(self.tokens[1])
        if recipe.suffix != ".toml" or not recipe.is_file():
            raise explain_no_recipe(recipe, self.kind)
        found = read(recipe)
        if self.takes == "table":
            found, parts = load(self.verb.split)(found, str(recipe))
            self.unparsed = parts | self.unparsed
        if self.trains:
            found = with_tables(self.kind, self._without_expectation(found, str(recipe)))
        check_numbers(self.kind, found)
        self._add(found, drop_unset(found, overrides), str(recipe.absolute()))

    def check_flags(self) -> None:
        """Raises UsageError for flags in a wrong form, and sets aside those that the parser does not read."""
        if self.verb:
            if self.verb.takes == "flags" and self.tokens[1:] and not self.tokens[1].startswith("-"):
                raise explain_stray(self.tokens, self.tokens[1], self.verb)
            check_flags(self.kind, self.tokens)
            self.tokens = divide_lists(self.kind, self.tokens)
        if self.verb and self.verb.split and self.takes != "table":
            self.tokens, parts = load(self.verb.split)(self.tokens)
            self.unparsed |= parts

    def app(self, run: Callable[..., Any] | None) -> App:
        """Returns the parser. It knows the settings of the verb, and of other verbs the line that explains each."""
        app = App(
            name="lambert", version=__version__, result_action="return_value", suppress_keyboard_interrupt=False,
            config=tuple(self._sources),
        )  # fmt: skip
        app.default_parameter = Parameter(
            negative_iterable=(), consume_multiple=True, json_list=False, show_default=_format_default
        )
        for place, other in enumerate(all_verbs().values()):
            if other is not self.verb:
                app.command(App(name=other.name, help=other.summary, sort_key=place))
                continue
            app.command(_command(other, self._all, run, self.unparsed), name=other.name, sort_key=place)
            common = getattr(sys.modules[self.kind.__module__], "COMMON", ())
            if common and HELP_FLAGS & set(self.tokens):  # imports rich
                from lambert.commands.help_panels import ByTable

                app[other.name].help_formatter = ByTable(common)
        return app

    def explain(self, error: CycloptsError, source: str) -> UsageError:
        """Returns the error for one of the parser, with its message or one that says more."""
        if isinstance(error, MissingArgumentError) and self.verb:
            return explain_missing(error, self.verb, self.kind, self.given | self._flags())
        if isinstance(error, UnknownOptionError):
            known = [name[2:].replace("-", "_") for argument in error.argument_collection for name in argument.names]
            if error.token.source == "cli":
                flag = str(error.token.keyword or error.token.value)
                name = flag.partition("=")[0].lstrip("-")
                if flag == "-":
                    return UsageError("- is no file. Only `lambert predict` reads standard input, without --input.")
                for verb in all_verbs():
                    if verb.endswith(f" {name}"):
                        return UsageError(f"Unknown option: {flag}. It is a verb: lambert {verb} --help")
                override = self.verb.override if self.verb else ""
                if override and _training_with(name):
                    return UsageError(
                        f"Unknown option: {flag}. It is a setting of the recipe: --{override} "
                        f"{name.replace('-', '_')}=VALUE"
                    )
                ours = our_setting(flag.lstrip("-").replace("-", "_"), known)
                hint = f"Did you mean --{ours.replace('_', '-')}?" if ours else self._explain_other_training(name)
                if hint:
                    return UsageError(f"Unknown option: {flag}. {hint}")
                return UsageError(_one_line(error))
            where, setting = place_of(error.token, self.tokens, source)
            return explain_other_verb(where, self.given) or unknown_name(where, setting, known)
        if isinstance(error, CoercionError) and error.token is not None and error.target_type is not None:
            return wrong_type(*place_of(error.token, self.tokens, source), error.token.value, error.target_type)
        if isinstance(error, UnusedCliTokensError):
            return explain_stray(self.tokens, (error.unused_tokens or self.tokens[-1:])[0], self.verb)
        return UsageError(_one_line(error))

    def _explain_other_training(self, name: str) -> str:
        """Returns which verb that trains has the setting `name`, for a verb that trains and does not; "" if none."""
        other = _training_with(name) if self.verb and self.verb.updates else None
        return f"It is a setting of {other.name}." if other else ""

    def _add(self, given: Mapping[str, Any], read_by_parser: Mapping[str, Any], source: str) -> None:
        self.given.update(flatten(given))
        self._sources.append(Dict({self.tokens[0]: read_by_parser}, source=source))

    def _flags(self) -> set[str]:
        return {token[2:].partition("=")[0].replace("-", "_") for token in self.tokens if token.startswith("--")}

    def _without_expectation(self, values: Mapping[str, Any], source: str) -> dict[str, Any]:
        """Returns the settings of a run without its table [expect], which goes to `unparsed` unless that has one."""
        if TABLE in values and TABLE not in self.unparsed:
            self.unparsed[TABLE] = None if values[TABLE] is None else expectation(values[TABLE], source)
        return {name: value for name, value in values.items() if name != TABLE}


def _one_line(error: CycloptsError) -> str:
    return " ".join(str(error).split())


def _refuse_name(name: str) -> None:
    """Raises UsageError for an incomplete name of a verb, and for a name in NOT_YET."""
    if listed := [verb for verb in all_verbs() if verb.startswith(f"{name} ")]:
        raise UsageError(f"{name} is the first word of {', '.join(listed)}: give both words.")
    if name in NOT_YET:
        raise UsageError(f"There is no verb {name}. {NOT_YET[name]}")


def _training_with(name: str) -> Verb | None:
    """Returns a verb that trains and has the setting of this flag."""
    setting = name.replace("-", "_")
    return next((one for one in list_training() if setting in list_dotted_names(settings_of(one))), None)


def _format_default(value: Any) -> str | None:
    """Returns a default for the help, or None if it stands for a setting that is not set."""
    return None if value in (None, "", (), Path()) else str(value)


def settings(tokens: list[str], values: Mapping[str, Any] | None = None, source: str = "the call") -> Any:
    """Returns the settings of a command line, or None if it asks for help, which is printed. `values` and `source` are
    as in `call`."""
    tokens = [token for token in tokens if token != "--debug"]
    return call(tokens, run=lambda config, *_, **__: config, values=values, source=source)


def _command(
    verb: Verb, tokens: list[str], run: Callable[..., Any] | None, unparsed: Mapping[str, Any]
) -> Callable[..., Any]:
    """Returns the function of a verb's command. `unparsed` has settings that the parser does not read."""
    kind = settings_of(verb)
    of_run = f"TOML file: the recipe of a run of {' or '.join(one.name for one in list_training())}."

    def run_verb(*given: Any, **named: Any) -> Any:
        called = run or getattr(import_quickly(f"lambert.{verb.run.partition(':')[0]}"), verb.run.partition(":")[2])
        return called(*given, **named)

    def with_recipe(recipe: Recipe = None, /, *, config: Any) -> Any:
        if recipe is not None and Path(tokens[1]) != recipe:
            raise explain_stray(tokens, next(token for token in reversed(tokens) if Path(token) == recipe), verb)
        chosen = config or kind()
        return run_verb(dataclasses.replace(chosen, **unparsed) if unparsed else chosen, say=_say)

    def with_runs(runs: Annotated[list[Path], Parameter(help=verb.runs)], /, *, config: Any) -> Any:
        return run_verb(dataclasses.replace(config or kind(), runs=tuple(runs)), say=_say)

    def with_folder(folder: Annotated[Path, Parameter(help=f"Folder of the {verb.first}.")], /, *, config: Any) -> Any:
        return run_verb(dataclasses.replace(config or kind(), **{verb.first: folder}), say=_say)

    def with_run_recipe(recipe: Annotated[Path, Parameter(help=of_run)], /, *, config: Any) -> Any:
        if recipe.suffix != ".toml" or not recipe.is_file():
            raise explain_no_recipe(recipe, None)
        return run_verb(dataclasses.replace(config or kind(), recipe=recipe, **unparsed), say=_say)

    def with_verb(verb: Inner, /, *, config: Any) -> Any:
        return run_verb(config or kind(), tokens, say=_say)

    def flags_only(*, config: Any) -> Any:
        return run_verb(config or kind(), say=_say)

    commands = {
        "recipe": with_recipe, "table": with_recipe, "runs": with_runs, "folder": with_folder, "verb": with_verb,
        "recipe of a run": with_run_recipe, "flags": flags_only,
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
    """Prints a line. If nobody reads standard output any more, the work goes on without it."""
    try:
        print(printable_line(line), flush=True)
    except OSError as error:
        if error.errno != errno.EPIPE and not (error.errno == errno.EIO and os.isatty(1)):  # a closed terminal
            raise
        discard_output()
