"""Sentence vectors (Reimers and Gurevych, "Sentence-BERT", 2019): a vector for each text, trained on pairs, triplets or
scored pairs of texts (`pairs`).

Pairs and triplets are scored as a search: the first texts are the queries, all other texts of the file the corpus.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from lambert.core.batch import Batch, Ints, JointTarget
from lambert.core.errors import DataError, quote
from lambert.model.pooling import name_head, pooled_width
from lambert.model.vector_layers import VectorLayers
from lambert.tasks.config import EmbedConfig, TaskConfig
from lambert.tasks.labels import check_different
from lambert.tasks.reading.segments import Cuts, Segments, arrays, cut_texts, readable, text_keys
from lambert.tasks.reading.texts import encode
from lambert.tasks.reading.unknown import count_unknown
from lambert.tasks.scores import metrics
from lambert.tasks.scores.examples import Examples as ScoredExamples
from lambert.tasks.scores.formulas import Formula
from lambert.tasks.scores.metrics import Floats
from lambert.tasks.task import Outputs, Row, Task, text_of
from lambert.tasks.vectors import contrastive, retrieval, sentence_transformers
from lambert.tasks.vectors.pairs import SCORED, Layout, check_similarities, find_layout, read_examples
from lambert.tasks.vectors.retrieval import Search
from lambert.tasks.vectors.similarity import similarity_of_pair

D = TypeVar("D", bound="TextVectors")


class TextVectors(Segments):
    """Distinct texts to compute vectors of. Labelled data also have the numbers of the texts of each example
    (`texts_NG`), and the scores of pairs (`scores_N`) or what is to be found (`search`)."""

    texts_NG: Ints
    scores_N: Floats | None = None
    search: Search | None = None
    pooled_from_U: Ints | None = None
    """Position of the first token of each text that is pooled; None: all are."""

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        """Returns the texts with these numbers as one batch."""
        batch = super().collate(epochs_S, indices_S)
        if self.pooled_from_U is None:
            return batch
        first_S = torch.from_numpy(self.pooled_from_U[np.asarray(indices_S, dtype=np.int64)])
        return replace(batch, pooled_from_S=batch.bounds_S1[:-1].long() + first_S)


class Examples(TextVectors):
    """Training examples of G texts each. A sequence of this Source is an example: its texts, one after the other."""

    labels: Tensor
    embed: EmbedConfig
    layers: Sequence[nn.Module] = ()
    """Layers between pooling and loss, which are not trained."""

    def size(self, epoch: int) -> int:
        return len(self.texts_NG)

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        found: Ints = self.lengths_S[self.texts_NG[indices_S]].sum(1)
        return found

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        batch = super().collate(epochs_S, self.texts_NG[indices_S].ravel())
        labels = self.labels[torch.from_numpy(np.asarray(indices_S, dtype=np.int64))]
        target = JointTarget(torch.arange(len(labels)), labels, loss=self._losses)
        return batch.with_targets({self.objective: target})

    objective = ""
    _layers_of_loss: VectorLayers | None = None
    """A copy of the layers on the device of the loss: those of the task stay where they are."""

    def _losses(self, rows_SD: Tensor, labels: Tensor) -> Tensor:
        if self._layers_of_loss is None:
            self._layers_of_loss = copy.deepcopy(VectorLayers(self.layers)).to(rows_SD.device)
        rows_SD = self._layers_of_loss(rows_SD)
        return _loss(self.embed)(rows_SD.view(len(labels), -1, rows_SD.shape[1]), labels)


class Embed(Task[TextVectors, Floats]):
    """A vector for each text. Scores: pearson and spearman of scored pairs; else those of `retrieval.scores`."""

    head = name_head("mean")
    labels = 0
    pipeline = "sentence-similarity"
    computes_vectors = True
    cut_by_tokenizer = True
    layers: Sequence[nn.Module] = ()
    """Layers between the pooling and the division by length, those of a folder of sentence-transformers."""

    def __init__(self, config: TaskConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.embed = config.embed
        self.head = name_head(config.embed.pooling)

    @classmethod
    def learn(cls, config: TaskConfig, tokenizer: Tokenizer, path: Path) -> tuple[Self, Examples]:
        layout = find_layout(path, config)
        if not config.embed.loss:
            check_similarities(path, layout, config)
        loss = config.embed.loss or ("cosent" if layout.score else "ranking")
        pooling = config.embed.pooling or "mean"
        embed = replace(config.embed, loss=loss, pooling=pooling)
        task = cls(replace(config, embed=replace(embed, normalize=embed.unit())), tokenizer)
        return task, task._examples(path, layout)

    def read(self, path: Path, *, training: bool = False) -> TextVectors:
        if retrieval.is_judgements(path):
            return self._read_judged(path)
        if training:
            return self._examples(path, find_layout(path, self.config))
        # A file that is scored may have a column of scores, whatever the loss is.
        layout = find_layout(path, replace(self.config, embed=replace(self.embed, loss="")))
        notes: list[str] = []
        rows, scores, counts = read_examples(path, layout, self.config, notes)
        data, texts_NG = self._number_texts(rows, counts, TextVectors)
        data.notes = notes
        data.texts_NG, data.scores_N = texts_NG, np.array(scores, dtype=np.float64) if layout.score else None
        if data.scores_N is None:
            data.search = retrieval.of_pairs(texts_NG)
            if not data.search.queries:
                raise DataError(f"{path}: every text is paired with itself, so there is nothing to find.")
        return data

    @classmethod
    def key_columns(cls, path: Path, config: TaskConfig) -> Sequence[str]:
        return find_layout(path, config).texts[:1]

    def inputs(self) -> tuple[list[str], list[str]]:
        return [self.config.columns.row_keys()[0]], []

    def columns_read(self) -> tuple[list[str], list[str]]:
        return self.inputs()[0], ["prompt_b", "prompt_name"]

    def parse(self, rows: Sequence[Row], places: Sequence[str]) -> TextVectors:
        """Reads rows {"text": ...} to compute vectors of. The default prompt precedes them, or that of the row's
        "prompt_name", or if the row has "prompt_b": true, that of `text_b`."""
        key, _ = self.config.columns.row_keys()
        return self.texts(
            (self._prompt(row, place), text_of(row, key, place)) for row, place in zip(rows, places, strict=True)
        )

    def _prompt(self, row: Row, place: str) -> str:
        name, prompts = row.get("prompt_name"), self.embed.named_prompts()
        if name is None:
            return self.embed.prompt_b if row.get("prompt_b") is True else self.embed.own_prompt()
        if not isinstance(name, str) or name not in prompts:
            raise DataError(f"{place}: prompt_name is {quote(name)}; the model's prompts are: {', '.join(prompts)}.")
        return prompts[name]

    def texts(self, texts: Iterable[tuple[str, str]]) -> TextVectors:
        """Returns texts to compute vectors of, each after its prompt."""
        data, texts_NG = self._number_texts([[text] for text in texts], {}, TextVectors)
        data.texts_NG = texts_NG
        return data

    def predictions(self, data: TextVectors, outputs: Outputs) -> list[Floats]:
        """Returns the vectors of the texts of each example, [G, D]."""
        vectors_UD = self._vectors(outputs)
        return [vectors_UD[texts_G] for texts_G in data.texts_NG]

    def score_names(self) -> tuple[str, ...]:
        return ("spearman", "pearson", *retrieval.SCORES)

    def score(self, data: TextVectors, predictions: Sequence[Floats]) -> dict[str, float]:
        if data.scores_N is not None:
            return _correlations(np.array([self._similarity(found) for found in predictions]), data.scores_N)
        assert data.search is not None, "scoring needs labelled data"
        ranked = self._rank(data, predictions)
        found = retrieval.scores(ranked, data.search.relevant)
        return {**found, "queries": float(len(ranked)), "texts": float(len(data.search.corpus))}

    def _rank(self, data: TextVectors, predictions: Sequence[Floats]) -> list[Ints]:
        assert data.search is not None
        vectors_UD = np.zeros((len(data.lengths_S), predictions[0].shape[1]), dtype=np.float32)
        for texts_G, found_GD in zip(data.texts_NG, predictions, strict=True):
            vectors_UD[texts_G] = found_GD
        name = self.embed.similarity_name
        if name == "cosine":
            vectors_UD /= np.maximum(np.linalg.norm(vectors_UD, axis=1, keepdims=True), 1e-12)
        return retrieval.rankings(vectors_UD, data.search, "dot" if name == "cosine" else name)

    def _similarity(self, found_GD: Floats) -> float:
        return similarity_of_pair(found_GD[0], found_GD[1], self.embed.similarity_name)

    def examples(self, data: TextVectors, predictions: Sequence[Floats]) -> ScoredExamples:
        """Returns rows of pairs with truth and prediction (similarity), or of queries with their scores, a relevant
        text and the first result (prediction). The relevant text is decoded by the tokenizer of this model, so it is no
        truth that another model must have too."""
        if data.scores_N is not None:
            sides = ([self._describe_text(data, text) for text in texts_G] for texts_G in data.texts_NG[:, :2].tolist())
            rows = [{**a, "text_b": b["text"], "tokens": a["tokens"] + b["tokens"]} for a, b in sides]
            for row, truth, found_GD in zip(rows, data.scores_N.tolist(), predictions, strict=True):
                row |= {"truth": truth, "prediction": self._similarity(found_GD)}
            return ScoredExamples(rows, {"spearman": Formula("spearman"), "pearson": Formula("pearson")})
        assert data.search is not None, "scoring needs labelled data"
        ranked, corpus = self._rank(data, predictions), data.search.corpus
        rows = []
        for query, order, relevant in zip(data.search.queries, ranked, data.search.relevant, strict=True):
            named = {"relevant": min(relevant), "prediction": int(order[0])}
            texts = {name: self._text(data, corpus[place]) for name, place in named.items()}
            rows.append({**self._describe_text(data, query), **texts, **retrieval.of_query(order, relevant)})
        names = retrieval.of_query(ranked[0], data.search.relevant[0])
        return ScoredExamples(rows, {name: Formula("mean", (name,)) for name in names})

    def _text(self, data: TextVectors, text: int) -> str:
        cuts = data.first
        return readable(self.tokenizer, Cuts(cuts.ids, cuts.starts_S[[text]], cuts.lengths_S[[text]]))[0]

    def _describe_text(self, data: TextVectors, text: int) -> Row:
        return {"text": self._text(data, text), "tokens": int(data.lengths_S[text])}

    def rows(self, data: TextVectors, predictions: Sequence[Floats]) -> list[Row]:
        """Returns {"vector": [...]} of each text, or {"similarity": ...} of each pair."""
        if data.texts_NG.shape[1] == 1:
            return [{"vector": found[0].tolist()} for found in predictions]
        return [{"similarity": self._similarity(found)} for found in predictions]

    def model_files(self, width: int) -> dict[str, str | bytes]:
        """Returns the files that sentence-transformers reads."""
        return sentence_transformers.files(self.config, width, self.layers)

    def finish(self) -> VectorLayers:
        """Returns what maps pooled states to vectors."""
        return VectorLayers(self.layers, self.embed.unit(), self.embed.truncate_dim)

    def width(self, hidden: int) -> int:
        """Returns the number of components of vectors from states of `hidden` components."""
        return self.finish().width_of(pooled_width(hidden, self.embed.pooling))

    @cached_property
    def _finish_exactly(self) -> VectorLayers:
        """The layers of `finish` in float64, in which the vectors do not depend on the number of texts."""
        return copy.deepcopy(self.finish()).double()

    def _vectors(self, outputs: Outputs) -> Floats:
        """Returns the vectors of all texts."""
        with torch.inference_mode():
            parts = [self._finish_exactly(torch.from_numpy(part_SP)).numpy() for part_SP in arrays(outputs, self.head)]
        return np.concatenate(parts or [np.zeros((0, 1))]).astype(np.float32)

    def _examples(self, path: Path, layout: Layout) -> Examples:
        notes: list[str] = []
        rows, scores, counts = read_examples(path, layout, self.config, notes, cosines=self.embed.loss == "cosine")
        if self.embed.loss == "cosent":
            check_different(scores, layout.score, path)
        data, texts_NG = self._number_texts(rows, counts, Examples)
        data.objective, data.texts_NG = self.head, texts_NG
        scored = self.embed.loss in SCORED
        data.labels = torch.tensor(scores, dtype=torch.float32) if scored else torch.from_numpy(texts_NG)
        data.embed = self.embed
        if self.embed.loss == "cosent" and {*scores} <= {0.0, 1.0, 2.0}:
            shown = " and ".join(f"{score:g}" for score in sorted({*scores}))
            notes.append(
                f"note: {path}: the column {layout.score!r} holds {shown}, which are read as similarities: the larger "
                "number is that of the more similar texts."
            )
        data.notes = notes
        data.texts_alone = self.embed.loss == "ranking" and bool((texts_NG[:, 0] == texts_NG[:, 1]).all())
        data.least_batch = (
            2 if self.embed.loss == "cosent" or (self.embed.loss == "ranking" and texts_NG.shape[1] == 2) else 1
        )
        return data

    def _read_judged(self, path: Path) -> TextVectors:
        corpus, queries, relevant = retrieval.read_judgements(path)
        texts = [(self.embed.prompt, text) for text in queries.values()]
        texts += [(self.embed.prompt_b, text) for text in corpus.values()]
        data, texts_N1 = self._number_texts([[text] for text in texts], {"queries": len(queries)}, TextVectors)
        data.texts_NG = texts_N1
        found = texts_N1[:, 0].tolist()
        places = {text: place for place, text in enumerate(corpus)}
        judged = [frozenset(places[text] for text in relevant[query]) for query in queries]
        data.search = Search(found[: len(queries)], found[len(queries) :], judged)
        return data

    def _number_texts(
        self, rows: Iterable[Sequence[tuple[str, str]]], counts: Mapping[str, int], kind: type[D]
    ) -> tuple[D, Ints]:
        """Returns the different (prompt, text) as a Source, and the number of each text of the rows [N, G]."""
        numbers: dict[tuple[str, str], int] = {}
        texts_NG = np.array([[numbers.setdefault(text, len(numbers)) for text in row] for row in rows], dtype=np.int64)
        most = self.config.max_length
        found = encode(self.tokenizer, [prompt + text for prompt, text in numbers], most)
        kept = np.minimum(found.lengths, most - 2)
        counts = {"examples": len(texts_NG), **counts, "cut": int((kept < found.lengths).sum())}
        data = kind(self.tokenizer, cut_texts(self.tokenizer, found, kept), None, counts)
        if not self.embed.include_prompt:
            data.pooled_from_U = self._after_prompts([prompt for prompt, _ in numbers])
        texts = [text for _, text in numbers]
        data.unknown = count_unknown(self.tokenizer, [found.ids], texts)
        data.keys = text_keys([texts[number] for number in row[:2]] for row in texts_NG.tolist())
        return data, texts_NG

    def _after_prompts(self, prompts: Sequence[str]) -> Ints:
        """Returns the number of tokens of each prompt with the first special token; 0 for no prompt.

        Source: sentence-transformers 6.2, Transformer._get_prompt_length.
        """
        most, counts = self.config.max_length, {"": 0}
        for prompt in set(prompts) - {""}:
            counts[prompt] = min(1 + int(encode(self.tokenizer, [prompt]).lengths[0]), most - 1)
        return np.array([counts[prompt] for prompt in prompts], dtype=np.int64)


def _loss(config: EmbedConfig) -> contrastive.Loss:
    kinds: dict[str, Callable[..., Tensor]] = {
        "ranking": partial(contrastive.ranking, scale=config.scale),
        "cosent": partial(contrastive.cosent, scale=config.scale),
        "cosine": contrastive.cosine_error,
        "margin": partial(contrastive.margin_error, unit=config.unit()),
    }
    loss = kinds[config.loss]
    return contrastive.at_widths(loss, config.widths) if config.widths else loss


def _correlations(found_N: Floats, truth_N: Floats) -> dict[str, float]:
    def scores(rows_N: Ints) -> dict[str, float]:
        pair = truth_N[rows_N], found_N[rows_N]
        return {"spearman": metrics.spearman(*pair), "pearson": metrics.pearson(*pair)}

    rows_N = np.arange(len(truth_N))
    found = metrics.with_errors(scores(rows_N), metrics.bootstrap_errors(scores, len(rows_N)))
    return found | {"examples": float(len(rows_N))}
