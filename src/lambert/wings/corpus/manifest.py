"""The manifest of a corpus: counts of each input file, and its comparison with a command that would prepare the same
corpus."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lambert.core.errors import UsageError
from lambert.core.settings import flatten
from lambert.core.shards import check_corpus, check_shape, read_manifest
from lambert.wings.corpus.documents import Documents
from lambert.wings.corpus.reading.pieces import escape_name
from lambert.wings.corpus.stages import FileCounts

_DOCUMENTS = {"read": int, "kept": int, "dropped": {"*": int}, "unreadable": [str]}
_PREPARED = {
    "settings": {"heldout": float}, "tokenizer": str, "inputs": [{"file": str, "bytes": int, "sha256": str}],
    "documents": _DOCUMENTS, "characters_removed": int, "files_passed_over": {"count": int}, "heldout_threshold": float,
    "splits": {"*": {"unknown_rate": float, "unigram_entropy": float}},
}  # fmt: skip
"""Keys of the manifest that only `prepare` reads."""


def read_existing(out: Path, head: dict[str, Any], setting: str = "out") -> dict[str, Any]:
    """Returns the manifest of the corpus in `out`, which is the value of `setting`. Raises UsageError with the
    differences if it was prepared from other settings or inputs."""
    if not (out / "manifest.json").is_file():
        raise UsageError(f"{out} exists and is not a prepared corpus: choose another {setting}, or move it away.")
    manifest = read_manifest(out)
    check_same(out, manifest, head, setting)
    check_corpus(out, whole=True)
    return manifest


def check_same(out: Path | str, manifest: dict[str, Any], head: dict[str, Any], setting: str = "out") -> None:
    """Raises UsageError with the differences if a corpus was prepared from other settings or inputs than `head`."""
    check_shape(f"{out}/manifest.json", manifest, _PREPARED)
    known = [values["settings"] for values in (manifest, head)]
    unset: dict[str, Any] = {"clean": [], "weights": [], "strip_accents": None}
    old, new = (unset | {"deduplicate": "deduplicate" in own} | flatten(own) for own in known)
    differs = [f"{name} = {old[name]!r}, not {new[name]!r}" for name in old if name in new and old[name] != new[name]]
    if manifest["tokenizer"] != head["tokenizer"]:
        differs.append("another tokenizer")
    was, now = ([entry["sha256"] for entry in values["inputs"]] for values in (manifest, head))
    if was != now:
        before, after = set(was), set(now)
        new = {entry["file"]: None for entry in head["inputs"] if entry["sha256"] not in before}
        old = {entry["file"]: None for entry in manifest["inputs"] if entry["sha256"] not in after}
        found = {
            "has changed": [file for file in new if file in old],
            "is new": [file for file in new if file not in old],
            "is gone": [file for file in old if file not in new],
        }
        what = [f"{names[0]} {verb}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
                for verb, names in found.items() if names]  # fmt: skip
        differs.append("other inputs: " + (", ".join(what) or "their order changed"))
    if differs:
        raise UsageError(f"{out} was prepared with {'; '.join(differs)}: choose another {setting}, or move it away.")


_DROPPED = ("empty", "short", "duplicate", "weight")


def count_files(
    head: Mapping[str, Any], documents: Documents, by_file: Sequence[Mapping[str, int]], input_of: Mapping[str, int],
    by_step: FileCounts | None,
) -> dict[str, Any]:  # fmt: skip
    """Returns `inputs` and `sources` of the manifest, with the counts of each input file and each entry of `input`.

    Args:
        head: The manifest with `inputs` and `sources` without counts.
        documents: What was read.
        by_file: `Sink.by_file`.
        input_of: For each input file, the number of its entry of `input`.
        by_step: What the steps before `tokens` counted; None: the files were read by this pass.
    """
    sources = [{**source, "documents": 0, "tokens": 0, "unknown_rate": 0} for source in head["sources"]]
    inputs = []
    for entry, file, own in zip(head["inputs"], documents.files, by_file, strict=True):
        source = sources[input_of[file]]
        for name, count in (("documents", "kept"), ("tokens", "tokens"), ("unknown_rate", "unknown")):
            source[name] += own[count]
        dropped = {name: own[name] for name in _DROPPED}
        if by_step is None:
            unreadable = documents.bad_of[escape_name(file)]
            read = own["kept"] - own["repeated"] + sum(dropped.values()) + unreadable
            before = {"read": read, "unreadable": unreadable}
        else:
            before = by_step[escape_name(file)]
        counts = {**before, **dropped, "repeated": own["repeated"]}
        some = {name: count for name, count in counts.items() if count or name == "read"}
        inputs.append({**entry, "documents": {**some, "kept": own["kept"]}, "tokens": own["tokens"]})
    for source in sources:
        source["unknown_rate"] /= max(source["tokens"], 1)
    return {"inputs": inputs, "sources": sources}
