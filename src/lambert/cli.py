"""The command line: verbs, recipes with dotted overrides, and every failure as one line with an exit code.

A verb is a module of `lambert.verbs` with a settings dataclass and a function `run`. It is imported only when it is
called for, so that `lambert --help` does not wait for torch.
"""

import dataclasses
import errno
import importlib
import os
import resource
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

from cyclopts import App, Parameter
from cyclopts.config import Dict
from cyclopts.exceptions import CycloptsError, MissingArgumentError, UnusedCliTokensError

from lambert import __version__
from lambert.core import launcher, signals
from lambert.core.errors import LambertError, MachineError, UsageError
from lambert.core.settings import check_names, dotted, read, without
from lambert.engine.allocator import keep_memory


@dataclasses.dataclass(frozen=True)
class Verb:
    """Where a verb lives, the line that explains it, and what it takes before its flags."""

    module: str
    settings: str
    line: str
    takes: str = "recipe"
    """"recipe": an optional TOML file; "runs": run folders; "verb": behind its flags another verb; "script":
    everything, without settings of ours; "": nothing."""


Recipe = Annotated[Path | None, Parameter(help="TOML file with the settings below; flags override it.")]
Runs = Annotated[list[Path], Parameter(help="Run folders.")]
Inner = Annotated[str, Parameter(help="What each process runs; all behind it is its own.")]

VERBS = {
    "prepare": Verb("prepare", "PrepareConfig", "Raw text to a tokenizer and token shards."),
    "pretrain": Verb("pretrain", "PretrainConfig", "Shards to an encoder; the same command again continues."),
    "finetune": Verb("finetune", "FinetuneConfig", "Encoder and labelled data to a task model and its scores."),
    "evaluate": Verb("evaluate", "EvaluateConfig", "Model and labelled data to official scores and predictions."),
    "predict": Verb("predict", "PredictConfig", "JSON lines in, JSON lines out, streaming.", takes=""),
    "import": Verb("convert", "ImportConfig", "A Hugging Face folder to a model folder, verified.", takes=""),
    "export": Verb("convert", "ExportConfig", "A model folder to another format, verified.", takes=""),
    "bench": Verb("bench", "BenchConfig", "Speed of each kind of work, share of this device's ceiling, memory, peers."),
    "launch": Verb("launch", "LaunchConfig", "A verb in several processes and machines at once.", takes="verb"),
    "horovodrun": Verb("", "", "A Horovod script in several processes, with Horovod's own options.", takes="script"),
    "report": Verb("report", "ReportConfig", "Run folders to one self-contained HTML page.", takes="runs"),
    "doctor": Verb("doctor", "DoctorConfig", "What this machine has, what is missing, what will be used.", takes=""),
}

NOT_YET = {
    "serve": "`lambert predict` answers JSON lines on its standard input, and loads the model once.",
    "sweep": "Give a training command once for each setting, each with its own --out; `lambert report` compares runs.",
    "embed": "In Python, lambert.load(FOLDER).encode(texts) gives a vector for each text (docs/library.md).",
    "plan": "`lambert bench` measures speed and memory on this device.",
}
"""Verbs that users expect and that do not exist yet, with what to do today."""

HELP_FLAGS = {"--help", "-h"}
RUNS = ("pretrain", "finetune")
"""Verbs that train."""
COMPUTES = ("pretrain", "finetune", "evaluate", "predict", "bench")
"""Verbs that run a net."""

ONE_OF = {
    "pretrain": (("init", "model."), ("train.steps", "train.epochs")),
}
"""Settings, and tables, of which one at least must be given."""

LEAST_ADDRESS_SPACE = 700_000_000
"""Bytes. Measured: importing torch 2.13 for CPUs takes 606 MB; below that the C++ library aborts the process."""
LEAST_FILES = 16
"""Measured: a run of one process begins with 16 and not with 8."""
WRONG_PATH = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.EIO)
"""Failures of the system that are nobody's bug: a path that cannot be, and a disk that refuses."""

