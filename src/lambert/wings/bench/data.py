"""Data preparation on one thread: assembling and masking batches beside torch's DataLoader, and encoding text beside
the bare tokenizers library."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lambert.core.batch import Batch
from lambert.core.errors import DataError, UsageError
from lambert.core.shards import FORMAT_VERSION, Split, SplitWriter
from lambert.core.specials import Specials, Template
from lambert.core.world import World
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.source import CorpusSource
from lambert.data.stream import stream
from lambert.measure import batches as drawn
from lambert.measure.training import Step
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.text.tokenizers.encoding import Encoder
from lambert.verb import load_provided
from lambert.wings.bench import batches
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.work import Work, sides

ROUND_SEQUENCES = 2048
"""Maximum number of sequences of a round of the loader, which takes some tenths of a second."""
MICRO_TOKENS = 8192
"""Tokens of a micro-batch (our choice: the default of evaluation)."""
DOCUMENTS, SENTENCE = 4000, 24
"""Documents of a random corpus, and the mean length of their sentences in tokens."""
CONTINUATIONS = 0.2
"""Share of continuation pieces in the vocabulary of a random corpus."""


def loader(config: BenchConfig, world: World) -> Work:
    """The first updates of an epoch, read from the corpus, assembled and masked. Planning the epoch is start-up."""
    if config.corpus:
        split, specials = Split(config.corpus), roles.specials(tokenizers.load(config.corpus), str(config.corpus))
    else:
        split, specials = _random_corpus(config)
    packing = PackingConfig(mode=config.packing, sequence_length=config.length)

    def plan() -> CorpusSource:
        return CorpusSource(split, packing, MaskingConfig(whole_word=config.whole_word), specials, config.seed)

    source = plan()
    size = min(config.sequences, source.size(0))
    updates = max(1, min(ROUND_SEQUENCES, source.size(0)) // size)
    # The sequences of each update in the order of the stream, without masks, for the peer.
    rows = [row for batch in _stream_batches(source, config, size, updates) for row in _rows(batch)]
    longest = [max(len(row["ids"]) for row in rows[at : at + size]) for at in range(0, len(rows), size)]
    width = sum(longest) if config.padding == "longest" else config.length * updates

    def own() -> Step:
        fresh = plan()
        return lambda: float(sum(batch.targets["mlm"].count for batch in _stream_batches(fresh, config, size, updates)))

    tokens = sum(len(row["ids"]) for row in rows)

    def more(side: str, seconds: float) -> dict[str, float]:
        return {"times_consumed": tokens / seconds / config.consumes} if config.consumes else {}

    return Work(
        sides(config, own, LOADERS, config, rows, size, specials),
        tokens=tokens,
        sequences=len(rows),
        padded=width * size,
        more=more,
    )


def _stream_batches(source: CorpusSource, config: BenchConfig, size: int, updates: int) -> Iterator[Batch]:
    whole = stream(source, batch_size=size, micro_tokens=MICRO_TOKENS, seed=config.seed, stop=updates)
    return (batch for update in whole for _, batch in update.micro_batches)


def _rows(batch: Batch) -> list[dict[str, Tensor]]:
    batch.ids_T[batch.targets["mlm"].at_N] = batch.targets["mlm"].labels_N
    cuts = batch.bounds_S1[1:-1].long()
    pairs = zip(batch.ids_T.tensor_split(cuts), batch.types_T.tensor_split(cuts), strict=True)
    return [{"ids": ids.clone(), "types": types.clone()} for ids, types in pairs]


def _random_corpus(config: BenchConfig) -> tuple[Split, Specials]:
    """Returns documents as long as Wikipedia's articles. The files are deleted at once; they remain mapped."""
    draw = np.random.default_rng(config.seed)
    _, median, spread = batches.FITTED["wikipedia"]
    wanted_D = np.exp(draw.normal(np.log(median * 512), spread, DOCUMENTS))
    sentences_D = np.maximum(2, wanted_D / SENTENCE).astype(np.int64)
    lengths_n = draw.integers(SENTENCE // 3, 2 * SENTENCE - SENTENCE // 3 + 1, sentences_D.sum())
    ids_T = draw.integers(drawn.FIRST_WORD, drawn.VOCABULARY, lengths_n.sum())
    specials = Specials(
        template=Template(drawn.CLS, drawn.SEP),
        unk=drawn.UNK,
        mask=drawn.MASK,
        vocabulary=drawn.VOCABULARY,
        continuation_V=draw.random(drawn.VOCABULARY) < CONTINUATIONS,
        closing_V=np.zeros(drawn.VOCABULARY, dtype=np.bool_),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = SplitWriter(folder / "train", drawn.VOCABULARY)
        writer.add(ids_T, lengths_n, np.repeat(np.arange(DOCUMENTS), sentences_D))
        splits = {"train": writer.close(), "heldout": SplitWriter(folder / "heldout", drawn.VOCABULARY).close()}
        manifest = {"vocabulary": drawn.VOCABULARY, "tokenizer_sha256": "", "splits": splits}
        (folder / "manifest.json").write_text(json.dumps({"format_version": FORMAT_VERSION, **manifest}))
        return Split(folder), specials


def _dataloader(config: BenchConfig, rows: list[dict[str, Tensor]], size: int, specials: Specials) -> Step:
    """torch's DataLoader in this process, over the same sequences in memory; its collate function pads and masks."""
    if config.whole_word:
        raise UsageError("peer = dataloader masks single pieces: drop --whole-word or the peer.")
    width = config.length if config.padding == "length" else 0
    data: Any = rows
    batched = DataLoader(data, size, collate_fn=partial(_collate, specials=specials, width=width))
    return lambda: float(sum(int((batch["labels"] >= 0).sum()) for batch in batched))


def _collate(rows: list[dict[str, Tensor]], specials: Specials, width: int) -> dict[str, Tensor]:
    """Returns rows padded to the longest, or to `width`, with 15% of the pieces masked as in Devlin et al., 2018,
    section 3.1: the usual collate function, in tensor operations."""
    width = width or max(len(row["ids"]) for row in rows)
    ids_SM = torch.full((len(rows), width), drawn.PAD)
    types_SM, inside_SM = torch.zeros_like(ids_SM), torch.zeros_like(ids_SM)
    for number, row in enumerate(rows):
        length = len(row["ids"])
        ids_SM[number, :length], types_SM[number, :length], inside_SM[number, :length] = row["ids"], row["types"], 1
    chance_SM = torch.full(ids_SM.shape, drawn.MASKED)
    chance_SM.masked_fill_(
        (inside_SM == 0) | (ids_SM == specials.template.cls) | (ids_SM == specials.template.sep), 0.0
    )
    chosen_SM = torch.bernoulli(chance_SM).bool()
    labels_SM = torch.where(chosen_SM, ids_SM, -100)
    masked_SM = chosen_SM & torch.bernoulli(torch.full(ids_SM.shape, 0.8)).bool()
    ids_SM[masked_SM] = specials.mask
    random_SM = chosen_SM & ~masked_SM & torch.bernoulli(torch.full(ids_SM.shape, 0.5)).bool()
    ids_SM[random_SM] = torch.randint(specials.vocabulary, ids_SM.shape)[random_SM]
    return {"input_ids": ids_SM, "token_type_ids": types_SM, "attention_mask": inside_SM, "labels": labels_SM}


LOADERS: Mapping[str, Callable[..., Step]] = {"dataloader": _dataloader}
"""Functions (config, rows, batch size, specials) that build a round over all rows."""


def tokenizer(config: BenchConfig, world: World) -> Work:
    """Encodes text in memory to ids: cleaned, split into sentences, hashed and encoded, as in `lambert prepare`. Every
    round starts with an empty lexicon."""
    if config.tokenizer is None or not config.text:
        raise UsageError("work = tokenizer needs --tokenizer vocab.txt and --text FILE...")
    for file in config.text:
        if not file.is_file():
            raise DataError(f"No such text file: {file}.")
    loaded = tokenizers.load(config.tokenizer)
    parts = list(load_provided("documents")(config.text))
    size = sum(len(text.encode()) for texts in parts for text in texts)
    if not size:
        raise DataError(f"{config.text[0]} holds no text.")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def own() -> Step:
        encoder = Encoder(loaded.to_str(), "en", "auto")  # the defaults of prepare
        return lambda: float(sum(len(encoder(texts).ids_T) for texts in parts))

    return Work(
        sides(config, own, TOKENIZERS, loaded, parts),
        tokens=size,
        unit="bytes",
        rebuilt=True,
        more=lambda side, seconds: {"mb_per_second": size / seconds / 1e6},
    )


def _encode_batch_fast(loaded: Any, parts: list[list[str]]) -> Step:
    encode = partial(loaded.encode_batch_fast, add_special_tokens=False)
    return lambda: float(sum(len(encoding) for texts in parts for encoding in encode(texts)))


TOKENIZERS: Mapping[str, Callable[..., Step]] = {"tokenizers": _encode_batch_fast}
"""Functions (a tokenizer of that library, lists of texts) that build a round over all texts."""
