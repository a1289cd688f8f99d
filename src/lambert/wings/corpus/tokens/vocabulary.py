"""Learns vocabularies: WordPiece, byte-level BPE and Unigram."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from lambert.core.errors import UsageError
from lambert.core.randomness import Stream, key, unit
from lambert.text import sentences
from lambert.text.tokenizers.encoding import document_hash
from lambert.text.tokenizers.tokenizer import CONTINUATION, SPECIAL_PIECES, build
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.documents import Documents
from lambert.wings.corpus.tokens.splits import select_share
from lambert.wings.corpus.workers import read_ahead

ACCENTED = 0.005
"""If stripping accents would change at least this share of letters, accents are kept, unless the setting says otherwise
(our choice: English has 0.0006 on Wikipedia, German 0.016, French 0.03, Korean nearly 1)."""
COVERED = 0.9999
"""Share of the characters of the text that single pieces should cover. SentencePiece's default is 0.9995 (Kudo and
Richardson 2018); this one is higher, because WordPiece makes the whole word [UNK] for one unknown character."""


_LONGEST = 1000
"""Characters of a word from which pieces are learnt at once. The library's time is quadratic in a word's length."""
_LONG = re.compile(rf"(\S{{{_LONGEST}}})(?=\S)")


def _divide_words(sentence: str) -> str:
    """Returns a sentence with a space after each `_LONGEST` characters of a word that is longer."""
    return _LONG.sub(r"\1 ", sentence) if len(sentence) > _LONGEST else sentence


class Characters:
    """Counts the characters of texts in constant memory."""

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(0x110000, dtype=np.int64)

    def add(self, text: str) -> None:
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        counts = np.bincount(points)
        self.counts[: len(counts)] += counts

    def measure_accents(self) -> float:
        """Returns the share of letters and marks that stripping accents changes: it decomposes each character (NFD) and
        removes the marks (Mn). Hangul becomes letters, the kana `が` becomes `か`, and vowels of Hindi are lost."""
        letters = changed = 0
        for point in np.flatnonzero(self.counts):
            character = chr(point)
            if unicodedata.category(character)[0] in "LM":
                count = int(self.counts[point])
                letters += count
                parts = unicodedata.normalize("NFD", character)
                changed += count * ("".join(c for c in parts if unicodedata.category(c) != "Mn") != character)
        return changed / max(letters, 1)

    def choose_alphabet(self, limit: int, least: int, normalizer: Any, room: int = 0) -> tuple[list[str], list[str]]:
        """Returns the most frequent normalized characters that occur at least `least` times, and those of them that can
        continue a word, each in order of code points.

        Args:
            limit: Number of characters. It is exceeded if they do not cover a share `COVERED` of the text and `room`
                allows it.
            room: Maximum number of pieces, continuing ones included, if `limit` is exceeded.
        """
        seen: dict[str, int] = {}
        for point in np.flatnonzero(self.counts):
            for character in normalizer.normalize_str(chr(point)):
                if not character.isspace():
                    seen[character] = seen.get(character, 0) + int(self.counts[point])
        frequent = sorted((c for c in seen if seen[c] >= least), key=lambda c: (-seen[c], c))
        pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        left, pieces = COVERED * sum(seen.values()), 0
        alphabet: list[str] = []
        joining: list[str] = []
        for number, character in enumerate(frequent):
            joins = len(pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(f"a{character}"))) == 1
            pieces += 1 + joins
            if number >= limit and (left <= 0 or pieces > room):
                break
            left -= seen[character]
            alphabet.append(character)
            joining += [character] * joins
        return sorted(alphabet), sorted(joining)


def train_wordpiece(
    texts: Iterable[str],
    characters: Characters,
    *,
    vocabulary: int,
    lowercase: bool,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
) -> Any:
    """Learns a WordPiece tokenizer from texts. The result is deterministic.

    A tenth of the pieces, from 64 to 1000, are single characters, or more if these do not cover the text and half of
    the pieces are enough. The library numbers continuing characters in the order of a hash map, which differs from run
    to run. Therefore the alphabet is passed to it as numbered special tokens.

    Args:
        characters: Counts of the characters of the same texts.
        vocabulary: Maximum number of pieces.
        strip_accents: None: as `lowercase`, as published.
        min_frequency: Words and characters that occur less often are not learnt as pieces.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    limit = min(1000, max(64, vocabulary // 10))
    single, joining = characters.choose_alphabet(limit, min_frequency, normalizer, vocabulary // 2)
    first = [*SPECIAL_PIECES, *single, *(CONTINUATION + character for character in joining)]
    if len(first) > vocabulary:
        raise UsageError(
            f"vocabulary = {vocabulary} is too small: the special pieces and single characters alone are {len(first)}. "
            "Raise it."
        )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        min_frequency=min_frequency,
        special_tokens=first,
        initial_alphabet=single,
        limit_alphabet=len(single),
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    ids = learner.get_vocab(with_added_tokens=True)
    return build(sorted(ids, key=ids.__getitem__), lowercase=lowercase, strip_accents=strip_accents)


def train_bytes(texts: Iterable[str], *, vocabulary: int, lowercase: bool, min_frequency: int = 2) -> Any:
    """Learns a byte-level BPE tokenizer from texts, with the special tokens of BERT. It can express every text.

    Source: Radford et al., 2019 (GPT-2); with BERT's special tokens: Warner et al., 2024 (ModernBERT).
    """
    learner = Tokenizer(models.BPE())
    learner.normalizer = _make_normalizer([normalizers.NFC()], lowercase=lowercase)
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocabulary < len(alphabet) + len(SPECIAL_PIECES):
        raise UsageError(
            f"vocabulary = {vocabulary} is too small: a piece for each byte and the special tokens alone are "
            f"{len(alphabet) + len(SPECIAL_PIECES)}."
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=min_frequency,
        special_tokens=[AddedToken(piece, special=True, lstrip=piece == "[MASK]") for piece in SPECIAL_PIECES],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    return _add_template(learner)


def train_unigram(texts: Iterable[str], *, vocabulary: int, lowercase: bool) -> Any:
    """Learns a Unigram tokenizer from texts, with the special tokens of BERT. Words begin with a mark for the space.
    The library's result is not deterministic: its scores differ in the third digit from run to run.

    Source: Kudo, "Subword Regularization", 2018, section 3.2; with the normalization of XLM-R except its own rules.
    """
    learner = Tokenizer(models.Unigram())
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    learner.normalizer = _make_normalizer([normalizers.NFKC(), spaces], lowercase=lowercase)
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    learner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL_PIECES], unk_token="[UNK]", show_progress=False
    )
    try:
        learner.train_from_iterator(texts, trainer)
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"vocabulary = {vocabulary} is too small or too large for the text: {error}.") from error
    return _add_template(learner)


def _make_normalizer(parts: list[Any], *, lowercase: bool) -> Any:
    return normalizers.Sequence([*parts, *([normalizers.Lowercase()] if lowercase else [])])


def _add_template(tokenizer: Any) -> Any:
    """Adds BERT's template. The tokenizer encodes special tokens in a text as ordinary text."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(piece, tokenizer.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")],
    )
    tokenizer.encode_special_tokens = True
    return tokenizer


def sample_documents(
    documents: Documents, rate: float, seed: int, language: str = "en", lines: str = "auto"
) -> Iterator[list[tuple[list[str], float]]]:
    """Yields, for each batch, the sentences of a share `rate` of the documents (pieces of long documents), each with
    the draw of its document. A document is held out if its draw is below the threshold."""
    draw = 0.0
    for texts, part in read_ahead(documents.batches()):
        found = [sentences.split(sentences.clean(text)[0], language, lines) for text in texts]
        hashes = np.array([document_hash(own) for own in found], dtype=np.uint64)
        draws_D = unit(key(seed, Stream.SPLIT, hashes))
        if part.long and not part.first:
            draws_D = np.array([draw])
        draw = float(draws_D[-1]) if len(draws_D) else draw
        chosen_D = (unit(key(seed, Stream.SPLIT, hashes, 1)) < rate) & select_share(seed, hashes, part.share)
        yield [(found[d], float(draws_D[d])) for d in np.flatnonzero(chosen_D)]


def learn(
    config: PrepareConfig,
    folder: Path,
    documents: Documents,
    threshold: float,
    progress: Callable[[int, int, str], None],
) -> Any:
    """Returns a tokenizer learnt from a sample of the documents that are not held out."""
    spool = folder / "sample.txt"
    rate = min(1.0, config.sample_megabytes * 1e6 / max(documents.text_bytes, 1))
    characters = Characters()
    with spool.open("w", encoding="utf-8", newline="\n") as out:
        for batch in sample_documents(documents, rate, config.seed, config.language, config.lines):
            for own in (own for own, draw in batch if draw >= threshold):
                joined = "\n".join(map(_divide_words, own))
                characters.add(joined)
                out.write(joined + "\n")
            progress(documents.done, documents.total, "reading for the vocabulary")
    progress(documents.total, documents.total, "learning the vocabulary")
    size, lowers, least = config.vocabulary, config.lowers, config.min_frequency
    with spool.open(encoding="utf-8", newline="\n") as lines:
        if config.tokenizer_kind == "bpe":
            spaced = (" " + line.rstrip("\n") for line in lines)  # as sentences are encoded
            learnt = train_bytes(spaced, vocabulary=size, lowercase=lowers, min_frequency=least)
        elif config.tokenizer_kind == "unigram":
            learnt = train_unigram(lines, vocabulary=size, lowercase=lowers)
        else:
            strips = config.strip_accents
            if strips is None and lowers and characters.measure_accents() > ACCENTED:
                strips = False
            learnt = train_wordpiece(
                lines, characters, vocabulary=size, lowercase=lowers, strip_accents=strips, min_frequency=least
            )
    spool.unlink()
    return learnt