_SMALLER = "or take a smaller model, if its weights alone do not fit"
LESS_MEMORY = {
    "prepare": "Lower workers or sample_megabytes.",
    "pretrain": f"Lower train.micro_tokens or packing.sequence_length; {_SMALLER}.",
    "finetune": f"Lower train.micro_tokens or task.max_length; {_SMALLER}.",
    "evaluate": f"Lower inference.micro_tokens; {_SMALLER}.",
    "predict": f"Lower inference.micro_tokens or chunk; {_SMALLER}.",
    "bench": "Lower sequences, length or size.",
}
"""What to do where a verb runs out of memory."""

HELP = """Pre-train and fine-tune BERT-family encoders, from raw text to an answer.

Every verb takes an optional TOML recipe, then dotted flags that override it:
`lambert pretrain recipes/bert-base-128.toml --train.batch-size 256`. `lambert VERB --help` explains each setting.
"""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and leaves with its exit code: 0 ok, 1 bug, 2 usage, 3 bad data, 4 machine, 5 diverged,
    75 saved and please requeue, 130 interrupted and saved."""
    if arguments is None:
        signals.exit_on_signals()
        signals.restore_keyboard_interrupt()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and tokens and tokens[0] in COMPUTES:
        keep_memory()
    if arguments is None:
        # torch tells a rank that lost the others so in twenty lines of its own, and in a user's one anyway.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        launcher.follow()
    debug = "--debug" in tokens
    if tokens[:1] != ["launch"]:  # which hands it on
        tokens = [token for token in tokens if token != "--debug"]
    try:
        if tokens and tokens[0] in COMPUTES:
            _check_limits()
        call(tokens)
    except CycloptsError as error:
        _leave(str(error), 2, debug)
    except LambertError as error:
        _leave(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        _leave("Interrupted.", 130, debug)
    except BrokenPipeError:
        # The reader of our output has left; at exit Python would flush into the pipe once more and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except MemoryError:
        _leave(_no_memory(tokens), 4, debug)
    except RuntimeError as error:  # torch's allocators have no class of their own on a CPU
        if not _ran_out(error):
            _crash(tokens)
        _leave(_no_memory(tokens), 4, debug)
    except OSError as error:
        place = error.filename or "the output folder"
        if error.errno in WRONG_PATH:
            _leave(f"{error.strerror}: {place}. Choose another path.", 2, debug)
        if error.errno not in MACHINE:
            _crash(tokens)
        _leave(f"{error.strerror}: {place}. Free space or choose another folder.", 4, debug)
    except Exception:  # a bug of ours: the one place that catches everything
        _crash(tokens)
    sys.exit(0)


def call(tokens: list[str], run: Callable[..., Any] | None = None, values: Mapping[str, Any] | None = None) -> Any:
    """Does what the command line says; with `run` its settings are given to that instead. Gives what that gives.
    `values` are nested settings that override the recipe; None in them stands for a setting that is not set."""
    chosen = tokens[0] if tokens else ""
    if chosen in NOT_YET and chosen not in VERBS:
        raise UsageError(f"There is no verb {chosen} yet. {NOT_YET[chosen]}")
    if chosen == "horovodrun":
        from lambert.horovod.run import main as horovodrun

        _exit(horovodrun(tokens[1:]))
    app = App(
        name="lambert", help=HELP, version=__version__, result_action="return_value", suppress_keyboard_interrupt=False
    )
    app.default_parameter = Parameter(negative_iterable=(), consume_multiple=True, json_list=False)
    for place, (name, verb) in enumerate(VERBS.items()):
        if name == chosen:
            app.command(_command(verb, tokens, run), name=name, sort_key=place)
            common = getattr(sys.modules[f"lambert.verbs.{verb.module}"], "COMMON", ())
            if common and HELP_FLAGS & set(tokens):  # imports rich
                from lambert.help_panels import ByTable

                app[name].help_formatter = ByTable(common)
        else:
            app.command(App(name=name, help=verb.line, sort_key=place))
    given: set[str] = set()
    sources = []
    if values:
        check_names(dotted(values), "The call")
        given.update(dotted(values))
        sources.append(Dict(without(values, values), source="the call", use_commands_as_keys=False))
    if chosen in VERBS and VERBS[chosen].takes == "recipe" and len(tokens) > 1 and not tokens[1].startswith("-"):
        recipe = Path(tokens[1])
        if recipe.suffix != ".toml" or not recipe.is_file():
            raise _no_recipe(recipe, chosen)
        found = read(recipe)
        given.update(dotted(found))
        check_names(given, str(recipe))
        sources.append(Dict(without(found, values or {}), source=str(recipe.absolute()), use_commands_as_keys=False))
    app.config = tuple(sources)
    if chosen in RUNS:
        flags = (token.removeprefix("--").partition("=")[0] for token in tokens if token.startswith("--"))
        check_names((flag.replace("-", "_") for flag in flags), "The command")
    if chosen == "launch":
        from lambert.verbs.launch import own

        tokens = own(tokens)
    try:
        return app(tokens, exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        flags = (token.partition("=")[0] for token in tokens if token.startswith("--"))
        given.update(flag.removeprefix("--").replace("-", "_") for flag in flags)
        raise _missing(error, chosen, given) from error
    except UnusedCliTokensError as error:
        raise _stray(tokens, (error.unused_tokens or tokens[-1:])[0]) from error


def settings(tokens: list[str], values: Mapping[str, Any] | None = None) -> Any:
    """The settings that a command line comes to, `values` as `call` takes them; None where it asks for help instead,
    which is printed."""
    return call([token for token in tokens if token != "--debug"], run=lambda config, **_: config, values=values)


def _settings(verb: Verb) -> Any:
    return getattr(importlib.import_module(f"lambert.verbs.{verb.module}"), verb.settings)


def _no_recipe(recipe: Path, verb: str) -> LambertError:
    import difflib

    near = difflib.get_close_matches(
        str(recipe), map(str, [*Path().glob("*.toml"), *Path().glob("recipes/**/*.toml")]), 1
    )
    first = next(_required(_settings(VERBS[verb]), ()), "") if recipe.exists() else ""
    if first and not near:
        return UsageError(f"{recipe} is not a recipe, which is a TOML file. Settings are flags: {first} {recipe}.")
    hint = f" Did you mean {near[0]}?" if near else " A recipe is a TOML file; see recipes/."
    return UsageError(f"No such recipe: {recipe}.{hint}")


def _missing(error: MissingArgumentError, verb: str, given: Collection[str]) -> LambertError:
    """The answer to a flag without its value, or all settings that are required and not given."""
    if error.keyword is not None:
        return UsageError(f"{error.keyword} requires a value, and none follows it.")
    takes = VERBS[verb].takes
    if takes in ("runs", "verb"):
        example = "runs/NAME" if takes == "runs" else "-np 2 pretrain ..."
        what = "RUN folder" if takes == "runs" else "VERB"
        return UsageError(f"{verb} requires a {what}: lambert {verb} {example}")
    lacking = list(_required(_settings(VERBS[verb]), given)) or [error.argument.name if error.argument else "a value"]
    for names in ONE_OF.get(verb, ()):
        if not any(name.startswith(names) for name in given):
            lacking.append("(" + " or ".join(f"--{name}{'*' * name.endswith('.')}" for name in names) + ")")
    listed = " and ".join([", ".join(lacking[:-1]), lacking[-1]] if lacking[1:] else lacking)
    where = " as flags or in a recipe" if takes == "recipe" else ""
    return UsageError(f"{verb} requires {listed}. Give what is missing{where}; `lambert {verb} --help` explains it.")


def _required(kind: Any, given: Collection[str], table: str = "") -> Iterator[str]:
    """The flags of settings without default that are not `given`, by dotted name; those of an optional table where it
    is given in part."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, flag = hints[field.name], f"{table}{field.name}"
        if typing.get_origin(hint) is Annotated:
            names = [name for extra in hint.__metadata__ for name in getattr(extra, "name", None) or ()]
            flag, hint = (names[0].removeprefix("--") if names else flag), hint.__origin__
        inner = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
        tables = [part for part in inner if dataclasses.is_dataclass(part)]
        if tables and any(name.startswith(f"{flag}.") for name in given):
            yield from _required(tables[0], given, f"{flag}.")
        elif field.default is field.default_factory and flag not in given:
            yield f"--{flag.replace('_', '-')}"


