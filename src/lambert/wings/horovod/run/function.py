"""`horovod.run`: runs a function, instead of a command, once per rank.

The function, its arguments and its results are passed as pickle files in a private folder of the user (mode 700). As
with multiprocessing, the ranks import the module of the function. If this module is the running script, the ranks run
it under a name other than `__main__`, so the script needs the usual `if __name__ == "__main__":`.
"""

import os
import pickle
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from lambert.core.errors import UsageError
from lambert.wings.horovod.alias import install_alias
from lambert.wings.horovod.run import main
from lambert.wings.horovod.run.hosts import is_local, parse_hosts


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    hosts: str | None = None,
    np: int | None = None,
    start_timeout: int | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    executable: str | None = None,
) -> list[Any]:
    """Runs `func(*args, **kwargs)` on each rank, on this host, and returns the results by rank.

    `np` is the former name of `num_proc`; `use_gloo` has no effect. The other arguments are options of `horovodrun`.

    Raises:
        RuntimeError: A rank failed.
        UsageError: `hosts` names another host, or `use_mpi` is true.
    """
    if use_mpi:
        raise UsageError("horovod.run: MPI is not supported: omit use_mpi (ranks use Gloo or NCCL)")
    if hosts and not all(is_local(host.name) for host in parse_hosts(hosts)):
        raise UsageError("horovod.run runs functions on this host only: start a command with lambert horovodrun -H")
    ranks = num_proc if np is None else np
    options = ["-np", str(ranks)]
    options += ["-H", hosts] if hosts else []
    options += ["--start-timeout", str(start_timeout)] if start_timeout else []
    options += ["--output-filename", output_filename] if output_filename else []
    options += ["--verbose"] if verbose else []
    script = getattr(sys.modules["__main__"], "__file__", None) if func.__module__ == "__main__" else None
    with tempfile.TemporaryDirectory(prefix="lambert-run-") as name:
        folder = Path(name)
        (folder / "call").write_bytes(pickle.dumps((func, tuple(args), dict(kwargs or {}))))
        (folder / "setting").write_bytes(pickle.dumps((sys.path, script, "horovod" in sys.modules)))
        code = main([*options, executable or sys.executable, "-P", "-m", "lambert.wings.horovod.run.function", name])
        if code:
            raise RuntimeError(f"horovod.run: a rank failed with exit code {code}; see its output")
        return [pickle.loads((folder / f"result.{rank}").read_bytes()) for rank in range(ranks)]


def _call(folder: Path) -> None:
    """Calls the function in the folder's file `call` and writes its result to `result.RANK`."""
    path, script, aliased = pickle.loads((folder / "setting").read_bytes())
    sys.path[:] = path
    if aliased:
        install_alias()
    if script is not None:
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        vars(module).update(runpy.run_path(script, run_name="__horovod_main__"))
    function, args, kwargs = pickle.loads((folder / "call").read_bytes())
    result = function(*args, **kwargs)
    (folder / f"result.{os.environ['HOROVOD_RANK']}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    _call(Path(sys.argv[1]))
