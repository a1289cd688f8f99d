"""The module search path: the current folder, which may contain downloaded files, is removed from it."""

import os
import sys


def forget_current_folder() -> None:
    """Removes the current folder from the front of `sys.path`, where `python -m lambert...` puts it, because a json.py
    in that folder would be imported instead of the standard library's. Folders in PYTHONPATH, and the folder of a
    program that imports Lambert, are not removed.

    The first import of Lambert must call this function, because `python -m` imports a module's packages first.
    """
    if sys.argv[:1] != ["-m"]:  # Python sets this value only while it searches the module of `-m`
        return
    module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    try:
        here = os.getcwd()
    except OSError:  # the current folder was deleted
        here = ""
    if module.partition(".")[0] == "lambert" and not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
        del sys.path[0]
