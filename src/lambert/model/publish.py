"""Writes model folders that are complete or absent, and verifies their outputs before they appear."""

import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lambert.core.batch import Batch, Target, flat_batch
from lambert.core.contents import write_sums
from lambert.core.errors import DataError
from lambert.core.files import atomic_folder, write_errors, write_files
from lambert.core.randomness import below, key, words
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.families import reads_segments
from lambert.model.heads import Model

TOLERANCE = 2e-5
"""Maximum of `scaled` for outputs in float32: four times the rounding noise of float32 for BERT-Base (our choice)."""
NOISE = 4
"""Maximum difference from another program, as a multiple of that program's rounding error, which is its difference from
itself in float64. Both programs have such errors, and the largest of a few thousand varies by a factor of about 2
(our choice)."""


class NotFinite(DataError):
    """An output of the model is not finite, so the model is not written."""


def publish(
    model: Model,
    folder: Path,
    write_tokenizer: Callable[[Path], None],
    extra: Mapping[str, Any],
    *,
    card: str = "",
    files: Mapping[str, str | bytes] | None = None,
    replace: bool = False,
    compare: bool = False,
    check: Callable[[Path], None] = lambda folder: None,
) -> str:
    """Writes a model folder beside `folder`, reads it back, compares its outputs with the model's, and renames it.

    Args:
        write_tokenizer: Writes the tokenizer's files to the folder that it is given.
        extra: Added to config.json.
        card: Text of README.md; empty: none is written.
        files: Contents of more files, by their paths in the folder.
        replace: Whether an existing folder is replaced.
        compare: Also compare the outputs with those of transformers, where it is installed.
        check: Called with the complete folder before it is renamed; raises an error to refuse it.

    Returns:
        A line about what was verified.

    Raises:
        NotFinite: An output is not finite.
        DataError: An output differs. `folder` is unchanged.
        LambertError: `folder` cannot be written (`not_written`).
    """
    training = model.training
    with write_errors(folder), atomic_folder(folder, replace=replace) as aside:
        weights.save(model, aside, extra)
        write_tokenizer(aside)
        write_files(aside, {**({"README.md": card} if card else {}), **(files or {})})
        write_sums(aside)
        try:
            said = _verify(model.eval(), aside, compare)
            check(aside)
            return said
        finally:
            model.train(training)


def _verify(model: Model, folder: Path, compare: bool) -> str:
    device = next(model.parameters()).device
    batch = _sample(model).to(device)
    with torch.inference_mode():
        expected = _outputs(model, batch)
        pooler, code = model.pooler is not None, (model.config.block,)
        read, _ = weights.load(folder, heads=model.labels, code=code, pooler=pooler)
        again = _outputs(read.eval().to(device), batch)
        for name, logits in expected.items():
            if not torch.isfinite(logits).all():
                raise NotFinite(f"The output {name!r} is not finite: the weights are too large. Nothing was written.")
            if not torch.equal(logits, again[name]):
                raise DataError(
                    f"{folder}: the output {name!r} of the model that was read back differs; nothing was written."
                )
        if not compare or model.config.custom_block:
            return "verified: reads back bit for bit"
        if importlib.util.find_spec("transformers") is None:
            return "verified: reads back bit for bit (pip install transformers to compare with it too)"
        architecture, _ = layout.architecture(model.config, model.labels)
        if not hasattr(importlib.import_module("transformers"), architecture):
            return f"verified: reads back bit for bit (transformers has no {architecture})"
        difference = _compare(model, folder, batch, expected)
    return f"verified: reads back bit for bit; largest difference from transformers {difference:.1e}"


def scale_difference(difference: float, largest: float) -> float:
    """Returns a difference of outputs, divided by the largest magnitude of the outputs if it is above 1. The rounding
    error of float32 is proportional to the number, so two correct programs differ more where outputs are large."""
    return difference / max(1.0, largest)


