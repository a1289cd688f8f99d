"""Fresh weights have the deviations of the paper's code, kind by kind."""

import math

import pytest
import torch
import transformers

from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of

CUT = 0.8796
"""Standard deviation of a normal distribution of deviation 1 that is cut at -2 and 2."""
LAYERS, HIDDEN, RANGE = 6, 64, 0.03
OUT = RANGE / math.sqrt(2 * LAYERS)
DEVIATIONS = {
    "encoder.words.weight": RANGE, "attention_in.weight": RANGE, "up.weight": RANGE, "attention_out.weight": OUT,
    "down.weight": OUT, "dense.weight": OUT, "classifier.weight": HIDDEN**-0.5,
}  # fmt: skip
"""By the end of a parameter's name. Wqkv and Wi are `attention_in` and `up`, both Wo are `attention_out` and `down`."""


@pytest.mark.parametrize(("head", "labels"), [("mlm", 0), ("label", 64), ("tag", 64)])
def test_initial_deviations(head: str, labels: int) -> None:
    given = EncoderConfig(
        block="modernbert", vocabulary=400, hidden=HIDDEN, layers=LAYERS, heads=2, intermediate=96, init_range=RANGE
    )
    config = family_of(given).complete(given)
    model = weights.draw(config, {head: labels}, seed=1)
    torch.manual_seed(1)
    settings = transformers.AutoConfig.for_model(**layout.config_of(model))
    peer = getattr(transformers, layout.architecture(config, model.labels)[0])(settings).state_dict()
    met = set()
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            assert torch.equal(parameter, torch.full_like(parameter, 0.0 if name.endswith("bias") else 1.0)), name
            continue
        kind = next(end for end in DEVIATIONS if name.endswith(end))
        met.add(kind)
        assert float(parameter.detach().std()) == pytest.approx(CUT * DEVIATIONS[kind], rel=0.05), name
        assert float(parameter.detach().abs().max()) <= 2 * DEVIATIONS[kind]
        if kind == "encoder.words.weight" and head == "mlm":
            continue  # in transformers the decoder, which is tied to it, may be initialized last
        assert float(peer[family_of(config).names.to_folder(name)].std()) == pytest.approx(
            float(parameter.detach().std()), rel=0.07
        ), name
    expected = {*DEVIATIONS} - ({"classifier.weight"} if head == "mlm" else set())
    assert met == expected
