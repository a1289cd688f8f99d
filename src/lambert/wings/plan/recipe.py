"""Determines the work of a recipe from its settings and from those of its files that exist."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lambert.commands import parse
from lambert.core.errors import DataError, UsageError
from lambert.core.registry import nearest
from lambert.core.settings import find_missing, flatten, read
from lambert.core.shards import Split, read_manifest
from lambert.data.masking import count_masked
from lambert.data.source import CorpusSource
from lambert.distributed import agreement
from lambert.model import folder as layout
from lambert.model.config import SIZES, EncoderConfig
from lambert.model.folder import model_folder
from lambert.runs.config import RunConfig
from lambert.tasks import TASKS, resolve, task_class
from lambert.tasks.reading.cache import FeatureCache
from lambert.tasks.reading.files import find_splits
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.verb import Verb, record_of, settings_of
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.settings.pretrain import PretrainConfig
from lambert.verbs.settings.training import verb_of
from lambert.wings.plan.costs.work import Workload
from lambert.wings.plan.settings import PlanConfig

_SAMPLED = 32
_PAIRS = {64: 0.96, 128: 0.90, 512: 0.73}
"""Mean share of a sequence that pairs of segments of Wikipedia fill, by length (benchmarks/whole_runs)."""
_FULL, _SQUAD = 0.98, 0.45
"""The same with segments of one document at 128 tokens (benchmarks/whole_runs), and of SQuAD's windows at 384
(docs/bench.md)."""
_UNNAMED = Path("(not named)")
"""Stands for the folder of the paths that the recipe lacks."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that can be planned."""

    verb: str
    config: RunConfig
    work: Workload
    """The work of an update. Its precision and software depend on the device and are set later."""
    updates: int
    sequences: int
    """Number of sequences of all updates."""
    assumed: tuple[str, ...]
    """Descriptions of what was assumed because a file is missing."""


def read_run(plan: PlanConfig) -> Planned:
    """Returns the run of a recipe.

    Raises UsageError for the recipe of another verb, and for settings that neither the recipe nor its files give.
    """
    verb = verb_of(plan.recipe)
    if verb is None or settings_of(verb) not in PLANNERS:
        verbs = " or ".join(record_of(kind).name for kind in PLANNERS)
        raise UsageError(f"{plan.recipe} is not a recipe of {verbs}, the verbs that plan predicts.")
    config = parse.settings([verb.name, str(plan.recipe), *parse_overrides(plan.set), *_list_stand_ins(verb, plan)])
    return PLANNERS[type(config)](config, plan)


def _list_stand_ins(verb: Verb, plan: PlanConfig) -> list[str]:
    """Returns flags for the paths that the run requires and the recipe lacks, whose files are then missing. Raises
    UsageError if a script is to start the run."""
    given = {*flatten(read(plan.recipe)), *(one.partition("=")[0].strip().replace("-", "_") for one in plan.set)}
    lacking = [flag[2:] for flag in find_missing(settings_of(verb), given)]
    if lacking and plan.cluster:
        advice = " ".join(f"{name}=PATH" for name in lacking)
        raise UsageError(
            f"cluster = {plan.cluster!r}: the run needs {' and '.join(lacking)}, which {plan.recipe} lacks: add --set "
            f"{advice}."
        )
    return [f"--{name}={_UNNAMED / name}" for name in lacking]


def _describe_missing(name: str, path: Path) -> str:
    return f"the recipe names no {name} (--set {name}=PATH)" if path.parent == _UNNAMED else f"{path} does not exist"


def parse_overrides(given: Sequence[str]) -> list[str]:
    """Returns the flags of settings that are given as NAME=VALUE."""
    flags = []
    for one in given:
        name, found, value = one.partition("=")
        if not found or not name.strip():
            raise UsageError(f"set takes settings as NAME=VALUE, such as train.batch_size=512, not {one!r}.")
        flags.append(f"--{name.strip().replace('_', '-')}={value.strip()}")
    return flags


def _read_pretraining(config: PretrainConfig, plan: PlanConfig) -> Planned:
    assumed, source, vocabulary = [], None, plan.vocabulary
    if (config.corpus / "manifest.json").is_file():
        read_manifest(config.corpus)
        tokenizer = tokenizers.load(config.corpus)
        specials = roles.specials(tokenizer, str(tokenizers.file_in(config.corpus)))
        vocabulary = roles.size(tokenizer)
        source = CorpusSource(Split(config.corpus, "train"), config.packing, config.masking, specials, config.seed)
    shape = config.model.shape(vocabulary) if config.model else _find_shape(config.init, plan)
    longest = config.packing.sequence_length
    if source is None:
        full = _FULL if config.packing.mode == "full" else float(np.interp(longest, [*_PAIRS], [*_PAIRS.values()]))
        lengths = _spread(plan.fill or full, longest)
        assumed.append(
            f"{_describe_missing('corpus', config.corpus)}: a vocabulary of {shape.vocabulary:,} pieces, and sequences "
            f"that are {plan.fill or full:.0%} full"
        )
    else:
        lengths = _sample(source)
    predictions = float(count_masked(config.masking, np.array(lengths)).mean())
    pairs = config.packing.mode != "full"
    targets = {"mlm": predictions} | ({"nsp": 1.0} if pairs else {})
    return _complete(config, plan, shape, lengths, targets, {"nsp": 2}, source, assumed, config.train)


