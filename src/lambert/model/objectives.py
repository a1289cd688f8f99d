"""States to logits and losses: one class for each objective, and the pooler that the heads of sentences read.

A loss is a float32 sum over the targets of a batch. The loop divides it by the number of targets of the global batch,
or by the sum of their weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch, JointTarget, SoftTarget, Target
from lambert.core.compute import PLAIN, Compute
from lambert.model.config import EncoderConfig
from lambert.model.crossentropy import cross_entropy
from lambert.model.dropout import dropout
from lambert.model.linear import linear
from lambert.model.pooling import first_rows, pool
from lambert.model.transform import tanh, transform

Activation = Callable[[Tensor], Tensor]
MakeHead = Callable[[EncoderConfig, int], "Head"]
"""Makes the head of an objective from the encoder's settings and the number of labels."""


class Pooler(nn.Linear):
    """Maps states [T, D] to one row per sequence [S, D]: the state of the first token, through a layer with an
    activation, tanh in BERT.

    Source: google-research/bert, modeling.py.
    """

    def __init__(self, config: EncoderConfig, activation: Activation = tanh) -> None:
        super().__init__(config.hidden, config.hidden)
        self.activation = activation

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        return self.transform(first_rows(states_TD, batch), batch.compute)

    def transform(self, rows_SD: Tensor, compute: Compute = PLAIN) -> Tensor:
        """Returns the pooled rows [S, D] from the states of the first tokens."""
        return self.activation(linear(rows_SD, [self.weight], [self.bias], compute))


class HeadInputs(NamedTuple):
    """The tensors of a batch that the heads of a model may read."""

    states_TD: Tensor
    """States of all tokens, which the encoder returned."""
    batch: Batch
    words_VD: Tensor
    """Table of word embeddings."""
    pooled_SD: Tensor | None
    """Output of the pooler, one row per sequence, if a head reads it."""

    def rows(self, reads: str) -> Tensor:
        """Returns the rows that `Head.reads` names, [T, D] or [S, D]."""
        if reads == "first":
            return first_rows(self.states_TD, self.batch)
        if reads != "pooled":
            return self.states_TD
        assert self.pooled_SD is not None
        return self.pooled_SD


class Head(nn.Module):
    """One objective: `predict` returns logits, `loss` their summed loss, and `hits` the number of correct predictions.
    `predict` calls the head with the rows that `reads` names; a head with other inputs overrides it.

    `reads`: the states of all tokens [T, D] ("tokens"), one row per sequence: the state of its first token ("first") or
    the output of the pooler ("pooled"), [S, D]. `everywhere`: logits are computed for all of these rows, whichever
    targets there are. `targets_only`: logits are computed only at targets, also in inference. `joint`: the loss may
    depend on all examples of the global batch (engine/joint.py). `table_weights`: number of weights, apart from those
    of linear layers, by which the head multiplies each row.

    Args:
        config: The encoder.
        labels: Number of labels.
        activation: Activation of a layer between the state of the first token, which the head then reads, and the
            logits, with dropout before it (transformers, RobertaClassificationHead). None: no such layer.
        dropout: Dropout before the logits if the encoder has any; None: that of the encoder.
    """

    reads = "tokens"
    everywhere = False
    targets_only = False
    joint = False
    table_weights = 0
    activation: Activation | None = None

    def __init__(
        self, config: EncoderConfig, labels: int, *, activation: Activation | None = None, dropout: float | None = None
    ) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden, labels)
        self.dropout = config.dropout if dropout is None or not config.dropout else dropout
        self.activation = activation
        if activation is not None:
            self.reads = "first"
            self.dense = nn.Linear(config.hidden, config.hidden)

    def predict(self, inputs: HeadInputs, at_N: Tensor | None) -> Tensor:
        """Returns the logits [N, L] at the targets `at_N`, or for all rows."""
        logits_NL: Tensor = self(inputs.rows(self.reads), at_N)
        return logits_NL

    def forward(self, states_TD: Tensor, at_N: Tensor | None = None) -> Tensor:
        """Returns the logits [N, L] of the rows `at_N`, or of all rows."""
        rows_ND = self.rows(states_TD, at_N)
        if self.activation is not None:
            rows_ND = self.activation(self.dense(dropout(rows_ND, self.dropout, self.training)))
        logits_NL: Tensor = self.classifier(dropout(rows_ND, self.dropout, self.training))
        return logits_NL

    def rows(self, states_TD: Tensor, at_N: Tensor | None) -> Tensor:
        """Returns the rows whose logits are computed, [N, D]."""
        return states_TD if at_N is None or self.everywhere else states_TD[at_N]

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the summed cross entropy, in nats: -log p of the label, or with masses of the classes [N, L] the sum
        of mass x -log p.

        With a teacher: share x T^2 x the cross entropy of the softened predictions, plus (1 - share) x the other one,
        where T is the temperature. Source: Hinton et al., "Distilling the knowledge in a neural network", 2015,
        section 2.
        """
        if isinstance(target, SoftTarget):
            wide_NL = logits_NL.float()
            soft_N = nn.functional.cross_entropy(wide_NL / target.temperature, target.soft_NL, reduction="none")
            hard_N = nn.functional.cross_entropy(wide_NL, target.labels_N, reduction="none")
            return target.total(target.mix_losses(soft_N, hard_N))
        if target.labels_N.ndim == 1:
            return cross_entropy(logits_NL, target.labels_N, target.weights_N)
        return target.total(nn.functional.cross_entropy(logits_NL.float(), target.labels_N, reduction="none"))

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the number of targets whose label, or class with the largest mass, has the largest logit."""
        labels_N = target.labels_N if target.labels_N.ndim == 1 else target.labels_N.argmax(-1)
        return (logits_NL.argmax(-1) == labels_N).sum()


