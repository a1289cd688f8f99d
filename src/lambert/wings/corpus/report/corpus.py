"""The part of a report about a prepared corpus: its inputs, what was dropped, and its content."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lambert.core.batch import Ints
from lambert.core.settings import flatten
from lambert.core.shards import SPLITS, Split, content_hash, read_manifest
from lambert.text.tokenizers import roles, tokenizer
from lambert.verbs.report.cells import cell, table
from lambert.verbs.report.curves import INK, RUNS, compact, svg
from lambert.verbs.report.folders import RunContents
from lambert.wings.corpus.report.inputs import make_files_table, make_inputs_table
from lambert.wings.corpus.report.packing import Packed
from lambert.wings.corpus.report.sample import SampledSplit, count_pieces, sample_split
from lambert.wings.corpus.verbs.prepare import list_notes, list_warnings

UNKNOWN_IS_HIGH = 0.005
"""Share of unknown pieces from which the page gives advice."""
MOST_PIECES = 60
"""Number of the most frequent pieces on the page."""
MOST_INPUTS = 50
"""Number of input files that the page names with their hashes."""
_BINS = 40
_LAST, _WIDE = 0.995, 256
"""The percentile at which the linear axis of a histogram ends, and the length from which on an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What is left after a step."""

    label: str
    documents: int
    characters: int | None
    note: str = ""


@dataclass(slots=True)
class CorpusPage:
    """The values of the page about one corpus."""

    name: str
    notices: list[str]
    facts: list[tuple[str, list[str]]]
    bars: list[Bar]
    dropped: dict[str, Any]
    unreadable: list[str]
    samples: list[tuple[str, list[dict[str, Any]]]]
    """For each reason, kept documents first, the sampled documents, duplicates with their `survivor`."""
    sources: dict[str, Any]
    templates: dict[str, Any]
    """Templates of wikis that left a hole in a sentence."""
    settings: list[tuple[str, list[str]]]
    hashes: list[tuple[str, list[str]]]
    charts: list[dict[str, Any]] = field(default_factory=list)
    coverage: list[tuple[str, list[str]]] = field(default_factory=list)
    pieces: list[tuple[str, str]] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    sampled: str = ""
    """The sample from which lengths and tables were computed, if not from everything."""


def read(folder: Path, name: str, runs: Sequence[RunContents] = ()) -> CorpusPage:
    """Returns the page about a prepared corpus, with the number of epochs of these runs. Raises DataError if a file of
    it is missing or damaged."""
    manifest = read_manifest(folder)
    learnt = tokenizer.load(folder)
    split = Split(folder)
    found = CorpusPage(
        name=name,
        notices=[f"{name}: {text}" for text in _list_notices(manifest)],
        facts=_list_facts(manifest),
        bars=_list_bars(manifest),
        dropped=table("Dropped", ["Step", "Reason", "Documents", "Share of those read"], [*_list_dropped(manifest)]),
        unreadable=list(manifest["documents"]["unreadable"]),
        samples=_list_samples(manifest.get("steps", {})),
        settings=[(label, [cell(value)]) for label, value in flatten(manifest["settings"]).items()],
        hashes=_list_hashes(manifest),
        sources=_make_sources_table(manifest),
        templates=_make_templates_table(manifest["documents"].get("found", {})),
        inputs=make_inputs_table(manifest, learnt),
        files=make_files_table(manifest),
    )
    if not split.tokens:
        return found
    sample = sample_split(split)
    found.charts = [
        {"title": title, "values": list_quantiles(lengths), "svg": draw_histogram(title, lengths)}
        for title, lengths in (
            ("Tokens of a document", sample.document_lengths),
            ("Tokens of a sentence", sample.sentence_lengths),
        )
    ]
    _add_coverage(found, split, learnt)
    packed = Packed(sample)
    found.tables = [block for block in (packed.make_padding_table(), packed.make_epochs_table(runs)) if block["rows"]]
    found.sampled = _describe_sample(sample)
    return found


def _describe_sample(sample: SampledSplit) -> str:
    if sample.share == 1:
        return ""
    return (
        f"Computed from a sample of {sample.documents[-1] + 1:,} documents with {sample.share:.1%} of the tokens, at "
        "equal distances in the corpus."
    )


def _list_notices(manifest: Mapping[str, Any]) -> Iterator[str]:
    yield from (text.partition(": ")[2] for text in [*list_notes(dict(manifest)), *list_warnings(dict(manifest))])
    rate = manifest["splits"]["train"].get("unknown_rate", 0.0)
    if rate > UNKNOWN_IS_HIGH:
        yield f"{rate:.2%} of the tokens are unknown. The vocabulary may be for another language or script."


def _list_facts(manifest: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    def row(label: str, key: str, form: str = ",") -> tuple[str, list[str]]:
        splits = [manifest["splits"][name] for name in SPLITS]
        return label, [format(split[key], form) if key in split and split["documents"] else "" for split in splits]

    return [
        row("Documents", "documents"),
        row("Sentences", "sentences"),
        row("Tokens", "tokens"),
        ("Bytes of shards", [f"{_sum_bytes(manifest['splits'][name]) / 1e6:,.1f} MB" for name in SPLITS]),
        row("Unknown tokens", "unknown_rate", ".3%"),
        row("Unigram entropy, nats", "unigram_entropy", ".3f"),
        row("Unigram cross-entropy, nats", "unigram_cross_entropy", ".3f"),
    ]


def _sum_bytes(split: Mapping[str, Any]) -> int:
    return sum(int(shard["bytes"]) for shard in split["shards"])


def _list_bars(manifest: Mapping[str, Any]) -> list[Bar]:
    """Returns the numbers of documents and characters after each step."""
    documents = manifest["documents"]
    size = sum(entry["bytes"] for entry in manifest["inputs"])
    note = f"{len(manifest['inputs']):,} {'file' if len(manifest['inputs']) == 1 else 'files'}, {size / 1e6:,.1f} MB"
    bars = [
        Bar(step, counts["documents"] - counts["unreadable"], counts["characters"])
        for step, counts in manifest.get("steps", {}).items()
    ]
    if not bars:
        bars = [Bar("read", documents["read"] - documents["dropped"]["unreadable"], None)]
    bars[0] = Bar(bars[0].label, bars[0].documents, bars[0].characters, f"from {note}")
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    repeated = f", {documents['repeated']:,} documents are repeats" if documents.get("repeated") else ""
    return [*bars, Bar("tokens", documents["kept"], None, f"{tokens:,} tokens{repeated}")]


def _list_dropped(manifest: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yields the rows of the table of dropped, changed and skipped documents."""
    documents, steps = manifest["documents"], manifest.get("steps", {})
    first = next(
        iter(steps.values()), {"documents": documents["read"], "unreadable": documents["dropped"]["unreadable"]}
    )
    read = max(first["documents"], 1)

    def row(step: str, reason: str, count: int) -> list[str]:
        return [step, reason, f"{count:,}", f"{count / read:.2%}"]

    for reason, count in documents.get("passed_over", {}).items():
        yield ["extract" if steps else "read", f"skipped: {reason}", f"{count:,}", ""]
    if first["unreadable"]:
        yield row("extract" if steps else "read", "unreadable", first["unreadable"])
    for step, counts in steps.items():
        if step == "extract":
            continue
        dropped = sorted(counts["dropped"].items(), key=lambda item: -item[1])
        yield from (row(step, reason, count) for reason, count in dropped if count)
        yield from (
            row(step, f"changed by {name}", count) for name, count in counts.get("changed", {}).items() if count
        )
        yield from ([step, f"found: {name}", f"{count:,}", ""] for name, count in counts.get("found", {}).items())
        if counts.get("lines_removed"):
            yield [step, "repeated paragraphs removed", f"{counts['lines_removed']:,}", ""]
    reasons = {
        "empty": "empty",
        "short": f"fewer than {manifest['settings'].get('min_tokens', '?')} tokens",
        "duplicate": "exact duplicate",
        "weight": "left out by the weight of its input",
    }
    for name, reason in reasons.items():
        if documents["dropped"].get(name):
            yield row("tokens", reason, documents["dropped"][name])


