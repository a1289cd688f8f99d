"""From span logits to answers: the best spans of all windows, their text, or none (run_squad.py, write_predictions)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lambert.core.batch import Ints
from lambert.tasks.config import SquadConfig
from lambert.tasks.metrics import Floats, softmax
from lambert.tasks.squad_text import basic_tokenizer, final_text, joined, word_spans
from lambert.tasks.squad_windows import Windows

Span = tuple[int, int, float, float]
"""First and last token in the paragraph, -1 for no answer, and their logits."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible answer; `text` is "" for no answer. `probability` is among the kept candidates of its question."""

    text: str
    probability: float
    start_logit: float
    end_logit: float
    characters: tuple[int, int]
    """Where it stands in the paragraph: first character and end; 0, 0 for no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model says to one question."""

    text: str
    """The prediction, "" for no answer."""
    best: Candidate
    """The best candidate that is not "no answer"."""
    null_odds: float | None
    """Version 2.0: score of no answer less that of `best`; no answer is predicted above the threshold."""
    candidates: list[Candidate]


_EMPTY = ("empty", 0.0, 0.0, (0, 0))  # what the original answers where no window offers a span


def answers(tokenizer: Tokenizer, data: Windows, logits_T2: Floats, config: SquadConfig, *, null: bool) -> list[Answer]:
    """One Answer a question from the span logits of all windows' tokens, in order. `null` allows "no answer"."""
    text_of = _Texts(tokenizer, data)
    ends = np.cumsum(data.lengths_S)
    found = []
    for index, question in enumerate(data.questions):
        first, last = int(data.bounds_Q[index]), int(data.bounds_Q[index + 1])
        logits = [logits_T2[ends[s] - data.lengths_S[s] : ends[s]] for s in range(first, last)]
        spans = _spans(data, first, logits, config)
        null_logits = min((window[0] for window in logits), key=lambda pair: float(pair.sum()), default=(0.0, 0.0))
        if null:
            spans.append((-1, -1, float(null_logits[0]), float(null_logits[1])))
        spans.sort(key=lambda span: span[2] + span[3], reverse=True)
        text_of.start(question.paragraph)
        found.append(_answer(spans, null_logits, text_of, config, null=null))
    return found


def _spans(data: Windows, first: int, logits: list[Floats], config: SquadConfig) -> list[Span]:
    """Spans of the best starts and ends of each window, in the original's order."""
    assert data.second is not None
    found: list[Span] = []
    windows = np.arange(first, first + len(logits))
    begins_W, sizes_W = data.begins_S[windows], data.second.lengths_S[windows]
    homes_M = max_context(begins_W, sizes_W) if len(logits) > 1 else None
    for window, logits_M2 in enumerate(logits):
        shift, size, begin = int(data.first.lengths_S[first + window]) + 2, int(sizes_W[window]), int(begins_W[window])
        starts, ends = (np.argsort(-logits_M2[:, side], kind="stable")[: config.best] - shift for side in (0, 1))
        starts, ends = starts[(starts >= 0) & (starts < size)], ends[(ends >= 0) & (ends < size)]
        if homes_M is not None:
            starts = starts[homes_M[starts + begin] == window]
        lengths = ends[None, :] - starts[:, None] + 1
        rows, columns = np.nonzero((lengths > 0) & (lengths <= config.max_answer))
        first_N, last_N = starts[rows], ends[columns]
        start_N, end_N = logits_M2[first_N + shift, 0], logits_M2[last_N + shift, 1]
        found.extend(
            zip((first_N + begin).tolist(), (last_N + begin).tolist(), start_N.tolist(), end_N.tolist(), strict=True)
        )
    return found