class MaskedLanguageModel(Head):
    """Predicts the original ids of the masked tokens, and computes logits only at these tokens.

    The decoder is the table of word embeddings. The model passes the table as `words_VD`; the head does not hold it.
    `activation` is the activation of the layer before it (`transform`); "": the gelu of the blocks.

    Source: Devlin et al., 2018, section 3.1.
    """

    targets_only = True

    def __init__(self, config: EncoderConfig, labels: int, *, activation: str = "") -> None:
        nn.Module.__init__(self)
        self.table_weights = config.table_width * config.vocabulary
        self.dense = nn.Linear(config.hidden, config.table_width)
        self.norm = nn.LayerNorm(config.table_width, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.activation_form = activation or ("tanh" if config.activation == "gelu_tanh" else "none")

    def predict(self, inputs: HeadInputs, at_N: Tensor | None) -> Tensor:
        logits_NV: Tensor = self(inputs.states_TD, at_N, inputs.words_VD, inputs.batch.compute)
        return logits_NV

    def forward(
        self, states_TD: Tensor, at_N: Tensor | None = None, words_VD: Tensor | None = None, compute: Compute = PLAIN
    ) -> Tensor:
        assert words_VD is not None
        rows_ND = self.prepare_rows(self.rows(states_TD, at_N), compute)
        return decode(rows_ND, words_VD, self.bias, 64 if rows_ND.is_cuda else 1, compute)

    def prepare_rows(self, rows_ND: Tensor, compute: Compute) -> Tensor:
        """Returns the rows that the decoder reads, [N, D]."""
        return transform(rows_ND, self.dense, self.norm, self.activation_form, compute)


def decode(rows_ND: Tensor, words_VD: Tensor, bias_V: Tensor | None, multiple: int, compute: Compute = PLAIN) -> Tensor:
    """Returns rows_ND times the transposed table, plus the bias if there is one, [N, V], computed with V rounded up to
    a `multiple`.

    The matrix units of a GPU need rows of a multiple of 16 bytes: 30,522 columns take twice as long as 30,528.
    """
    vocabulary = len(words_VD)
    missing = -vocabulary % multiple
    if not missing:
        return linear(rows_ND, [words_VD], [] if bias_V is None else [bias_V], compute)
    biases = [] if bias_V is None else [nn.functional.pad(bias_V, (0, missing))]
    return linear(rows_ND, [nn.functional.pad(words_VD, (0, 0, 0, missing))], biases, compute)[:, :vocabulary]


class NextSentence(Head):
    """Predicts whether B follows A (label 0) or is random (label 1), without dropout.

    Source: Devlin et al., 2018, section 3.1.
    """

    reads = "pooled"

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, 2, dropout=0.0)

    def predict(self, inputs: HeadInputs, at_N: Tensor | None) -> Tensor:
        return self.classify(self.rows(inputs.rows(self.reads), at_N), inputs.batch.compute)

    def classify(self, rows_ND: Tensor, compute: Compute) -> Tensor:
        """Returns the logits of pooled rows, [N, 2]."""
        return linear(rows_ND, [self.classifier.weight], [self.classifier.bias], compute)


