"""Small model folders of every family and head, with random weights that are not at their initial values."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from lambert.model import weights
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.families import family_of, reads_segments
from lambert.tasks import create
from lambert.tasks.config import EmbedConfig, TaskConfig
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.wings.convert.sample import TEXTS

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SHAPE: dict[str, Any] = {"layers": 3, "hidden": 32, "heads": 2, "intermediate": 48, "positions": 192}
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "xlm-roberta": {},
    "camembert": {},
    "distilbert": {},
    "electra": {"embedding": 16},
    "modernbert": {"modern": ModernConfig(window=8, pooling="mean")},
    "mpnet": {},
    "nomic_bert": {},
    "gte": {},
    "eurobert": {"modern": ModernConfig(kv_heads=1, pooling="late")},
}
HEADS = {
    "": {},
    "mlm": {"mlm": 0},
    "label": {"label": 3},
    "multilabel": {"multilabel": 4},
    "value": {"value": 0},
    "choice": {"choice": 0},
    "tag": {"tag": 5},
    "span": {"span": 0},
    "vector": {"vector": 0},
    "first_vector": {"first_vector": 0},
}


def cases(*sample: tuple[str, str], slow: Sequence[tuple[str, str]] = ()) -> list[Any]:
    """Pairs of a family and a head: a sample of them, some marked slow, or with `make test-exports` all."""
    if os.environ.get("LAMBERT_TEST_EXPORTS") != "all":
        return [*sample, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in slow)]
    kinds = [kind for kind in KINDS if kind not in ("xlm-roberta", "camembert")]  # RoBERTa's modules
    return [(kind, head) for kind in kinds for head in HEADS]


def tokenizer(pad: int = 0) -> Tokenizer:
    """WordPiece over the characters of the texts that exports are compared on, with the padding token at 0 or 1."""
    characters = sorted({*"".join(TEXTS).lower()} - {" "})
    pieces = [
        *SPECIAL[pad::-1],
        *SPECIAL[pad + 1 :],
        *characters,
        *(f"##{one}" for one in characters if re.match(r"\w", one)),
    ]
    made = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def saved(kind: str, head: str, folder: Path, *, normalize: bool = True, **shape: Any) -> Path:
    """A model folder of a family with a head."""
    pad = int(kind == "mpnet")
    words = tokenizer(pad)
    given = EncoderConfig(
        block=kind, vocabulary=words.get_vocab_size(), pad=pad, **{**SHAPE, **KINDS.get(kind, {}), **shape}
    )
    config = family_of(given).complete(given)
    model = weights.draw(config, HEADS[head], seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    extra, files = {}, {}
    if "vector" in head:
        embed = EmbedConfig(pooling="cls" if head == "first_vector" else "mean", normalize=normalize, loss="ranking")
        task = create(TaskConfig(name="embed", max_length=64, embed=embed), words)
        extra, files = task.model_config(), task.model_files(config.hidden)
    weights.save(model.eval(), folder, extra)
    tokenizers.save(words, folder, longest=config.positions, segments=reads_segments(config))
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder
