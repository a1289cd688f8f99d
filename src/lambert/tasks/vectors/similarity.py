"""Similarities of vectors, as sentence-transformers 6.2 computes them (`util.similarity`)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from lambert.core.errors import UsageError

SIMILARITIES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda a_ND, b_MD: normalize(a_ND) @ normalize(b_MD).T,
    "dot": lambda a_ND, b_MD: a_ND @ b_MD.T,
    "euclidean": lambda a_ND, b_MD: -torch.cdist(a_ND, b_MD, p=2.0),
    "manhattan": lambda a_ND, b_MD: -torch.cdist(a_ND, b_MD, p=1.0),
}
"""From the vectors of N and M texts to similarities [N, M], by `similarity_fn_name`. Distances are negative."""


def similarity(a: Any, b: Any, name: str) -> Tensor:
    """Returns the similarities [N, M] of N and M vectors by the function of this name; one vector alone is a row.
    Raises UsageError for what is not a vector, and for vectors of different widths."""
    a_ND, b_MD = _rows(a), _rows(b)
    if a_ND.shape[1] != b_MD.shape[1]:
        raise UsageError(f"The vectors have {a_ND.shape[1]} and {b_MD.shape[1]} components: the numbers must be equal.")
    return SIMILARITIES[name](a_ND, b_MD.to(a_ND))


def similarity_of_pair(a_D: npt.NDArray[Any], b_D: npt.NDArray[Any], name: str) -> float:
    """Returns the similarity of two vectors, computed in float64."""
    a_D, b_D = a_D.astype(np.float64), b_D.astype(np.float64)
    if name == "euclidean":
        return -float(np.linalg.norm(a_D - b_D))
    if name == "manhattan":
        return -float(np.abs(a_D - b_D).sum())
    length = float(np.linalg.norm(a_D) * np.linalg.norm(b_D)) if name == "cosine" else 1.0
    return float(a_D @ b_D / max(length, 1e-12))


def _rows(vectors: Any) -> Tensor:
    try:
        if isinstance(vectors, list | tuple) and vectors and isinstance(vectors[0], Tensor | np.ndarray):
            vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
        found = torch.as_tensor(vectors)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError("similarity takes vectors: those of texts come from encode.") from error
    if found.ndim not in (1, 2):
        raise UsageError(f"similarity takes vectors [N, D], not an array of {found.ndim} dimensions.")
    found = found if found.is_floating_point() else found.float()
    return found[None] if found.ndim == 1 else found
