"""A rank of `horovod.run`: `python -m lambert.wings.horovod.run.task FOLDER`."""

import os
import pickle
import runpy
import sys
from pathlib import Path
from types import ModuleType

from lambert.wings.horovod.alias import install_alias


def main(folder: Path) -> None:
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
    main(Path(sys.argv[1]))
