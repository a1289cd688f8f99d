"""Compares model folders, as Lambert reads them, with the libraries that made them.

    python -m benchmarks.real_weights.run TEXTS FOLDER...

Prints a line of JSON for each folder and library: family, parameters, whether the token ids are equal, the largest
difference of the outputs, and the table of `lambert import --check`. The same is shown by
`lambert import --from FOLDER --check TEXTS [--against transformers]`.
"""

import dataclasses
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

import lambert
from lambert.core.errors import LambertError
from lambert.wings.convert.settings import Against


def main(texts: Path, folders: list[Path]) -> None:
    """Prints the rows."""
    for folder in folders:
        model = lambert.load(folder, device="cpu")
        facts = {
            "model": folder.name,
            "family": model.model.config.block,
            "architecture": json.loads((folder / "config.json").read_text())["architectures"][0],
            "parameters": sum(parameter.numel() for parameter in model.encoder.parameters()),
        }
        libraries: list[Against] = ["transformers"]
        if (folder / "modules.json").exists():
            libraries.insert(0, "sentence-transformers")
        for library in libraries:
            start, row = time.monotonic(), {**facts, "library": f"{library} {version(library)}"}
            try:
                checks = lambert.import_model(folder, check=texts, against=library).checks
            except LambertError as error:
                print(json.dumps({**row, "error": str(error)}), flush=True)
                continue
            row |= {
                "ids_equal": all(not one.problem for one in checks if one.what.startswith("token ids")),
                "largest_difference": max(one.difference for one in checks if one.difference is not None),
                "table": [dataclasses.asdict(one) for one in checks],
                "seconds": round(time.monotonic() - start, 1),
                "torch": torch.__version__,
                "machine": platform.machine(),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [*map(Path, sys.argv[2:])])
