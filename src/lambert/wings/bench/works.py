"""The kinds of work that are measured in rounds, by name."""

from collections.abc import Callable

from lambert.core.registry import Kind, lookup
from lambert.core.world import World
from lambert.wings.bench.data import loader, tokenizer
from lambert.wings.bench.optimizer import optimizer
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.training import finetune, pretrain
from lambert.wings.bench.work import Work


def _inference(config: BenchConfig, world: World) -> Work:
    from lambert.wings.bench.inference import inference

    return inference(config, world)


WORKS: dict[str, Callable[[BenchConfig, World], Work]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "inference": _inference,
    "loader": loader,
    "tokenizer": tokenizer,
    "optimizer": optimizer,
}
_KIND = Kind((BenchConfig, World))


def work_of(config: BenchConfig, world: World) -> Work:
    """Returns the work that `config` names. Raises UsageError, with the nearest name, if there is none."""
    return lookup(WORKS, config.work, "work", _KIND)(config, world)
