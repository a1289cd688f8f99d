"""The passes of pre-training of BERT's models in chains of functions: nothing but a back-end computes in them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.bert import BertEncoder
from lambert.model.chain import Chain
from lambert.model.heads import Model
from lambert.model.objectives import MaskedLanguageModel, NextSentence, Pooler, decode
from lambert.model.transform import tanh
from lambert.ops.choice import of_device
from lambert.ops.reference import Ops


class Passes:
    """The passes of micro-batches of a model, with the bits of those by torch's autograd.

    Args:
        model: A model that `find_passes` accepts.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._modules, self._parameters = [*model.modules()], [*model.parameters()]
        self.states = model.config.hidden * model.config.layers
        """Elements of the states of a token in all layers."""

    def settings(self) -> object:
        """Returns the settings of the encoder and the shares of dropout; None if modules have hooks or are compiled, or
        some parameters are not trained."""
        for one in self._modules:
            if one._forward_hooks or one._forward_pre_hooks or one._backward_hooks or one._backward_pre_hooks:
                return None
            if one._compiled_call_impl is not None:
                return None
        if not all(parameter.requires_grad for parameter in self._parameters):
            return None
        encoder: Any = self._model.encoder
        shares = [(block.dropout, block.attention_dropout, block.training) for block in encoder.blocks]
        return encoder.config, encoder.training, shares

    def __call__(self, batch: Batch, firsts_S: Tensor, scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Adds the gradients of a micro-batch to its sink, and returns the loss of each target, [N] by objective.

        Args:
            batch: With targets of each objective.
            firsts_S: Number of the first token of each sequence, int64.
            scales: What the gradient of each loss is multiplied by, [N] by objective, float32.
        """
        model, losses = self._model, {}
        ops = of_device(batch.ids_T.device)
        assert ops is not None
        with torch.no_grad():
            with Chain() as stem:
                states_TD: Tensor = model.encoder(batch)
            grad_TD = torch.empty_like(states_TD)
            for number, name in enumerate(model.objectives):
                of_words = isinstance(model.head(name), MaskedLanguageModel)
                at_N = batch.targets[name].at_N if of_words else firsts_S
                rows_ND = ops.take_rows(states_TD, at_N)
                predict = self._predict_words if of_words else self._predict_order
                grad_ND, losses[name] = predict(ops, rows_ND, name, batch, scales[name])
                ops.put_rows(grad_ND, at_N, grad_TD, clear=not number)
            stem.backward(states_TD, grad_TD)
        return losses

    def _predict_words(
        self, ops: Ops, rows_ND: Tensor, name: str, batch: Batch, scales_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the gradient of the states of masked tokens, and the losses."""
        head: Any = self._model.head(name)
        with Chain(rows_ND) as chain:
            rows_ND = head.prepare_rows(rows_ND, batch.compute)
            logits_NV = decode(rows_ND, self._model.encoder.words.weight, head.bias, 1, batch.compute)
        return _descend(ops, chain, logits_NV, batch.targets[name].labels_N, scales_N)

    def _predict_order(
        self, ops: Ops, rows_SD: Tensor, name: str, batch: Batch, scales_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the gradient of the states of first tokens, and the losses."""
        head: Any = self._model.head(name)
        pooler: Any = self._model.pooler
        target = batch.targets[name]
        with Chain(rows_SD) as below:
            pooled_SD = pooler.transform(rows_SD, batch.compute)
        rows_ND = ops.take_rows(pooled_SD, target.at_N)
        with Chain(rows_ND) as chain:
            logits_NL = head.classify(rows_ND, batch.compute)
        grad_ND, losses_N = _descend(ops, chain, logits_NL, target.labels_N, scales_N)
        grad_SD = torch.empty_like(pooled_SD)
        ops.put_rows(grad_ND, target.at_N, grad_SD, clear=True)
        return below.backward(pooled_SD, grad_SD), losses_N


def _descend(ops: Ops, chain: Chain, logits_NL: Tensor, labels_N: Tensor, scales_N: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient of what a chain begins with, and the losses of the logits that it ends with."""
    losses_N, saved = ops.cross_entropy(logits_NL, labels_N)
    grad_NL = ops.cross_entropy_backward_(logits_NL, labels_N, saved, scales_N)
    return chain.backward(logits_NL, grad_NL), losses_N


def find_passes(net: nn.Module) -> Passes | None:
    """Returns the passes of a net; None if it is not BERT for masked tokens and next sentences."""
    if type(net) is not Model or type(net.encoder) is not BertEncoder or net.config.custom_block:
        return None
    if any(type(net.head(name)) not in (MaskedLanguageModel, NextSentence) for name in net.objectives):
        return None
    pooler = net.pooler
    known = pooler is None or (type(pooler) is Pooler and pooler.activation is tanh)
    return Passes(net) if known else None
