"""Raw text to token shards: readers, filters, duplicates, sentences and tokens."""

from lambert.verb import Verb

VERBS = (
    Verb(
        "prepare",
        "Converts raw text to a tokenizer and token shards.",
        "wings.corpus.verbs.prepare:run",
        "wings.corpus.config:PrepareConfig",
        order=20,
        less_memory="Lower workers or sample_megabytes.",
        continues=True,
    ),
    Verb(
        "corpus peek",
        "Shows a few documents after each step of prepare; writes nothing.",
        "wings.corpus.verbs.peek:run",
        "wings.corpus.config:PeekConfig",
        order=21,
    ),
    Verb(
        "corpus fetch",
        "Copies a prepared corpus from object storage to a folder, and verifies it.",
        "wings.corpus.verbs.fetch:run",
        "wings.corpus.config:FetchCorpusConfig",
        order=22,
        takes="flags",
        continues=True,
    ),
    Verb(
        "corpus verify",
        "Compares every hash and count of a corpus with its manifest.",
        "wings.corpus.verbs.verify:run",
        "wings.corpus.config:VerifyCorpusConfig",
        order=23,
        takes="folder",
        first="corpus",
        example="corpora/NAME",
    ),
    Verb(
        "extend",
        "Adds words of a domain to the vocabulary of an encoder.",
        "wings.corpus.verbs.extend:run",
        "wings.corpus.verbs.extend_settings:ExtendConfig",
        order=110,
        takes="folder",
        first="model",
        example="runs/NAME --input TEXT --out FOLDER --words 1000",
        less_memory="Lower sample_megabytes.",
    ),
)

NAMES = {
    "wings.corpus.library": ("prepare", "peek", "fetch_corpus", "verify_corpus", "extend"),
    "wings.corpus.config": ("PrepareConfig", "DeduplicateConfig"),
    "wings.corpus.scale": ("prepare_on_cluster", "RayTasks"),
}
"""Public names of the package `lambert`, by module."""

PROVIDES = {
    "corpus of a run": "wings.corpus.verbs.prepare:corpus_of_run",
    "page of a corpus": "wings.corpus.report.corpus:read",
    "documents": "wings.corpus.documents:read_texts",
}
"""What this package provides to those outside `lambert.wings`, by name."""
