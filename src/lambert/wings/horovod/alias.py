"""Runs programs that contain `import horovod.torch as hvd` unchanged, if Horovod itself is not installed."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ALIASES = {
    "horovod.torch": "lambert.horovod",
    "horovod.torch.compression": "lambert.wings.horovod.compression",
    "horovod.torch.elastic": "lambert.wings.horovod.elastic",
    "horovod.torch.elastic.sampler": "lambert.wings.horovod.elastic",
    "horovod.torch.elastic.state": "lambert.wings.horovod.elastic",
    "horovod.torch.functions": "lambert.wings.horovod.functions",
    "horovod.torch.mpi_ops": "lambert.wings.horovod.operations",
    "horovod.torch.optimizer": "lambert.wings.horovod.optimizer",
    "horovod.torch.sync_batch_norm": "lambert.wings.horovod.sync_batch_norm",
    "horovod.common.exceptions": "lambert.wings.horovod.exceptions",
    "horovod.common.process_sets": "lambert.wings.horovod.process_sets",
}
"""Horovod's modules, and the modules of Lambert that provide the same names."""

API_VERSION = "0.28.1"
"""The version of Horovod whose API this package implements, for programs that read `horovod.__version__`."""


def install_alias() -> None:
    """Makes `import horovod.torch` and the related modules resolve to `lambert.horovod` in this process.

    A second call does nothing.

    Raises:
        ImportError: Horovod is installed, which is never shadowed.
    """
    present = sys.modules.get("horovod")
    if getattr(present, "torch", None) is importlib.import_module("lambert.horovod"):
        return
    spec = present.__spec__ if present is not None else importlib.util.find_spec("horovod")
    if spec is not None and not Path(spec.origin or "/").is_relative_to(Path(__file__).parent):
        raise ImportError(
            "Horovod itself is installed and is not shadowed: uninstall it, or import lambert.horovod instead"
        )
    for package in ("horovod", "horovod.common"):
        module = sys.modules.setdefault(package, ModuleType(package, "Lambert's Horovod API under Horovod's name."))
        module.__path__ = []
    sys.modules["horovod"].__version__ = API_VERSION  # type: ignore[attr-defined]
    sys.modules["horovod"].common = sys.modules["horovod.common"]  # type: ignore[attr-defined]
    sys.modules["horovod"].run = importlib.import_module("lambert.wings.horovod.run.function").run  # type: ignore[attr-defined]
    for alias, name in ALIASES.items():
        sys.modules[alias] = importlib.import_module(name)
        parent, _, child = alias.rpartition(".")
        if not hasattr(sys.modules[parent], child):
            setattr(sys.modules[parent], child, sys.modules[alias])
