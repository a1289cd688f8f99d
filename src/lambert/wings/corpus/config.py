"""The settings of `lambert prepare` and of the verbs `lambert corpus`."""

import hashlib
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Parameter

from lambert.core.errors import UsageError, quote
from lambert.core.registry import nearest
from lambert.core.settings import SEEDS, as_dict, check
from lambert.core.urls import check_url, is_remote, public
from lambert.text.encodings import look_up_encoding
from lambert.text.sentences import LINES
from lambert.verb import record_of
from lambert.wings.corpus.filters import FILTERS
from lambert.wings.corpus.filters.c4 import C4
from lambert.wings.corpus.filters.decontamination import Decontaminate
from lambert.wings.corpus.filters.fineweb import FineWeb
from lambert.wings.corpus.filters.gopher import Gopher
from lambert.wings.corpus.filters.repetition import Repetition
from lambert.wings.corpus.reading.readers import READERS, Layout

MOST_REPEATED = 100
DOCUMENTS = ("file", "blank-line", "line")
Kind = Literal["wordpiece", "bpe", "unigram"]
_WITHOUT_EFFECT = {
    "given": ("tokenizer_kind", "strip_accents", "min_frequency"), "wordpiece": (),
    "bpe": ("strip_accents",), "unigram": ("strip_accents", "min_frequency"),
}  # fmt: skip
"""Settings that have no effect with a given tokenizer, or with the learnt kind."""
_COLLAPSED = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+:)/(?!/)")
STAGES = ("extract", "clean", "deduplicate", "encode", "tokens")
"""The steps of preparation, in their order."""


