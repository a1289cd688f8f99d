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
        "extend",
        "Words of a domain into the vocabulary of an encoder.",
        "wings.corpus.verbs.extend:run",
        "wings.corpus.verbs.extend_settings:ExtendConfig",
        place=110,
        takes="model",
        example="runs/NAME --input TEXT --out FOLDER --words 1000",
        less_memory="Lower sample_megabytes.",
    ),
)

NAMES = {
    "wings.corpus.library": (
        "prepare",
        "peek",
        "extend",
    ),
    "wings.corpus.config": (
        "PrepareConfig",
        "DeduplicateConfig",
    ),
    "wings.corpus.scale": (
        "prepare_on_cluster",
        "RayTasks",
    ),
}
"""Public names of the package `lambert`, by module."""

PROVIDES = {
    "corpus of a run": "wings.corpus.verbs.prepare:corpus_of_run",
    "page of a corpus": "wings.corpus.report.corpus:read",
    "documents": "wings.corpus.documents:texts_of",
}
"""What other parts of Lambert ask for by name."""
