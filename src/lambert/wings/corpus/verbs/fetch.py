"""`lambert corpus fetch`: copies a prepared corpus from object storage."""

import time

from lambert.engine.progress import progress
from lambert.engine.signals import CONTINUE, graceful_stop
from lambert.runs.result import Result, Say, silent
from lambert.wings.corpus.config import FetchCorpusConfig
from lambert.wings.corpus.remote import corpora


def run(config: FetchCorpusConfig, say: Say = silent) -> Result:
    """Copies the corpus. Raises DataError if there is none or a file differs from its hash, SavedAndStopped after a
    signal."""
    started = time.monotonic()
    with (
        graceful_stop("; the files that are complete are kept", CONTINUE),
        progress(None, "fetching", unit="MB", quiet=say is silent, summary=False) as bar,
    ):
        show = lambda done, total, phase: bar.update(phase, done / 1e6, total / 1e6)  # noqa: E731
        manifest = corpora.fetch_corpus(config.source, config.out, show)
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    say(f"corpus  {config.out}  ({tokens:,} tokens, {time.monotonic() - started:.1f} s)")
    return Result(config.out)