@dataclass(frozen=True, slots=True)
class DeduplicateConfig:
    """The settings of the step `deduplicate`."""

    threshold: float = 0.8
    """Two documents are near duplicates if the Jaccard similarity of their word 5-grams is at least this: the number
    that both have, divided by the number that one of them has."""
    paragraphs: bool = False
    """Remove long lines that also occur in another document. Each is kept in one document."""
    paragraph_characters: int = 100
    """Shorter lines are never removed: headings and formulas occur in different documents. 100 characters are about a
    sentence."""

    def __post_init__(self) -> None:
        check(self, "deduplicate.", threshold="[0.5, 1]", paragraph_characters="[1, inf)")


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """The settings that turn raw text into a prepared corpus."""

    OUT = "--out"
    """Name of the setting `out` in errors."""
    WRITES = True
    """Whether the settings are of a verb that writes a corpus."""

    input: tuple[str | Path, ...] = ()
    """Files, folders (searched recursively) and globs: .txt .md .jsonl .ndjson .parquet .csv .tsv .html .warc .wet,
    data sets of Hugging Face's save_to_disk and MediaWiki dumps, also .gz .bz2 .xz .zst. With `steps` also URLs, such
    as https://host/dump.xml.bz2 or s3://bucket/texts/*.jsonl.zst. Required."""
    out: str | Path = ""
    """Folder to write. Required. It is never overwritten; if it holds a corpus of the same settings and inputs, nothing
    is done. With `work` it may be a URL, such as s3://bucket/corpus, to which the corpus is copied when it is
    complete."""
    weights: tuple[float, ...] = ()
    """How often the documents of each entry of `input` are used, one number for each entry: with 0.5, half of them,
    chosen by a hash of their content; with 2.5, each twice and half of them a third time. Repeated documents come last
    and are training data only. Unset: once."""
    steps: tuple[str, ...] = ()
    """Steps to run, of `extract` (documents as Parquet), `clean`, `deduplicate`, `encode` (ids of a given tokenizer)
    and `tokens` (the corpus). Each keeps its results in `work` and does not repeat finished work. Unset: one pass from
    the files to the corpus, which keeps nothing else."""
    work: Path | None = None
    """Folder for the results of `steps`, and for the local copy of the corpus if `out` is a URL. Unset: `out` with
    .work at its end."""
    clean: tuple[str, ...] = ()
    """Filters of the step `clean`, in their order: `normalise`, `language`, `gopher`, `gopher-repetition`, `c4`,
    `fineweb`, `personal-data`, `decontaminate`, `prose`, or package.module:function."""
    checksums: str = ""
    """File or URL with the checksums of remote inputs, as sha256sum, sha1sum and md5sum write them."""
    deduplicate: DeduplicateConfig = DeduplicateConfig()
    tokenizer: str = "train"
    """`train` learns a vocabulary from the corpus. Otherwise the path of a vocab.txt, of a tokenizer.json, or of a
    folder that holds one."""
    tokenizer_kind: Kind = "wordpiece"
    """Kind of tokenizer to learn (tokenizer = "train"): BERT's WordPiece; byte-level BPE as in RoBERTa and ModernBERT,
    which can express every text; or Unigram as in XLM-R, for languages that do not put spaces between words (its
    training is not deterministic)."""
    vocabulary: int = 30_522
    """Maximum number of pieces to learn (tokenizer = "train"). The published uncased English vocabulary has 30,522."""
    lowercase: bool | None = None
    """Lower-case the text. Unset: true if WordPiece is learnt, false if another kind is learnt, otherwise as the
    tokenizer's files say; it may differ from them only for a vocab.txt."""
    strip_accents: bool | None = None
    """Decompose characters and remove their marks, in WordPiece (tokenizer = "train"). Unset: as `lowercase`, which is
    right for English, but false if it changes more than 0.5% of the letters: Hangul, kana, vowels of Hindi, tones of
    Vietnamese, umlauts."""
    min_frequency: int = 2
    """Words and characters that occur less often are not learnt as pieces of WordPiece or BPE (tokenizer =
    "train")."""
    sample_megabytes: int = 200
    """Approximate MB of text, spread over all documents, from which the vocabulary is learnt (tokenizer = "train")."""
    format: str = "auto"
    """`auto` (by name and first bytes), `text`, `jsonl`, `parquet`, `csv` (also TSV), `arrow`, `html`, `warc` (also
    WET), `gutenberg` (books of Project Gutenberg), `mediawiki` (XML dumps) or `wikipedia` (WikiExtractor's `<doc>`
    files)."""
    documents: str = "file"
    """The documents of a plain text file: the whole `file`, text between blank lines (`blank-line`), or each `line`."""
    encoding: str = "utf-8"
    """Encoding of plain text files that declare none in their header, as Python names it: latin-1, cp1252, utf-16."""
    text_field: str = "text"
    """The field of JSON lines or column of Parquet, CSV or Arrow that holds the text."""
    metadata: tuple[str, ...] = ()
    """Fields of JSON lines, or columns of Parquet, CSV or Arrow, that are stored with the documents between steps.
    Titles and addresses of wikis and web archives are always stored."""
    lines: str = "auto"
    """Meaning of a line break: `wrapped` lines are joined to paragraphs, `paragraphs` makes each line a paragraph, and
    `auto` decides for each document."""
    language: str = "en"
    """ISO 639 code of the language (en, de, fr, es, zh, ...), for the rules that find sentence ends and the filter
    `language`."""
    min_language_score: float = 0.65
    """Minimum probability of the language of a document for the filter `language`. Source: Penedo et al. 2024, The
    FineWeb Datasets, section 3.3."""
    heldout: float = 0.01
    """Share of documents held out for evaluation, chosen by a hash of their content; at least one if there are two or
    more. 0: none."""
    min_tokens: int = 8
    """Documents with fewer tokens are dropped and counted."""
    max_bad: float = 0.01
    """Maximum share of unreadable documents (invalid UTF-8 or JSON, damaged files); prepare fails above it."""
    seed: int = 42
    """Seed that selects the held-out documents and the sample for the vocabulary."""
    workers: int = 0
    """Number of processes that split and encode text; the output does not depend on it. 0: one per core, at most 6, and
    one for small input."""
    gopher: Gopher = field(default_factory=Gopher)
    gopher_repetition: Repetition = field(default_factory=Repetition)
    c4: C4 = field(default_factory=C4)
    fineweb: FineWeb = field(default_factory=FineWeb)
    decontaminate: Decontaminate = field(default_factory=Decontaminate)

    def __post_init__(self) -> None:
        for check_part in (_check_inputs, _check_steps, _check_out, _check_values, _check_used):
            check_part(self)

    @property
    def lowers(self) -> bool:
        """Whether the learnt tokenizer lower-cases."""
        return self.tokenizer_kind == "wordpiece" if self.lowercase is None else self.lowercase

    @property
    def layout(self) -> Layout:
        """The settings of the readers."""
        return Layout(self.documents, self.text_field, _names(self.metadata), encoding=look_up_encoding(self.encoding))

    @property
    def stages(self) -> tuple[str, ...]:
        """The names in `steps`, which may also be joined by commas."""
        return _names(self.steps)

    @property
    def cleaners(self) -> tuple[str, ...]:
        """The names in `clean`, which may also be joined by commas."""
        return _names(self.clean)

    @property
    def makes_corpus(self) -> bool:
        """Whether the last step, `tokens`, is run."""
        return not self.stages or "tokens" in self.stages

    @property
    def deduplicates(self) -> bool:
        """Whether near duplicates are removed."""
        return "deduplicate" in self.stages

    @property
    def url(self) -> str:
        """The URL to which the corpus is copied; empty if `out` is a folder."""
        return address(self.out)

    @property
    def folder(self) -> Path:
        """The folder of the corpus: `out`, or one in `work` if `out` is a URL."""
        if self.url:
            return self.work_folder / f"corpus-{hashlib.sha256(public(self.url).encode()).hexdigest()[:16]}"
        return Path(self.out)

    @property
    def work_folder(self) -> Path:
        """The folder for the results of `steps`."""
        return self.work or self.folder.with_name(self.folder.name + ".work")

    def decides(self) -> dict[str, Any]:
        """Returns the settings that determine the corpus, given the content of the input files."""
        without = {"input", "checksums", "metadata", "out", "workers", "tokenizer", "steps", "work"}
        without |= {name for name, used in (("clean", self.clean), ("deduplicate", self.deduplicates)) if not used}
        without |= set() if self.weights else {"weights"}
        for name, step in FILTERS.items():
            without |= set() if name in self.cleaners else set(step.tables)
        if self.tokenizer != "train":
            without |= {"vocabulary", "min_frequency", "sample_megabytes"}
            without |= {"lowercase", "strip_accents"}  # the tokenizer says it
        if self.tokenizer != "train" or self.tokenizer_kind == "wordpiece":
            without |= {"tokenizer_kind"}
        values = {name: value for name, value in as_dict(self).items() if name not in without}
        if self.tokenizer == "train":
            values["lowercase"] = self.lowers
        if "decontaminate" in values:
            values["decontaminate"] = FILTERS["decontaminate"].settings(self)  # with the hashes of the files
        return values | ({"clean": [*self.cleaners]} if self.clean else {})


