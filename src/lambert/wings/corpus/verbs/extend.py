"""`lambert extend`: adds the words of a domain to the vocabulary of an encoder."""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.core.files import check_new_folder
from lambert.engine.progress import progress
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.families import reads_segments
from lambert.model.publish import publish
from lambert.runs.result import Result, Say, silent
from lambert.tasks.card import card_of_converted
from lambert.tasks.model_folder import read_extras, task_of
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.text.tokenizers.trial import library_errors
from lambert.wings.corpus.tokens import expansion
from lambert.wings.corpus.tokens.additions import Fragments, PieceDivision, Word, choose_division
from lambert.wings.corpus.tokens.expansion import RunCounts
from lambert.wings.corpus.verbs.extend_settings import ExtendConfig

ADDED = "added_words.tsv"
"""File of the model folder with the new words in the order of their ids, their counts in the text and their pieces. As
`word_list` it adds the same words to another model."""
_SHOWN = 8
"""Number of new words, and of listed words that are not added, that are shown."""


def run(config: ExtendConfig, say: Say = silent) -> Result:
    """Writes a model folder with the larger vocabulary. The scores of the result are the tokens per word on held-out
    text, `tokens_per_word_before` and `tokens_per_word`, if a document is held out.

    Raises:
        DataError: The model or the text cannot be used, or there is no word to add.
        UsageError: The text has fewer words to add than `words`, or `out` exists.
    """
    check_new_folder(config.out)
    folder = layout.model_folder(config.model)
    layout.check_family(settings := layout.read_config(folder), folder)
    shape = layout.encoder_config(settings, folder, config.code)
    tokenizer, source = tokenizers.load(folder), str(tokenizers.file_in(folder))
    division = choose_division(tokenizer, source, replace=config.replace_unused)
    specials = roles.specials(tokenizer, source)
    old = specials.vocabulary
    model, report = weights.load(folder, vocabulary=old, code=config.code, pooler=True)
    for warning in report.warnings():
        say(warning)
    extra, files = read_extras(folder, shape)
    listed = _choose_listed(division, config.word_list, tokenizer.get_vocab(), say) if config.word_list else []
    texts = _read(config, say)
    counts, held = division.word_counts(division.counts(texts.counts)), division.counts(texts.heldout)
    chosen = [division.word(piece, counts[piece]) for piece in listed]
    chosen += _choose_words(config, division, counts, listed, source)
    chosen, larger = _keep_whole(division, chosen, source, say)
    numbers = division.numbers(len(chosen))
    size = max(old, numbers[-1] + 1)
    say(f"words     {len(chosen):,} added, {old:,} to {size:,} pieces: {_join_first([w.text for w in chosen])}")
    if (reused := old + len(chosen) - size) > 0:
        say(f"unused    {reused:,} of them in place of {tokenizer.id_to_token(numbers[0])} and the like")
    before, after = (one.fragments(held, specials.unk) for one in (division, choose_division(larger, source)))
    say(_describe_fragments(texts, before, after, tokenizer.id_to_token(specials.unk) if specials.unk >= 0 else ""))
    padding = layout.count_padding(size, old, shape.vocabulary)
    rows = {number: word.ids for number, word in zip(numbers, chosen, strict=True)}
    rows |= dict.fromkeys(range(size, size + padding), tuple(range(old, shape.vocabulary)))
    files[ADDED] = "".join(
        f"{word.text}\t{word.count}\t{' '.join(map(tokenizer.id_to_token, word.ids))}\n" for word in chosen
    )
    model, write = (
        weights.extend_vocabulary(model, old, rows),
        partial(tokenizers.save, larger, longest=shape.positions, segments=reads_segments(shape)),
    )
    card = card_of_converted(model, config.out, folder, task_of(folder, settings))
    say(publish(model, config.out, write, extra, card=card, files=files, replace=True, compare=True))
    say(f"model     {config.out}")
    scores = {"tokens_per_word_before": before.tokens_per_word, "tokens_per_word": after.tokens_per_word}
    return Result(config.out, scores if before.words else {})


