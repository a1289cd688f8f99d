"""Lambert: pre-train and fine-tune BERT-family encoders, from raw text to an answer.

The names in `__all__` are the public API. Each is imported when it is first used, so `import lambert` does not import
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lambert.core.batch import Batch as Batch
    from lambert.core.batch import Target as Target
    from lambert.core.errors import DataError as DataError
    from lambert.core.errors import DivergedError as DivergedError
    from lambert.core.errors import LambertError as LambertError
    from lambert.core.errors import MachineError as MachineError
    from lambert.core.errors import SavedAndStopped as SavedAndStopped
    from lambert.core.errors import UsageError as UsageError
    from lambert.engine.step import Step as Step
    from lambert.inference.text_model import TextModel as TextModel
    from lambert.inference.text_model import load as load
    from lambert.library import compare as compare
    from lambert.library import evaluate as evaluate
    from lambert.library import export as export
    from lambert.library import extend as extend
    from lambert.library import finetune as finetune
    from lambert.library import import_model as import_model
    from lambert.library import peek as peek
    from lambert.library import plan as plan
    from lambert.library import prepare as prepare
    from lambert.library import pretrain as pretrain
    from lambert.library import sweep as sweep
    from lambert.library import updates as updates
    from lambert.library import verify as verify
    from lambert.model.config import EncoderConfig as EncoderConfig
    from lambert.model.encoder import Encoder as Encoder
    from lambert.model.heads import Model as Model
    from lambert.optim.config import OptimConfig as OptimConfig
    from lambert.optim.groups import decay_groups as decay_groups
    from lambert.optim.lamb import Lamb as Lamb
    from lambert.optim.schedule import schedule as schedule
    from lambert.runs.config import LogConfig as LogConfig
    from lambert.runs.config import TrainConfig as TrainConfig
    from lambert.runs.expect import ExpectConfig as ExpectConfig
    from lambert.runs.result import Result as Result
    from lambert.tasks.config import TaskConfig as TaskConfig
    from lambert.verbs.settings.evaluate import EvaluateConfig as EvaluateConfig
    from lambert.verbs.settings.finetune import FinetuneConfig as FinetuneConfig
    from lambert.verbs.settings.pretrain import PretrainConfig as PretrainConfig
    from lambert.verbs.settings.sweep import SweepConfig as SweepConfig
    from lambert.verbs.verify.comparison import Verified as Verified
    from lambert.wings.corpus.config import DeduplicateConfig as DeduplicateConfig
    from lambert.wings.corpus.config import PrepareConfig as PrepareConfig
    from lambert.wings.corpus.scale import RayTasks as RayTasks
    from lambert.wings.corpus.scale import prepare_on_cluster as prepare_on_cluster
    from lambert.wings.plan.result import Plan as Plan
    from lambert.wings.plan.result import PlanRow as PlanRow

from lambert.core.path import forget_current_folder

__version__ = "0.1.0"

forget_current_folder()

_MODULES = {
    "library": (
        "prepare",
        "peek",
        "pretrain",
        "finetune",
        "sweep",
        "extend",
        "import_model",
        "export",
        "evaluate",
        "compare",
        "plan",
        "updates",
        "verify",
    ),
    "inference.text_model": ("load", "TextModel"),
    "corpus.scale": ("prepare_on_cluster", "RayTasks"),
    "runs.result": ("Result",),
    "verbs.plan.result": ("Plan", "PlanRow"),
    "engine.step": ("Step",),
    "model.encoder": ("Encoder",),
    "model.heads": ("Model",),
    "model.config": ("EncoderConfig",),
    "core.batch": ("Batch", "Target"),
    "optim.lamb": ("Lamb",),
    "optim.groups": ("decay_groups",),
    "optim.schedule": ("schedule",),
    "optim.config": ("OptimConfig",),
    "corpus.config": ("PrepareConfig", "DeduplicateConfig"),
    "verbs.settings.pretrain": ("PretrainConfig",),
    "verbs.settings.finetune": ("FinetuneConfig",),
    "verbs.settings.evaluate": ("EvaluateConfig",),
    "verbs.settings.sweep": ("SweepConfig",),
    "verbs.verify.comparison": ("Verified",),
    "runs.config": ("TrainConfig", "LogConfig"),
    "runs.expect": ("ExpectConfig",),
    "tasks.config": ("TaskConfig",),
    "core.errors": ("LambertError", "UsageError", "DataError", "MachineError", "DivergedError", "SavedAndStopped"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
"""The module of each name."""

__all__ = [*_HOME]  # noqa: PLE0604 - names


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lambert' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"lambert.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