def _read_fine_tuning(config: FinetuneConfig, plan: PlanConfig) -> Planned:
    assumed, source, train, labels = [], None, config.train, 2
    if config.data.exists() and _find_folder(config.init) is not None:
        data, _ = find_splits(config.data, config.dev)
        tokenizer = tokenizers.load(model_folder(config.init))
        shape = _find_shape(config.init, plan)
        task_config = resolve(config.task, data).resolve_length(shape.positions)
        task, source = FeatureCache(config.cache, tokenizer, agreement.code()).learn(task_config, data)
        head, labels, lengths = task.head, task.labels, _sample(source)
    else:
        shape = _find_shape(config.init, plan)
        if config.task.name not in TASKS:
            raise UsageError(
                f"task.name = {config.task.name!r} needs its data: {_describe_missing('data', config.data)}."
            )
        head = task_class(config.task).head
        longest = config.task.resolve_length(shape.positions).max_length
        lengths = _spread(plan.fill or _SQUAD, longest)
        what = f"two labels, and sequences of {longest} tokens that are {plan.fill or _SQUAD:.0%} full"
        missing = [
            _describe_missing(name, path)
            for name, path in (("data", config.data), ("init", config.init))
            if not path.exists()
        ]
        assumed.append(f"{' and '.join(missing) or f'{config.init} is no model folder'}: {what}")
    size = source.size(0) if source is not None else plan.sequences
    if train.steps is None and train.epochs is None and size is not None:
        train = train.resolve(size)
    frozen = {"encoder": shape.layers, "embeddings": 0}.get(str(train.freeze), train.freeze)
    return _complete(config, plan, shape, lengths, {head: 1.0}, {head: labels}, source, assumed, train,
                int(frozen))  # fmt: skip


PLANNERS: Mapping[type, Callable[[Any, PlanConfig], Planned]] = {
    PretrainConfig: _read_pretraining,
    FinetuneConfig: _read_fine_tuning,
}
"""The verbs whose runs can be planned, by their settings, with what reads a run."""


def _complete(
    config: Any, plan: PlanConfig, shape: EncoderConfig, lengths: list[int], targets: dict[str, float],
    labels: dict[str, int], source: Any, assumed: list[str], train: Any, frozen: int = 0,
) -> Planned:  # fmt: skip
    size = source.size(0) if source is not None else plan.sequences
    if size is None and (train.epochs is not None or train.steps is None):
        raise UsageError(
            "The length of the run depends on data that do not exist: add --sequences, the sequences of an epoch."
        )
    updates = train.updates(size or 0)
    exchange = config.exchange
    work = Workload(
        shape, lengths, train.batch_size, targets, labels, config.optim.name, train.precision, train.micro_tokens,
        "float32" if exchange.method == "auto" or train.deterministic else exchange.method, exchange.rank,
        exchange.nodes == "on", exchange.sync_every, train.shard_optimizer, frozen, jitter=plan.jitter, slow=plan.slow,
    )  # fmt: skip
    return Planned(record_of(type(config)).name, config, work, updates, train.sizes.before(updates), tuple(assumed))


def _find_shape(init: Path | None, plan: PlanConfig) -> EncoderConfig:
    """Returns the shape of the encoder in `init`, or that of `size` if the folder does not exist."""
    folder = _find_folder(init) if init is not None else None
    if folder is not None:
        return layout.encoder_config(layout.read_config(folder), folder)
    if not plan.size:
        unnamed = init is None or init.parent == _UNNAMED
        what = "The recipe has neither a model nor init" if unnamed else f"The encoder {init} does not exist"
        raise UsageError(f"{what}: add --size, such as --size base.")
    if plan.size not in SIZES:
        raise UsageError(f"size = {plan.size!r} is unknown.{nearest(plan.size, SIZES)}")
    return EncoderConfig(**SIZES[plan.size], vocabulary=plan.vocabulary)


def _find_folder(init: Path) -> Path | None:
    """Returns the model folder in `init`, or None if it does not exist."""
    try:
        folder = model_folder(init)
    except (DataError, UsageError):
        return None
    return folder if (folder / layout.CONFIG).is_file() else None


def _spread(fill: float, longest: int) -> list[int]:
    """Returns lengths spread evenly around their mean, `fill` times `longest`."""
    low = max(1.0, (2 * fill - 1) * longest)
    high = 2 * fill * longest - low
    return [max(1, round(low + (high - low) * (place + 0.5) / 8)) for place in range(8)]


def _sample(source: Any) -> list[int]:
    """Returns the lengths of sequences that are spread evenly over the first epoch."""
    size = source.size(0)
    if size < 1:
        raise DataError("Epoch 0 of the data has no sequences. Provide more data.")
    indices_S = np.unique(np.arange(4096) * size // 4096)
    lengths_S = np.sort(source.lengths(np.zeros_like(indices_S), indices_S))
    return [int(length) for length in lengths_S[np.linspace(0, len(lengths_S) - 1, _SAMPLED).astype(int)]]