def max_context(begins_W: Ints, sizes_W: Ints) -> Ints:
    """For each token of a paragraph the window that shows most of its surroundings: the smaller of the tokens to its
    left and right, plus a hundredth of the window's size; of equal ones the first (`_check_is_max_context`)."""
    places_M = np.arange(int((begins_W + sizes_W).max()))
    left_WM = places_M[None, :] - begins_W[:, None]
    right_WM = sizes_W[:, None] - 1 - left_WM
    scores_WM = np.minimum(left_WM, right_WM) + 0.01 * sizes_W[:, None]
    return np.asarray(np.where((left_WM >= 0) & (right_WM >= 0), scores_WM, -np.inf).argmax(0), dtype=np.int64)


class _Texts:
    """Texts of spans of one paragraph after the other, each made once."""

    def __init__(self, tokenizer: Tokenizer, data: Windows) -> None:
        self.data, self.basic = data, basic_tokenizer(tokenizer)
        self.pieces = [tokenizer.id_to_token(piece) or "" for piece in range(tokenizer.get_vocab_size())]
        self.paragraph = -1

    def start(self, paragraph: int) -> None:
        if paragraph != self.paragraph:
            self.paragraph, self.made = paragraph, dict[tuple[int, int], tuple[str, tuple[int, int]]]()
            self.context = self.data.squad.contexts[paragraph]
            self.begin = int(self.data.paragraphs.bounds[paragraph])
            self.words = word_spans(self.context)

    def __call__(self, first: int, last: int) -> tuple[str, tuple[int, int]]:
        """The text of a span of tokens, and where it stands in the paragraph."""
        if (first, last) not in self.made:
            ids = self.data.paragraphs.ids[self.begin + first : self.begin + last + 1].tolist()
            first_word, last_word = (int(self.data.words_T[self.begin + token]) for token in (first, last))
            spans = self.words[first_word : last_word + 1]
            original = " ".join(self.context[begin:end] for begin, end in spans)
            text = final_text(joined([self.pieces[piece] for piece in ids]), original, self.basic)
            self.made[first, last] = text, self._characters(text, original, spans)
        return self.made[first, last]

    def _characters(self, text: str, original: str, spans: list[tuple[int, int]]) -> tuple[int, int]:
        """Where a part of `original`, words joined by single spaces, stands in the paragraph, where they may be wider
        apart."""
        at = self.context.find(text, spans[0][0], spans[-1][1])
        if at >= 0:
            return at, at + len(text)
        places = [place for begin, end in spans for place in range(begin, end)]
        first = original.find(text)
        first -= original.count(" ", 0, first)
        return places[first], places[first + len(text) - text.count(" ") - 1] + 1


def _unique(
    spans: list[Span], text_of: Callable[[int, int], tuple[str, tuple[int, int]]]
) -> Iterator[tuple[str, float, float, tuple[int, int]]]:
    seen = set()
    for first, last, start, end in spans:
        text, at = text_of(first, last) if first >= 0 else ("", (0, 0))
        if first < 0 or text not in seen:
            seen.add(text)
            yield text, start, end, at


def _answer(
    spans: list[Span], null_logits: npt.ArrayLike, text_of: _Texts, config: SquadConfig, *, null: bool
) -> Answer:
    """Keeps the best candidates with different texts and decides. Where none is left, the answer is "empty", and it is
    put beside a lone "no answer", as in transformers; the original fails there."""
    kept = []
    for entry in _unique(spans, text_of):
        kept.append(entry)
        if len(kept) == config.best:
            break
    start, end = (float(logit) for logit in np.asarray(null_logits))
    if null and all(text for text, *_ in kept):
        kept.append(("", start, end, (0, 0)))
    if not any(text for text, *_ in kept):
        kept.insert(0, _EMPTY)
    chances = softmax(np.array([start_logit + end_logit for _, start_logit, end_logit, _ in kept])).tolist()
    candidates = [
        Candidate(text, chance, start_logit, end_logit, at)
        for (text, start_logit, end_logit, at), chance in zip(kept, chances, strict=True)
    ]
    best = next(candidate for candidate in candidates if candidate.text)
    odds = (start + end) - best.start_logit - best.end_logit if null else None
    text = "" if odds is not None and odds > config.null_threshold else (best if null else candidates[0]).text
    return Answer(text, best, odds, candidates)
