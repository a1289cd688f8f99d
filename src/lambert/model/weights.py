"""Weights of a model: fresh ones from a seed, those of a model folder, and those of a model with a larger vocabulary.

The tensors of a folder have the names of its family, and are compared with its config.json, by names and shapes, before
a model is created.
"""

import dataclasses
import difflib
import json
import re
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from lambert.core.contents import check_sums
from lambert.core.errors import DataError, UsageError
from lambert.core.files import not_written, replace_files
from lambert.core.randomness import Stream, key
from lambert.model import files
from lambert.model import folder as layout
from lambert.model.config import EncoderConfig
from lambert.model.families import DEFAULT, family_of
from lambert.model.family import Family
from lambert.model.heads import Model, build_model
from lambert.model.labels import InitialHead, check_rows, check_values, fits, initial_head

_WRAPPERS = re.compile(r"((module|model|net|network|_forward_module|auto_model|0)\.)+")
"""Prefixes that DistributedDataParallel, DeepSpeed, Lightning, sentence-transformers and common training loops add to
the names of a model that they wrap."""
_CHUNK = 1 << 20
"""Values that are drawn at once, so that those which are drawn again are in the cache."""
ANSWERING = re.compile(r"heads\.(label|multilabel|value|choice|tag|span)\.")
"""Parameters of the heads that answer tasks."""


@dataclass(frozen=True, slots=True)
class Report:
    """Differences between a model and the file from which it was read, by the names in the file."""

    missing: tuple[str, ...]
    """In the model but not in the file: these stay fresh."""
    unexpected: tuple[str, ...]
    """In the file but not in the model: these are ignored."""
    untied: tuple[tuple[str, str], ...] = ()
    """(copy, original) of tied tensors that differ in the file: the original is used."""
    fresh_pooler: bool = False
    """Whether the pooler is missing."""
    notes: tuple[str, ...] = ()
    """Lines about settings of the file that are not used."""
    unused: tuple[str, ...] = ()
    """Lines about what the model does not use though its author may have: rows without a piece that do not pad the
    table, and layers beyond the number in config.json."""

    def check_tied(self, path: Path, heads: Collection[str]) -> None:
        """Raises DataError if one of these heads reads a tensor that is not tied in the file: its predictions would
        differ from those of transformers, which uses both tensors."""
        if self.untied and "mlm" in heads:
            copy, original = self.untied[0]
            raise DataError(
                f"{path} has a {copy} that differs from {original}: a decoder for masked pieces that is not tied to "
                "the embeddings is not supported. The encoder can be fine-tuned."
            )

    def lines(self) -> list[str]:
        """Returns a line that names the tensors for each kind of difference."""
        differences = {"fresh, not in the file": self.missing, "ignored": self.unexpected}
        return [
            f"{what}: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}"
            for what, names in differences.items()
            if names
        ]

    def warnings(self) -> list[str]:
        """Returns a line for each difference that changes the outputs that the file was trained for, or training."""
        untied = [
            f"warning: {copy} differs from {original}, to which it is tied: it was ignored."
            for copy, original in self.untied
        ]
        pooler = ["note: the pooler starts with random weights: the encoder's folder has none."] * self.fresh_pooler
        return [*untied, *pooler, *self.notes, *self.unused]


def state(model: Model) -> dict[str, Tensor]:
    """Returns the model's tensors by their names in a model folder, detached, on the CPU. The tied decoder is included
    once, as the word embeddings. Raises UsageError for heads that would share a name."""
    family = family_of(model.config)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        theirs = family.names.to_folder(name)
        if theirs in tensors:
            raise UsageError(
                "A model folder can hold only one of the heads label, multilabel, value, choice and tag, and this "
                f"model has {[*model.labels]}: save it with one."
            )
        tensors[theirs] = parameter.detach().cpu().contiguous()
    return tensors


@torch.no_grad()
def assign(model: Model, tensors: Mapping[str, Tensor], source: str = "the weights", *, share: bool = False) -> Report:
    """Copies tensors, by their names in current or older model folders, into the model.

    Args:
        model: Receives the values.
        tensors: Tensors by name.
        source: Name of their file, for errors.
        share: Whether the model takes the memory of tensors of its type instead of a copy.

    Raises DataError that names the tensor and both shapes where they differ.
    """
    family = family_of(model.config)
    found = current(family, tensors, source)
    missing, fresh_pooler = [], False
    for name, parameter in model.named_parameters():
        theirs = family.names.to_folder(name)
        tensor = found.pop(theirs, None)
        if tensor is None:
            missing.append(theirs)
            fresh_pooler |= name.startswith("pooler.")
        else:
            check_shape(theirs, tensor, tuple(parameter.shape), source)
            if share and tensor.dtype == parameter.dtype and tensor.is_contiguous():
                parameter.data = tensor
            else:
                parameter.copy_(tensor)
    return Report(tuple(missing), tuple(sorted(found)), fresh_pooler=fresh_pooler)


