"""Compares an export with the model on real text.

In shape suffixes, B is the number of rows and M their length.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lambert.core.batch import Batch, Target, flat_batch
from lambert.core.errors import DataError
from lambert.model.families import takes_pairs
from lambert.model.pooling import find_pooling
from lambert.model.publish import scale_difference
from lambert.text.tokenizers.roles import get_declared
from lambert.text.tokenizers.trial import library_errors
from lambert.wings.convert.original import Original
from lambert.wings.convert.padded import NO_HEAD, input_names, outputs_of

Arrays = Mapping[str, npt.NDArray[Any]]
Runtime = Callable[[Arrays], Arrays]
"""Computes the outputs by name from the inputs by name, as an exported model names them."""

TEXTS = (
    "The meeting was moved to Thursday because two of the speakers missed their train.",
    "Yes.",
    "Prices rose by 3.7 % in March, the central bank said; economists had expected 2.9 %.",
    "Der Zug nach München fährt heute über Nürnberg und kommt um 17:45 Uhr an.",
    "Le musée est fermé le lundi, sauf pendant les vacances d'été.",
    "Вчера вечером в городе начался сильный снегопад.",
    "今天下午三点在图书馆有一场关于古代建筑的讲座。",
    "東京駅から歩いて十分ほどの小さな喫茶店です。",
    "كتبت الطالبة رسالة طويلة إلى معلمتها القديمة.",
    "हमें कल सुबह जल्दी निकलना होगा ताकि बस मिल सके।",
    "Η θάλασσα ήταν ήρεμη και ο ουρανός καθαρός.",
    "def mean(values): return sum(values) / len(values)  # raises ZeroDivisionError for []",
)
"""Sentences of several lengths in several scripts, written for this comparison."""
LONGEST = 160
"""Maximum tokens of a row: more than the window of ModernBERT, and few enough for the logits of all pieces."""
_ROWS = 4


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Padded rows and the outputs of the model for them."""

    inputs: Arrays
    """int64 [B, M], or [B, C, M] for models of choices."""
    lengths: tuple[int, ...]
    """Number of tokens of each row, in the order of the flattened rows."""
    expected: Arrays
    """float32 outputs by name: [B, ...], or the rows of the T real tokens [T, ...]."""
    texts: tuple[str, ...] = ()
    """The text of each row, if each is a single text."""


def samples(original: Original) -> Iterator[SampleRows]:
    """Yields a short row alone, several padded rows, a row of text pairs, and a long row, each with the outputs of the
    model in float32."""
    singles = [[text] for text in TEXTS]
    pairs = [[first, second] for first, second in zip(TEXTS[:3], TEXTS[3:6], strict=True)]
    long = [[" ".join(TEXTS)]]
    groups = [singles[:1], singles[1:2], *(singles[low : low + _ROWS] for low in range(0, len(singles), _ROWS)), long]
    if takes_pairs(original.model.config) and not original.vectors:
        groups.append(pairs)
    if "choice" in original.model.labels:
        groups = [group for group in groups if len(group) in (1, _ROWS)]
    for group in groups:
        yield _rows(original, group)


@library_errors()
def _rows(original: Original, texts: Sequence[Sequence[str]]) -> SampleRows:
    longest = min(original.longest, LONGEST)
    found = [encode(original.tokenizer, parts, longest) for parts in texts]
    ids, types = [one for one, _ in found], [one for _, one in found]
    batch = _batch(original, ids, types)
    single = tuple(parts[0] for parts in texts) if all(len(parts) == 1 for parts in texts) else ()
    with torch.inference_mode():
        expected = compute_outputs(original, batch)
    names = input_names(original.model)
    return SampleRows(pad(ids, types, names, _shape(original, len(ids))), tuple(map(len, ids)), expected, single)


def encode(tokenizer: Any, texts: Sequence[str], longest: int) -> tuple[list[int], list[int]]:
    """Returns the token ids and segment types of a text or a pair. Of more than `longest` tokens, those before the last
    one are left out or, if the tokenizer cuts texts on the left, those after the first one."""
    found, side = tokenizer.encode(*texts), get_declared(tokenizer).truncation_side
    beyond = max(0, len(found.ids) - longest)
    start = 1 if side == "left" else len(found.ids) - 1 - beyond
    ids, types = ([*row[:start], *row[start + beyond :]] for row in (found.ids, found.type_ids))
    return ids, types


