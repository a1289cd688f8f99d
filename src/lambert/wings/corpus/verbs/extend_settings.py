"""The settings of `lambert extend`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lambert.core.errors import UsageError
from lambert.core.settings import SEEDS, check
from lambert.core.urls import is_remote, public
from lambert.wings.corpus.config import PrepareConfig


@dataclass(frozen=True, slots=True)
class ExtendConfig:
    """Adds words of a text to the vocabulary of an encoder with a WordPiece, byte-level BPE or Unigram tokenizer. Ids
    of old pieces stay the same."""

    out: Path
    """Model folder to write; it must not exist."""
    input: tuple[str | Path, ...]
    """Text of the domain: files, folders and globs, as for `lambert prepare`."""
    words: int = 0
    """Number of words of the text to add: those that save most tokens (count x (pieces - 1)). Required, except with
    `word_list`."""
    word_list: Path | None = None
    """File with a word in each line. These are added too, however rare. Text after a tab is ignored."""
    min_count: int = 5
    """Words that occur less often in the text are not added, unless they are listed (our choice)."""
    replace_unused: bool = True
    """Whether new words replace pieces such as [unused7] before rows are added. Set it to false for a model that uses
    these pieces."""
    heldout: float = 0.05
    """Share of the documents that is held out to report the tokens per word; at least one document if there are two or
    more. It includes the documents that `lambert prepare` holds out by default."""
    sample_megabytes: int = 200
    """Approximate MB of text, spread over all documents, whose words are counted."""
    format: str = "auto"
    """Format of the input, as for `lambert prepare`."""
    documents: str = "file"
    """The documents of a plain text file: the whole `file`, text between blank lines (`blank-line`), or each `line`."""
    encoding: str = "utf-8"
    """Encoding of plain text files that declare none in their header, as Python names it: latin-1, cp1252, utf-16."""
    text_field: str = "text"
    """The field of JSON lines or column of Parquet, CSV or Arrow that holds the text."""
    seed: int = 42
    """Seed that selects the held-out documents and the sample."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside Lambert that the model folder may import (docs/security.md)."""
    model: Annotated[Path, Parameter(parse=False)] = Path()
    """Run folder or model folder of the encoder."""

    def __post_init__(self) -> None:
        check(self, words="[0, 1000000]", min_count="[1, inf)", heldout="[0, 1)", seed=SEEDS)
        if not self.words and self.word_list is None:
            raise UsageError("extend requires --words, the number of words to add, or --word-list, a file of words.")
        for entry in filter(is_remote, self.input):
            raise UsageError(f"{public(str(entry))} is remote, and extend reads local files: fetch it first.")
        self.as_prepare()  # checks the other settings

    def as_prepare(self) -> PrepareConfig:
        """Returns the settings of `prepare` that read the same text."""
        return PrepareConfig(
            input=self.input, out=self.out, sample_megabytes=self.sample_megabytes, format=self.format,
            documents=self.documents, encoding=self.encoding, text_field=self.text_field, seed=self.seed,
        )  # fmt: skip
