"""NomicBERT's heads, where they differ from BERT's."""

from torch import Tensor, nn

from lambert.core.compute import PLAIN, Compute
from lambert.model.linear import linear
from lambert.model.objectives import Head, MaskedLanguageModel, decoded


class SiluPrediction(MaskedLanguageModel):
    """Predicts the original ids of the masked tokens, with silu before the norm."""

    def forward(
        self, states_TD: Tensor, at_N: Tensor | None = None, words_VD: Tensor | None = None, compute: Compute = PLAIN
    ) -> Tensor:
        assert words_VD is not None
        rows_ND = linear(self.rows(states_TD, at_N), [self.dense.weight], [self.dense.bias], compute)
        rows_ND = self.norm(nn.functional.silu(rows_ND))
        return decoded(rows_ND, words_VD, self.bias, 64 if rows_ND.is_cuda else 1, compute)


HEADS: dict[str, type[Head]] = {"mlm": SiluPrediction}
