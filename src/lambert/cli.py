"""The command line: verbs, recipes with dotted overrides, and every failure as one line with an exit code.

A verb is a module of `lambert.stages` with a settings dataclass and a function `run`. It is imported only when it is
called for, so that `lambert --help` does not wait for torch.
"""

import dataclasses
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

from cyclopts import App, Parameter
from cyclopts.config import Toml
from cyclopts.exceptions import CycloptsError

from lambert import __version__
from lambert.core.config import read
from lambert.core.errors import LambertError, UsageError
from lambert.engine.allocator import keep_memory
from lambert.engine.cluster import worker


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

COMPUTES = ("pretrain", "finetune", "evaluate", "predict", "bench")
"""Verbs that run a net."""

WRONG_PATH = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.EIO)
"""Failures of the system that are nobody's bug: a path that cannot be, and a disk that refuses."""

NO_MEMORY = (
    "Out of memory. Lower what is computed at once (--train.micro-tokens, --inference.micro-tokens; bench: --sequences "
    "or --size) or the number of workers."
)

HELP = """Pre-train and fine-tune BERT-family encoders, from raw text to an answer.

Every verb takes an optional TOML recipe, then dotted flags that override it:
`lambert pretrain recipes/bert-base-128.toml --train.batch-size 256`. `lambert VERB --help` explains each setting.
"""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and leaves with its exit code: 0 ok, 1 bug, 2 usage, 3 bad data, 4 machine, 5 diverged,
    75 saved and please requeue, 130 interrupted and saved."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and tokens and tokens[0] in COMPUTES:
        keep_memory()
    if arguments is None:
        # torch tells a rank that lost the others so in twenty lines of its own, and in a user's one anyway.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        worker.follow()
    debug = "--debug" in tokens
    if tokens[:1] != ["launch"]:  # which hands it on
        tokens = [token for token in tokens if token != "--debug"]
    try:
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
        _leave(NO_MEMORY, 4, debug)
    except RuntimeError as error:  # torch's allocators have no class of their own on a CPU
        if not _ran_out(error):
            _crash(tokens)
        _leave(NO_MEMORY, 4, debug)
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


def call(tokens: list[str], run: Callable[..., Any] | None = None) -> Any:
    """Does what the command line says; with `run` its settings are given to that instead. Gives what that gives."""
    chosen = tokens[0] if tokens else ""
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
        else:
            app.command(App(name=name, help=verb.line, sort_key=place))
    if chosen in VERBS and VERBS[chosen].takes == "recipe" and len(tokens) > 1 and not tokens[1].startswith("-"):
        recipe = Path(tokens[1])
        if recipe.suffix != ".toml" or not recipe.is_file():
            raise _no_recipe(recipe)
        read(recipe)  # for its error, which names the file
        app.config = (Toml(recipe, use_commands_as_keys=False),)
    if chosen == "launch":
        from lambert.stages.launch import own

        tokens = own(tokens)
    return app(tokens, exit_on_error=False, print_error=False)


def settings(tokens: list[str]) -> Any:
    """The settings that a command line comes to; None where it asks for help instead, which is printed."""
    return call([token for token in tokens if token != "--debug"], run=lambda config: config)


def _no_recipe(recipe: Path) -> LambertError:
    import difflib

    near = difflib.get_close_matches(
        str(recipe), map(str, [*Path().glob("*.toml"), *Path().glob("recipes/**/*.toml")]), 1
    )
    hint = f" Did you mean {near[0]}?" if near else " A recipe is a TOML file; see recipes/."
    return UsageError(f"No such recipe: {recipe}.{hint}")


def _command(verb: Verb, tokens: list[str], run: Callable[..., Any] | None) -> Callable[..., Any]:
    module = importlib.import_module(f"lambert.stages.{verb.module}")
    kind = getattr(module, verb.settings)
    name = "run" if verb.module != "convert" else f"run_{verb.settings.removesuffix('Config').lower()}"
    run = run or getattr(module, name)

    def with_recipe(recipe: Recipe = None, /, *, config: Any) -> Any:
        if recipe is not None and tokens[1] != str(recipe):
            raise UsageError(f"{recipe} stands behind the flags: a recipe comes right after the verb.")
        return run(config or kind())

    def with_runs(runs: Runs, /, *, config: Any) -> Any:
        return run(dataclasses.replace(config or kind(), runs=tuple(runs)))

    def with_verb(verb: Inner, /, *, config: Any) -> Any:
        return run(config or kind(), tokens, settings)

    def bare(*, config: Any) -> Any:
        return run(config or kind())

    command: Any = {"recipe": with_recipe, "runs": with_runs, "verb": with_verb, "": bare}[verb.takes]
    command.__annotations__["config"] = Annotated[kind, Parameter(name="*")]
    command.__doc__ = verb.line
    if not any(field.default is field.default_factory for field in dataclasses.fields(kind)):
        command.__kwdefaults__ = {"config": None}
    return cast(Callable[..., Any], command)


def _ran_out(error: RuntimeError) -> bool:
    from lambert.engine.memory import ran_out

    return ran_out(error)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _leave(message: str, exit_code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    _exit(worker.tell(exit_code, _one_line(message)))


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
    _exit(worker.tell(1, f"bug: {_one_line(text.splitlines()[-1])}. {where}"))
