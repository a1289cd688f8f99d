"""`lambert prepare`: converts raw text to a tokenizer and token shards."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lambert.core.urls import public
from lambert.engine.progress import progress
from lambert.engine.signals import CONTINUE, START_AGAIN, graceful_stop
from lambert.runs.result import Result, Say, silent
from lambert.text.rows import JSON, first_notes, kind
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.documents import ends_early
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.remote import corpora
from lambert.wings.corpus.remote.fetch import AGAIN

__all__ = ["PrepareConfig", "corpus_of_run", "run"]

_LABEL = len("deduplicate")
"""Width of the longest label of a line."""
_SHOWN = 8
"""Maximum number of counts of a step on the terminal. The manifest and the report have all."""
_UNKNOWN = 0.05
"""Share of [UNK] above which there is a warning (our choice)."""
_NOTED = 20
"""Maximum number of inputs that are searched for rows, to show notes about them."""
_ENDS = 5
"""Maximum number of warnings about files that end early."""


class _CorpusOfRun(PrepareConfig):
    """The settings by which `pretrain` prepares its text. Its setting `corpus` is `out`."""

    OUT = "--corpus"


def run(config: PrepareConfig, say: Say = silent) -> Result:
    """Prepares the corpus, shows progress on stderr, and reports what was kept and dropped. Raises SavedAndStopped
    after a signal."""
    status, again = " before the end; no corpus was written", START_AGAIN
    if config.stages:
        status, again = "; the parts that are complete are kept", CONTINUE
    elif config.url:
        status, again = "; a corpus that is complete in work is kept, and what is copied", CONTINUE
    with graceful_stop(status, again):
        to_corpus(config, say)
    return Result(config.folder if config.makes_corpus else config.work_folder)


def corpus_of_run(say: Say, **settings: Any) -> None:
    """Converts the raw text of a run of pretrain to its corpus, with these settings of `prepare`."""
    to_corpus(_CorpusOfRun(**settings), say)


def to_corpus(config: PrepareConfig, say: Say) -> None:
    """Makes the corpus unless it is complete, and reports what was kept and dropped."""
    started = time.monotonic()
    phases: set[str] = set()
    with progress(None, "reading", unit="MB", quiet=say is silent, summary=False) as bar:

        def show(done: int, total: int, phase: str) -> None:
            phases.add(phase)
            if AGAIN in phase:
                bar.note(phase)
            else:
                bar.update(phase, done / 1e6, total / 1e6)

        manifest = prepare(config, show)
    for line in [*summarize_steps(manifest.get("steps", {})), *_list_row_notes(config, manifest["inputs"])]:
        say(line)
    if not config.makes_corpus:
        first = manifest["steps"]["extract"]
        for line in [*describe_holes(first["found"]), *list_early_ends(first["named"])]:
            say(line)
        say(f"documents  {config.work_folder}  ({time.monotonic() - started:.1f} s)")
        return
    out = public(config.url) or config.folder
    if "already prepared" in phases and corpora.COPYING not in phases:
        say(f"already prepared: {out}")
    for line in summarize(manifest):
        say(line)
    say(f"corpus  {out}  ({time.monotonic() - started:.1f} s)")
    if config.url and config.folder.is_dir():
        say(f"its local copy  {config.folder}")


def _list_row_notes(config: PrepareConfig, inputs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields notes about the rows of the first inputs, where they have rows."""
    suffixes = (".csv", ".tsv", *JSON, ".parquet", ".arrow") if config.format in ("auto", "csv", "jsonl") else ()
    for path in [Path(entry["file"]) for entry in inputs[:_NOTED]]:
        if kind(path) in suffixes:
            yield from first_notes(path, [config.text_field])


def summarize_steps(steps: dict[str, Any]) -> list[str]:
    """Returns a line for each step that kept documents."""
    lines = []
    for name, counts in steps.items():
        by = "" if name == "deduplicate" else "by "
        dropped, changed = (_format_counts(counts[kind], by) for kind in ("dropped", "changed"))
        found, over = (
            _format_counts(counts["found"]) if name != "extract" else "",
            _format_counts(counts["passed_over"]),
        )
        lines.append(
            f"{name:<{_LABEL}} {counts['documents']:,} documents, {counts['characters']:,} characters"
            + (f", {counts['unreadable']:,} unreadable" if counts["unreadable"] else "")
            + (f"; dropped: {dropped}" if dropped else "")
            + (f"; changed: {changed}" if changed else "")
            + (f"; found: {found}" if found else "")
            + (f"; skipped: {over}" if over else "")
            + (f"; {counts['lines_removed']:,} repeated paragraphs removed" if counts.get("lines_removed") else "")
        )
    return lines


def _format_counts(counts: dict[str, int], by: str = "") -> str:
    """Returns the largest counts, with their names."""
    found = sorted(((count, name) for name, count in counts.items() if count), key=lambda entry: -entry[0])
    return ", ".join(f"{count:,} {by}{name}" for count, name in found[:_SHOWN]) + (", ..." if found[_SHOWN:] else "")