def _shape(original: Original, rows: int) -> tuple[int, ...]:
    if "choice" not in original.model.labels:
        return (rows,)
    return (rows // 2, 2) if rows % 2 == 0 else (rows, 1)


def pad(
    ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]], names: Sequence[str], shape: tuple[int, ...] = ()
) -> Arrays:
    """Returns the inputs of these `names` for sequences of token ids, padded on the right with zeros. `shape` is that
    of the rows, by default [B]."""
    longest = max(map(len, ids))
    values = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids], "token_type_ids": types}
    out = {}
    for name in names:
        rows = [[*row, *[0] * (longest - len(row))] for row in values[name]]
        out[name] = np.array(rows, dtype=np.int64).reshape(*(shape or (len(ids),)), longest)
    return out


def _batch(original: Original, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]]) -> Batch:
    flat = np.array([piece for row in ids for piece in row], dtype=np.int64)
    kinds = np.array([kind for row in types for kind in row], dtype=np.int64)
    targets = {"mlm": Target(torch.arange(len(flat)), torch.from_numpy(flat))}
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    return flat_batch(flat, kinds if original.segments else np.zeros_like(flat), lengths, targets)


def compute_outputs(original: Original, batch: Batch) -> Arrays:
    """Returns the outputs of the model for a flat batch by the names that an exported model has."""
    model, found = original.model, {}
    if not model.labels or original.vectors:
        found[NO_HEAD[0]] = model.encoder(batch)
    for head, values in model.outputs(batch).items():
        names = outputs_of(head)
        if head == "span":
            found |= dict(zip(names, values.unbind(-1), strict=True))
            continue
        if find_pooling(head) is not None:
            values = original.finish(values)  # noqa: PLW2901
        found[names[-1]] = values
    return {name: _numpy(values) for name, values in found.items()}


def _numpy(values: Tensor) -> npt.NDArray[Any]:
    out: npt.NDArray[Any] = values.float().numpy()
    return out


@dataclass(slots=True)
class LargestDifference:
    """The largest difference from the model's outputs so far."""

    absolute: float = 0.0
    outputs: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The largest difference and the largest magnitude of each output."""
    squares: float = 0.0
    """Sum of the squares of all differences."""
    expected_squares: float = 0.0
    """Sum of the squares of all expected outputs."""

    @property
    def scaled(self) -> float:
        """The largest difference, each divided by the largest magnitude of its output if that is above 1."""
        return max((scale_difference(*found) for found in self.outputs.values()), default=0.0)

    @property
    def relative(self) -> float:
        """The root mean square of the differences, as a share of that of the model's outputs."""
        return math.sqrt(self.squares / max(self.expected_squares, 1e-30))

    def add(self, rows: SampleRows, found: Arrays) -> None:
        """Compares outputs. Raises DataError if one is missing, has another shape or is not finite."""
        for name, expected in rows.expected.items():
            if name not in found:
                raise DataError(f"the exported model has no output {name!r}; nothing was written.")
            values = real(np.asarray(found[name], dtype=np.float32), rows, expected.shape[0])
            if values.size != expected.size:
                raise DataError(
                    f"the output {name!r} has the shape {list(values.shape)}, the model's {list(expected.shape)}; "
                    "nothing was written."
                )
            if not np.isfinite(values).all():
                raise DataError(f"the output {name!r} is not finite; nothing was written.")
            differences = values.reshape(expected.shape) - expected
            so_far, magnitude = self.outputs.get(name, (0.0, 0.0))
            so_far = max(so_far, float(np.abs(differences).max()))
            self.outputs[name] = so_far, max(magnitude, float(np.abs(expected).max()))
            self.absolute = max(self.absolute, so_far)
            self.squares += float(np.square(differences, dtype=np.float64).sum())
            self.expected_squares += float(np.square(expected, dtype=np.float64).sum())


def real(values: npt.NDArray[Any], rows: SampleRows, count: int) -> npt.NDArray[Any]:
    """Returns the values of the real tokens, `count` in number, if there is a value for each place of the rows;
    otherwise all values."""
    mask = rows.inputs["attention_mask"].reshape(len(rows.lengths), -1) > 0
    if count != sum(rows.lengths) or values.shape[:2] != mask.shape:
        return values
    chosen: npt.NDArray[Any] = values[mask]
    return chosen
