"""The settings of `lambert prepare`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.config import as_dict
from lambert.core.errors import UsageError
from lambert.core.registry import nearest
from lambert.corpus.readers import READERS
from lambert.corpus.sentences import LINES

DOCUMENTS = ("file", "blank-line", "line")


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """Raw text to a prepared corpus."""

    input: tuple[Path, ...]
    """Files, folders (searched recursively) and globs: .txt .md .jsonl .ndjson .parquet, also .gz .bz2 .xz .zst."""
    out: Path
    """Folder to write. Never overwritten; the same settings and inputs again are recognised and left as they are."""
    tokenizer: str = "train"
    """`train` learns a WordPiece vocabulary from the corpus; else a vocab.txt, a tokenizer.json or a folder of one."""
    vocabulary: int = 30_522
    """Pieces to learn at most (tokenizer = "train"). 30,522 is the size of the published uncased English vocabulary."""
    lowercase: bool | None = None
    """Lower-case and strip accents. Left out: true when training, else what the tokenizer's files say."""
    min_frequency: int = 2
    """A word or character seen less often makes no piece (tokenizer = "train")."""
    alphabet: int = 0
    """Single characters kept at most, the most frequent (tokenizer = "train"). 0: vocabulary / 10, from 64 to 1000."""
    sample_megabytes: int = 200
    """About how many MB of text, spread over all documents, the vocabulary is learnt from (tokenizer = "train")."""
    format: str = "auto"
    """`auto` (by name and first bytes), `text`, `jsonl`, `parquet` or `wikipedia` (WikiExtractor's `<doc>` files)."""
    documents: str = "file"
    """What one document of a plain text file is: the `file`, text between blank lines (`blank-line`) or a `line`."""
    text_field: str = "text"
    """The field of JSON lines or column of Parquet that holds the text."""
    lines: str = "auto"
    """Lines inside a paragraph: `wrapped` are joined, `paragraphs` are each a paragraph, `auto` decides by document."""
    language: str = "en"
    """ISO 639 code for the rules of sentence ends (en, de, fr, es, zh, ...)."""
    heldout: float = 0.01
    """Share of documents kept apart for evaluation, chosen by a hash of their content; at least one of two. 0: none."""
    min_tokens: int = 8
    """Documents with fewer tokens are dropped and counted."""
    max_bad: float = 0.01
    """Share of documents that may be unreadable (invalid UTF-8 or JSON, damaged files) before prepare refuses."""
    seed: int = 42
    """Chooses the held-out documents and the vocabulary's sample."""
    workers: int = 0
    """Processes that split and encode; the output does not depend on it. 0: one a core up to 6, 1 for small input."""

    def __post_init__(self) -> None:
        if not self.input:
            raise UsageError("input is empty: name at least one file, folder or glob.")
        choices: dict[str, tuple[str, ...]] = {"documents": DOCUMENTS, "lines": LINES}
        if ":" not in self.format:
            choices["format"] = ("auto", *READERS)
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise UsageError(f"{name} = {value!r} is unknown.{nearest(value, list(known))}")
        least = {"vocabulary": 6, "min_frequency": 1, "alphabet": 0, "sample_megabytes": 1, "min_tokens": 1}
        for name, bound in {**least, "workers": 0, "seed": 0}.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name} = {getattr(self, name)} must be at least {bound}.")
        if not 0 <= self.heldout < 1:
            raise UsageError(f"heldout = {self.heldout} is a share of documents: from 0 to below 1.")
        if not 0 <= self.max_bad <= 1:
            raise UsageError(f"max_bad = {self.max_bad} is a share of documents: from 0 to 1.")
        if not re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*", self.language):
            raise UsageError(f"language = {self.language!r} is not an ISO 639 code such as en or de.")

    def decides(self) -> dict[str, Any]:
        """The settings that what is written depends on, besides the files' content."""
        without = {"input", "out", "workers", "tokenizer"}
        if self.tokenizer != "train":
            without |= {"vocabulary", "min_frequency", "alphabet", "sample_megabytes"}
        return {name: value for name, value in as_dict(self).items() if name not in without}
