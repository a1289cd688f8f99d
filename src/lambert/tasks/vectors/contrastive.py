"""Losses of sentence vectors, as functions from the vectors of all examples to the loss of each example.

Shapes, besides those of core/batch.py: G texts of an example: the anchor, a text that belongs to it (positive), and
texts that do not (negatives). Vectors are [N, G, D], losses float32 [N].
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function from vectors [N, G, D] and labels of the examples to losses [N]."""
SCALE = 20.0
"""Factor of the cosines: sentence-transformers, MultipleNegativesRankingLoss and CoSENTLoss."""


def ranking(vectors_NGD: Tensor, texts_NG: Tensor, scale: float = SCALE) -> Tensor:
    """Multiple negatives: the cross entropy of choosing the positive of the anchor among the positives and negatives of
    all examples, by cosine times `scale`. Candidates equal to the anchor or its positive are excluded.

    Source: Henderson et al., "Efficient natural language response suggestion for Smart Reply", 2017, section 4.4; van
    den Oord et al., 2018, equation 4 (InfoNCE).

    Args:
        texts_NG: Numbers of the texts, equal for equal texts, int64.
    """
    units_NGD = normalize(vectors_NGD.float(), dim=-1)
    candidates_CD = units_NGD[:, 1:].transpose(0, 1).flatten(0, 1)  # all positives, then the negatives by column
    scores_NC = scale * units_NGD[:, 0] @ candidates_CD.T
    texts_C = texts_NG[:, 1:].T.flatten()
    own_N = torch.arange(len(texts_NG), device=texts_NG.device)
    equal_NC = (texts_C == texts_NG[:, :1]) | (texts_C == texts_NG[:, 1:2])
    equal_NC[own_N, own_N] = False
    return cross_entropy(scores_NC.masked_fill(equal_NC, -torch.inf), own_N, reduction="none")


def cosent(vectors_NGD: Tensor, scores_N: Tensor, scale: float = SCALE) -> Tensor:
    """CoSENT: log(1 + sum of exp(scale (c_k - c_i)) over all pairs of examples of which i has the larger score), where
    c is the cosine of the two vectors of an example. The loss of each example is that of all, and so is their mean.

    Source: Su, "CoSENT", 2022 (kexue.fm/archives/8847); sentence-transformers, CoSENTLoss.
    """
    cosines_N = _cosines(vectors_NGD)
    above_NN = scale * (cosines_N[None, :] - cosines_N[:, None])  # [i, k]
    terms = above_NN[scores_N[:, None] > scores_N[None, :]]
    return torch.logsumexp(torch.cat([terms.new_zeros(1), terms]), 0).expand(len(scores_N))


def cosine_error(vectors_NGD: Tensor, scores_N: Tensor) -> Tensor:
    """The squared difference of the cosine of the two vectors and the score.

    Source: Reimers and Gurevych, "Sentence-BERT", 2019, section 3 (regression objective).
    """
    return (_cosines(vectors_NGD) - scores_N) ** 2


def margin_error(vectors_NGD: Tensor, margins_NJ: Tensor, *, unit: bool = False) -> Tensor:
    """MarginMSE: the mean over negatives of (p - n - margin)^2. p and n are the inner products (of `unit` vectors the
    cosines) of the anchor with the positive and a negative, the margin is the difference of a teacher's scores.

    Source: Hofstätter et al., "Improving efficient neural ranking models with cross-architecture knowledge
    distillation", 2020, section 3.2.
    """
    vectors_NGD = normalize(vectors_NGD.float(), dim=-1) if unit else vectors_NGD.float()
    products_NC = torch.einsum("nd,ngd->ng", vectors_NGD[:, 0], vectors_NGD[:, 1:])
    return (((products_NC[:, :1] - products_NC[:, 1:]) - margins_NJ.reshape(len(products_NC), -1)) ** 2).mean(1)


def at_widths(loss: Loss, widths: Sequence[int]) -> Loss:
    """Returns the sum of `loss` over the first components of the vectors, cut at each of `widths`.

    Source: Kusupati et al., "Matryoshka representation learning", 2022, equation 1, with weights 1.
    """

    def sum_widths(vectors_NGD: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([loss(vectors_NGD[..., :width], labels) for width in widths]).sum(0)

    return sum_widths


def _cosines(vectors_NGD: Tensor) -> Tensor:
    units_NGD = normalize(vectors_NGD.float(), dim=-1)
    return (units_NGD[:, 0] * units_NGD[:, 1]).sum(-1)
