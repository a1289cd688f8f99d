"""Converts span logits to answers: the texts of the best spans of all windows (run_squad.py, write_predictions)."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lambert.core.batch import Ints
from lambert.tasks.config import SquadConfig
from lambert.tasks.reading.texts import token_characters
from lambert.tasks.scores.metrics import Floats, softmax
from lambert.tasks.squad.text import basic_tokenizer, final_text, join_pieces, word_spans, words_of
from lambert.tasks.squad.windows import Windows
from lambert.text.tokenizers import roles

Span = tuple[int, int, float, float]
"""First and last token in the paragraph, -1 for no answer, and their logits."""
Columns = Floats
"""The same for N spans [4, N]."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate answer; `text` is "" for no answer. The probabilities of the candidates of a question sum to 1."""

    text: str
    probability: float
    start_logit: float
    end_logit: float
    characters: tuple[int, int]
    """Its first character in the paragraph and the character after it; 0, 0 for no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a model to one question."""

    best: Candidate
    """The best candidate that is not "no answer"."""
    null_odds: float | None
    """Version 2.0: score of no answer minus that of `best`."""
    candidates: list[Candidate]

    def choose(self, null_threshold: float) -> Candidate:
        """Returns what is predicted: "no answer" if its odds are above the threshold, else `best`."""
        if self.null_odds is None or self.null_odds <= null_threshold:
            return self.best
        return next(candidate for candidate in self.candidates if not candidate.text)


def answers(
    tokenizer: Tokenizer, data: Windows, logits: Iterable[Floats], config: SquadConfig, *, null: bool
) -> list[Answer]:
    """Returns one Answer for each question from the span logits [tokens, 2]. `null` allows "no answer"."""
    text_of = _Texts(tokenizer, data)
    windows = _windows(data.lengths_S, logits)
    found = []
    for index, question in enumerate(data.questions):
        spans, null_logits = _spans(data, int(data.bounds_Q[index]), int(data.bounds_Q[index + 1]), windows, config)
        if null:
            spans.append(np.array([[-1.0], [-1.0], null_logits[:1], null_logits[1:]]))
        text_of.start(question.paragraph)
        found.append(_answer(_rank(spans), null_logits, text_of, config, null=null))
    deque(windows, maxlen=0)  # runs the generator of the outputs to its end
    return found


def _windows(lengths_S: Ints, logits: Iterable[Floats]) -> Iterator[Floats]:
    """Yields the logits of each window."""
    lengths = iter(lengths_S.tolist())
    for logits_T2 in logits:
        at = 0
        while at < len(logits_T2):
            size = next(lengths)
            yield logits_T2[at : at + size]
            at += size


def _spans(
    data: Windows, first: int, last: int, windows: Iterator[Floats], config: SquadConfig
) -> tuple[list[Columns], Floats]:
    """Returns the spans of the best starts and ends of each window of a question, in the original's order, and the
    logits of the most probable "no answer". A token starts at most `best` spans: no two windows have the same start."""
    assert data.second is not None
    found: list[Columns] = []
    begins_W, sizes_W = data.begins_S[first:last], data.second.lengths_S[first:last]
    homes_M = max_context(begins_W, sizes_W) if last - first > 1 else None
    null_logits, least = np.zeros(2), np.inf
    for window in range(last - first):
        logits_M2 = next(windows)
        if float(logits_M2[0].sum()) < least or not window:
            null_logits, least = logits_M2[0].copy(), float(logits_M2[0].sum())
        shift = int(data.first.lengths_S[first + window]) + 1 + data.template.between
        size, begin = int(sizes_W[window]), int(begins_W[window])
        starts, ends = (np.argsort(-logits_M2[:, side], kind="stable")[: config.best] - shift for side in (0, 1))
        starts, ends = starts[(starts >= 0) & (starts < size)], ends[(ends >= 0) & (ends < size)]
        if homes_M is not None:
            starts = starts[homes_M[starts + begin] == window]
        lengths = ends[None, :] - starts[:, None] + 1
        rows, columns = np.nonzero((lengths > 0) & (lengths <= config.max_answer))
        if len(rows):
            first_N, last_N = starts[rows], ends[columns]
            start_N, end_N = logits_M2[first_N + shift, 0], logits_M2[last_N + shift, 1]
            found.append(np.stack([first_N + begin, last_N + begin, start_N, end_N]))
    return found, null_logits


def _rank(parts: list[Columns]) -> Iterator[Span]:
    """Yields the spans by decreasing sum of logits; the order of equal sums is kept."""
    if parts:
        first_N, last_N, start_N, end_N = np.concatenate(parts, 1)
        for n in np.argsort(-(start_N + end_N), kind="stable").tolist():
            yield int(first_N[n]), int(last_N[n]), float(start_N[n]), float(end_N[n])