def _make_sources_table(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the table of documents and tokens of each entry of `input`."""
    total = max(sum(split["tokens"] for split in manifest["splits"].values()), 1)
    rows = [
        [entry["input"], entry["weight"], f"{entry['documents']:,}", f"{entry['tokens']:,}",
         f"{entry['tokens'] / total:.1%}", f"{entry['unknown_rate']:.3%}"]
        for entry in manifest.get("sources", [])[:MOST_INPUTS]
    ]  # fmt: skip
    return table("Sources", ["Input", "Weight", "Documents", "Tokens", "Share of all tokens", "Unknown"], rows)


def _make_templates_table(found: Mapping[str, int]) -> dict[str, Any]:
    """Returns the table of templates that were removed from sentences of wikis, and of all of them."""
    sentences = max(found.get("sentences", 0), 1)
    counts = {"all": found.get("holes", 0)} if "holes" in found else {}
    counts |= {name: count for name, count in found.items() if name.startswith("{{")}
    rows = [[name, f"{count:,}", f"{1000 * count / sentences:.2f}"] for name, count in counts.items()]
    return table("Templates that left a hole in a sentence", ["Template", "Holes", "In 1,000 sentences"], rows)


def _list_samples(steps: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    def format_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {name: cell(sample.get(name)) for name in ("source", "place", "text")}
        if isinstance(survivor := sample.get("survivor"), Mapping):
            own["survivor"] = format_sample(survivor) | {"estimate": f"{survivor.get('estimate', 0):.0%}"}
        return own

    found: dict[str, list[dict[str, Any]]] = {}
    for counts in steps.values():
        for reason, samples in counts.get("samples", {}).items():
            if samples:
                found[reason] = [format_sample(sample) for sample in samples]
    return sorted(found.items(), key=lambda item: item[0] != "kept")


def _add_coverage(page: CorpusPage, split: Split, learnt: Any) -> None:
    counts_V = count_pieces(split)
    total = int(counts_V.sum())
    specials = roles.specials(learnt)
    used = np.count_nonzero(counts_V)
    share = "" if total == split.tokens else f", in {total:,} tokens"
    order = np.argsort(-counts_V, kind="stable")
    half = int(np.searchsorted(np.cumsum(counts_V[order]), total / 2)) + 1
    page.coverage = [
        ("Pieces of the vocabulary", [f"{split.vocabulary:,}"]),
        ("Pieces that occur", [f"{used:,} ({used / split.vocabulary:.1%}{share})"]),
        ("Pieces that occur fewer than 10 times", [f"{np.count_nonzero((counts_V < 10) & (counts_V > 0)):,}"]),
        ("Most frequent pieces that are half of the tokens", [f"{half:,}"]),
        ("Tokens that continue a word", [f"{counts_V[specials.continuation_V].sum() / total:.1%}"]),
        ("Tokens that are unknown", [f"{counts_V[specials.unk] / total if specials.unk >= 0 else 0:.3%}"]),
    ]
    page.pieces = [
        (str(learnt.id_to_token(int(piece))), f"{counts_V[piece] / total:.2%}")
        for piece in order[:MOST_PIECES]
        if counts_V[piece]
    ]


def _list_hashes(manifest: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    given = manifest.get("tokenizer", "")
    rows = [
        ("Manifest, SHA-256", str(manifest.get("manifest_sha256", ""))),
        ("Content of the shards, SHA-256", content_hash(manifest)),
        ("tokenizer.json, SHA-256", str(manifest["tokenizer_sha256"])),
        ("Tokenizer", "learnt from this corpus" if given == "train" else f"given: {given}"),
        ("Versions", versions),
    ]
    rows += [
        (entry["file"], f"{entry['bytes']:,} bytes, {entry['sha256']}") for entry in manifest["inputs"][:MOST_INPUTS]
    ]
    if len(manifest["inputs"]) > MOST_INPUTS:
        rows.append((f"{len(manifest['inputs']) - MOST_INPUTS:,} more input files", "in manifest.json"))
    return [(label, [text]) for label, text in rows if text]


def draw_histogram(title: str, lengths: Ints) -> str:
    """Returns the histogram of positive lengths in tokens as an SVG element. The axis is logarithmic if the lengths
    differ much; otherwise it ends at the 99.5th percentile, and the last bar has all longer ones."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    least, high, most = (int(value) for value in np.quantile(lengths, (0, _LAST, 1), method="nearest"))
    wide = high > _WIDE
    edges: Any
    if wide:
        edges = np.unique(np.geomspace(least, most + 1, _BINS + 1).round()) - 0.5
    else:
        edges = np.arange(least, high + 1 + (step := -(-(high + 1 - least) // _BINS)), step) - 0.5
    counts, _ = np.histogram(np.minimum(lengths, edges[-1]), edges)

    def plot(axes: Any) -> None:
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=RUNS[0], linewidth=0)
        if wide:
            axes.set_xscale("log")
            labels = (1.0, 2.0, 5.0) if edges[-1] < 3e3 * edges[0] else (1.0,)
            axes.xaxis.set_major_locator(LogLocator(10, labels, numticks=12))
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_axisbelow(True)
        axes.set_xlim(edges[0], edges[-1])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value, ",.0f")))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value, ",.0f")))
        axes.set_xlabel("tokens", color=INK)

    return svg(title, plot)


def list_quantiles(lengths: Ints) -> list[tuple[str, str]]:
    """Returns the labels and values of some quantiles."""
    found = np.quantile(lengths, (0, 0.05, 0.5, 0.95, 1), method="nearest")
    labels = ("shortest", "5%", "median", "95%", "longest")
    named = [(label, f"{value:,}") for label, value in zip(labels, found, strict=True)]
    return [*named[:3], ("mean", f"{lengths.mean():,.1f}"), *named[3:]]
