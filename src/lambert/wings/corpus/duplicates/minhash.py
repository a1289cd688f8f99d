"""MinHash signatures of documents, and the bands by which similar documents are found.

The values of two signatures are equal at a place with a probability that is the Jaccard similarity of the documents:
the number of shingles that both have, divided by the number of shingles that one of them has (Broder 1997, "On the
resemblance and containment of documents"). Documents whose signatures are equal in a whole band are candidates; see
Leskovec, Rajaraman and Ullman, "Mining of massive datasets", section 3.4.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.registry import import_extra
from lambert.wings.corpus.duplicates.shingles import Hashes, Integers, mix

PERMUTATIONS = 126
"""Number of values of a signature; the standard error of an estimate is at most 0.045 (at a similarity of 0.5)."""
RECALL = 0.99
"""Minimum share of the pairs at the threshold that the bands make candidates (our choice)."""
_SEED = 1

Signatures = npt.NDArray[np.uint32]


def import_rensa() -> Any:
    """Returns rensa's class for MinHash. Raises UsageError if it is not installed."""
    return import_extra("rensa", "Near duplicates are found with rensa", "dedup").RMinHash


def compute_signatures(hashes: Hashes, bounds_D1: Integers) -> Signatures:
    """Returns the signature of each document [D, PERMUTATIONS] from the hashes of its shingles, at least one. The
    signature of a document in several pieces is the minimum over the pieces."""
    matrix = import_rensa().digest_matrix_from_flat_token_hashes(
        hashes, bounds_D1.astype(np.uint64), PERMUTATIONS, _SEED
    )
    return np.array(matrix.to_rows(), dtype=np.uint32).reshape(-1, PERMUTATIONS)


def estimate_similarities(first: Signatures, second: Signatures) -> npt.NDArray[np.float64]:
    """Returns the estimated similarity of each pair of documents [n] from their signatures [n, PERMUTATIONS]."""
    return np.asarray((first == second).mean(axis=1))


def standard_error(similarity: float) -> float:
    """Returns the standard error of the estimate of a similarity, at most: that of independent values."""
    return float(np.sqrt(similarity * (1 - similarity) / PERMUTATIONS))


def candidate_share(similarity: float, rows: int) -> float:
    """Returns the share of the pairs of this similarity that are equal in a band of so many values."""
    return 1 - (1 - similarity**rows) ** (PERMUTATIONS // rows)


def choose_band_rows(threshold: float) -> int:
    """Returns the number of values in a band: as many as possible, because more values mean fewer candidates to check,
    while at least the share `RECALL` of the pairs at the threshold become candidates."""
    return max(rows for rows in range(1, 17) if rows == 1 or candidate_share(threshold, rows) >= RECALL)


def hash_bands(signatures_DP: Signatures, rows: int) -> Hashes:
    """Returns a hash of each band [D, PERMUTATIONS // rows]. Those of different bands differ."""
    bands = PERMUTATIONS // rows
    values = signatures_DP[:, : bands * rows].reshape(len(signatures_DP), bands, rows).astype(np.uint64)
    found = np.broadcast_to(np.arange(bands, dtype=np.uint64), values.shape[:2])
    for row in range(rows):
        found = mix(found * np.uint64(0xD1B54A32D192ED03) + values[:, :, row] + np.uint64(1))
    return found
