"""Imports many modules at once, quickly."""

import gc
import importlib
from types import ModuleType


def imported(name: str) -> ModuleType:
    """Returns the module `name`, imported while Python does not collect garbage.

    torch alone creates half a million objects that live as long as the process. Searching them for garbage, again and
    again while they are created and once more when the process ends, takes about 0.6 seconds. Afterwards all objects of
    the process are exempt from searches (`gc.freeze`).
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
