"""`lambert pretrain`: trains an encoder on the shards of a corpus."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from lambert.core import settings
from lambert.core.errors import DataError, UsageError
from lambert.core.shards import Split, check_corpus, content_hash, read_manifest
from lambert.core.specials import Specials
from lambert.core.world import World
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.source import CorpusSource
from lambert.data.stream import places, sequential
from lambert.distributed.detection import detect
from lambert.engine import archive
from lambert.engine.log import append
from lambert.engine.loop import evaluate
from lambert.engine.numerics import check_gradients
from lambert.engine.precision import Precision
from lambert.engine.signals import StopRequest
from lambert.engine.step import Step
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of, predicts_next, takes_pairs
from lambert.model.files import fingerprint
from lambert.model.folder import model_folder
from lambert.model.heads import Model, build_model
from lambert.optim.optimizers import check_names
from lambert.runs.config import TrainConfig
from lambert.runs.defaults import FreshEncoderConfig
from lambert.runs.distillation import keep_layers, relation_teacher
from lambert.runs.folder import CONFIG, INITIAL_WEIGHTS, check_place, fingerprints, open_run
from lambert.runs.log import explain_few_updates, explain_unigram_loss
from lambert.runs.microbatch import check_model
from lambert.runs.publish import publish_run
from lambert.runs.result import Result, Say, silent
from lambert.runs.updates import run_to_end, run_updates
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.text.tokenizers.trial import library_errors
from lambert.verb import load_provided
from lambert.verbs.settings.pretrain import PretrainConfig

HELDOUT_SEED = 0  # held-out sequences and masks are the same for all runs on a corpus, so losses are comparable


def run(config: PretrainConfig, say: Say = silent) -> Result:
    """Trains from the newest checkpoint in `out` or from the beginning, and writes the encoder to `out`/model.

    Raises SavedAndStopped after a signal, whenever it comes.
    """
    return run_to_end(partial(updates, config, say=say), config.out)


def updates(config: PretrainConfig, stop: StopRequest | None = None, say: Say = silent) -> Iterator[Step]:
    """Yields each update of the run, with held-out scores if they were computed; the last has the final scores. Yields
    nothing if the run is complete.

    Closing the iterator, as `break` does, saves a checkpoint; the same call continues from it.
    """
    check_gradients()
    stop = StopRequest() if stop is None else stop  # without signal handlers, never requested
    config = dataclasses.replace(config, optim=config.optim.at_batch(config.train.batch_size))
    with detect(config.train.device, config.train.timeout) as world:
        with world.fail_together("preparing its corpus"):
            _check_complete(config)
            if world.is_first:
                check_place(config.out)
            check_names(config.optim)
            if config.text:
                _prepare_text(config, world, say)
        with world.fail_together("reading its data"):
            manifest = read_manifest(config.corpus)
            tokenizer = tokenizers.load(config.corpus)
            check_corpus(config.corpus, whole=config.verify)
            model = _model(config, tokenizer, world, say)
            if config.model is not None:
                config = dataclasses.replace(config, model=config.model.resolve(model.config))
            _check_packing(config.packing, model.config)
            specials = roles.specials(tokenizer, str(tokenizers.file_in(config.corpus)))
            heldout = _heldout(config, manifest["splits"]["heldout"]["documents"], specials)
            source = CorpusSource(Split(config.corpus, "train"), config.packing, config.masking, specials, config.seed)
            moments = _init_run(config) if config.keep_moments else None
            data = {"the corpus": content_hash(manifest)}
            if config.init is not None:
                data[INITIAL_WEIGHTS] = fingerprint(model_folder(config.init))
            if config.distil.teacher is not None:
                data["the teacher"] = fingerprint(model_folder(config.distil.teacher))
            length = config.packing.sequence_length
            teacher = relation_teacher(config.distil, model, tokenizer, config.code, length, world)

        def score(model: Model, precision: Precision, micro_tokens: int) -> dict[str, float]:
            if heldout is None:
                return {}
            limit = config.train.evaluate_sequences
            batches = sequential(heldout, micro_tokens=micro_tokens, rank=world.rank, world=world.size, sequences=limit)
            return evaluate(model, batches, precision, world, stop)

        first_start = world.is_first and not archive.find_last(config.out)
        with open_run(config, world, fingerprints(model, tokenizer, data)):
            if first_start and (warning := explain_few_updates(config.train, source.size(0))):
                append(config.out, warning)
                say(warning)
            entropy = manifest["splits"]["train"].get("unigram_entropy")
            scores = yield from run_updates(config, model, source, score, world, stop, say, moments, entropy, teacher)
            if scores is not None and world.is_first:
                if warning := explain_unigram_loss(scores, manifest):
                    append(config.out, warning)
                say(publish_run(config, model, tokenizer, {}, scores))
                if warning:
                    say(warning)


def score_names(config: PretrainConfig) -> list[str]:
    """Returns the names of the held-out scores; none if the corpus has no held-out part. A corpus that `text` has yet
    to make has one."""
    _check_complete(config)
    made = not config.text or config.corpus.exists()
    documents = read_manifest(config.corpus)["splits"]["heldout"]["documents"] if made else 2
    if documents < 2:
        config = dataclasses.replace(config, packing=dataclasses.replace(config.packing, mode="full"))
    return [*config.scores] if documents else []


def texts(run: Path, step: int) -> list[str]:
    """Returns the sequences of update `step` (from 1) of the run in the folder `run`, in order, with the masked words
    restored. A row of incidents.jsonl names such a step."""
    recipe = settings.read(run / CONFIG)
    corpus, seed = Path(recipe["corpus"]), recipe["seed"]
    tokenizer = tokenizers.load(corpus)
    packing, masking = PackingConfig(**recipe["packing"]), MaskingConfig(**recipe["masking"])
    specials = roles.specials(tokenizer, str(tokenizers.file_in(corpus)))
    source = CorpusSource(Split(corpus, "train"), packing, masking, specials, seed)
    batch = source.collate(*places(source, TrainConfig(**recipe["train"]).sizes, seed, step - 1))
    masked, ids_T = batch.targets["mlm"], batch.ids_T.clone()
    ids_T[masked.at_N] = masked.labels_N
    rows = (ids_T[low:high].tolist() for low, high in pairwise(batch.bounds_S1.tolist()))
    with library_errors("The tokenizer cannot decode a sequence"):
        return [tokenizer.decode(row, skip_special_tokens=False) for row in rows]


def _heldout(config: PretrainConfig, documents: int, specials: Specials) -> CorpusSource | None:
    """Returns the held-out data, masked with the defaults of MaskingConfig, or None if nothing was held out. With one
    document there are no next-sentence pairs."""
    if not documents:
        return None
    packing = config.packing if documents > 1 else dataclasses.replace(config.packing, mode="full")
    return CorpusSource(Split(config.corpus, "heldout"), packing, MaskingConfig(), specials, HELDOUT_SEED)


def _check_storable(shape: EncoderConfig) -> None:
    """Raises UsageError for settings that the family of the encoder does not have: they would have no effect, and its
    model folder could not store them."""
    family = family_of(shape)
    try:
        stored = dataclasses.replace(
            family.keys.from_json(family.keys.to_json(shape), Path("config.json")), block=shape.block
        )
    except DataError as error:
        raise UsageError(f"[model] describes no {family.title} model: {error}") from error
    for name, value, _ in _differences(shape, stored):
        if name not in ("model.block", "model.init_range"):  # stored as model_type; and used for fresh weights alone
            raise UsageError(f"{name} = {value} is not a setting of {family.title}: leave it out.")


def _differences(given: EncoderConfig, found: EncoderConfig) -> Iterator[tuple[str, Any, Any]]:
    """Yields the dotted names of the settings in which two encoders differ, with both values."""
    values = [settings.flatten(settings.as_dict(config), "model.") for config in (given, found)]
    return ((name, value, values[1][name]) for name, value in values[0].items() if value != values[1][name])


def _check_complete(config: PretrainConfig) -> None:
    """Raises UsageError that names all missing settings."""
    model = "No model: give its shape in [model] (layers, hidden, heads, ...), or a folder in init."
    lacking = [] if config.init or config.model else [model]
    if lacking := [*lacking, *filter(None, [config.train.open_question])]:
        raise UsageError(" ".join(lacking))


def _check_packing(packing: PackingConfig, shape: EncoderConfig) -> None:
    """Raises UsageError if an encoder cannot learn from sequences of this form."""
    if packing.sequence_length > shape.positions:
        raise UsageError(
            f"packing.sequence_length = {packing.sequence_length} exceeds the model's {shape.positions} positions. "
            "Shorten it, or pre-train a model with more (model.positions)."
        )
    if packing.mode != "full" and not predicts_next(shape):
        raise UsageError(
            f"packing.mode = {packing.mode!r} makes pairs for next-sentence prediction, which "
            f'{family_of(shape).title} does not have. Set packing.mode = "full".'
        )
    if packing.mode != "full" and not takes_pairs(shape):
        raise UsageError(
            f"packing.mode = {packing.mode!r} makes sequences of two segments, and the model has model.segment_types = "
            '1: set it to 2, or packing.mode = "full".'
        )


def _prepare_text(config: PretrainConfig, world: World, say: Say) -> None:
    """Converts the raw text of the run to its corpus."""
    if world.size > 1:
        raise UsageError(
            f"text is converted by one process, not {world.size}: run `lambert prepare` first, and leave text out."
        )
    assert config.init is not None  # by PretrainConfig
    tokenizer = str(folder := model_folder(config.init))
    shape = layout.encoder_config(layout.read_config(folder), folder, config.code)
    positions = (config.model and config.model.positions) or shape.positions
    _check_packing(config.packing, dataclasses.replace(shape, positions=positions))
    make = load_provided("corpus of a run")
    make(say, input=config.text, out=config.corpus, tokenizer=tokenizer, documents=config.documents)


def _model(config: PretrainConfig, tokenizer: Any, world: World, say: Say) -> Model:
    objectives, pieces = dict.fromkeys(config.packing.objectives, 0), roles.size(tokenizer)
    if config.init is None:
        assert config.model is not None  # by _check_complete
        shape = config.model.shape(pieces, roles.find_id(tokenizer, "pad") or 0)
        _check_storable(shape)
        check_model(shape, config.optim.name, world, shard_optimizer=config.train.shard_optimizer)
        return weights.draw(shape, objectives, config.seed)
    folder = model_folder(config.init)
    code = (*config.code, *([config.model.block] if config.model and config.model.block else []))
    shape = layout.encoder_config(layout.read_config(folder), folder, code)
    own = tokenizers.load(folder)
    roles.mask_id(own, str(tokenizers.file_in(folder)))  # raises if there is none
    if own.get_vocab() != tokenizer.get_vocab():
        raise DataError(
            f"{config.corpus} was prepared with another vocabulary than that of {folder}. Prepare it with "
            f"--tokenizer {folder}, or leave init out."
        )
    check_model(shape, config.optim.name, world, shard_optimizer=config.train.shard_optimizer)
    model, report = weights.load(folder, objectives, pieces, config.seed, code)
    kept_layers = keep_layers(model, config.distil.student_layers)
    for line in filter(None, [*report.warnings(), kept_layers]) if world.is_first else ():
        say(line)
    return model if config.model is None else _adjust(model, config.model, folder, say if world.is_first else silent)


def _adjust(model: Model, given: FreshEncoderConfig, folder: Path, say: Say) -> Model:
    """Returns the model of a folder with the settings of [model], and says which ones differ. Raises UsageError if
    weights depend on one of these."""
    own, adjustable = model.config, family_of(model.config).adjustable
    shape = given.resolve(own).shape(own.vocabulary, own.pad)
    for name, value, stored in _differences(shape, own):
        if name.removeprefix("model.") not in adjustable:
            raise UsageError(f"{name} = {value}, but {folder} has {stored}. With init, leave {name} out.")
        say(f"{name} is {value} from now on; {folder} has {stored}")
    if shape == own:
        return model
    adjusted = build_model(shape, model.labels, model.pooler is not None)
    weights.assign(adjusted, weights.state(model), share=True)
    return adjusted


def _init_run(config: PretrainConfig) -> Path:
    folder = config.init.parent if config.init and config.init.name == "model" else config.init
    if folder is None or not (folder / "checkpoints").is_dir():
        raise UsageError("keep_moments needs init = a run folder with checkpoints.")
    return folder
