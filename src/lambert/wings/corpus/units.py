"""Units, which the steps of `prepare` turn into parts: a slice of a large input file, or several small input files."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from lambert.text.streams import EXPANSION, inner_suffix
from lambert.wings.corpus.plan import digest
from lambert.wings.corpus.reading.slices import Slice
from lambert.wings.corpus.versions import of_reader

SMALL = 1 << 20
"""An input file with fewer bytes shares a part with other small files (our choice)."""
GROUP = 8 << 20
"""Mean number of bytes of text in a part of small files; the largest has twice as many (our choice: large beside the
cost of a part, and quick to make again when one of its files changes)."""
OPENING = 4096
"""Bytes that are added for each file, because opening it takes as long as reading this much (our choice)."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Documents of an input file."""

    source: str
    """The input file."""
    part: Slice
    """Which of its documents."""
    bytes: int
    """Bytes of the input file for these documents, approximately."""
    stamp: tuple[int, int, int] | None
    """Inode, size and modification time of the input file when it was hashed."""
    sha256: str
    """SHA-256 of the input file."""

    @property
    def text_bytes(self) -> float:
        """Estimated bytes of text."""
        return self.bytes * EXPANSION.get(Path(self.source).suffix.lower(), 1.0)


@dataclass(frozen=True, slots=True)
class Unit:
    """What a step turns into a part."""

    extents: tuple[Extent, ...]
    """The documents in the order of the corpus, possibly of several small files."""
    bytes: int
    """Sum of the bytes of `extents`."""
    key: str
    """Hash of everything that determines the content of the part; before the first step, of its input files."""
    path: Path = Path()
    """The part of the step before."""
    number: int = 0
    """Number of the part, in the order of the corpus."""

    @property
    def source(self) -> str:
        """Name of the unit in messages."""
        more = f" and {len(self.extents) - 1:,} more" if len(self.extents) > 1 else ""
        return f"{self.extents[0].source}{more}"

    def after(self, step: str, version: int, settings: Mapping[str, Any]) -> "Unit":
        """Returns the unit with the key of its part of a step."""
        return replace(self, key=digest([step, version, settings, self.key])[:16])


def is_small(size: int) -> bool:
    """Returns whether an input file of `size` bytes shares a part with other small files."""
    return size < SMALL


def make_units(
    inputs: Sequence[Mapping[str, Any]], stamps: Sequence[Any], slices: Sequence[Sequence[Slice]],
    shares: Sequence[float], kind: str = "auto",
) -> list[Unit]:  # fmt: skip
    """Returns the units of all input files, in the order of the corpus.

    Consecutive small files form a unit. The hash of a file decides whether the unit ends with it; without such a file,
    its size does. So adding, changing or removing a file affects its own unit and seldom another one.

    Args:
        inputs: `file`, `bytes` and `sha256` of each input file.
        stamps: `HashedFile.stamp` of each when it was hashed.
        slices: The slices of each.
        shares: How often the documents of each are used; the same for all files of a unit.
        kind: Name of the reader, or "auto".
    """
    found: list[list[Extent]] = []
    held, before = 0.0, 0.0
    for entry, stamp, parts, share in zip(inputs, stamps, slices, shares, strict=True):
        source, size, sha256 = str(entry["file"]), int(entry["bytes"]), str(entry["sha256"])
        extents = [Extent(source, part, size // len(parts), stamp, sha256) for part in parts]
        if not is_small(size):
            found += [[extent] for extent in extents]
            held = 0.0
            continue
        if not held or share != before:
            found.append([])
            held, before = 0.0, share
        weight = extents[0].text_bytes + OPENING
        found[-1] += extents
        held += weight
        drawn = int(digest([source, sha256])[:16], 16) / 2**64
        if held >= 2 * GROUP or drawn < weight / GROUP:
            held = 0.0
    return [
        Unit(
            tuple(extents),
            sum(extent.bytes for extent in extents),
            digest(
                [[extent.source, astuple(extent.part), extent.sha256, *_versions(extent, kind)] for extent in extents]
            ),
            number=number,
        )
        for number, extents in enumerate(found)
    ]


def _versions(extent: Extent, kind: str) -> tuple[str, ...]:
    return of_reader(kind, inner_suffix(Path(extent.source)))