class PeekConfig(PrepareConfig):
    """The settings of `prepare` of which a few documents are shown. Nothing is written, so `out` is not needed."""

    __slots__ = ()
    WRITES = False


@dataclass(frozen=True, slots=True)
class FetchCorpusConfig:
    """Copies a prepared corpus and compares it with its hashes. Repeating the command continues the copy."""

    source: Annotated[str, Parameter(name="--from")]
    """URL of the corpus, such as s3://bucket/corpus."""
    out: Path
    """Folder to write."""

    def __post_init__(self) -> None:
        check(self)
        if not is_remote(self.source):
            raise UsageError(f"--from {public(self.source)} is not a URL, such as s3://bucket/corpus.")
        if address(self.out):
            raise UsageError(f"--out {public(address(self.out))} is remote: name a local folder.")
        check_url(self.source)


@dataclass(frozen=True, slots=True)
class VerifyCorpusConfig:
    """Compares every hash and every count of a corpus with its manifest."""

    corpus: Annotated[Path, Parameter(parse=False)] = Path()
    """Folder of the corpus."""


def _check_inputs(config: PrepareConfig) -> None:
    for name in ("input", "weights", "steps", "clean", "metadata"):
        if not isinstance(value := getattr(config, name), tuple | list):
            raise UsageError(f"{name} = {quote(value)} must be a list; lambert.prepare also takes one value.")
    required = {"--input": config.input} | ({"--out": Path(config.out).parts} if config.WRITES else {})
    if lacking := [flag for flag, value in required.items() if not value]:
        verb = record_of(type(config)).name
        raise UsageError(
            f"{verb} requires {' and '.join(lacking)}. Give what is missing as flags or in a recipe; `lambert "
            f"{verb} --help` explains it."
        )
    if "" in map(str, config.input):
        raise UsageError("input has an empty entry: name a file or a folder; the current folder is `.`.")
    if not all(0 < weight <= MOST_REPEATED for weight in config.weights):
        raise UsageError(f"weights = {list(config.weights)}: each must be above 0 and at most {MOST_REPEATED}.")
    if config.weights and len(config.weights) != len(config.input):
        given, needed = len(config.weights), len(config.input)
        raise UsageError(f"weights has {given} numbers for {needed} inputs: give one for each.")
    for url in filter(is_remote, (*config.input, config.url, config.checksums)):
        check_url(str(url))
    for entry in filter(is_remote, config.input):
        if not config.WRITES:
            raise UsageError(
                f"{public(str(entry))} is remote, and peek reads local files: fetch it with steps = extract, then peek "
                "at the files in the folder fetch of the work folder."
            )
        if not config.stages:
            raise UsageError(
                f"{public(str(entry))} is remote: set steps = extract, tokens, which keep what is fetched."
            )