def summarize(manifest: dict[str, Any]) -> list[str]:
    """Returns a summary of a manifest in a few lines."""
    documents = manifest["documents"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in documents["dropped"].items() if count) or "none"
    size = sum(entry["bytes"] for entry in manifest["inputs"])
    repeated = f", {count:,} of them repeats" if (count := documents.get("repeated")) else ""
    passed = manifest["files_passed_over"]["count"]
    lines = [
        f"{'files':<{_LABEL}} {len(manifest['inputs']):,} ({size / 1e6:,.1f} MB)"
        + (f", {passed:,} of another kind{_name_first(manifest['files_passed_over'])}" if passed else ""),
        f"{'documents':<{_LABEL}} {documents['kept']:,} kept of {documents['read']:,}{repeated}; dropped: {dropped}",
    ]
    if over := ", ".join(f"{count:,} {reason}" for reason, count in documents.get("passed_over", {}).items()):
        lines.append(f"  skipped, because they are not documents: {over}")
    own = [name for name in manifest["files_passed_over"].get("first", ()) if name.endswith(" of Lambert)")]
    lines += [f"  skipped: {name}" for name in own[:3]]
    lines += [f"  unreadable: {named}" for named in documents["unreadable"] if not ends_early(named)][:3]
    lines += describe_holes(documents.get("found", {}))
    if manifest["characters_removed"]:
        lines.append(f"{'characters':<{_LABEL}} {manifest['characters_removed']:,} NUL characters removed")
    for name, split in manifest["splits"].items():
        if not split["documents"]:
            lines.append(f"{name:<{_LABEL}} no documents")
            continue
        lines.append(
            f"{name:<{_LABEL}} {split['documents']:,} documents, {split['sentences']:,} sentences, "
            f"{split['tokens']:,} tokens, {split['unknown_rate']:.2%} [UNK], "
            f"unigram entropy {split['unigram_entropy']:.2f} nats"
        )
    lines.append(f"{'vocabulary':<{_LABEL}} {manifest['vocabulary']:,} pieces{_describe_normalization(manifest)}")
    return lines + list_notes(manifest) + list_warnings(manifest)


def _name_first(passed: dict[str, Any]) -> str:
    first = [*passed.get("first", ())]
    return f" ({first[0]}{', ...' if passed['count'] > 1 else ''})" if first else ""


def _describe_normalization(manifest: dict[str, Any]) -> str:
    """Returns what the normalization and the vocabulary lose of the text, for the line of the vocabulary."""
    own = manifest.get("normalizer")
    words = [
        *(["lower case"] if own and own["lowercase"] else []),
        *([f"accents {'stripped' if own['strip_accents'] else 'kept'}"] if own else []),
    ]
    if tokens := sum(split["tokens"] for split in manifest["splits"].values()):
        unknown = sum(split["tokens"] * split["unknown_rate"] for split in manifest["splits"].values())
        words.append(f"{unknown / tokens:.2%} of the tokens are [UNK]")
    return f"; {', '.join(words)}" if words else ""


def list_notes(manifest: dict[str, Any]) -> list[str]:
    """Returns lines about settings that were chosen from the text."""
    found, asked = [], manifest["settings"].get("vocabulary", 0)
    if manifest["tokenizer"] == "train" and manifest["vocabulary"] < asked:
        found.append(
            f"note: the vocabulary has {manifest['vocabulary']:,} pieces, not {asked:,}: the text has no others that "
            "occur often enough (min_frequency)"
        )
    own = manifest.get("normalizer") or {"lowercase": False, "strip_accents": False}
    unset = manifest["tokenizer"] == "train" and manifest["settings"].get("strip_accents") is None
    if not unset or own["strip_accents"] or not own["lowercase"]:
        return found
    return [
        *found,
        "note: accents are kept, because stripping them changes more than 0.5% of the letters of this text: it would "
        "decompose Hangul and remove marks of kana, vowels and tones. --strip-accents strips them nevertheless",
    ]


def describe_holes(found: dict[str, int]) -> list[str]:
    """Returns a line about templates of wikis that left a hole in a sentence, if a wiki was read."""
    if not found.get("sentences"):
        return []
    share = found.get("holes", 0) / found["sentences"]
    names = _format_counts({name: count for name, count in found.items() if name.startswith("{{")})
    return [
        f"{'templates':<{_LABEL}} {found.get('holes', 0):,} holes in {found['sentences']:,} sentences of wikis "
        f"({1000 * share:.1f} in 1,000)" + (f": {names}" if names else "")
    ]


def list_warnings(manifest: dict[str, Any]) -> list[str]:
    """Returns warnings about results that the user probably did not intend, with what to do."""
    found, kept = [], manifest["documents"]["kept"]
    settings, splits = manifest["settings"], manifest["splits"]
    if kept == 1:
        found.append(
            "warning: the corpus is one document. Nothing is held out, and next-sentence pairs need two documents. If "
            "the file contains several documents, use --documents blank-line or --documents line"
        )
    elif settings["heldout"] and not splits["heldout"]["documents"]:
        found.append("warning: no document is held out, so pre-training has no held-out scores")
    for name, split in splits.items():
        if split["documents"] and split["unknown_rate"] > _UNKNOWN:
            found.append(
                f"warning: {split['unknown_rate']:.0%} of the tokens of {name} are [UNK]: the vocabulary is probably "
                "for another language or script. Leave tokenizer out to learn one, or raise vocabulary if it was learnt"
            )
            break
    return found + list_early_ends(manifest["documents"]["unreadable"])


def list_early_ends(unreadable: Sequence[str]) -> list[str]:
    """Returns a warning for each file that ends before its last document."""
    early = [named for named in unreadable if ends_early(named)]
    found = [
        f"warning: {named}. The documents after it are missing: get a complete copy of the file" for named in early
    ]
    return found[:_ENDS] + ([f"warning: {len(found) - _ENDS:,} more files end early"] if found[_ENDS:] else [])
