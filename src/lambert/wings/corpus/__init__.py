"""Raw text to token shards: readers, filters, duplicates, sentences and tokens."""

from lambert.verb import Verb

VERBS = (
    Verb(
        "prepare",
        "Raw text to a tokenizer and token shards.",
        "wings.corpus.verbs.prepare:run",
        "wings.corpus.config:PrepareConfig",
        place=20,
        less_memory="Lower workers or sample_megabytes.",
        continues=True,
    ),
    Verb(
        "corpus peek",
        "A few documents after each step of prepare; nothing is written.",
        "wings.corpus.verbs.peek:run",
        "wings.corpus.config:PeekConfig",
        place=21,
    ),
    Verb(
        "corpus fetch",
        "A prepared corpus from object storage to a folder, verified.",
        "wings.corpus.verbs.fetch:run",
        "wings.corpus.config:FetchCorpusConfig",
        place=22,
        takes="flags",
        continues=True,
    ),
    Verb(
        "corpus verify",
        "Whether every hash and count of a corpus is as its manifest says.",
        "wings.corpus.verbs.verify:run",
        "wings.corpus.config:VerifyCorpusConfig",
        place=23,
        takes="folder",
        first="corpus",
        example="corpora/NAME",
    ),
    Verb(
        "extend",
        "Words of a domain into the vocabulary of an encoder.",
        "wings.corpus.verbs.extend:run",
        "wings.corpus.verbs.extend_settings:ExtendConfig",
        place=110,
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
"""What this wing provides to the house, by name."""