def _compare(model: Model, folder: Path, batch: Batch, expected: Mapping[str, Tensor]) -> float:
    """Returns the largest difference of the outputs from those of transformers.

    Raises DataError if transformers cannot read the folder, or if an output differs by more than TOLERANCE and by more
    than NOISE times the rounding error of transformers, its difference from its own result in float64. The second
    bound is for models that amplify rounding errors.
    """
    try:
        found = _by_transformers(model, folder, batch, expected)
    except (MemoryError, RuntimeError):
        raise
    except Exception as error:  # the classes of many libraries
        said = " ".join(str(error).split())[:200].rstrip(".")
        raise DataError(
            f"transformers cannot read the folder ({type(error).__name__}: {said}); nothing was written. Compare its "
            f"{layout.CONFIG} with that of a model of the same family."
        ) from error
    differences = {name: _difference(expected[name], logits) for name, logits in found.items()}
    largest = {name: float(expected[name].abs().max()) for name in found}
    large = [name for name, one in differences.items() if not scale_difference(one, largest[name]) <= TOLERANCE]
    exact = _by_transformers(model, folder, batch, large, torch.float64) if large else {}
    for name in large:
        if not differences[name] <= NOISE * _difference(found[name].double(), exact[name]):
            raise DataError(
                f"transformers computes other outputs ({name}) from the folder: they differ by up to "
                f"{differences[name]:.1e}, and the largest is {largest[name]:.1e}; nothing was written."
            )
    return max(differences.values())


def _sample(model: Model) -> Batch:
    """Returns two sequences of random pieces in two segments, with every token a masked-LM target."""
    lengths = np.array([min(48, model.config.positions), min(17, model.config.positions)])
    ids = below(words(key(0, 0), int(lengths.sum())), model.config.vocabulary)
    ids[ids == model.config.pad] = (model.config.pad + 1) % model.config.vocabulary  # no padding
    types = np.concatenate([np.arange(n) * 2 // n for n in lengths]) % max(1, model.config.segment_types)
    everywhere = torch.arange(int(lengths.sum()))
    return flat_batch(ids, types, lengths, {"mlm": Target(everywhere, torch.from_numpy(ids))})


def _outputs(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Returns the states, the pooled states if the model has a pooler, and the outputs of every head."""
    states_TD = model.encoder(batch)
    pooled = {} if model.pooler is None else {"pooled": model.pool(states_TD, batch)}
    return {"states": states_TD, **pooled, **model.outputs(batch)}


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found.reshape(expected.shape) - expected).abs().max())


_OUTPUTS: Mapping[tuple[str, ...], Mapping[str, str]] = {
    (): {"states": "last_hidden_state", "pooled": "pooler_output"},
    ("mlm", "nsp"): {"mlm": "prediction_logits", "nsp": "seq_relationship_logits"},
}
"""Names of the outputs of transformers' models by the heads of an architecture; `logits` for other heads."""


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """Yields the module transformers, which shows no progress and no warnings until the context ends."""
    import transformers

    logging = transformers.logging
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def _by_transformers(
    model: Model, folder: Path, batch: Batch, names: Collection[str], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Returns the outputs of transformers for the folder and the same sequences, among the `names` of `_outputs`."""
    architecture, heads = layout.architecture(model.config, model.labels)
    rows = []
    with quiet_transformers() as transformers:
        net = getattr(transformers, architecture).from_pretrained(folder, local_files_only=True, dtype=dtype)
        net.eval().to(batch.ids_T.device)
        for start, end in pairwise(batch.bounds_S1.tolist()):
            shape = (1, 1, -1) if heads == ("choice",) else (1, -1)  # one example of one choice
            inputs = {"input_ids": batch.ids_T[start:end].view(shape)}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])  # ModernBertForMultipleChoice needs it
            if reads_segments(model.config):
                inputs["token_type_ids"] = batch.types_T[start:end].view(shape)
            rows.append(net(**inputs))
    if heads == ("span",):
        return {"span": torch.cat([torch.stack([row.start_logits[0], row.end_logits[0]], -1) for row in rows])}
    found = _OUTPUTS.get(heads, {layout.own_head(head, model.labels): "logits" for head in heads})
    return {
        name: torch.cat([row[output].flatten(0, -2) for row in rows])
        for name, output in found.items()
        if name in names and rows[0].get(output) is not None  # some families have a pooler only where a head reads it
    }
