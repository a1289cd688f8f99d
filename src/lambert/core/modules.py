"""The modules of a folder of sentence-transformers: which folder has its encoder, and the settings of that module.

Source: sentence-transformers 6.2, and what its versions since 2019 write.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError
from lambert.core.files import is_name, json_object, read_file

MODULES = "modules.json"
TRANSFORMER = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the file of the module Transformer, in the order in which sentence-transformers looks for them."""


def encoder_path(folder: Path) -> str:
    """Returns the subfolder of a sentence-transformers folder that has its encoder, such as 0_Transformer; empty if the
    encoder is in the folder itself, and for other folders. A config.json beside modules.json, which versions before 0.4
    wrote with their own version only, does not count, as in that library."""
    path = Path(folder) / MODULES
    if not path.is_file():
        return ""
    try:
        own = json.loads(read_file(path).decode())[0]["path"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return own if is_name(own) else ""


def root(folder: Path) -> Path | None:
    """Returns the folder with the modules.json that names `folder` as that of its encoder: `folder` or, in folders from
    before 2021, the one above; None if there is none."""
    if (folder / MODULES).is_file():
        return folder
    own = folder.absolute()  # the name of the current folder, "." in short, is not empty
    return own.parent if encoder_path(own.parent) == own.name else None


def modules_of(folder: Path) -> list[str]:
    """Returns the names of the modules of a sentence-transformers folder, or of its parent if `folder` is that of a
    module; none for other folders."""
    for path in (Path(folder) / MODULES, Path(folder).absolute().parent / MODULES):
        try:
            rows = json.loads(read_file(path).decode())
            return [str(row["type"]).rpartition(".")[2] for row in rows]
        except (OSError, ValueError, LookupError, TypeError, RecursionError, DataError):
            continue
    return []


def transformer_settings(folder: Path) -> Mapping[str, Any]:
    """Returns the settings of the module Transformer in the encoder's folder; empty if there are none, and for a folder
    without modules.json, in which no library reads them."""
    if root(folder) is None:
        return {}
    paths = (folder / name for name in TRANSFORMER)
    return next((found for path in paths if path.exists() and (found := json_object(path))), {})
