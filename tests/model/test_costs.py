"""The formulas that all families share, and what some of them change. tests/planning compares with what is measured."""

import pytest
import torch

from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.costs import Costs
from lambert.model.families import FAMILIES

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SHAPE = {"layers": 4, "hidden": 8, "heads": 2, "intermediate": 20, "vocabulary": 11, "positions": 64}
CONFIG = EncoderConfig(**SHAPE, dropout=0.0, attention_dropout=0.0)


class Plain(Costs):
    def matrices(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        return (8, 24), (8, 8)

    def weight_count(self, config: EncoderConfig) -> int:
        return 0

    def saved_values(self, config: EncoderConfig) -> int:
        return 100


def test_operations_are_those_of_layers_and_of_pairs() -> None:
    linear, pairs = (8 * 24 + 8 * 8) * (3 + 5), 3**2 + 5**2
    assert Plain().pairs(CONFIG, [3, 5]) == 4 * pairs
    assert Plain().operations(CONFIG, [3, 5]) == 2 * 4 * (linear + 2 * 8 * pairs)


def test_what_a_token_saves() -> None:
    norms = 4 * 8 * 4
    wide = 6 * (100 * 4 + norms) + 3 * 8 * 4
    assert Plain().saved_per_token(CONFIG, torch.float32, GPU, 30, native=False) == wide
    assert Plain().saved_per_token(CONFIG, torch.float32, CPU, 30, native=False) == wide + 6 * 2 * 30 * 4
    assert Plain().saved_per_token(CONFIG, torch.float32, CPU, 30, native=True) == wide
    narrow = 6 * (100 * 2 + norms + 2 * 8 * 2) + 3 * 8 * 4
    assert Plain().saved_per_token(CONFIG, torch.bfloat16, GPU, 30, native=False) == narrow


def test_local_attention_has_fewer_pairs() -> None:
    costs = FAMILIES["modernbert"].costs
    near = EncoderConfig(**SHAPE, block="modernbert", modern=ModernConfig(window=2, global_every=2))
    assert costs.pairs(near, [3, 40]) == 2 * (9 + 1600) + 2 * (9 + 40 * 5)
    assert costs.pairs(near, [3, 4]) == FAMILIES["gte"].costs.pairs(near, [3, 4])


@pytest.mark.parametrize("block", FAMILIES)
def test_only_mpnet_saves_scores_on_a_gpu(block: str) -> None:
    costs = FAMILIES[block].costs
    short, long = (costs.saved_per_token(CONFIG, torch.bfloat16, GPU, n, native=False) for n in (16, 64))
    assert (long > short) == (block == "mpnet")


def test_narrow_tables_have_a_layer_to_the_states() -> None:
    costs = FAMILIES["electra"].costs
    narrow = EncoderConfig(**SHAPE, embedding=4)
    assert costs.operations(narrow, [3]) - costs.operations(CONFIG, [3]) == 2 * 4 * 8 * 3
