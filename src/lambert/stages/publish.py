"""Model folders as they are handed to the world: verified by their outputs, complete or absent."""

import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lambert import __version__
from lambert.core import config as settings
from lambert.core.batch import Batch, Target, flat_batch
from lambert.core.errors import DataError
from lambert.core.files import sync, write_whole
from lambert.core.randomness import below, key, words
from lambert.corpus import tokenizer as tokenizers
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.heads import Model
from lambert.stages.config import RunConfig

TOLERANCE = 2e-5
"""Largest difference of a float32 logit from transformers: four times the noise of float32 itself at BERT-Base."""


def publish_run(
    config: RunConfig, model: Model, tokenizer: Any, extra: Mapping[str, Any], scores: Mapping[str, float]
) -> None:
    """Writes the model folder of a run with its card, scores.json beside it, and says where they are."""
    folder = config.out / "model"
    write_whole(config.out / "scores.json", json.dumps(dict(scores), indent=1) + "\n")
    publish(model.cpu(), tokenizer, folder, extra, card(model, config, scores))
    print(f"model  {folder}")


def publish(
    model: Model, tokenizer: Any, folder: Path, extra: Mapping[str, Any], readme: str = "", compare: bool = False
) -> str:
    """Writes a model folder aside, reads it back, compares its outputs with the model's, and renames it into place.

    `extra` is added to config.json. With `compare`, the outputs are compared with those of transformers too, where it
    is installed. Gives a line that says what was verified. Raises DataError where an output differs: then `folder` is
    as it was before.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside, before = (folder.with_name(f".{folder.name}-{what}.{os.getpid()}") for what in ("new", "before"))
    try:
        weights.save(model, aside, extra)
        tokenizers.save(tokenizer, aside)
        if readme:
            (aside / "README.md").write_text(readme, encoding="utf-8")
        for path in (*sorted(aside.iterdir()), aside):
            sync(path)
        said = _verified(model, aside, compare)
        if folder.exists():
            folder.rename(before)
        aside.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)
    return said


def card(model: Model, config: RunConfig, scores: Mapping[str, float]) -> str:
    """The model card: what it is, how it was made, how well it does, how to read it."""
    shape = model.config
    size = sum(parameter.numel() for parameter in model.parameters())
    rows = "".join(f"| {name} | {value:.4f} |\n" for name, value in scores.items())
    use = (
        "```python\nfrom transformers import AutoModel, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained(".")\nmodel = AutoModel.from_pretrained(".")\n```\n\n'
        if shape.block == "bert"
        else f"Its layers are `{shape.block}`, which has to be importable. Lambert reads it, transformers does not.\n\n"
    )
    return (
        f"---\nlibrary_name: transformers\ntags: [bert, lambert]\n---\n\n# {config.out.name}\n\n"
        f"A BERT encoder of {shape.layers} layers, width {shape.hidden}, {shape.heads} heads, {shape.vocabulary:,} "
        f"pieces and {size:,} parameters, with the heads {', '.join(model.objectives)}. "
        f"Made by Lambert {__version__}.\n\n"
        + (f"## Held-out scores\n\n| score | value |\n|---|---|\n{rows}\n" if scores else "")
        + f"## Use\n\n{use}"
        f"## Recipe\n\n```toml\n{settings.text(config)}```\n"
    )


def _verified(model: Model, folder: Path, compare: bool) -> str:
    batch = _sample(model)
    with torch.inference_mode():
        expected = _outputs(model, batch)
        again = _outputs(weights.load(folder, heads=model.labels), batch)
        for name, logits in expected.items():
            if not torch.equal(logits, again[name]):
                raise DataError(f"{folder}: the output {name!r} changed on the way to the disk; nothing was written.")
        if not compare or model.config.block != "bert":
            return "verified: reads back bit for bit"
        if importlib.util.find_spec("transformers") is None:
            return "verified: reads back bit for bit (pip install transformers to compare with it too)"
        difference = max(_difference(expected[name], theirs) for name, theirs in _theirs(folder, batch).items())
    if difference > TOLERANCE:
        raise DataError(
            f"transformers computes other logits from it: they differ by {difference:.1e}; nothing was written."
        )
    return f"verified: reads back bit for bit; largest difference from transformers {difference:.1e}"


def _sample(model: Model) -> Batch:
    """Two sequences of random pieces in two segments, with every token a target of mlm."""
    lengths = np.array([min(48, model.config.positions), min(17, model.config.positions)])
    ids = below(words(key(0, 0), int(lengths.sum())), model.config.vocabulary)
    types = np.concatenate([np.arange(n) * 2 // n for n in lengths]) % model.config.segment_types
    everywhere = torch.arange(int(lengths.sum()))
    return flat_batch(ids, types, lengths, {"mlm": Target(everywhere, torch.from_numpy(ids))})


def _outputs(model: Model, batch: Batch) -> dict[str, Tensor]:
    """The states and what every head makes of them."""
    model.eval()
    return {"states": model.encoder(batch), **model.outputs(batch)}


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.reshape(theirs.shape) - theirs).abs().max())


def _theirs(folder: Path, batch: Batch) -> dict[str, Tensor]:
    """What transformers computes from the folder for the same sequences, by the names of `_outputs`."""
    import transformers

    architecture = layout.read_config(folder)["architectures"][0]
    quiet = transformers.logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    net = getattr(transformers, architecture).from_pretrained(folder, local_files_only=True).eval()
    bounds = batch.bounds_S1.tolist()
    rows = [net(input_ids=batch.ids_T[None, a:b], token_type_ids=batch.types_T[None, a:b]) for a, b in pairwise(bounds)]
    tokens = {"BertForPreTraining": {"mlm": "prediction_logits", "nsp": "seq_relationship_logits"}}
    tokens |= {"BertForMaskedLM": {"mlm": "logits"}, "BertForTokenClassification": {"tag": "logits"}}
    tokens |= {"BertForNextSentencePrediction": {"nsp": "logits"}, "BertModel": {"states": "last_hidden_state"}}
    if architecture == "BertForQuestionAnswering":
        return {"span": torch.cat([torch.stack([r.start_logits[0], r.end_logits[0]], -1) for r in rows])}
    if architecture == "BertForSequenceClassification":
        head = "value" if net.config.num_labels == 1 else "label"
        return {head: torch.cat([row.logits for row in rows])}
    return {
        name: torch.cat([row[output].flatten(0, -2) for row in rows]) for name, output in tokens[architecture].items()
    }
