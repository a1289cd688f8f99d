"""The command `lambert`: it calls a verb, and every failure ends it with one line and an exit code."""

import errno
import os
import sys
import traceback
from typing import NoReturn

from lambert.commands.overview import HELP_FLAGS, VERSION, format_overview
from lambert.core import launcher, signals
from lambert.core.errors import EXPLAINED
from lambert.core.files import discard_output, path_of, remedy
from lambert.core.launcher import save_traceback
from lambert.core.urls import public_word
from lambert.core.version import __version__
from lambert.engine.process import check_limits
from lambert.verb import LESS_MEMORY, find, load

WRONG_PATH = (
    errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS,
)  # fmt: skip
"""Errors of the operating system that another path avoids: they are usage errors, not bugs."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 ok, 1 bug, 2 usage, 3 bad data, 4 machine, 5 diverged, 75 saved and to be
    requeued, 130 interrupted and saved."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if tokens[:1] == ["help"]:
        tokens = [*tokens[1:], "--help"]
    if arguments is None:
        signals.exit_on_signals()
        signals.restore_keyboard_interrupt()
        # When a rank loses its peers, torch prints about twenty lines. Lambert reports the failure in one line.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        launcher.follow()
    debug = "--debug" in tokens
    if not _starts_ranks(tokens):  # which get --debug from it
        tokens = [token for token in tokens if token != "--debug"]
    verb = find(tokens)
    advice = verb.less_memory if verb else LESS_MEMORY
    try:
        if verb and verb.computes:
            check_limits()
        if verb and not verb.settings:
            _exit(load(verb.run)(tokens[1:]))
        if not tokens or (HELP_FLAGS & {*tokens} and all(token.startswith("-") for token in tokens)):
            print(format_overview())
        elif tokens == [VERSION]:
            print(__version__)
        else:
            from lambert.commands.parse import call  # imports the parser, which takes longer than all above

            call(tokens)
    except EXPLAINED as error:
        _leave(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        _leave("Interrupted.", 130, debug)
    except BrokenPipeError:
        # The reader of standard output is gone. Without this, Python would flush into the pipe again at exit and fail.
        discard_output()
        sys.exit(0)
    except MemoryError:
        _leave(f"Out of memory. {advice}", 4, debug)
    except RuntimeError as error:  # torch's CPU allocator raises no class of its own
        from lambert.engine.device import ran_out

        if not ran_out(error):
            _crash(tokens)
        _leave(f"Out of memory. {advice}", 4, debug)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            _leave(f"Out of memory. {advice}", 4, debug)
        place = path_of(error) or "standard output or the output folder"
        if error.errno in WRONG_PATH:
            _leave(f"{error.strerror}: {place}. Choose another path.", 2, debug)
        if not (helps := remedy(error, "folder")):
            _crash(tokens)
        where = f": {place}" if path_of(error) or "folder" in helps else ""
        _leave(f"{error.strerror}{where}. {helps}.", 4, debug)
    except Exception:  # a bug in Lambert: the only place that catches everything
        _crash(tokens)
    sys.exit(0)


def _leave(message: str, exit_code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    _exit(launcher.report_end(exit_code, " ".join(message.split())))


def _exit(code: int) -> NoReturn:
    """Exits as sys.exit does. In a launcher, and if a process group still exists, the process ends at once, because
    torch's threads may hang or abort when the interpreter shuts down after other ranks have left."""
    distributed = sys.modules.get("torch.distributed")
    in_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if in_group or _starts_ranks(sys.argv[1:]):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _starts_ranks(tokens: list[str]) -> bool:
    verb = find(tokens)
    return verb is not None and verb.takes == "verb"


def _crash(tokens: list[str]) -> NoReturn:
    text = traceback.format_exc()
    where = save_traceback(" ".join(map(public_word, tokens)), text)
    last = next(line for line in reversed(text.splitlines()) if line.strip())
    _exit(launcher.report_end(1, f"bug: {' '.join(last.split())}. {where}"))
