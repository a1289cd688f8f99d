"""Raw text to a prepared corpus in bounded memory: read, clean, split, learn the vocabulary, encode and write.

All files are written to a folder beside `out` that is renamed at the end, so the corpus is either complete or absent.
"""

import importlib.metadata
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lambert.core.contents import sha256
from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.files import atomic_folder, remove_leftovers
from lambert.core.lock import Lock, lock_folder
from lambert.core.shards import FORMAT_VERSION, with_hash
from lambert.core.urls import is_remote, public
from lambert.core.version import __version__
from lambert.engine import process
from lambert.text.tokenizers import roles, tokenizer
from lambert.text.tokenizers.encoding import Encoded
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.disk import disk_errors, format_size
from lambert.wings.corpus.documents import Documents, Part, apply_weights, list_file_sources, select_found
from lambert.wings.corpus.duplicates.minhash import import_rensa
from lambert.wings.corpus.filtering import build_filters
from lambert.wings.corpus.manifest import check_same, count_files, read_existing
from lambert.wings.corpus.parts import pyarrow
from lambert.wings.corpus.reading import files
from lambert.wings.corpus.reading.files import check_beginnings
from lambert.wings.corpus.remote import corpora, fetch
from lambert.wings.corpus.remote.servers import source_of
from lambert.wings.corpus.stages import FileCounts, make_parts
from lambert.wings.corpus.tokens import vocabulary
from lambert.wings.corpus.tokens.encoded import EncodedDocuments
from lambert.wings.corpus.tokens.splits import Sink
from lambert.wings.corpus.tokens.unfinished import Unfinished
from lambert.wings.corpus.units import Make, Progress, make_here
from lambert.wings.corpus.workers import encode, read_ahead, share_processes

VERSION = 4
"""Increase it when the same documents give other shards, so that an unfinished corpus starts over."""
MOST_WORKERS = 6
SMALL = 8 << 20  # bytes of text below which worker processes cost more time to start than they save
WRITTEN_SHARE = 0.6  # bytes of shards and index per byte of text: 2 per 4.5 and 16 per 120, rounded up


