"""Windows over paragraphs: [CLS] question [SEP] part of the paragraph [SEP] (google-research/bert, run_squad.py).

Paragraphs are tokenised once, whatever the number of their questions and windows. Windows are cut when a batch is
built.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain

import numpy as np
import torch
from tokenizers import Tokenizer

from lambert.core.batch import Ints, Target
from lambert.core.errors import DataError, UsageError, quote
from lambert.tasks.config import TaskConfig
from lambert.tasks.distillation import SpanTeacher
from lambert.tasks.reading.features import Later
from lambert.tasks.reading.segments import Cuts, Segments, begin_windows, text_keys
from lambert.tasks.reading.texts import EncodedTexts, Numbers, TextEncoder, token_characters, word_numbers
from lambert.tasks.reading.unknown import count_unknown
from lambert.tasks.squad.text import Question, Questions, nearest_offset, words_of
from lambert.text.tokenizers import roles

_CHUNK = 4096  # questions whose answers are looked up at once
_MOST_WINDOWS = 10_000_000  # about 100 bytes each; SQuAD 2.0 has 130,000
_SHOWN = 3  # questions that are listed
_NONE, _LOST = -1, -2  # instead of a token: no answer; an answer that was not found in the paragraph


class Windows(Segments):
    """The windows of all questions, in the order of the questions and of the paragraph.

    `text`: the questions and paragraphs. `bounds_Q` [questions + 1]: question q has the windows bounds_Q[q] to
    bounds_Q[q + 1]. `begins_S`: the paragraph's token at which a window begins. `words_T`: the word of every token of
    every paragraph. `spans_Q2`: first and last token of the target answer in the paragraph, -1 for no answer; None
    without training.
    """

    text: Later[Questions]
    bounds_Q: Ints
    begins_S: Ints
    words_T: Numbers
    paragraphs: EncodedTexts
    spans_Q2: Ints | None = None
    teacher: SpanTeacher | None = None
    """Predictions for the windows to learn from, in training."""

    @property
    def squad(self) -> Questions:
        """The file, with its texts."""
        return self.text.value

    @property
    def questions(self) -> list[Question]:
        return self.squad.questions

    def targets(self, indices_S: Ints, begins_S: Ints) -> Mapping[str, Target]:
        if self.spans_Q2 is None or self.second is None:
            return {}
        owners_S = np.searchsorted(self.bounds_Q, indices_S, side="right") - 1
        first_S, last_S = self.spans_Q2[owners_S].T - self.begins_S[indices_S]
        inside_S = (first_S >= 0) & (last_S < self.second.lengths_S[indices_S])
        shift_S = self.first.lengths_S[indices_S] + 1 + self.template.between
        labels_S2 = np.stack([first_S + shift_S, last_S + shift_S], 1) * inside_S[:, None]
        target = Target(torch.arange(len(indices_S)), torch.from_numpy(labels_S2))
        return {"span": target if self.teacher is None else self.teacher.target(target, indices_S)}


def windows(tokenizer: Tokenizer, config: TaskConfig, squad: Questions, *, training: bool) -> Windows:
    """Returns all windows of a file. With `training`, finds the tokens of the answers, and leaves out questions whose
    answer is not in the paragraph. `counts` has questions, windows, impossible, offsets_corrected, answers_not_found,
    questions_cut and, without `training`, answers_absent: questions without an answer in the paragraph."""
    special = roles.template(tokenizer).pair
    room = config.max_length - config.squad.max_query - special
    if room < 1:
        raise UsageError(
            f"task.max_length = {config.max_length} leaves no room for the paragraph beside task.squad.max_query = "
            f"{config.squad.max_query}: lower task.squad.max_query, or raise task.max_length up to the encoder's "
            "positions."
        )
    encoder = TextEncoder(tokenizer)
    paragraphs, words_T = encoder.with_words(squad.contexts)
    counts = {"offsets_corrected": 0, "answers_not_found": 0}
    spans_Q2, notes = None, []
    if not training:
        absent = [question for question in squad.questions if _absent(question, squad.contexts)]
        counts["answers_absent"] = len(absent)
        notes = [f"scored all the same: {_format_lost(question)}" for question in absent[:_SHOWN]]
    else:
        spans_Q2 = _spans(tokenizer, encoder, squad, paragraphs, words_T, counts)
        kept = spans_Q2[:, 0] != _LOST
        notes = _list_left_out(
            [q for q, k in zip(squad.questions, kept, strict=True) if not k], config.squad.bad_answers
        )
        squad = Questions(squad.contexts, [q for q, k in zip(squad.questions, kept, strict=True) if k], squad.version)
        spans_Q2 = spans_Q2[kept]
        if not squad.questions:
            raise DataError(
                f"{notes[0].partition(': ')[2]}, and so it is for every question: the answers of the file "
                "belong to other paragraphs. Give each paragraph its own questions."
            )
    questions = encoder([question.text for question in squad.questions], config.squad.max_query)
    asked_Q = np.minimum(questions.lengths, config.squad.max_query)
    owner_Q = np.array([question.paragraph for question in squad.questions], dtype=np.int64)
    tokens_Q, room_Q = paragraphs.lengths[owner_Q], config.max_length - special - asked_Q
    step_Q = np.minimum(room_Q, config.squad.stride)
    windows_Q = np.where(tokens_Q > 0, 1 + np.maximum(0, -((room_Q - tokens_Q) // step_Q)), 0)
    _check_count(windows_Q, tokens_Q - room_Q, squad.questions, config.squad.stride)
    bounds_Q, owners_S, begins_S = begin_windows(windows_Q, step_Q)
    first = Cuts(questions.ids, questions.bounds[owners_S], asked_Q[owners_S])
    lengths_S = np.minimum(tokens_Q[owners_S] - begins_S, room_Q[owners_S])
    second = Cuts(paragraphs.ids, paragraphs.bounds[owner_Q[owners_S]] + begins_S, lengths_S)
    counts |= {
        "questions": len(squad.questions),
        "impossible": sum(question.impossible for question in squad.questions),
        "windows": len(owners_S),
        "questions_cut": int((asked_Q < questions.lengths).sum()),
    }
    made = Windows(tokenizer, first, second, counts)
    made.text = Later(lambda: squad)
    texts = chain(squad.contexts, (question.text for question in squad.questions))
    made.keys = text_keys((squad.contexts[question.paragraph], question.text) for question in squad.questions)
    made.unknown = count_unknown(tokenizer, [paragraphs.ids, questions.ids], texts)
    made.bounds_Q, made.begins_S, made.words_T = bounds_Q, begins_S, words_T
    made.paragraphs, made.spans_Q2, made.notes = paragraphs, spans_Q2, notes
    return made


def _absent(question: Question, contexts: Sequence[str]) -> bool:
    """Returns whether a question has answers, none of which is in its paragraph."""
    return bool(question.answers) and not any(text in contexts[question.paragraph] for text, _ in question.answers)


def _format_lost(question: Question) -> str:
    return f"{question.place}: the answer {quote(question.answers[0][0])} is not in its paragraph"


def _list_left_out(questions: Sequence[Question], action: str) -> list[str]:
    """Returns a line for each of the first questions whose answer was not found in the paragraph. Raises DataError if
    the action is "stop" and there are some."""
    found = [_format_lost(question) for question in questions[:_SHOWN]]
    if found and action == "stop":
        others = f" (and {len(questions) - 1:,} more)" if len(questions) > 1 else ""
        raise DataError(
            f'{found[0]}{others}. Correct the file, or set task.squad.bad_answers = "skip" to leave such questions out.'
        )
    return [f"left out: {line}" for line in found]


def _check_count(windows_Q: Ints, beyond_Q: Ints, questions: Sequence[Question], stride: int) -> None:
    """Raises DataError if there are too many windows for the memory. `beyond_Q`: tokens after the first window."""
    if int(windows_Q.sum()) > _MOST_WINDOWS:
        longest = questions[int(windows_Q.argmax())]
        least = -(-int(np.maximum(beyond_Q, 0).sum()) // max(1, _MOST_WINDOWS - len(windows_Q)))
        raise DataError(
            f"{longest.place}: with task.squad.stride = {stride} the file has {int(windows_Q.sum()):,} windows, and "
            f"{_MOST_WINDOWS:,} is the most; this question alone has {int(windows_Q.max()):,}. Fine-tune with a stride "
            f"of {least} or more, or shorten the paragraphs."
        )


def _spans(
    tokenizer: Tokenizer, encoder: TextEncoder, squad: Questions, paragraphs: EncodedTexts, words_T: Numbers,
    counts: dict[str, int],
) -> Ints:  # fmt: skip
    """Returns the first and last token [questions, 2] of the first answer: -1 for no answer, -2 if it was not found.

    In WordPiece they are those of the original: in the words of the answer, the tokens that equal the tokenised answer,
    or else all tokens of these words. Where that does not say which tokens are meant, and with other tokenizers, they
    are the tokens of the answer's characters.
    """
    chunks = range(0, len(squad.questions), _CHUNK)
    found = np.array([of for low in chunks for of in _answer_words(squad, low, counts)], dtype=np.int64)
    number_A, first_A, last_A, begin_A, end_A = found.reshape(-1, 5).T
    owner_A = np.array([squad.questions[number].paragraph for number in number_A], dtype=np.int64)
    order_T = np.repeat(np.arange(len(squad.contexts)) << 32, paragraphs.lengths) | words_T
    tokens_A2 = np.searchsorted(order_T, np.stack([owner_A << 32 | first_A, owner_A << 32 | last_A + 1], 1)) - [0, 1]
    unclear_A = np.full(len(tokens_A2), True)
    if roles.prefix(tokenizer):
        texts = [squad.questions[number].answers[0][0] for number in number_A]
        golds = encoder(texts)
        for at, text in enumerate(texts):
            first, last = tokens_A2[at].tolist()
            equal = _occurrences(paragraphs.ids[first : last + 1], golds[at])
            unclear_A[at] = len(equal) > 1 or (not equal and roles.UNSPACED.search(text))
            if len(equal) == 1:
                tokens_A2[at] = first + equal[0] + np.array([0, len(golds[at]) - 1])
    tokens_A2[tokens_A2[:, 1] < tokens_A2[:, 0]] = _LOST
    tokens_A2 -= np.where(tokens_A2 == _LOST, 0, paragraphs.bounds[owner_A][:, None])
    unclear = np.flatnonzero(unclear_A & (tokens_A2[:, 0] != _LOST))
    for low in range(0, len(unclear), _CHUNK):
        some = unclear[low : low + _CHUNK]
        owners, of = np.unique(owner_A[some], return_inverse=True)
        places = token_characters(tokenizer, [squad.contexts[owner] for owner in owners])
        for at, owner in zip(some.tolist(), of.tolist(), strict=True):
            begin_T, end_T = places[owner].T
            inside = np.flatnonzero((begin_T < np.minimum(end_A[at], end_T)) & (end_T > begin_A[at]))
            tokens_A2[at] = inside[[0, -1]] if len(inside) else tokens_A2[at]
    impossible_Q1 = np.array([[question.impossible] for question in squad.questions])
    spans_Q2 = np.where(impossible_Q1, _NONE, np.full((len(squad.questions), 2), _LOST))
    spans_Q2[number_A] = tokens_A2
    counts["answers_not_found"] = int((spans_Q2[:, 0] == _LOST).sum())
    return spans_Q2


def _answer_words(squad: Questions, low: int, counts: dict[str, int]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields (question, first word, last word, first character, character after the last one) of the first answers of
    `_CHUNK` questions from number `low`, if these words of the paragraph contain the answer (the original's check)."""
    asked = squad.questions[low : low + _CHUNK]
    owners = sorted({question.paragraph for question in asked})
    text = "\n".join(squad.contexts[owner] for owner in owners)
    numbers = word_numbers(text)
    begins = np.flatnonzero(np.diff(numbers, prepend=-1, append=numbers[-1:] + 1)).tolist()
    offsets = dict(zip(owners, accumulate((len(squad.contexts[o]) + 1 for o in owners), initial=0), strict=False))
    for number, question in enumerate(asked, low):
        if question.impossible:
            continue
        context, (answer, start) = squad.contexts[question.paragraph], question.answers[0]
        if start < 0 or context[start : start + len(answer)] != answer:
            found = nearest_offset(context, answer, start) if answer.strip() else -1
            counts["offsets_corrected"] += found >= 0
            start = found if found >= 0 else start
        if not answer.strip() or not 0 <= start < len(context):
            continue
        offset = offsets[question.paragraph]
        before = int(numbers[offset - 1]) + 1 if offset else 0
        first = max(int(numbers[offset + start]), before)
        last = int(numbers[offset + min(start + len(answer), len(context)) - 1])
        if " ".join(answer.split()) in " ".join(words_of(text[begins[first] : begins[last + 1]])):
            yield number, first - before, last - before, start, start + len(answer)


def _occurrences(ids: Numbers, gold: Numbers) -> list[int]:
    """Returns where the tokenised answer begins in these tokens, such as at the token 1 of "(1895-1943)." for "1895"
    (`_improve_answer_span`, which takes the first)."""
    held, wanted, size = ids.tobytes(), gold.tobytes(), ids.itemsize
    found, at = [], held.find(wanted) if wanted else -1
    while at >= 0:
        if at % size == 0:
            found.append(at // size)
        at = held.find(wanted, at + 1)
    return found