def _check_steps(config: PrepareConfig) -> None:
    for name in config.stages:
        if name not in STAGES:
            raise UsageError(f"steps = {name!r} is unknown.{nearest(name, list(STAGES))}")
    if "clean" in config.stages and not config.cleaners:
        raise UsageError("steps = clean needs functions: set clean, such as clean = normalise.")
    if "encode" in config.stages and config.tokenizer == "train":
        raise UsageError("steps = encode needs a tokenizer: name one, or leave encode out.")
    if config.cleaners and not config.stages and config.WRITES:
        raise UsageError(f"clean = {', '.join(config.cleaners)} needs steps: set steps = extract, clean, tokens.")
    uses = config.makes_corpus or "encode" in config.stages
    if config.deduplicate != DeduplicateConfig() and uses and not config.deduplicates:
        raise UsageError("deduplicate is set without its step: set steps = extract, deduplicate, tokens.")


def _check_out(config: PrepareConfig) -> None:
    """Raises UsageError if the corpus cannot be written to `out`, or copied to it if it is a URL."""
    if not config.url:
        keeps = config.stages and config.WRITES
        if keeps and config.work_folder.resolve().is_relative_to(config.folder.resolve()):
            raise UsageError(f"work = {config.work_folder} is in the output folder {config.out}: choose another work.")
        return
    shown = public(config.url)
    if config.url.partition("://")[0].lower() in ("http", "https", "datasets"):
        raise UsageError(
            f"{shown}: such a server cannot be written to: choose another --out, such as s3://bucket/corpus."
        )
    if config.work is None:
        raise UsageError(
            f"{shown} is remote: set work, a local folder in which the corpus is made before it is copied to out."
        )
    if address(config.work):
        raise UsageError(f"work = {public(address(config.work))} is remote: name a local folder.")
    for entry in config.input:
        if f"{config.url}/".startswith(f"{str(entry).rstrip('/')}/"):
            raise UsageError(f"{shown}: --out is in the input folder: choose another --out.")


def _check_values(config: PrepareConfig) -> None:
    choices: dict[str, tuple[str, ...]] = {"documents": DOCUMENTS, "lines": LINES, "tokenizer_kind": get_args(Kind)}
    if ":" not in config.format:
        choices["format"] = ("auto", *READERS)
    for name, allowed in choices.items():
        if (value := getattr(config, name)) not in allowed:
            raise UsageError(f"{name} = {value!r} is unknown.{nearest(value, list(allowed))}")
    check(
        config,
        vocabulary="[6, 10000000]", min_frequency="[1, inf)", sample_megabytes="[1, inf)", min_tokens="[1, inf)",
        workers="[0, 1024]", heldout="[0, 1)", max_bad="[0, 1]", min_language_score="[0, 1]", seed=SEEDS,
    )  # fmt: skip
    look_up_encoding(config.encoding)
    if not re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*", config.language):
        raise UsageError(f"language = {config.language!r} is not an ISO 639 code such as en or de.")


def _check_used(config: PrepareConfig) -> None:
    """Raises UsageError if a setting would have no effect."""
    if twice := next((name for name in config.cleaners if config.cleaners.count(name) > 1), ""):
        raise UsageError(f"clean names {twice} twice: name each function once.")
    for field_of in fields(config):
        owners = [name for name, step in FILTERS.items() if field_of.name in step.tables]
        default = field_of.default if field_of.default_factory is MISSING else field_of.default_factory()
        if owners and owners[0] not in config.cleaners and getattr(config, field_of.name) != default:
            raise UsageError(f"{field_of.name} is set, and its filter does not run: add {owners[0]} to clean.")
    given = config.tokenizer != "train"
    how = "with a given tokenizer" if given else f"where tokenizer_kind is {config.tokenizer_kind}"
    for name in _WITHOUT_EFFECT["given" if config.tokenizer != "train" else config.tokenizer_kind]:
        if getattr(config, name) != PrepareConfig.__dataclass_fields__[name].default:
            raise UsageError(f"{name} = {getattr(config, name)} has no effect {how}: leave it out.")
    if config.WRITES and not config.stages:
        if config.metadata:
            raise UsageError("metadata is stored only between steps: set steps = extract, tokens, or leave it out.")
        if config.work is not None and not config.url:
            raise UsageError(f"work = {config.work} holds the results of steps: set steps, or leave it out.")
    if config.checksums and config.input and not any(map(is_remote, config.input)):
        raise UsageError("checksums applies to remote inputs, and all inputs are local: leave it out.")


def address(entry: str | Path) -> str:
    """Returns the URL of a folder, or an empty text if it is a path. A URL that was converted to a Path has lost a
    slash."""
    found = _COLLAPSED.sub(r"\1//", str(entry), count=1) if isinstance(entry, Path) else entry
    return found if is_remote(found) else ""


def _names(entries: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for entry in entries for name in entry.split(","))