def _stray(tokens: list[str], word: str) -> LambertError:
    """The answer to a word that belongs to no flag."""
    at = len(tokens) - 1 - tokens[::-1].index(word)
    flag = next((place for place in range(at, 0, -1) if tokens[place].startswith("--")), 0)
    if not flag or word.endswith(".toml"):
        return UsageError(f"{word} stands behind the flags: a recipe comes right after the verb.")
    name, _, value = tokens[flag].partition("=")
    end = next((place for place in range(flag + 1, len(tokens)) if tokens[place].startswith("-")), len(tokens))
    values = [*([value] if value else []), *tokens[flag + 1 : end]]
    if len(values) == 1:
        off = f"{name.rpartition('.')[0]}.no-{name.rpartition('.')[2]}" if "." in name else f"--no-{name[2:]}"
        return UsageError(f"{name} takes no value, and {word} follows it. Its opposite is {off}.")
    more = " For several seeds, give the command once for each, with its own --out." if name == "--seed" else ""
    return UsageError(f"{name} takes one value, not {len(values)} ({' '.join(values)}).{more}")


def _command(verb: Verb, tokens: list[str], run: Callable[..., Any] | None) -> Callable[..., Any]:
    module, kind = importlib.import_module(f"lambert.verbs.{verb.module}"), _settings(verb)
    name = "run" if verb.module != "convert" else f"run_{verb.settings.removesuffix('Config').lower()}"
    run = run or getattr(module, name)

    def with_recipe(recipe: Recipe = None, /, *, config: Any) -> Any:
        if recipe is not None and Path(tokens[1]) != recipe:
            raise _stray(tokens, str(recipe))
        return run(config or kind(), say=_print)

    def with_runs(runs: Runs, /, *, config: Any) -> Any:
        return run(dataclasses.replace(config or kind(), runs=tuple(runs)), say=_print)

    def with_verb(verb: Inner, /, *, config: Any) -> Any:
        return run(config or kind(), tokens, settings, say=_print)

    def bare(*, config: Any) -> Any:
        return run(config or kind(), say=_print)

    command: Any = {"recipe": with_recipe, "runs": with_runs, "verb": with_verb, "": bare}[verb.takes]
    command.__annotations__["config"] = Annotated[kind, Parameter(name="*")]
    command.__doc__ = verb.line
    if not any(field.default is field.default_factory for field in dataclasses.fields(kind)):
        command.__kwdefaults__ = {"config": None}
    return cast(Callable[..., Any], command)