class Label(Head):
    """Predicts the class of a text or of a pair of texts."""

    reads = "pooled"


class Value(Head):
    """Predicts a number for a text or a pair of texts; the loss is the squared error."""

    reads = "pooled"

    def __init__(self, config: EncoderConfig, labels: int, **options: Any) -> None:
        super().__init__(config, 1, **options)

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the summed squared error."""
        return target.total(nn.functional.mse_loss(logits_NL.float().squeeze(-1), target.labels_N, reduction="none"))

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the number of predictions with an error below 0.5."""
        return ((logits_NL.float().squeeze(-1) - target.labels_N).abs() < 0.5).sum()


class MultiLabel(Head):
    """Predicts which labels a text or a pair of texts has: any number of them, each by a logistic unit."""

    reads = "pooled"

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the sum over texts of the mean over labels of the binary cross entropy, in nats.

        Source: `problem_type = "multi_label_classification"` of transformers, whose mean over a batch this is.
        """
        losses_NL = nn.functional.binary_cross_entropy_with_logits(logits_NL.float(), target.labels_N, reduction="none")
        return target.total(losses_NL.mean(-1))

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the number of texts whose labels are those with a probability of at least 0.5."""
        return ((logits_NL >= 0) == (target.labels_N > 0.5)).all(-1).sum()


class Choice(Head):
    """Predicts which of several texts fits: one logit for each sequence [S, 1], with a softmax over the consecutive
    sequences of an example. Examples may have different numbers of choices.

    A target is the first sequence of an example, with its number of choices and the right one, from 0.

    Source: Devlin et al., 2018, section 4.4 (SWAG).
    """

    reads = "pooled"
    everywhere = True

    def __init__(self, config: EncoderConfig, labels: int, **options: Any) -> None:
        super().__init__(config, 1, **options)

    def _rows(self, logits_S1: Tensor, target: Target) -> Tensor:
        """Returns the logits of the choices of each example in rows [N, C], padded with -inf."""
        counts_N = target.labels_N[:, 0]
        numbers_C = torch.arange(int(counts_N.max()) if len(counts_N) else 1, device=logits_S1.device)
        inside_NC = numbers_C < counts_N[:, None]
        sequences_NC = (target.at_N[:, None] + numbers_C).where(inside_NC, 0)
        return logits_S1.float()[:, 0][sequences_NC].masked_fill(~inside_NC, -torch.inf)

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the sum over examples of the cross entropy of the right choice, in nats; with a teacher as in
        `Head.loss`."""
        rows_NC = self._rows(logits_NL, target)
        hard_N = nn.functional.cross_entropy(rows_NC, target.labels_N[:, 1], reduction="none")
        if not isinstance(target, SoftTarget):
            return target.total(hard_N)
        logs_NC = (rows_NC / target.temperature).log_softmax(-1).masked_fill(rows_NC == -torch.inf, 0.0)
        soft_N = -(target.soft_NL[:, : rows_NC.shape[1]] * logs_NC).sum(-1)
        return target.total(target.mix_losses(soft_N, hard_N))

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the number of examples whose right choice has the largest logit."""
        return (self._rows(logits_NL, target).argmax(-1) == target.labels_N[:, 1]).sum()


class Tag(Head):
    """Predicts the class of each token."""


