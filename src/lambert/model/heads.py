"""States to logits and losses: one class an objective, and the model that holds an encoder and its heads.

A loss is a float32 sum over the targets of a batch; dividing by their number over the whole global batch is the loop's.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch, Target
from lambert.core.compute import PLAIN, Compute
from lambert.core.registry import Kind, lookup
from lambert.model.crossentropy import cross_entropy
from lambert.model.dropout import dropout
from lambert.model.encoder import Encoder, EncoderConfig
from lambert.model.linear import linear


class Head(nn.Module):
    """One objective. `forward` gives logits, `loss` their summed loss, `hits` how many of them are right.

    `pooled` heads read one row a sequence, the pooled [CLS] state [S, D]; the others the states of tokens [T, D].
    """

    pooled = False

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden, labels)
        self.dropout = config.dropout

    def forward(self, states_TD: Tensor, at_N: Tensor | None = None) -> Tensor:
        """Logits [N, L] of the rows `at_N`, or of all rows."""
        rows_ND = states_TD if at_N is None else states_TD[at_N]
        logits_NL: Tensor = self.classifier(dropout(rows_ND, self.dropout, self.training))
        return logits_NL

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Summed cross entropy, in nats."""
        return cross_entropy(logits_NL, target.labels_N)

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Number of targets whose label has the largest logit."""
        return (logits_NL.argmax(-1) == target.labels_N).sum()


class MaskedLanguageModel(Head):
    """The original ids of the predicted tokens (Devlin et al., 2018, section 3.1), computed at those tokens alone.

    The decoder is the table of word embeddings: `words` is handed in by the model and never held here.
    """

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        nn.Module.__init__(self)
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def forward(
        self, states_TD: Tensor, at_N: Tensor | None = None, words_VD: Tensor | None = None, compute: Compute = PLAIN
    ) -> Tensor:
        assert words_VD is not None
        rows_ND = states_TD if at_N is None else states_TD[at_N]
        rows_ND = linear(rows_ND, [self.dense.weight], [self.dense.bias], compute)
        rows_ND = self.norm(nn.functional.gelu(rows_ND, approximate=self.approximate))
        return decoded(rows_ND, words_VD, self.bias, 64 if rows_ND.is_cuda else 1, compute)


def decoded(rows_ND: Tensor, words_VD: Tensor, bias_V: Tensor, multiple: int, compute: Compute = PLAIN) -> Tensor:
    """rows_ND times the transposed table, plus the bias: [N, V], computed with V rounded up to a `multiple`.

    A GPU's matrix units want rows of whole 16 bytes: BERT's 30,522 columns take them twice as long as 30,528.
    """
    vocabulary = len(words_VD)
    missing = -vocabulary % multiple
    if not missing:
        return linear(rows_ND, [words_VD], [bias_V], compute)
    wider = nn.functional.pad(words_VD, (0, 0, 0, missing)), nn.functional.pad(bias_V, (0, missing))
    return linear(rows_ND, [wider[0]], [wider[1]], compute)[:, :vocabulary]


class NextSentence(Head):
    """Whether B follows A (label 0) or is random (label 1); Devlin et al., 2018, section 3.1. No dropout, as there."""

    pooled = True

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, 2)
        self.dropout = 0.0


class Label(Head):
    """The class of a sentence or of a pair of sentences."""

    pooled = True


class Value(Head):
    """A number for a sentence or a pair; the loss is the squared error."""

    pooled = True

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, 1)

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Summed squared error."""
        return nn.functional.mse_loss(logits_NL.float().squeeze(-1), target.labels_N, reduction="sum")

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Number of values within half a unit."""
        return ((logits_NL.float().squeeze(-1) - target.labels_N).abs() < 0.5).sum()


class Tag(Head):
    """The class of a token."""


class Span(Head):
    """Where the answer starts and ends: two logits a token [T, 2], a softmax over the tokens of each sequence
    (Devlin et al., 2018, section 4.2). No dropout, as in the released code."""

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, 2)
        self.dropout = 0.0

    def forward(self, states_TD: Tensor, at_N: Tensor | None = None) -> Tensor:
        return super().forward(states_TD)

    def _rows(self, logits_T2: Tensor, target: Target, batch: Batch) -> Tensor:
        """The logits of the listed sequences in rows [N, 2, M], -inf behind their ends."""
        starts_N = batch.bounds_S1[:-1].long()[target.at_N]
        lengths_N = batch.bounds_S1.diff().long()[target.at_N]
        places_M = torch.arange(batch.longest, device=logits_T2.device)
        inside_NM = places_M < lengths_N[:, None]
        tokens_NM = (starts_N[:, None] + places_M).where(inside_NM, 0)
        return logits_T2.float()[tokens_NM].masked_fill(~inside_NM[..., None], -torch.inf).transpose(1, 2)

    def loss(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Summed mean of the cross entropies of start and end (google-research/bert, run_squad)."""
        rows_N2M = self._rows(logits_NL, target, batch)
        return cross_entropy(rows_N2M.flatten(0, 1), target.labels_N.flatten()) / 2

    def hits(self, logits_NL: Tensor, target: Target, batch: Batch) -> Tensor:
        """Number of sequences whose start and end are both right."""
        return (self._rows(logits_NL, target, batch).argmax(-1) == target.labels_N).all(-1).sum()


