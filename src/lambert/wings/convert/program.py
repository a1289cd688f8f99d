"""Exports programs of torch.export, and the same compiled by AOTInductor."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lambert.core.errors import MachineError
from lambert.wings.convert.formats import Format, export
from lambert.wings.convert.original import Original
from lambert.wings.convert.padded import PaddedModel, export_program
from lambert.wings.convert.sample import Arrays, Runtime
from lambert.wings.convert.settings import ExportConfig

FILE = "model.pt2"


def export_aoti(config: ExportConfig) -> Iterator[str]:
    """Writes model.pt2, a package of AOTInductor: machine code that torch loads without Python code of the model."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise MachineError("--format aoti needs a C++ compiler: install g++, or use --format torch.")
    yield from export(AOTI, config)


def _write_torch(padded: PaddedModel, original: Original, folder: Path, config: ExportConfig) -> None:
    program = export_program(padded, original.model.config.positions).run_decompositions({})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # lines of source code with the paths of this machine
    torch.export.save(program, folder / FILE)


def _write_aoti(padded: PaddedModel, original: Original, folder: Path, config: ExportConfig) -> None:
    import torch._inductor

    program = export_program(padded, original.model.config.positions)
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / FILE))


def _load_torch(folder: Path) -> Runtime:
    return _runtime(torch.export.load(folder / FILE).module())


def _load_aoti(folder: Path) -> Runtime:
    import torch._inductor

    return _runtime(torch._inductor.aoti_load_package(str(folder / FILE)))


def _runtime(call: Any) -> Runtime:
    """Returns a function that calls the program with tensors; its outputs are named by their position."""

    def run(inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            found = call(*[torch.from_numpy(values) for values in inputs.values()])
        return {str(number): value.numpy() for number, value in enumerate(found)}

    return run


TORCH = Format(
    title="torch.export",
    write=_write_torch,
    load=_load_torch,
    usage="""import torch

program = torch.export.load("model.pt2").module()
outputs = program(*[rows[name] for name in NAMES])
""",
    arrays="pt",
    notes=lambda config: ("warning: torch unpickles model.pt2: load it only if you trust who made it.",),
)
AOTI = Format(
    title="AOTInductor",
    write=_write_aoti,
    load=_load_aoti,
    usage="""import torch

program = torch._inductor.aoti_load_package("model.pt2")
outputs = program(*[rows[name] for name in NAMES])
""",
    arrays="pt",
    notes=lambda config: ("warning: model.pt2 is native code for processors like this one: loading it runs code.",),
)