def max_context(begins_W: Ints, sizes_W: Ints) -> Ints:
    """Returns for each token of a paragraph the first window with the largest context of the token: the smaller number
    of tokens to its left and right, plus 0.01 times the size of the window (`_check_is_max_context`)."""
    homes_M = np.zeros(int((begins_W + sizes_W).max()), dtype=np.int64)
    best_M = np.full(len(homes_M), -np.inf)
    scores_of = {size: _context(size) for size in np.unique(sizes_W).tolist()}
    for window, (begin, size) in enumerate(zip(begins_W.tolist(), sizes_W.tolist(), strict=True)):
        scores, own = scores_of[size], slice(begin, begin + size)
        better = scores > best_M[own]
        homes_M[own][better] = window
        best_M[own][better] = scores[better]
    return homes_M


def _context(size: int) -> Floats:
    left = np.arange(size)
    return np.asarray(np.minimum(left, size - 1 - left) + 0.01 * np.int64(size))


class _Texts:
    """The texts of spans, cached for one paragraph at a time."""

    def __init__(self, tokenizer: Tokenizer, data: Windows) -> None:
        self.data, self.tokenizer, self.basic = data, tokenizer, basic_tokenizer(tokenizer)
        self.marked = bool(roles.prefix(tokenizer))
        """Whether the pieces inside words are marked, as those of WordPiece are."""
        self.piece = cache(tokenizer.id_to_token)
        self.paragraph = -1

    def start(self, paragraph: int) -> None:
        if paragraph != self.paragraph:
            self.paragraph, self.made = paragraph, dict[tuple[int, int], tuple[str, tuple[int, int]]]()
            self.context = self.data.squad.contexts[paragraph]
            self.begin = int(self.data.paragraphs.bounds[paragraph])
            self.words = word_spans(self.context)
            (self.characters_T2,) = token_characters(self.tokenizer, [self.context])

    def __call__(self, first: int, last: int) -> tuple[str, tuple[int, int]]:
        """Returns the text of a span of tokens, and its first character and end in the paragraph."""
        if (first, last) not in self.made:
            self.made[first, last] = self._make_text(first, last)
        return self.made[first, last]

    def _make_text(self, first: int, last: int) -> tuple[str, tuple[int, int]]:
        """Returns the text of a span and its place. With WordPiece it is that of run_squad.py, unless this text is
        elsewhere; with other tokenizers, the characters from the first to the last token, "" for white space."""
        begin, end = int(self.characters_T2[first, 0]), int(self.characters_T2[last, 1])
        if not self.marked:
            return (self.context[begin:end], (begin, end)) if begin < end else ("", (0, 0))
        ids = self.data.paragraphs.ids[self.begin + first : self.begin + last + 1].tolist()
        first_word, last_word = (int(self.data.words_T[self.begin + token]) for token in (first, last))
        spans = self.words[first_word : last_word + 1]
        original = " ".join(self.context[a:b] for a, b in spans)
        text = final_text(join_pieces([self.piece(token) or "" for token in ids]), original, self.basic)
        exact = " ".join(words_of(self.context[begin:end]))
        if exact and (exact == text or self.basic(exact) == self.basic(text)):
            return exact, (begin, end)
        return text, self._characters(text, original, spans)

    def _characters(self, text: str, original: str, spans: list[tuple[int, int]]) -> tuple[int, int]:
        """Returns the first character and end of `text` in the paragraph. `text` is part of `original`, whose words are
        joined by single spaces; in the paragraph there may be more space between them."""
        at = self.context.find(text, spans[0][0], spans[-1][1])
        if at >= 0:
            return at, at + len(text)
        places = [place for begin, end in spans for place in range(begin, end)]
        first = original.find(text)
        first -= original.count(" ", 0, first)
        return places[first], places[first + len(text) - text.count(" ") - 1] + 1


def _answer(
    spans: Iterable[Span], null_logits: npt.ArrayLike, text_of: _Texts, config: SquadConfig, *, null: bool
) -> Answer:
    """Returns the answer, with the best candidates of different texts. If there is no candidate but "no answer", the
    candidate "empty" is added, as in transformers; the original fails then."""
    kept: dict[str, tuple[float, float, tuple[int, int]]] = {}
    for first, last, start, end in spans:
        text, at = text_of(first, last) if first >= 0 else ("", (0, 0))
        if text or first < 0:
            kept.setdefault(text, (start, end, at))
        if len(kept) == config.best:
            break
    start, end = (float(logit) for logit in np.asarray(null_logits))
    if null:
        kept.setdefault("", (start, end, (0, 0)))
    if not any(kept):
        kept = {"empty": (0.0, 0.0, (0, 0)), **kept}
    chances = softmax(np.array([start_logit + end_logit for start_logit, end_logit, _ in kept.values()])).tolist()
    candidates = [
        Candidate(text, chance, start_logit, end_logit, at)
        for (text, (start_logit, end_logit, at)), chance in zip(kept.items(), chances, strict=True)
    ]
    best = next(candidate for candidate in candidates if candidate.text)
    odds = (start + end) - best.start_logit - best.end_logit if null else None
    return Answer(best, odds, candidates)