def _print(line: str) -> None:
    print(line, flush=True)


def _ran_out(error: RuntimeError) -> bool:
    from lambert.engine.device_memory import ran_out

    return ran_out(error)


def _check_limits() -> None:
    """Raises MachineError under limits that end torch's import, or the first files read, in words of their own."""
    space, files = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE))
    if 0 <= space < LEAST_ADDRESS_SPACE:
        raise MachineError(
            f"An address space of {space / 1e6:,.0f} MB is too small: torch alone takes about "
            f"{LEAST_ADDRESS_SPACE / 1e6:,.0f} MB. Raise it with ulimit -v."
        )
    if 0 <= files < LEAST_FILES:
        raise MachineError(f"{files} open files are too few: at least {LEAST_FILES} are needed. Raise ulimit -n.")


def _no_memory(tokens: list[str]) -> str:
    return f"Out of memory. {LESS_MEMORY.get(tokens[0] if tokens else '', 'Free memory that other programs take.')}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _leave(message: str, exit_code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    _exit(launcher.report_end(exit_code, _one_line(message)))


def _exit(code: int) -> NoReturn:
    """As sys.exit; at once where torch's threads would hang or abort at the interpreter's end: those of a process group
    that still stands when others of it are gone, and those of its launcher."""
    distributed = sys.modules.get("torch.distributed")
    stands = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if stands or sys.argv[1:2] == ["launch"]:
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
    _exit(launcher.report_end(1, f"bug: {_one_line(text.splitlines()[-1])}. {where}"))