def _choose_listed(division: PieceDivision, path: Path, pieces: Collection[str], say: Say) -> list[str]:
    """Returns the words of a list that are not among the `pieces`, as pieces, in the order of the list.

    Raises DataError if there is none.
    """
    found: dict[str, None] = {}
    known, other = dict[str, None](), dict[str, None]()
    for text in expansion.read_word_list(path):
        if not (piece := division.piece(text)):
            other[text] = None
        else:
            (known if piece in pieces else found)[piece] = None
    if known:
        say(f"list      {len(known):,} words are pieces already: {_join_first([division.word(p).text for p in known])}")
    if other:
        say(f"list      {len(other):,} lines are not one word for the tokenizer and are omitted: {_join_first(other)}")
    if not found:
        raise DataError(f"{path} has no word to add: its lines are pieces of the tokenizer already, or not one word.")
    return [*found]


def _read(config: ExtendConfig, say: Say) -> RunCounts:
    with progress(None, "reading", unit="MB", quiet=say is silent, summary=False) as bar:
        return expansion.read(
            config.as_prepare(), config.heldout, lambda done, total: bar.update("reading", done / 1e6, total / 1e6)
        )


def _choose_words(
    config: ExtendConfig, division: PieceDivision, counts: Mapping[str, int], without: Collection[str], source: str
) -> list[Word]:
    """Returns the words of the text to add, except the pieces in `without`."""
    ranked = division.rank_words(counts, config.min_count, without) if config.words else []
    often = f"that occurs at least {config.min_count} times"
    if config.words and not ranked:
        raise DataError(f"{source} splits no word of the text {often}. Give more text, or lower --min-count.")
    if len(ranked) < config.words:
        raise UsageError(
            f"words = {config.words:,}, but the text has only {len(ranked):,} words {often.replace('occurs', 'occur')} "
            f"and are split: use --words {len(ranked)}, lower --min-count, or give more text."
        )
    return ranked[: config.words]


@library_errors()
def _keep_whole(division: PieceDivision, chosen: list[Word], source: str, say: Say) -> tuple[list[Word], Any]:
    """Returns the words that the extended tokenizer takes as one piece, and this tokenizer. Added tokens divide words
    that contain them.

    Raises DataError if there is none.
    """
    larger = division.extend(chosen)
    encoded = larger.encode_batch([f" {word.text}" for word in chosen], add_special_tokens=False)
    numbered = zip(division.numbers(len(chosen)), chosen, encoded, strict=True)
    divided = [word.text for number, word, found in numbered if found.ids != [number]]
    if not divided:
        return chosen, larger
    say(f"words     {len(divided):,} omitted, because {source} still divides them: {_join_first(divided)}")
    if len(divided) == len(chosen):
        raise DataError(f"{source} still splits every one of the words after they are added. Give other words.")
    return _keep_whole(division, [word for word in chosen if word.text not in divided], source, say)


def _join_first(words: Collection[str]) -> str:
    return ", ".join([*words][:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")


def _describe_fragments(texts: RunCounts, before: Fragments, after: Fragments, unknown: str) -> str:
    """Returns a line about the held-out text. `unknown` is the unknown token, or empty if there is none."""
    if not before.words:
        return f"held-out  no words: {texts.heldout_documents:,} of {texts.documents:,} documents are held out"
    shares = [found.unknown / found.tokens for found in (before, after)]
    return (
        f"held-out  {texts.heldout_documents:,} of {texts.documents:,} documents: {before.tokens_per_word:.3f} tokens "
        f"per word before, {after.tokens_per_word:.3f} now; {after.tokens / before.tokens - 1:+.1%} tokens"
        + (f", {unknown} {shares[0]:.2%} before, {shares[1]:.2%} now" if unknown else "")
    )
