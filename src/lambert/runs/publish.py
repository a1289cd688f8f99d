"""Model folders as they are handed to the world: verified by their outputs, complete or absent."""

import importlib.util
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lambert import __version__
from lambert.core import settings
from lambert.core.batch import Batch, Target, flat_batch
from lambert.core.contents import write_sums
from lambert.core.errors import DataError
from lambert.core.files import atomic_folder, json_text, write_atomic
from lambert.core.randomness import below, key, words
from lambert.corpus import tokenizer as tokenizers
from lambert.engine.log import score_text
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.heads import Model
from lambert.runs.config import RunConfig
from lambert.runs.result import SCORES

TOLERANCE = 2e-5
"""Largest difference of a float32 logit from transformers: four times the noise of float32 itself at BERT-Base."""


def publish_run(
    config: RunConfig, model: Model, tokenizer: Any, extra: Mapping[str, Any], scores: Mapping[str, float]
) -> str:
    """Writes the model folder of a run with its card and scores.json beside it. Returns a line that names it."""
    folder = config.out / "model"
    write_atomic(config.out / SCORES, json_text(dict(scores), indent=1) + "\n")
    publish(model.cpu(), tokenizer, folder, extra, card(model, config, scores))
    return f"model  {folder}"


def publish(
    model: Model, tokenizer: Any, folder: Path, extra: Mapping[str, Any], readme: str = "", compare: bool = False
) -> str:
    """Writes a model folder aside, reads it back, compares its outputs with the model's, and renames it into place.

    `extra` is added to config.json. With `compare`, the outputs are compared with those of transformers too, where it
    is installed. Gives a line that says what was verified. Raises DataError where an output differs: then `folder` is
    as it was before.
    """
    with atomic_folder(folder, replace=True) as aside:
        weights.save(model, aside, extra)
        tokenizers.save(tokenizer, aside)
        if readme:
            (aside / "README.md").write_text(readme, encoding="utf-8")
        write_sums(aside)
        return _verified(model, aside, compare)


def card(model: Model, config: RunConfig, scores: Mapping[str, float]) -> str:
    """The model card: what it is, how it was made, how well it does, how to read it."""
    shape = model.config
    size = sum(parameter.numel() for parameter in model.parameters())
    rows = "".join(f"| {_plain(name)} | {score_text(name, value)} |\n" for name, value in scores.items())
    use = (
        "```python\nfrom transformers import AutoModel, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained(".")\nmodel = AutoModel.from_pretrained(".")\n```\n\n'
        if shape.block == "bert"
        else f"Its layers are {_plain(shape.block)}, which has to be importable and named by `--code`. Lambert reads "
        "it, transformers does not.\n\n"
    )
    return (
        f"---\nlibrary_name: transformers\ntags: [bert, lambert]\n---\n\n# {_plain(config.out.name)}\n\n"
        f"A BERT encoder of {shape.layers} layers, width {shape.hidden}, {shape.heads} heads, {shape.vocabulary:,} "
        f"pieces and {size:,} parameters, with the heads {_plain(', '.join(model.objectives))}. "
        f"Made by Lambert {__version__}.\n\n"
        + (f"## Held-out scores\n\n| score | value |\n|---|---|\n{rows}\n" if scores else "")
        + f"## Use\n\n{use}"
        f"## Recipe\n\n{_fenced(settings.text(config), 'toml')}"
    )


_MARKUP = re.compile(r"[\\`*\[\]<>|&~$#@]|:(?=//)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""What may begin markup, HTML, a cell of a table or a link in the middle of a line of Markdown."""


def _plain(text: str) -> str:
    """Text from outside as one line of Markdown that shows it as it stands."""
    return _MARKUP.sub(r"\\\g<0>", "".join(character if character.isprintable() else " " for character in text))


def _fenced(text: str, language: str) -> str:
    """A block of code; its fence is longer than any in the text (CommonMark, 4.5)."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}{fence}\n"


def _verified(model: Model, folder: Path, compare: bool) -> str:
    batch = _sample(model)
    with torch.inference_mode():
        expected = _outputs(model, batch)
        pooler, code = model.pooler is not None, (model.config.block,)
        again = _outputs(weights.load(folder, heads=model.labels, code=code, pooler=pooler), batch)
        for name, logits in expected.items():
            if not torch.isfinite(logits).all():
                raise DataError(f"The output {name!r} is not finite: the weights are too large. Nothing was written.")
            if not torch.equal(logits, again[name]):
                raise DataError(f"{folder}: the output {name!r} changed on the way to the disk; nothing was written.")
        if not compare or model.config.block != "bert":
            return "verified: reads back bit for bit"
        if importlib.util.find_spec("transformers") is None:
            return "verified: reads back bit for bit (pip install transformers to compare with it too)"
        found = _theirs(folder, batch).items()
        difference = max(_difference(expected[name], theirs) for name, theirs in found if name in expected)
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
    """The states, pooled where the model has a pooler, and what every head makes of them."""
    model.eval()
    states_TD = model.encoder(batch)
    pooled = {} if model.pooler is None else {"pooled": model.pooled(states_TD, batch)}
    return {"states": states_TD, **pooled, **model.outputs(batch)}


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
    tokens |= {
        "BertForNextSentencePrediction": {"nsp": "logits"},
        "BertModel": {"states": "last_hidden_state", "pooled": "pooler_output"},
    }
    if architecture == "BertForQuestionAnswering":
        return {"span": torch.cat([torch.stack([r.start_logits[0], r.end_logits[0]], -1) for r in rows])}
    if architecture == "BertForSequenceClassification":
        head = "value" if net.config.num_labels == 1 else "label"
        return {head: torch.cat([row.logits for row in rows])}
    return {
        name: torch.cat([row[output].flatten(0, -2) for row in rows]) for name, output in tokens[architecture].items()
    }
