"""`lambert corpus verify`: compares a corpus with its manifest."""

from lambert.engine.progress import progress
from lambert.runs.result import Result, Say, silent
from lambert.wings.corpus.config import VerifyCorpusConfig
from lambert.wings.corpus.verification import verify

_LABEL = len("verified")


def run(config: VerifyCorpusConfig, say: Say = silent) -> Result:
    """Reads the whole corpus. Raises DataError for the first file that differs."""
    with progress(None, "verifying", unit="M tokens", quiet=say is silent, summary=False) as bar:
        manifest = verify(config.corpus, lambda done, total, phase: bar.update(phase, done / 1e6, total / 1e6))
    for name, split in manifest["splits"].items():
        say(
            f"{name:<{_LABEL}} {split['documents']:,} documents, {split['sentences']:,} sentences, {split['tokens']:,} "
            f"tokens in {len(split['shards']):,} files, as in the manifest"
        )
    count = same = len(manifest["inputs"])
    for group, what in (("changed", "changed since"), ("gone", "gone"), ("remote", "remote, and were not compared")):
        if names := manifest[f"inputs_{group}"]:
            same -= len(names)
            say(f"{'inputs':<{_LABEL}} {len(names):,} of {count:,} {what}: {names[0]}{' ...' if names[1:] else ''}")
    if same:
        say(f"{'inputs':<{_LABEL}} {same:,} files, unchanged")
    say(f"{'verified':<{_LABEL}} {config.corpus}")
    return Result(config.corpus)
