"""`lambert corpus verify`: compares every hash and every count of a corpus with its manifest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lambert.core.contents import HashedFile
from lambert.core.errors import DataError
from lambert.core.shards import SPLITS, Split, check_corpus, read_manifest
from lambert.core.urls import is_remote
from lambert.engine.progress import progress
from lambert.runs.result import Result, Say, silent
from lambert.text.tokenizers import roles, tokenizer
from lambert.wings.corpus.config import VerifyCorpusConfig
from lambert.wings.corpus.tokens.splits import cross_entropy, entropy

_LABEL = len("verified")


def run(config: VerifyCorpusConfig, say: Say = silent) -> Result:
    """Reads the whole corpus. Raises DataError for the first file that differs."""
    with progress(None, "verifying", unit="M tokens", quiet=say is silent, summary=False) as bar:
        manifest = verify(config.corpus, lambda done, total, phase: bar.update(phase, done / 1e6, total / 1e6))
    for name, split in manifest["splits"].items():
        say(
            f"{name:<{_LABEL}} {split['documents']:,} documents, {split['sentences']:,} sentences, {split['tokens']:,} "
            f"tokens in {len(split['shards']):,} file{'s' * (len(split['shards']) != 1)}, as in the manifest"
        )
    count = same = len(manifest["inputs"])
    for group, what in (("changed", "changed since"), ("gone", "missing"), ("remote", "remote, and were not compared")):
        if names := manifest[f"inputs_{group}"]:
            same -= len(names)
            say(f"{'inputs':<{_LABEL}} {len(names):,} of {count:,} {what}: {names[0]}{' ...' if names[1:] else ''}")
    if same:
        say(f"{'inputs':<{_LABEL}} {same:,} file{'s' * (same != 1)}, unchanged")
    say(f"{'verified':<{_LABEL}} {config.corpus}")
    return Result(config.corpus)


_ROWS = 1 << 20
_REMEDY = "Restore the corpus from a copy, or remove it and prepare it again."


def verify(
    corpus: str | Path, progress: Callable[[int, int, str], None] = lambda done, total, note: None
) -> dict[str, Any]:
    """Reads all files of a corpus and compares their hashes and counts with the manifest. Returns the manifest with
    `inputs_changed` and `inputs_gone`, the input files that changed or disappeared after the corpus was prepared, and
    `inputs_remote`, which are not compared. Raises DataError, which names the file and the difference.
    """
    corpus = Path(corpus)
    manifest = read_manifest(corpus)
    check_corpus(corpus, whole=True)
    for name, expected in manifest.get("tokenizer_files", {}).items():
        if not (corpus / name).is_file():
            raise DataError(f"{corpus / name} is missing. {_REMEDY}")
        HashedFile(corpus / name, expected).check()
    learnt = tokenizer.load(corpus)
    specials = roles.specials(learnt, str(corpus / tokenizer.JSON))
    if specials.vocabulary != manifest["vocabulary"]:
        raise _difference_error(corpus / tokenizer.JSON, "pieces", specials.vocabulary, manifest["vocabulary"])
    total = sum(manifest["splits"][name]["tokens"] for name in SPLITS)
    done = 0
    counts: dict[str, Any] = {}
    for name in SPLITS:
        split = Split(corpus, name)
        counts[name] = np.zeros(split.vocabulary, dtype=np.int64)
        for start in range(0, split.tokens, _ROWS):
            end = min(start + _ROWS, split.tokens)
            split.check_ids(start, end)
            counts[name] += np.bincount(split.take(start, end), minlength=split.vocabulary)
            done += end - start
            progress(done, total, "verifying")
        _check_split(corpus, split, manifest["splits"][name], counts, specials.unk)
    kept = sum(manifest["splits"][name]["documents"] for name in SPLITS)
    if manifest["documents"]["kept"] != kept:
        raise _difference_error(corpus / "manifest.json", "documents", kept, manifest["documents"]["kept"])
    known = {f"{name}/{shard['file']}" for name in SPLITS for shard in manifest["splits"][name]["shards"]}
    for path in sorted(corpus.glob("*/*.bin")):
        if str(path.relative_to(corpus)) not in known:
            raise DataError(f"{path} is not a file of this corpus: its manifest does not name it. Remove it.")
    changed, gone = _compare_inputs(manifest)
    remote = [entry["file"] for entry in manifest["inputs"] if is_remote(entry["file"])]
    return {**manifest, "inputs_changed": changed, "inputs_gone": gone, "inputs_remote": remote}


def _check_split(corpus: Path, split: Split, entry: dict[str, Any], counts: dict[str, Any], unknown: int) -> None:
    index = corpus / split.name / "index.npy"
    last_end, last_document = 0, -1
    for start in range(0, len(split.ends), _ROWS):
        ends, documents = split.ends[start : start + _ROWS], split.documents[start : start + _ROWS]
        if (np.diff(ends, prepend=last_end) <= 0).any():
            raise DataError(f"{index}: the ends of the sentences do not increase. {_REMEDY}")
        steps = np.diff(documents, prepend=last_document)
        if ((steps < 0) | (steps > 1)).any():
            raise DataError(f"{index}: the numbers of the documents do not increase one by one. {_REMEDY}")
        last_end, last_document = int(ends[-1]), int(documents[-1])
    found = {
        "sentences": len(split.ends),
        "documents": last_document + 1,
        "tokens": last_end,
        "unknown_rate": (float(counts[split.name][unknown]) if unknown >= 0 else 0.0) / max(last_end, 1),
        "unigram_entropy": entropy(counts[split.name]),
        "unigram_cross_entropy": cross_entropy(counts[split.name], counts["train"]),
    }
    for what, value in found.items():
        if what in entry and not np.isclose(entry[what], value, rtol=1e-9, atol=1e-12):
            raise _difference_error(corpus / split.name, what, value, entry[what])


def _difference_error(path: Path, what: str, found: Any, said: Any) -> DataError:
    return DataError(f"{path} has {found} {what}, and its manifest says {said}. {_REMEDY}")


def _compare_inputs(manifest: dict[str, Any]) -> tuple[list[str], list[str]]:
    changed, gone = [], []
    for entry in manifest["inputs"]:
        if is_remote(entry["file"]):
            continue
        path = Path(entry["file"])
        try:
            if path.stat().st_size != entry["bytes"]:
                changed.append(entry["file"])
            else:
                HashedFile(path, entry["sha256"]).check()
        except OSError:
            gone.append(entry["file"])
        except DataError:
            changed.append(entry["file"])
    return changed, gone
