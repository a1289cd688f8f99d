"""Tags that mark spans of words, and the scores of spans.

A tag is a mark and a label, such as B-PER or, with the mark last, PER-B; or "O" outside of all spans. Schemes: IOB1
(Ramshaw and Marcus 1995), IOB2, IOE1 and IOE2 (Tjong Kim Sang and Veenstra 1999), IOBES, and the other spellings of it,
BILOU, BMES and BMEWO.

The spans of a sentence are those of seqeval's default mode: a word continues the span of the word before if both have
the same label, its mark is I or E, and that of the word before is B or I. Broken tags also give spans: I-PER after O
begins one. The script conlleval differs there. In the strict mode, a span counts only if it begins and ends as the
scheme requires.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.batch import Ints
from lambert.core.errors import DataError, quote
from lambert.tasks.config import TagConfig
from lambert.tasks.scores import metrics
from lambert.tasks.scores.examples import Examples, shorten
from lambert.tasks.scores.formulas import Formula

OUTSIDE = "O"
"""The tag of words outside of all spans."""
NO_LABEL = "_"
"""The label of tags that are a prefix alone, as in seqeval."""
_IOB, _IOE = {"B": "B", "I": "I"}, {"I": "I", "E": "E"}
SCHEMES: dict[str, dict[str, str]] = {
    "IOB1": _IOB,
    "IOB2": _IOB,
    "IOE1": _IOE,
    "IOE2": _IOE,
    "IOBES": {**_IOB, "E": "E", "S": "S"},
    "BILOU": {**_IOB, "L": "E", "U": "S"},
    "BMES": {"B": "B", "M": "I", "E": "E", "S": "S"},
    "BMEWO": {"B": "B", "M": "I", "E": "E", "W": "S"},
}
"""The marks of each scheme, and those of IOBES that mean the same."""
NOT_STRICT = ("IOB1", "IOE1")
"""Schemes whose marks depend on neighbouring spans; they have no strict mode here."""
_TAG = re.compile(r"(?P<mark>[BIELMSUW])(?:-(?P<label>.+))?")
_SUFFIXED = re.compile(r"(?:(?P<label>.+)-)?(?P<mark>[BIELMSUW])")
_SIMILAR = re.compile(r"[BIELMSUW](?:[^\w-].*|_.*|-)|[bielmsuw]-.*")  # B_PER, B:PER, B-, b-per
_NONE, _B, _I, _E, _S = range(5)


def tags_of(words: int, spans: Sequence[tuple[int, int, str]], scheme: str, *, suffix: bool = False) -> list[str]:
    """Returns the tags of the words of a sentence with these spans: first word, last word and label, in order and
    without a common word. In the scheme "none" the tag of a word is the label of its span."""
    tags = [OUTSIDE] * words
    for number, (first, last, label) in enumerate(spans):
        before = number > 0 and spans[number - 1][1:] == (first - 1, label)
        after = number + 1 < len(spans) and spans[number + 1][0] == last + 1 and spans[number + 1][2] == label
        for word in range(first, last + 1):
            mark = _mark(scheme, begins=word == first, ends=word == last, before=before, after=after)
            named = (
                label if not mark else mark if label == NO_LABEL else f"{label}-{mark}" if suffix else f"{mark}-{label}"
            )
            tags[word] = named
    return tags


def all_tags(labels: Iterable[str], scheme: str, *, suffix: bool = False) -> list[str]:
    """Returns every tag that spans with these labels can have in a scheme, and "O"."""
    ends = [(0, 0), (1, 1), (2, 4)]  # spans of one word, which are adjacent, and a span of three words
    return [
        *dict.fromkeys(
            tag for label in labels for tag in tags_of(6, [(*end, label) for end in ends], scheme, suffix=suffix)
        )
    ]


def _mark(scheme: str, *, begins: bool, ends: bool, before: bool, after: bool) -> str:
    """Returns the mark of a word of a span. `before`, `after`: a span with the same label is adjacent there."""
    if scheme == "none":
        return ""
    if scheme in ("IOB1", "IOB2"):
        return "B" if begins and (before or scheme == "IOB2") else "I"
    if scheme in ("IOE1", "IOE2"):
        return "E" if ends and (after or scheme == "IOE2") else "I"
    meant = "S" if begins and ends else "B" if begins else "E" if ends else "I"
    return next(mark for mark, meaning in SCHEMES[scheme].items() if meaning == meant)


def _parts(tag: str, *, suffix: bool) -> tuple[str, str] | None:
    """Returns the mark and the label of a tag, None if it has no such form."""
    found = (_SUFFIXED if suffix else _TAG).fullmatch(tag)
    return (found["mark"], found["label"] or NO_LABEL) if found else None


def has_suffixes(counts: Mapping[str, int]) -> bool:
    """Returns whether marks follow the labels, as in PER-B: more words have tags of this form than of the other, and
    some label has two marks. `counts` has the number of words of each tag."""
    formed = {
        suffix: {tag: found for tag in counts if (found := _parts(tag, suffix=suffix))} for suffix in (True, False)
    }
    last, first = (sum(counts[tag] for tag in tags) for tags in formed.values())
    labels = [label for _, label in formed[True].values() if label != NO_LABEL]
    return last > first and len(set(labels)) < len(labels)


def recognise_scheme(
    counts: Mapping[str, int], sentences: Iterable[Sequence[str]] = (), *, suffix: bool = False
) -> str:
    """Returns the scheme of tags, "none" if they have no such form. `counts` has the number of words of each tag;
    `sentences`, the tags themselves, distinguish IOB1 from IOB2, and IOE1 from IOE2. `suffix`: marks follow labels."""
    formed = {tag: found for tag in counts if (found := _parts(tag, suffix=suffix))}
    others = sum(count for tag, count in counts.items() if tag not in formed and tag != OUTSIDE)
    if not formed or sum(counts[tag] for tag in formed) < others:
        return "none"
    marks = {mark for mark, _ in formed.values()}
    parts = ([formed.get(tag) for tag in tags] for tags in sentences)
    if marks <= set(_IOB):
        return "IOB1" if "B" not in marks or _only_between("B", parts) else "IOB2"
    if marks <= set(_IOE):
        return "IOE1" if _only_between("E", (tags[::-1] for tags in parts)) else "IOE2"
    return next((name for name, known in SCHEMES.items() if marks <= set(known)), "none")


def _only_between(mark: str, sentences: Iterable[Sequence[tuple[str, str] | None]]) -> bool:
    """Returns whether fewer tags contradict a scheme in which the mark is only on words directly after one with the
    same label (IOB1), than one in which it begins every span (IOB2). Sentences are reversed for marks of ends."""
    against_1 = against_2 = 0
    for tags in sentences:
        before = None
        for tag in tags:
            if tag is not None:
                same = before is not None and before[1] == tag[1]
                against_1 += tag[0] == mark and not same
                against_2 += tag[0] == "I" and not same
            before = tag
    return against_1 < against_2


def check_tags(scheme: str, places: Mapping[str, str], counts: Mapping[str, int], *, suffix: bool = False) -> None:
    """Raises DataError if tags do not have the form of the scheme, or without a scheme look like misspelt ones, such as
    B_PER. `places` has the first place of each tag, `counts` its words; `suffix`: marks follow labels."""
    if scheme == "none":
        if not {OUTSIDE, OUTSIDE.lower()} & counts.keys():
            return
        wrong = [tag for tag in counts if _SIMILAR.fullmatch(tag)]
    else:
        known, parts = SCHEMES[scheme], {tag: _parts(tag, suffix=suffix) for tag in counts}
        wrong = [tag for tag, found in parts.items() if tag != OUTSIDE and (found is None or found[0] not in known)]
    if wrong:
        words = sum(counts[tag] for tag in wrong)
        others = f" ({words:,} words have such tags: {', '.join(map(quote, wrong[:5]))})" if words > 1 else ""
        marks = ["B"] if scheme == "none" else [*SCHEMES[scheme]]
        form = ", ".join(f"LABEL-{mark}" if suffix else f"{mark}-LABEL" for mark in marks)
        raise DataError(
            f"{places[wrong[0]]}: the tag {quote(wrong[0])} does not have the form {form} or O{others}. Correct it, or "
            "set --task.tag.scheme none to learn the tags as labels of single words."
        )


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans in order: first and last word, number of the label, and whether the scheme allows it."""

    first: Ints
    last: Ints
    label: Ints
    allowed: npt.NDArray[np.bool_]


