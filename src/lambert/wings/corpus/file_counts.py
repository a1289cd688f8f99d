"""Counts for the manifest what became of the documents of each input file."""

from collections.abc import Mapping, Sequence
from typing import Any

from lambert.wings.corpus.documents import Documents
from lambert.wings.corpus.reading.pieces import as_text
from lambert.wings.corpus.stages import FileCounts

_DROPPED = ("empty", "short", "duplicate", "weight")


def counted(
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
            unreadable = documents.bad_of[as_text(file)]
            read = own["kept"] - own["repeated"] + sum(dropped.values()) + unreadable
            before = {"read": read, "unreadable": unreadable}
        else:
            before = by_step[as_text(file)]
        counts = {**before, **dropped, "repeated": own["repeated"]}
        some = {name: count for name, count in counts.items() if count or name == "read"}
        inputs.append({**entry, "documents": {**some, "kept": own["kept"]}, "tokens": own["tokens"]})
    for source in sources:
        source["unknown_rate"] /= max(source["tokens"], 1)
    return {"inputs": inputs, "sources": sources}
