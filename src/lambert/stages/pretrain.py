"""`lambert pretrain`: shards to an encoder."""

import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from lambert.core import config as settings
from lambert.core.errors import DataError, UsageError
from lambert.core.shards import Split, read_manifest
from lambert.core.specials import Specials
from lambert.corpus import tokenizer as tokenizers
from lambert.data.masking import MaskingConfig
from lambert.data.packing import PackingConfig
from lambert.data.source import CorpusSource
from lambert.data.stream import once, places
from lambert.engine.cluster.dist import World
from lambert.engine.exchange.methods import ExchangeConfig
from lambert.engine.guard import GuardConfig
from lambert.engine.loop import evaluate
from lambert.engine.precision import Precision
from lambert.engine.signals import StopRequest, polite
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.optim.config import OptimConfig
from lambert.stages.config import LogConfig, TrainConfig
from lambert.stages.folder import CONFIG, open_run, seen
from lambert.stages.inference import model_folder
from lambert.stages.publish import publish_run
from lambert.stages.training import fit, standing

HELDOUT_SEED = 0  # held-out sequences and masks are the same for every run on a corpus, so that losses compare


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """Masked-LM pre-training, with next sentences where the packing has pairs. The same command again continues."""

    corpus: Path
    """Folder that `lambert prepare` wrote."""
    out: Path
    """Run folder: settings, metrics, checkpoints, and the encoder in model/."""
    init: Path | None = None
    """Model folder or run folder to start from; not set: fresh weights in the shape of [model]."""
    keep_moments: bool = False
    """Take over the optimizer's moments from the run in `init` too; by default a new stage begins with fresh ones."""
    from_scratch: bool = False
    """Begin anew where all checkpoints in `out` are damaged; otherwise that is refused, with a list of them."""
    seed: int = 42
    """Decides the fresh weights, the order of the data, the masks and dropout."""
    model: EncoderConfig | None = None
    """Shape of the encoder; not set: that of `init`."""
    packing: PackingConfig = field(default_factory=PackingConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    log: LogConfig = field(default_factory=LogConfig)


def run(config: PretrainConfig) -> None:
    """Trains, or goes on where the run folder was left, and writes the encoder into `out`/model.

    Raises SavedAndStopped after a signal, wherever it comes.
    """
    with polite(standing(config.out)) as stop:
        _train(config, stop)


def _train(config: PretrainConfig, stop: StopRequest) -> None:
    with World.detect(config.train.device, config.train.timeout) as world:
        with world.together("reading its data"):
            manifest = read_manifest(config.corpus)
            tokenizer = tokenizers.load(config.corpus)
            model = _model(config, tokenizer)
            if config.packing.sequence_length > model.config.positions:
                raise UsageError(
                    f"packing.sequence_length = {config.packing.sequence_length} exceeds the model's "
                    f"{model.config.positions} positions. Shorten it, or pre-train a model with more (model.positions)."
                )
            specials = tokenizers.specials(tokenizer)
            source = _source(config.corpus, config.packing, config.masking, specials, config.seed)
            heldout = _heldout(config, manifest["splits"]["heldout"]["documents"], specials)
            moments = _init_run(config) if config.keep_moments else None

        def score(model: Model, precision: Precision, micro_tokens: int) -> dict[str, float]:
            if heldout is None:
                return {}
            limit = config.train.evaluate_sequences
            batches = once(heldout, micro_tokens=micro_tokens, rank=world.rank, world=world.size, sequences=limit)
            return evaluate(model, batches, precision, world, stop)

        with open_run(config, world, seen(model, tokenizer, {"the corpus": config.corpus / "manifest.json"})):
            scores = fit(config, model, source, score, world, stop, moments)
            if scores is not None and world.is_first:
                publish_run(config, model, tokenizer, {}, scores)


def texts(run: Path, step: int) -> list[str]:
    """The sequences that update `step`, from 1, of the run in the folder `run` saw, in their order, with the words that
    it masked: what a row of incidents.jsonl is about."""
    recipe = settings.read(run / CONFIG)
    corpus, seed = Path(recipe["corpus"]), recipe["seed"]
    tokenizer = tokenizers.load(corpus)
    packing, masking = PackingConfig(**recipe["packing"]), MaskingConfig(**recipe["masking"])
    source = _source(corpus, packing, masking, tokenizers.specials(tokenizer), seed)
    batch = source.collate(*places(source, recipe["train"]["batch_size"], seed, step - 1))
    masked, ids_T = batch.targets["mlm"], batch.ids_T.clone()
    ids_T[masked.at_N] = masked.labels_N
    rows = (ids_T[low:high].tolist() for low, high in pairwise(batch.bounds_S1.tolist()))
    return [tokenizer.decode(row, skip_special_tokens=False) for row in rows]


def _source(
    corpus: Path, packing: PackingConfig, masking: MaskingConfig, specials: Specials, seed: int
) -> CorpusSource:
    return CorpusSource(Split(corpus, "train"), packing, masking, specials, seed)


def _heldout(config: PretrainConfig, documents: int, specials: Specials) -> CorpusSource | None:
    """What the run is scored on; None where nothing was held out. One document alone has no random next sentences."""
    if not documents:
        return None
    packing = config.packing if documents > 1 else dataclasses.replace(config.packing, mode="full")
    masking = dataclasses.replace(config.masking, rate=0.15, whole_word=False, max_predictions=None)
    return CorpusSource(Split(config.corpus, "heldout"), packing, masking, specials, HELDOUT_SEED)


def _model(config: PretrainConfig, tokenizer: Any) -> Model:
    objectives = {"mlm": 0} if config.packing.mode == "full" else {"mlm": 0, "nsp": 0}
    pieces = tokenizer.get_vocab_size()
    if config.init is None:
        if config.model is None:
            raise UsageError("No model: give its shape in [model] (layers, hidden, heads, ...), or a folder in init.")
        if config.model.vocabulary not in (0, pieces):
            raise UsageError(
                f"model.vocabulary = {config.model.vocabulary}, but the corpus has {pieces} pieces; drop it."
            )
        return weights.fresh(dataclasses.replace(config.model, vocabulary=pieces), objectives, config.seed)
    folder = model_folder(config.init)
    if tokenizers.load(folder).get_vocab() != tokenizer.get_vocab():
        raise DataError(
            f"{config.corpus} was prepared with another vocabulary than that of {folder}. Prepare it with "
            f"--tokenizer {folder}, or drop init."
        )
    model = weights.load(folder, objectives, pieces, config.seed)
    if config.model is not None:
        given = dataclasses.replace(config.model, vocabulary=pieces)
        for name in (f.name for f in dataclasses.fields(given)):
            if getattr(given, name) != getattr(model.config, name):
                theirs, ours = getattr(model.config, name), getattr(given, name)
                raise UsageError(f"model.{name} = {ours}, but {folder} has {theirs}. With init, leave [model] out.")
    return model


def _init_run(config: PretrainConfig) -> Path:
    folder = config.init.parent if config.init and config.init.name == "model" else config.init
    if folder is None or not (folder / "checkpoints").is_dir():
        raise UsageError("keep_moments needs init = a run folder with checkpoints.")
    return folder