HEADS: dict[str, type[Head]] = {
    "mlm": MaskedLanguageModel,
    "nsp": NextSentence,
    "label": Label,
    "value": Value,
    "tag": Tag,
    "span": Span,
}
KIND = Kind((EncoderConfig, int), base=Head)


class Model(nn.Module):
    """An encoder and its heads. Called with a batch it gives the summed loss of each objective, float32 [K].

    `heads` names the objectives, keys of HEADS or "package.module:name", in the order of the sums, and the number of
    labels of each (mlm, nsp, value and span need none: 0). With `pooler` there is one even where no head reads it.
    """

    def __init__(self, config: EncoderConfig, heads: Mapping[str, int], pooler: bool = False) -> None:
        super().__init__()
        self.config = config
        self.labels = dict(heads)
        self.encoder = Encoder(config)
        kinds = {name: lookup(HEADS, name, "head", KIND) for name in heads}
        self.heads = nn.ModuleDict({_key(name): kinds[name](config, labels) for name, labels in heads.items()})
        self._pooled = any(head.pooled for head in self.heads.values())
        self.pooler = nn.Linear(config.hidden, config.hidden) if self._pooled or pooler else None

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the sums, in order."""
        return tuple(self.labels)

    def _head(self, name: str) -> Head:
        head = self.heads[_key(name)]
        assert isinstance(head, Head)
        return head

    def pooled(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """The pooled [CLS] states [S, D] (google-research/bert, modeling.py): a model with a pooler has them."""
        assert self.pooler is not None
        first_SD = states_TD[batch.bounds_S1[:-1].long()]
        return torch.tanh(linear(first_SD, [self.pooler.weight], [self.pooler.bias], batch.compute))

    def _logits(self, batch: Batch, at: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        states_TD = self.encoder(batch)
        if self._pooled:
            pooled_SD = self.pooled(states_TD, batch)
        logits = {}
        for name, at_N in at.items():
            head = self._head(name)
            if isinstance(head, MaskedLanguageModel):
                logits[name] = head(states_TD, at_N, self.encoder.words.weight, batch.compute)
            else:
                logits[name] = head(pooled_SD if head.pooled else states_TD, at_N)
        return logits

    def forward(self, batch: Batch) -> Tensor:
        """Summed losses [K], float32, in the order of `objectives`."""
        return self._sums(self._logits(batch, {name: batch.targets[name].at_N for name in self.objectives}), batch)

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Summed losses [K], float32, and numbers of right predictions [K], int64; 0 for what has no targets."""
        at = {name: batch.targets[name].at_N for name in self.objectives if name in batch.targets}
        logits = self._logits(batch, at)
        none = torch.zeros((), dtype=torch.int64, device=batch.ids_T.device)
        hits = [
            self._head(name).hits(logits[name], batch.targets[name], batch) if name in logits else none
            for name in self.objectives
        ]
        return self._sums(logits, batch), torch.stack(hits)

    def _sums(self, logits: Mapping[str, Tensor], batch: Batch) -> Tensor:
        none = torch.zeros((), device=batch.ids_T.device)
        return torch.stack(
            [
                self._head(name).loss(logits[name], batch.targets[name], batch) if name in logits else none
                for name in self.objectives
            ]
        )

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Logits for inference: sentence heads [S, L], span [T, 2], tag [T, L]; mlm [N, V] at the batch's mlm targets,
        left out where there are none."""
        at: dict[str, Tensor | None] = dict.fromkeys(self.objectives)
        if "mlm" in at:
            target = batch.targets.get("mlm")
            at = {n: a for n, a in at.items() if n != "mlm"} | ({"mlm": target.at_N} if target else {})
        return self._logits(batch, at)


def _key(name: str) -> str:
    """An objective's name as a module's, which may hold no dot."""
    return name.replace(".", "/")