class Span(Head):
    """Predicts where the answer starts and ends: two logits per token [T, 2], with a softmax over the tokens of each
    sequence, and without dropout as in the released code.

    Source: Devlin et al., 2018, section 4.2.
    """

    everywhere = True

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, 2, dropout=0.0)

    def _rows(self, logits_T2: Tensor, target: Target, batch: Batch, padding: float = -torch.inf) -> Tensor:
        """Returns the logits of the listed sequences in padded rows [N, 2, M]."""
        starts_N = batch.bounds_S1[:-1].long()[target.at_N]
        lengths_N = batch.bounds_S1.diff().long()[target.at_N]
        places_M = torch.arange(batch.longest, device=logits_T2.device)
        inside_NM = places_M < lengths_N[:, None]
        tokens_NM = (starts_N[:, None] + places_M).where(inside_NM, 0)
        return logits_T2.float()[tokens_NM].masked_fill(~inside_NM[..., None], padding).transpose(1, 2)

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the sum over sequences of the mean of the cross entropies of start and end; with a teacher, each as
        in `Head.loss`.

        Source: google-research/bert, run_squad.py.
        """
        rows_N2M = self._rows(logits_NL, target, batch)
        weights_N2 = None if target.weights_N is None else target.weights_N.repeat_interleave(2)
        hard = cross_entropy(rows_N2M.flatten(0, 1), target.labels_N.flatten(), weights_N2) / 2
        if not isinstance(target, SoftTarget):
            return hard
        soft_N2M = self._rows(target.soft_NL, target, batch, padding=0.0)
        logs_N2M = (rows_N2M / target.temperature).log_softmax(-1).masked_fill(soft_N2M == 0, 0.0)
        return target.mix_losses(-(soft_N2M * logs_N2M).sum() / 2, hard)

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the number of sequences whose start and end are both correct."""
        return (self._rows(logits_NL, target, batch).argmax(-1) == target.labels_N).all(-1).sum()


class Vector(Head):
    """A vector for each text, pooled from the last states of its tokens, special ones included. It has no weights.

    The loss is that of the target, a `JointTarget`, since vectors are trained against each other. `modes` are the
    poolings whose vectors are concatenated, keys of `pooling.POOLINGS`.

    Source: Reimers and Gurevych, "Sentence-BERT", 2019, section 3.
    """

    joint = True

    def __init__(self, config: EncoderConfig, labels: int, *, modes: tuple[str, ...] = ("mean",)) -> None:
        nn.Module.__init__(self)
        self.modes = modes

    def predict(self, inputs: HeadInputs, at_N: Tensor | None) -> Tensor:
        vectors_SD: Tensor = self(inputs.states_TD, at_N, inputs.batch)
        return vectors_SD

    def forward(self, states_TD: Tensor, at_N: Tensor | None = None, batch: Batch | None = None) -> Tensor:
        """Returns the vectors of all sequences, float32 [S, D x number of modes]."""
        assert batch is not None
        return pool(states_TD, batch, self.modes)

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns the summed loss of the examples of this batch."""
        assert isinstance(target, JointTarget), "vectors are trained with a JointTarget"
        if target.known is not None:
            total: Tensor = _Known.apply(logits_NL, *target.known)  # type: ignore[no-untyped-call]
            return total
        with torch.autocast(logits_NL.device.type, enabled=False):  # float32, as for several micro-batches
            return target.loss(logits_NL, target.labels_N).sum()

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Returns 0: the scores of vectors are computed over all texts, by the task."""
        return torch.zeros((), dtype=torch.int64, device=logits_NL.device)


class _Known(torch.autograd.Function):
    """A loss whose value and gradient were computed before."""

    @staticmethod
    def forward(ctx: Any, rows_SD: Tensor, value: Tensor, grad_SD: Tensor) -> Tensor:
        ctx.save_for_backward(grad_SD)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (grad_SD,) = ctx.saved_tensors
        return grad * grad_SD, None, None


HEADS: dict[str, MakeHead] = {
    "mlm": MaskedLanguageModel,
    "nsp": NextSentence,
    "label": Label,
    "multilabel": MultiLabel,
    "value": Value,
    "choice": Choice,
    "tag": Tag,
    "span": Span,
    "vector": Vector,
    "first_vector": partial(Vector, modes=("cls",)),
}
"""Heads of the BERT paper by objective. A family may replace some (`Family.heads`)."""
