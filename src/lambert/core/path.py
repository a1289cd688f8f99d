"""The module search path: the current folder, which may contain downloaded files, is removed from it."""

import os
import sys


def forget_current_folder() -> None:
    """Takes the current folder from the front of `sys.path`, where `python -m lambert...` puts it: a json.py that lies
    there would be imported in the library's place. A folder that PYTHONPATH names stays, and so does that of a program
    that imports Lambert.

    To be called by the first import of Lambert: `python -m` imports the packages around its module before the module.
    """
    if sys.argv[:1] != ["-m"]:  # what Python has there while it looks for that module, and no longer
        return
    module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    try:
        here = os.getcwd()
    except OSError:  # the current folder was deleted
        here = ""
    if module.partition(".")[0] == "lambert" and not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
        del sys.path[0]
