"""Writes contrastive.json: losses and gradients by sentence-transformers. It needs sentence-transformers and a model
folder, whose weights do not matter: python make_contrastive.py FOLDER."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, losses, util
from sentence_transformers.evaluation import InformationRetrievalEvaluator

N, D = 5, 6


def main(folder: str) -> None:
    model = SentenceTransformer(folder, device="cpu")
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randn(N, D, generator=generator, requires_grad=True) for _ in range(4)]
    scores = torch.tensor([0.1, 0.9, 0.4, 0.4, 0.7])
    margins = torch.randn(N, 2, generator=generator)
    kinds: dict[str, tuple[Any, int, Any]] = {
        "ranking": (losses.MultipleNegativesRankingLoss(model), 4, None),
        "ranking-pairs": (losses.MultipleNegativesRankingLoss(model), 2, None),
        "cosent": (losses.CoSENTLoss(model), 2, scores),
        "cosine": (losses.CosineSimilarityLoss(model), 2, scores),
        "margin": (losses.MarginMSELoss(model), 4, margins),
    }
    found: dict[str, Any] = {
        "vectors": [text.tolist() for text in texts], "scores": scores.tolist(), "margins": margins.tolist(),
    }  # fmt: skip
    for name, (loss, count, labels) in kinds.items():
        value = loss.compute_loss_from_embeddings(texts[:count], labels)
        grads = torch.autograd.grad(value, texts[:count])
        found[name] = {"loss": value.item(), "gradients": [grad.tolist() for grad in grads]}
    loss = losses.MultipleNegativesRankingLoss(model)
    cut = [[torch.nn.functional.normalize(text[:, :width], dim=-1) for text in texts] for width in (6, 3)]
    value = sum(loss.compute_loss_from_embeddings(part, None) for part in cut)
    found["widths"] = {"loss": value.item(), "gradients": [g.tolist() for g in torch.autograd.grad(value, texts)]}
    found["search"] = search(generator)
    Path(__file__).with_name("contrastive.json").write_text(json.dumps(found) + "\n")


def search(generator: torch.Generator) -> dict[str, Any]:
    """Returns vectors of 7 queries and 150 texts, which are relevant, and the scores by sentence-transformers."""
    queries, corpus = torch.randn(7, 4, generator=generator), torch.randn(150, 4, generator=generator)
    relevant = {q: {int(i) for i in torch.randperm(150, generator=generator)[: 1 + 3 * q]} for q in range(7)}
    evaluator = InformationRetrievalEvaluator(
        {str(q): "q" for q in range(7)},
        {str(i): "t" for i in range(150)},
        {str(q): {str(i) for i in found} for q, found in relevant.items()},
        mrr_at_k=[10], ndcg_at_k=[10], accuracy_at_k=[1], precision_recall_at_k=[10, 100], map_at_k=[100],
        show_progress_bar=False, score_functions={"cosine": util.cos_sim},
    )  # fmt: skip
    model = SimpleNamespace(
        similarity_fn_name="cosine", similarity=util.cos_sim, model_card_data=None,
        encode_query=lambda texts, **_: queries, encode_document=lambda texts, **_: corpus[: len(texts)],
    )  # fmt: skip
    evaluator.embed_inputs = lambda model, texts, encode_fn_name=None, **_: (
        queries if encode_fn_name == "query" else corpus
    )
    scores = evaluator.compute_metrices(model)
    return {
        "queries": queries.tolist(), "corpus": corpus.tolist(),
        "relevant": [sorted(relevant[q]) for q in range(7)],
        "scores": {name: scores["cosine"][name] for name in scores["cosine"]},
    }  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