def prepare(
    config: PrepareConfig, progress: Progress = lambda done, total, note: None,
    elsewhere: Callable[[Lock], Make] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Writes the corpus to `config.out`, a folder or a URL, and returns its manifest. If `config.out` already holds a
    corpus of the same settings and inputs, only returns the manifest. With `config.steps`, the documents of each step
    are kept in `config.work_folder`; without the step `tokens` only their counts are returned, as `steps`.

    On an error `config.out` stays unchanged. `elsewhere` returns what makes the parts, given the lock of the work
    folder; by default this machine does.

    Raises:
        DataError: The input cannot be used.
        UsageError: `config.out` holds something else.
        MachineError: The disk is full or `config.out` cannot be written.
    """
    config, urls = _with_local_inputs(config, progress)
    chosen, passed = _find_inputs(config)
    found, input_of = list(chosen), {str(file): number for file, number in chosen.items()}
    check_beginnings(found, config, urls)
    given = None
    if config.tokenizer != "train":
        given = tokenizer.load(Path(config.tokenizer), lowercase=config.lowercase)
        roles.specials(given, config.tokenizer)
    if config.stages:
        pyarrow()
        build_filters(config.cleaners, config)
        if config.deduplicates:
            import_rensa()
    inputs, stamps = files.hash_files(found, progress)
    head = _begin_manifest(config, given, inputs, urls)
    if config.url and config.makes_corpus:
        there = corpora.find_published(config.url, lambda found: check_same(public(config.url), found, head))
        if there is not None:
            _report_prepared(head, progress)
            return there
        corpora.begin(config.url, config.work_folder)
    preparation = partial(_Preparation, config, head, given, passed, progress, input_of)
    text, used = files.estimate_text(chosen), files.estimate_text(chosen, config.weights)
    if not config.stages:
        sources = apply_weights(
            list_file_sources(found, config.layout, config.format, stamps), input_of, config.weights
        )
        documents = Documents(sources, used, config.max_bad)
        return preparation(documents).run()
    with lock_folder(config.work_folder, "work folder") as lock, share_processes():
        workers, make = _choose_workers(config, text), elsewhere(lock) if elsewhere else make_here
        shares = [config.weights[input_of[entry["file"]]] if config.weights else 1.0 for entry in inputs]
        counts, parts, by_file = make_parts(config, inputs, stamps, shares, given, workers, progress, make)
        if not config.makes_corpus:
            return {"inputs": head["inputs"], "steps": counts}
        parts = apply_weights(parts, input_of, config.weights)
        kind = EncodedDocuments if "encode" in config.stages else Documents
        first = counts["extract"]
        documents = kind(parts, used, 1.0, first["passed_over"], first["found"])
        if config.clean and counts["clean"]["documents"] == counts["clean"]["unreadable"]:
            dropped = ", ".join(f"{count:,} by {name}" for name, count in counts["clean"]["dropped"].items())
            raise DataError(f"clean dropped all documents: {dropped}. Choose other functions.")
        if len(counts) > 1:
            documents.text_bytes = round([*counts.values()][-1]["characters"] * (used / max(text, 1)))
            head["steps"] = counts
        keys = [f"{part.key}-{part.share}-{part.repeat}" for part in parts]
        causes = [VERSION, head["settings"], head["tokenizer"], *(keys if given is None else [])]
        unfinished = Unfinished(config.work_folder / "tokens", causes, keys)
        return {**preparation(documents, unfinished, by_file).run(), "steps": counts}


def _with_local_inputs(config: PrepareConfig, progress: Progress) -> tuple[PrepareConfig, dict[str, str]]:
    """Fetches remote inputs. Returns the settings with the local files in their place, and the URL of each file."""
    if not any(map(is_remote, config.input)):
        return config, {}
    with lock_folder(config.work_folder, "work folder"):
        folder = config.work_folder / "fetch"
        local, entries, urls = fetch.fetch(config.input, folder, source_of, config.checksums, progress)
    weights = tuple(config.weights[entry] for entry in entries if config.weights)
    return replace(config, input=tuple(local), weights=weights, checksums=""), urls


def _find_inputs(config: PrepareConfig) -> tuple[dict[Path, int], list[Path]]:
    """Returns the input files, each with the number of its entry of `input`, and the files that are not read. Raises
    UsageError if a folder that is written is an input."""
    if config.folder.is_dir() and any(Path(entry).resolve() == config.folder.resolve() for entry in config.input):
        raise UsageError(f"{config.folder}: {config.OUT} is the input folder: choose another {config.OUT}.")
    keeps = bool(config.stages or config.url)
    if keeps and any(Path(entry).resolve() == config.work_folder.resolve() for entry in config.input):
        raise UsageError(f"{config.work_folder}: --work is the input folder: choose another work.")
    without = [config.folder, *([config.work_folder] if keeps else [])]
    return files.find_sources(config.input, without=without, text_field=config.text_field)


def _begin_manifest(
    config: PrepareConfig, given: Any, inputs: list[dict[str, Any]], urls: dict[str, str]
) -> dict[str, Any]:  # fmt: skip
    """Returns the beginning of the manifest: what determines the corpus."""
    weights = config.weights or [1.0] * len(config.input)
    return {
        "format_version": FORMAT_VERSION,
        "settings": config.decides(),
        "tokenizer": "train" if given is None else tokenizer.fingerprint(given),
        "inputs": [{**entry, "file": urls.get(str(entry["file"]), entry["file"])} for entry in inputs],
        "sources": [
            {"input": urls.get(str(entry), str(entry)), "weight": weight}
            for entry, weight in zip(config.input, weights, strict=True)
        ],
    }


@dataclass(frozen=True, slots=True)
class _Preparation:
    """A corpus to write."""

    config: PrepareConfig
    head: dict[str, Any]
    """The beginning of its manifest."""
    given: Any
    """The tokenizer that the command names; None if it is learnt."""
    passed: list[Path]
    """Files that are not read."""
    progress: Progress
    input_of: Mapping[str, int]
    """The number of the entry of `input` of each input file."""
    documents: Documents
    unfinished: Unfinished | None = None
    """Keeps what is written, so that a later call continues after a kill."""
    by_step: FileCounts | None = None
    """The counts of the earlier steps for each input file."""

    def run(self) -> dict[str, Any]:
        """Writes the corpus unless it exists, copies it to a remote `out`, and returns its manifest."""
        out, unfinished = self.config.folder, self.unfinished
        remove_leftovers(out)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            manifest = read_existing(out, self.head, self.config.OUT)
            if unfinished:
                with disk_errors(unfinished.keep, kept=unfinished.KEPT):
                    unfinished.finish(out, manifest["heldout_threshold"])
            _report_prepared(self.head, self.progress)
        else:
            self._check_space()
            with self._place() as folder:
                manifest = self._write(folder)
        if self.config.url:
            corpora.publish(out, self.config.url, self.progress)
        return manifest

    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the corpus to a new folder and returns its manifest."""
        manifest = self._write_tokens(folder)
        by_file = manifest.pop("by_file")
        packages = {name: importlib.metadata.version(name) for name in ("tokenizers", "sentencex")}
        first = [f"{path}{' (a corpus or work folder of Lambert)' * path.is_dir()}" for path in self.passed[:20]]
        manifest = with_hash(
            {
                **self.head,
                **manifest,
                **count_files(self.head, self.documents, by_file, self.input_of, self.by_step),
                "files_passed_over": {"count": len(self.passed), "first": first},
                "versions": {"lambert": __version__, **packages},
            }
        )
        described = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        # Bytes of file names that are no UTF-8 become escapes of JSON.
        (folder / "manifest.json").write_bytes(described.encode("utf-8", "backslashreplace"))
        return manifest

    def _write_tokens(self, folder: Path) -> dict[str, Any]:
        """Writes the tokenizer and the splits to `folder` and returns their part of the manifest.

        If a split has no document by chance, everything is written again with a threshold that moves the nearest
        document into it.
        """
        config, documents, unfinished = self.config, self.documents, self.unfinished
        threshold = config.heldout
        while True:
            if unfinished:
                unfinished.begin(threshold)
            learnt = unfinished.tokenizer() if unfinished and self.given is None else self.given
            if learnt is None:
                learnt = vocabulary.learn(config, folder, documents, threshold, self.progress)
            specials = roles.specials(learnt)
            size: dict[str, Any] = {
                "vocabulary": specials.vocabulary, "seed": config.seed, "threshold": threshold,
                "min_tokens": config.min_tokens, "unknown": specials.unk, "files": len(documents.files),
            }  # fmt: skip
            if unfinished:
                unfinished.save(learnt)
                sink = unfinished.sink(**size)
            else:
                tokenizer.save(learnt, folder)
                sink = Sink(folder, **size)
            splits = self._fill(sink, learnt)
            better = sink.find_better_threshold() if config.heldout else threshold
            if better == threshold:
                break
            threshold = better
        kept = sum(split["documents"] for split in splits.values())
        dropped = {"unreadable": documents.bad, **sink.dropped}
        if not kept:
            raise self._unusable(dropped)
        return {
            "vocabulary": specials.vocabulary,
            "normalizer": tokenizer.normalization(learnt),
            "tokenizer_sha256": sha256(folder / tokenizer.JSON),
            "tokenizer_files": {
                name: sha256(folder / name)
                for name in (tokenizer.VOCABULARY, tokenizer.CONFIG)
                if (folder / name).exists()
            },
            "documents": {
                "read": documents.read,
                "kept": kept,
                "repeated": sink.repeated,
                "dropped": dropped,
                "unreadable": documents.named,
                "passed_over": dict(sorted(documents.passed_over.items())),
                **({"found": select_found(documents.found)} if documents.found else {}),
            },
            "characters_removed": sink.removed,
            "heldout_threshold": threshold,
            "by_file": sink.by_file(),
            "splits": splits,
        }

    def _fill(self, sink: Sink, learnt: Any) -> dict[str, dict[str, Any]]:
        """Writes all documents to the splits and returns the manifest's entry of each."""
        config, documents = self.config, self.documents
        workers, arguments = (
            _choose_workers(config, documents.text_bytes),
            (learnt.to_str(), config.language, config.lines),
        )
        try:
            mark = sink.progress
            if isinstance(documents, EncodedDocuments):
                batches: Iterator[tuple[tuple[Any, Part], Encoded]] = documents.read_encoded(mark)
            else:
                batches = encode(read_ahead(documents.batches(mark)), workers, arguments)
            for (_, part), encoded in batches:
                sink.add(encoded, part)
                if part.mark and self.unfinished:
                    sink.save(part.mark)
                self.progress(documents.done, documents.total, "writing tokens")
            if self.unfinished and (last := documents.last_mark()):
                sink.save(last)
            return sink.close()
        except BaseException:
            sink.abandon()
            raise

    def _unusable(self, dropped: dict[str, int]) -> DataError:
        """Returns the error for a corpus without documents."""
        reasons = {
            "unreadable": "unreadable",
            "empty": "empty",
            "short": f"shorter than {self.config.min_tokens} tokens (min_tokens)",
            "duplicate": "duplicates",
            "weight": "not chosen (weights)",
        }
        counts = [f"{count} {reasons[name]}" for name, count in dropped.items() if count]
        counts += [f"{n} passed over ({reason})" for reason, n in sorted(self.documents.passed_over.items())]
        names, found = ", ".join(map(str, self.config.input)), ", ".join(counts) or "no document was found"
        count = len(self.documents.files)
        return DataError(f"{names}: 0 usable documents in {count} file{'s' if count > 1 else ''}: {found}.")

    def _check_space(self) -> None:
        text, out, setting = self.documents.text_bytes, self.config.folder, self.config.OUT
        needed = int(text * WRITTEN_SHARE) + min(text, self.config.sample_megabytes * 10**6)
        needed -= self.unfinished.size() if self.unfinished else 0
        folder = next(parent for parent in out.absolute().parents if parent.exists())
        usage = shutil.disk_usage(folder)
        if not usage.total:  # a file system of the kernel, such as /proc
            raise MachineError(f"{out} cannot be written: {folder} is not on a disk. Choose another {setting}.")
        if usage.free < needed:
            raise MachineError(
                f"{folder} has {format_size(usage.free)} free and {out} may need {format_size(needed)}: "
                f"free space or choose another {setting}."
            )

    @contextmanager
    def _place(self) -> Iterator[Path]:
        """A context with a folder that becomes `config.folder` if the block succeeds."""
        out, unfinished = self.config.folder, self.unfinished
        if unfinished:
            with disk_errors(unfinished.keep, kept=unfinished.KEPT), unfinished.publish(out) as folder:
                yield folder
        else:
            with disk_errors(out, self.config.OUT, "Nothing was kept"), atomic_folder(out) as folder:
                yield folder


def _report_prepared(head: dict[str, Any], progress: Progress) -> None:
    size: int = sum(entry["bytes"] for entry in head["inputs"])
    progress(size, size, "already prepared")


def _choose_workers(config: PrepareConfig, text_bytes: int) -> int:
    return config.workers or (1 if text_bytes < SMALL else min(process.count_cores(), MOST_WORKERS))