class Reader:
    """Finds the spans of tags, given as numbers of `tags`.

    `labels` are the labels of the spans, sorted. Tags without the form of the scheme count as "O". `suffix`: marks
    follow labels.
    """

    def __init__(self, scheme: str, tags: Sequence[str], *, suffix: bool = False) -> None:
        known, meanings = SCHEMES[scheme], {"B": _B, "I": _I, "E": _E, "S": _S}
        parts = [_parts(tag, suffix=suffix) for tag in tags]
        parts = [part if part and part[0] in known else None for part in parts]
        self.scheme, self.labels = scheme, sorted({part[1] for part in parts if part})
        self._names = [f"span_f1_{label}" for label in self.labels] if len(self.labels) > 1 else []  # of scores
        cells = [(meanings[known[part[0]]], self.labels.index(part[1])) if part else (_NONE, 0) for part in parts]
        self._marks, self._labels = np.array([*cells, (_NONE, 0)], dtype=np.int64).T  # number -1: no tag

    def spans(self, tags_N: Ints, bounds: Ints) -> Spans:
        """Returns the spans of sentences. Sentence s has the tags tags_N[bounds[s] : bounds[s + 1]]; -1 is no tag."""
        mark_N, label_N = self._marks[tags_N], self._labels[tags_N]
        continues_N = np.zeros(len(tags_N) + 1, dtype=bool)
        same_N = label_N[1:] == label_N[:-1]
        continues_N[1:-1] = same_N & np.isin(mark_N[:-1], (_B, _I)) & np.isin(mark_N[1:], (_I, _E))
        inside_N = mark_N != _NONE
        repeats_N = np.zeros(len(tags_N) + 1, dtype=bool)  # the word before has a tag with the same label
        repeats_N[1:-1] = same_N & inside_N[:-1] & inside_N[1:]
        continues_N[bounds[:-1]] = repeats_N[bounds[:-1]] = False
        first = np.flatnonzero(inside_N & ~continues_N[:-1])
        last = np.flatnonzero(inside_N & ~continues_N[1:])
        begin, end = mark_N[first], mark_N[last]
        if self.scheme == "IOB1":
            allowed = (begin == _B) == repeats_N[first]
        elif self.scheme == "IOE1":
            allowed = (end == _E) == repeats_N[last + 1]
        elif self.scheme == "IOB2":
            allowed = begin == _B
        elif self.scheme == "IOE2":
            allowed = end == _E
        else:
            allowed = (begin == _S) | ((begin == _B) & (end == _E))
        return Spans(first, last, label_N[first], allowed)

    def counts(self, truth_N: Ints, found_N: Ints, bounds: Ints, *, strict: bool = False) -> "Counts":
        """Returns the numbers of true, predicted and correct spans; `strict`: of those that the scheme allows."""
        truth, found = (self.spans(tags_N, bounds) for tags_N in (truth_N, found_N))
        if strict:
            truth, found = _select_allowed(truth), _select_allowed(found)
        words, size = int(bounds[-1]) + 1, len(self.labels)
        keys = [(spans.first * words + spans.last) * size + spans.label for spans in (truth, found)]
        both = np.isin(keys[0], keys[1])
        firsts = (truth.first, found.first, truth.first[both])
        owners = tuple(np.searchsorted(bounds, first, side="right") - 1 for first in firsts)
        return Counts(len(bounds) - 1, size, owners, (truth.label, found.label, truth.label[both]))

    def score_names(self) -> list[str]:
        """Returns the names of `scores`, without those of standard errors."""
        strict = [] if self.scheme in NOT_STRICT else ["strict_span_f1"]
        return ["span_f1", "span_precision", "span_recall", *strict, *self._names]

    def scores(self, truth_N: Ints, found_N: Ints, bounds: Ints) -> dict[str, float]:
        """Returns micro-averaged span_f1, span_precision and span_recall, span_f1_LABEL of several labels,
        strict_span_f1 for schemes that mark an end of every span, and NAME_se, by bootstrap over the sentences."""
        counts, strict = (self.counts(truth_N, found_N, bounds, strict=strict) for strict in (False, True))
        size = counts.sentences

        def scores(rows: Ints) -> dict[str, float]:
            weights_S = np.bincount(rows, minlength=size)
            counts_L3 = counts.of_labels(weights_S)
            true, predicted, both = counts_L3.sum(0).tolist()
            made = {
                "span_f1": float(_f1(counts_L3.sum(0))),
                "span_precision": both / predicted if predicted else 0.0,
                "span_recall": both / true if true else 0.0,
            }
            if self.scheme not in NOT_STRICT:
                made["strict_span_f1"] = float(_f1(strict.of_labels(weights_S).sum(0)))
            return made | dict(zip(self._names, _f1(counts_L3).tolist(), strict=False))

        return metrics.with_errors(scores(np.arange(size)), metrics.bootstrap_errors(scores, size))


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of spans that are true, predicted, and both. They are kept as lists of spans: a table of sentences and
    labels is mostly zeros, and has billions of cells for thousands of each."""

    sentences: int
    labels: int
    owners: tuple[Ints, ...]
    """The sentence of each span, for the three columns."""
    kinds: tuple[Ints, ...]
    """The label of each span."""

    def of_sentences(self) -> Ints:
        """Returns the numbers for each sentence [S, 3]."""
        return np.stack([np.bincount(owner, minlength=self.sentences) for owner in self.owners], 1)

    def of_labels(self, weights_S: Ints) -> Ints:
        """Returns the numbers for each label [L, 3], with every sentence as often as `weights_S` says."""
        pairs = zip(self.kinds, self.owners, strict=True)
        columns = [np.bincount(kind, weights_S[owner], minlength=self.labels) for kind, owner in pairs]
        return np.stack(columns, 1).astype(np.int64)


def _select_allowed(spans: Spans) -> Spans:
    kept = spans.allowed
    return Spans(spans.first[kept], spans.last[kept], spans.label[kept], spans.allowed[kept])


def reader_of(config: TagConfig, labels: Sequence[str]) -> Reader | None:
    """Returns the reader of spans for settings whose form of the tags is known, or None: the labels mark no spans."""
    return None if config.scheme == "none" else Reader(config.scheme, labels, suffix=bool(config.suffix))


def complete_form(config: TagConfig, counts: Mapping[str, int], sentences: Iterable[Sequence[str]] = ()) -> TagConfig:
    """Returns the settings with the form of the tags recognised where it is not set. `counts`: words of each tag."""
    suffix = has_suffixes(counts) if config.suffix is None else config.suffix
    return replace(config, scheme=config.scheme or recognise_scheme(counts, sentences, suffix=suffix), suffix=suffix)


def _f1(counts_K3: Ints) -> npt.NDArray[np.float64]:
    """Returns the F1 of numbers of spans that are true, predicted, and both [..., 3]; 0 without any."""
    marked_K = counts_K3[..., 0] + counts_K3[..., 1]
    return np.asarray(2.0 * counts_K3[..., 2] / np.maximum(marked_K, 1))


def tag_examples(
    texts: Sequence[str],
    truth: Sequence[Sequence[str]],
    tags: Sequence[Sequence[str | None]],
    reader: Reader | None,
    labels: Sequence[str],
) -> Examples:
    """Returns the scored examples of tagged sentences, whose tags are among the `labels`: rows with the lists truth and
    prediction (null without a prediction), and numbers of words: all, correct, and of those whose label is not "O" the
    correct, true and predicted ones. With a `reader` of spans, also the numbers of correct, true and predicted spans.
    """
    rows: list[dict[str, Any]] = []
    for text, true, found in zip(texts, truth, tags, strict=True):
        right = [tag for tag, own in zip(true, found, strict=True) if tag == own]
        rows.append(
            {
                "text": shorten(text), "tokens": len(true), "truth": [*true], "prediction": [*found],
                "words": len(true), "correct": len(right),
                "tagged_correct": sum(tag != OUTSIDE for tag in right),
                "tagged_true": sum(tag != OUTSIDE for tag in true),
                "tagged_predicted": sum(tag not in (OUTSIDE, None) for tag in found),
            }
        )  # fmt: skip
    formulas = {
        "f1": Formula("f1_of_sums", ("tagged_correct", "tagged_true", "tagged_predicted")),
        "accuracy": Formula("ratio", ("correct", "words")),
    }
    if reader is not None:
        numbers: dict[str | None, int] = {**{label: number for number, label in enumerate(labels)}, None: -1}
        truth_N, found_N = (np.array([numbers[tag] for own in of for tag in own], np.int64) for of in (truth, tags))
        bounds = np.cumsum([0, *map(len, truth)])
        counts_S3 = reader.counts(truth_N, found_N, bounds).of_sentences()
        for row, (true_spans, predicted, both) in zip(rows, counts_S3.tolist(), strict=True):
            row |= {"spans_correct": both, "spans_true": true_spans, "spans_predicted": predicted}
        spans = Formula("f1_of_sums", ("spans_correct", "spans_true", "spans_predicted"))
        formulas = {"span_f1": spans, **formulas}
    return Examples(rows, formulas)
