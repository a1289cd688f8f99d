"""Versions of the packages that, besides Lambert's own code, determine the bytes of parts."""

import functools
import importlib.metadata
import unicodedata

from lambert.wings.corpus.reading.readers import SUFFIXES

PACKAGES = ("pyarrow", "sentencex", "tokenizers", "rensa", "resiliparse", "py3langid")
"""Packages whose version may change the bytes of a part. The last three are needed for some inputs and steps only."""
_READS = {"html": ("resiliparse",), "warc": ("resiliparse",)}
_FILTERS = {"language": ("py3langid",)}


def find_version(package: str) -> str:
    """Returns the version of an installed package, or "missing"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


@functools.cache
def list_reader_versions(kind: str, suffix: str) -> tuple[str, ...]:
    """Returns the versions that determine the texts of a file, given the name of its reader, or "auto", and the suffix
    of its name."""
    return tuple(
        find_version(package) for package in _READS.get(SUFFIXES.get(suffix, "") if kind == "auto" else kind, ())
    )


def list_filter_versions(name: str) -> list[str]:
    """Returns the versions that determine what a filter does. That of Unicode is Python's."""
    return [unicodedata.unidata_version, *(find_version(package) for package in _FILTERS.get(name, ()))]


def list_machine_versions() -> dict[str, str]:
    """Returns all versions. Machines that work together must have the same."""
    return {"Unicode": unicodedata.unidata_version} | {package: find_version(package) for package in PACKAGES}