def current(family: Family, tensors: Mapping[str, Tensor], source: str = "the weights") -> dict[str, Tensor]:
    """Returns the weights among these tensors by their current names, without copies of tied tensors. Raises DataError
    if two tensors of the file `source` that differ have the same current name."""
    renamed: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        name = family.names.current(old)
        if name in renamed and not torch.equal(renamed[name], tensor):
            older = next(other for other in tensors if family.names.current(other) == name)
            raise DataError(
                f"{source} has {older} and {old}, two names of one tensor, with different values: write the model "
                "again with the right one."
            )
        if name:
            renamed[name] = tensor
    for copy, original in family.names.tied.items():
        if copy in renamed:
            renamed.setdefault(original, renamed[copy])
    return {name: tensor for name, tensor in renamed.items() if name not in family.names.tied}


def draw(config: EncoderConfig, heads: Mapping[str, int], seed: int = 0) -> Model:
    """Returns a model with fresh weights: matrices are normal with standard deviation `init_range`, truncated at two
    standard deviations, biases are 0, and norms are 1. Each tensor depends only on the seed and its name.

    Args:
        config: The encoder.
        heads: Number of labels of each objective, as in `Model`.
        seed: Seed of the draws.

    Raises UsageError if `init_range` is 0.

    Source: google-research/bert, modeling.py, create_initializer.
    """
    if not config.init_range:
        raise UsageError(
            "model.init_range = 0 makes all units of a layer equal, and training keeps them equal: set it above 0."
        )
    model = build_model(config, heads)
    initialise(model, seed)
    return model


@torch.no_grad()
def initialise(model: Model, seed: int, names: Collection[str] | None = None) -> None:
    """Fills the model as `draw` does, or only the tensors with these `names` in a model folder.

    Matrices that fine-tuning adds, those of its heads and those that the given encoder lacks, are drawn as in
    transformers: not truncated, except in families that are `truncated`. Truncated matrices are 12% smaller and learn
    more slowly (docs/log.md).
    """
    constant, family = model.config.init_range == 0, family_of(model.config)
    draws: list[_Draw] = []
    for name, parameter in model.named_parameters():
        theirs = family.names.to_folder(name)
        if names is not None and theirs not in names:
            continue
        if name.endswith("bias") or (constant and parameter.ndim > 1):
            parameter.zero_()
        elif parameter.ndim == 1:  # the scale of a norm, whatever its class
            parameter.fill_(1.0)
        else:
            number = int(key(seed, Stream.INIT, zlib.crc32(theirs.encode()))) >> 1
            std = family.initial_deviation(model.config, name)
            added = names is not None or ANSWERING.match(name) is not None
            draws.append(_Draw(parameter, number, std, family.truncated or not added))
    with ThreadPoolExecutor(torch.get_num_threads(), "lambert-weights") as pool:
        deque(pool.map(_Draw.fill, draws), maxlen=0)


