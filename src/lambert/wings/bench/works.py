"""The kinds of work that are measured in rounds, by name."""

from collections.abc import Callable

from lambert.core.registry import Kind, lookup
from lambert.core.world import World
from lambert.verbs.bench.data import loader, tokenizer
from lambert.verbs.bench.optimizer import optimizer
from lambert.verbs.bench.training import finetune, pretrain
from lambert.verbs.bench.work import Work
from lambert.verbs.settings.bench import BenchConfig


def _inference(config: BenchConfig, world: World) -> Work:
    from lambert.verbs.bench.inference import inference

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