@dataclass(frozen=True, slots=True)
class _Draw:
    """Fills a matrix from a normal distribution, truncated at two standard deviations or not."""

    parameter: Tensor
    seed: int
    std: float
    truncated: bool

    @torch.no_grad()
    def fill(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        values = torch.empty(self.parameter.numel())
        for part in torch.split(values, _CHUNK):
            part.normal_(0.0, self.std, generator=generator)
            if self.truncated:
                self._draw_again(part, generator)
        self.parameter.copy_(values.view(self.parameter.shape))

    def _draw_again(self, part: Tensor, generator: torch.Generator) -> None:
        """Draws the values beyond two standard deviations until none is. In torch this depends on the version."""
        beyond = (part.abs() > 2 * self.std).nonzero()[:, 0]
        while len(beyond):
            values = torch.empty(len(beyond)).normal_(0.0, self.std, generator=generator)
            part[beyond] = values
            beyond = beyond[values.abs() > 2 * self.std]


def save(model: Model, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
    """Writes `config.json` and `model.safetensors`, which `AutoModel.from_pretrained(folder)` reads.

    Both files are written under temporary names and renamed, config.json last. After a full disk or an interruption the
    folder holds the files that it held before, or no model, but no incomplete file.

    Args:
        model: The model.
        folder: Model folder; created if necessary.
        extra: Keys to add to config.json, such as id2label.

    Raises `not_written` if a file cannot be written.
    """
    folder = Path(folder)
    config = layout.config_of(model) | dict(extra or {})
    contents = {
        folder / files.WEIGHTS: safetensors.torch.save(state(model), metadata={"format": "pt"}),
        folder / layout.CONFIG: (json.dumps(config, indent=2) + "\n").encode(),
    }
    try:
        replace_files(contents)
    except OSError as error:
        raise not_written(folder, error) from error


def load(
    folder: Path,
    heads: Mapping[str, int] | None = None,
    vocabulary: int | None = None,
    seed: int = 0,
    code: Collection[str] = (),
    pooler: bool = False,
    share: bool = False,
    stored: tuple[files.Tensors, Path] | None = None,
    labels: Sequence[str] | None = None,
) -> tuple[Model, Report]:
    """Returns the model in a Hugging Face folder, and how it differs from the folder's tensors.

    Args:
        folder: Model folder.
        heads: Number of labels of each objective, as in `Model`; None: the heads of the folder. Heads that the folder
            lacks are fresh.
        vocabulary: Number of pieces of the tokenizer. The tables may have a few more rows, which stay as they are.
        seed: Seed of fresh tensors.
        code: Names of the code from outside Lambert that the folder may ask for.
        pooler: Whether to keep a pooler of the folder that no head reads.
        share: Whether the weights stay in the mapped file, instead of a copy. Changes of the weights are not written to
            the file. The file must not be written to or truncated while the model exists; it may be replaced.
        stored: Tensors and the path of their file, in place of the folder's.
        labels: The labels of a task to train, in the order of its outputs: of the folder's head, the rows of these
            labels are kept (`initial_head`). None: the folder's head is used as it is, with the labels that it has.

    Raises DataError for a folder that is damaged, lacks tensors of the encoder, or contradicts its config.json or
    `vocabulary`; UsageError for code that is not in `code`.
    """
    folder = Path(folder)
    with ThreadPoolExecutor(1, "lambert-sums") as pool:
        sums = pool.submit(check_sums, folder)  # reads the files while this thread does
        read, path = files.read(folder) if stored is None else stored
        settings = layout.read_config(folder)
        layout.check_named_file(settings, path)
        config = layout.encoder_config(settings, folder, code)
        family = family_of(config)
        read, wrapper = unwrap_names(family, read, path)
        tensors, untied = current(family, read, str(path)), find_untied_copies(family, read)
        unused = [layout.describe_spare_layers(_count_layers(family, tensors), config)]
        if vocabulary is not None:
            words = tensors.get(family.names.to_folder("encoder.words.weight"))
            rows = config.vocabulary if words is None or not words.ndim else len(words)
            layout.check_vocabulary(rows, vocabulary, path)
            unused.insert(0, layout.describe_spare_rows(rows, vocabulary))
        own_heads = heads is None
        heads = layout.heads_of(settings, tensors, folder) if heads is None else heads
        pooler = pooler and family.names.to_folder("pooler.weight") in tensors
        check_sizes(config, heads, tensors, path, pooler)
        model = build_model(config, heads, pooler)
        used = {family.names.to_folder(name) for name, _ in model.named_parameters()}
        head = next((name for name in heads if ANSWERING.match(f"heads.{name}.")), "")
        initial = _initial_head(head, heads.get(head, 0), labels, settings, tensors, folder)
        found = _with_head(head, initial, tensors, family)
        files.check_finite(((name, tensor) for name, tensor in found.items() if name in used), path)
        notes = [line for line in (*layout.list_ignored(settings, config), *wrapper, initial.note) if line]
        report = assign(model, found, str(path), share=share)
        report = dataclasses.replace(report, untied=untied, notes=tuple(notes), unused=tuple(filter(None, unused)))
        check_lacking(family, dict(model.named_parameters()), tensors, path)
        if own_heads:
            check_promised(model, report.missing, path)
            report.check_tied(path, heads)
        initialise(model, seed, report.missing)  # last, because drawing all tensors would take most of the time
        if initial.kept and not initial.whole:
            _copy_rows(model, head, initial.rows, tensors)
        sums.result()  # last, because the errors above say more
    return model, report


def _initial_head(
    head: str, count: int, labels: Sequence[str] | None, settings: Mapping[str, Any], tensors: Mapping[str, Tensor],
    folder: Path,
) -> InitialHead:  # fmt: skip
    """Returns the part of the folder's head that initialises the model's head, which has `count` labels. Raises
    DataError if the whole head is used and has another number of labels."""
    family = layout.check_family(settings, folder)
    rows = layout.head_rows(head, tensors, family) if head else 0
    if not rows:
        return InitialHead(kept=True)  # the folder has no such head; `check_promised` finds one that it should have
    own = layout.find_task_head(settings, family)
    if labels is not None:
        return initial_head(head, labels, own, settings, rows, folder)
    usable = not own or fits(head, own)
    if usable and head in layout.LABELLED_HEADS:
        if head == "value":
            check_values(rows, folder / layout.CONFIG)
        check_rows(count or 1, rows, folder / layout.CONFIG)
    return InitialHead(kept=usable)


def _row_names(head: str, family: Family) -> tuple[str, ...]:
    """Returns the names in a model folder of the tensors of a head that have a row for each label."""
    return tuple(family.names.to_folder(f"heads.{head}.classifier.{kind}") for kind in ("weight", "bias"))


def _with_head(head: str, initial: InitialHead, tensors: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Returns the tensors of a folder with the kept rows of its head, in the order of the model's labels; without the
    head's rows if some are fresh. Layers before the rows are kept."""
    rowed = _row_names(head, family) if head else ()
    if not initial.kept or not initial.whole:
        return {name: tensor for name, tensor in tensors.items() if name not in rowed}
    order = torch.tensor(initial.rows)
    return {name: tensor[order] if initial.rows and name in rowed else tensor for name, tensor in tensors.items()}


@torch.no_grad()
def _copy_rows(model: Model, head: str, rows: Sequence[int | None], tensors: Mapping[str, Tensor]) -> None:
    """Copies rows of a folder's head into the model's head. A row that is None keeps its fresh weights."""
    parameters = {family_of(model.config).names.to_folder(name): value for name, value in model.named_parameters()}
    own = [number for number, row in enumerate(rows) if row is not None]
    for name in _row_names(head, family_of(model.config)):
        if name in parameters and name in tensors:
            theirs = tensors[name][torch.tensor([row for row in rows if row is not None])]
            parameters[name][torch.tensor(own)] = theirs.to(parameters[name].dtype)


@torch.no_grad()
def extend_vocabulary(model: Model, pieces: int, rows: Mapping[int, Sequence[int]]) -> Model:
    """Returns a copy of a model with a larger vocabulary, whose outputs for the old pieces are unchanged.

    The embedding of a new piece is the mean of the embeddings of old pieces, and its bias in the masked-LM head the
    mean of theirs, so its masked-LM logit is the mean of theirs.

    Args:
        model: A model with at least `pieces` rows; those after them pad the table and are removed.
        pieces: Number of pieces of its tokenizer.
        rows: Number of each new row of the table, the rows whose mean it is. Numbers below `pieces` replace old rows;
            the others follow them without gaps.

    Source of the mean: Koto, Lau and Baldwin 2021, "IndoBERTweet", EMNLP: the average of the subword embeddings.
    """
    tensors, family = state(model), family_of(model.config)
    size = max(pieces, *(number + 1 for number in rows))
    for name in map(family.names.to_folder, layout.BY_PIECE):
        if name in tensors:
            old = tensors[name]
            new = torch.cat([old[:pieces], old.new_empty(size - pieces, *old.shape[1:])])
            new[[*rows]] = torch.stack([old[[*ids]].mean(0) for ids in rows.values()])
            tensors[name] = new
    config = dataclasses.replace(model.config, vocabulary=size)
    larger = build_model(config, model.labels, model.pooler is not None)
    assign(larger, tensors)
    return larger


def check_sizes(
    config: EncoderConfig, heads: Mapping[str, int], tensors: Mapping[str, Tensor], path: Path, pooler: bool
) -> None:
    """Raises DataError if the shapes of the tensors are not those of such a model. Allocates no memory, and takes a
    time that does not depend on the sizes in config.json."""
    family = family_of(config)
    words = family.names.to_folder("encoder.words.weight")
    if words not in tensors:
        raise DataError(f"{path} lacks {words}.")
    # First, because a size that no tensor has may be too large even for the meta device.
    check_shape(words, tensors[words], (config.vocabulary, config.table_width), str(path))
    layers = _count_layers(family, tensors)
    if config.layers > layers:
        key = family.keys.fields["layers"]
        raise DataError(f"{path} lacks {family.names.layer}{layers}: config.json has {key} = {config.layers}.")
    custom = config.custom_block  # a block from outside may not support the meta device
    if custom:
        config, heads = dataclasses.replace(config, block=DEFAULT, layers=1), {}
    with torch.device("meta"):
        model = build_model(config, heads, pooler)
    own = {name: p for name, p in model.named_parameters() if not (custom and name.startswith("encoder.blocks."))}
    check_lacking(family, own, tensors, path)
    for name, parameter in own.items():
        theirs = family.names.to_folder(name)
        if theirs in tensors and not ANSWERING.match(name):
            check_shape(theirs, tensors[theirs], tuple(parameter.shape), str(path))


def _count_layers(family: Family, tensors: Iterable[str]) -> int:
    """Returns the number of layers that have tensors."""
    prefixes = (family.names.layer, family.names.to_folder("encoder.blocks."))
    numbers = re.compile(f"(?:{'|'.join(map(re.escape, prefixes))})(\\d+)\\.")
    return len({found[1] for name in tensors if (found := numbers.match(name))})


def check_lacking(family: Family, names: Iterable[str], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raises DataError if tensors of the encoder are missing among these parameters of a model."""
    stored = [family.names.to_folder(name) for name in names if name.startswith("encoder.")]
    lacking = [name for name in stored if name not in tensors]
    if lacking:
        known = {*stored, *family.names.tied}
        others = [name for name in tensors if name not in known and name.startswith(family.names.prefix)]
        close = difflib.get_close_matches(lacking[0], others, n=1)
        instead = f" It has {close[0]}, which is unknown." if close else ""
        more = f" and {len(lacking) - 1} more tensors of the encoder" if len(lacking) > 1 else ""
        raise DataError(f"{path} lacks {lacking[0]}{more}.{instead}")


def unwrap_names(family: Family, tensors: Mapping[str, Tensor], path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Removes prefixes that wrappers of a model add to names, such as `module.` (DistributedDataParallel) and
    `_orig_mod.` (torch.compile). Returns the tensors and a line about the wrapper. Only a prefix that the name of the
    table of words has is removed.

    Raises DataError if two tensors would have the same name.
    """
    words = family.names.to_folder("encoder.words.weight")
    names = {name: name.replace("_orig_mod.", "") for name in tensors}
    ends = (words, words.removeprefix(family.names.prefix))
    prefixes = {name[: -len(end)] for name in names.values() for end in ends if name.endswith(end)}
    prefixes = {prefix for prefix in prefixes if prefix in ("", family.names.prefix) or _WRAPPERS.fullmatch(prefix)}
    prefix = prefixes.pop() if len(prefixes) == 1 else ""
    prefix = "" if prefix == family.names.prefix else prefix
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = names[name].removeprefix(prefix)
        if own in found:
            raise DataError(f"{path} has the tensor {own} twice, once as {name}: write the bare model again.")
        found[own] = tensor
    changed = next((name for name in tensors if name not in found), "")
    note = f"note: tensors have the names of a wrapped model, such as {changed}: they are read without the wrapper."
    return found, [note] * bool(changed)


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], source: str) -> None:
    """Raises DataError if a tensor of the file `source` has another shape than in the model."""
    if tuple(tensor.shape) != shape:
        shapes = f"{list(tensor.shape)} in {source}, {list(shape)} in the model"
        raise DataError(f"The shape of {name} is {shapes}. Check config.json and the recipe's model.")


def find_untied_copies(family: Family, tensors: Mapping[str, Tensor]) -> tuple[tuple[str, str], ...]:
    """Returns (copy, original) of the tied tensors that differ in a file."""
    renamed = {family.names.current(name): tensor for name, tensor in tensors.items()}
    return tuple(
        (copy, original)
        for copy, original in family.names.tied.items()
        if copy in renamed and original in renamed and not torch.equal(renamed[copy], renamed[original])
    )


def check_promised(model: Model, missing: Collection[str], path: Path) -> None:
    """Raises DataError if the folder lacks tensors of a task's head that its config.json names: with fresh tensors the
    predictions would be random."""
    family = family_of(model.config)
    for name, _ in model.named_parameters():
        if ANSWERING.match(name) and family.names.to_folder(name) in missing:
            raise DataError(
                f"{path} lacks {family.names.to_folder(name)}, a head that architectures in config.json promise. "
                "Correct architectures, or fetch the fine-tuned weights."
            )
