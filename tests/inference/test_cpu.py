"""Frozen models give what the model itself gives, within the rounding of their weights and states."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from flat import make_batch, relative
from processors import needs_fast
from torch import Tensor, nn

from lambert.core.errors import MachineError, UsageError
from lambert.inference import cpu as frozen
from lambert.inference.cpu import Int8, Packed, for_cpu
from lambert.model import weights
from lambert.model.bert import BertEncoder
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.families import FAMILIES
from lambert.model.packed import NativeProduct
from lambert.native import library

LENGTHS = [17, 40, 3, 17, 64, 96]
CONFIG = EncoderConfig(layers=3, hidden=64, heads=4, intermediate=256, vocabulary=90, positions=96)
MODERN = replace(
    CONFIG, heads=2, intermediate=160, segment_types=0, norm_eps=1e-5, block="modernbert",
    modern=ModernConfig(window=16, global_every=2),
)  # fmt: skip
BIASED = ModernConfig(
    window=16, global_every=2, attention_bias=True, mlp_bias=True, norm_bias=True, head_bias=True, decoder_bias=False,
    pooling="cls",
)  # fmt: skip
CONFIGS = {
    "bert": CONFIG,
    "bert, tanh": replace(CONFIG, activation="gelu_tanh"),
    "electra": replace(CONFIG, embedding=32, block="electra"),
    "modernbert": MODERN,
    "modernbert, tanh, biased, first token": replace(MODERN, activation="gelu_tanh", modern=BIASED),
    "modernbert, no kernels for its heads": replace(MODERN, heads=4),
    "mpnet": replace(CONFIG, segment_types=0, position_offset=2, pad=1, block="mpnet"),
    "nomic_bert": replace(CONFIG, block="nomic_bert"),
    "gte": replace(CONFIG, segment_types=1, block="gte"),
    "eurobert": replace(
        CONFIG, segment_types=0, norm_eps=1e-5, block="eurobert", modern=ModernConfig(kv_heads=2, mlp_bias=True)
    ),
}
HEADS = {"mlm": 0, "nsp": 0, "tag": 5, "span": 0}
OTHERS = {"mlm": 0, "tag": 5, "span": 0, "label": 3, "choice": 0, "vector": 0, "first_vector": 0}


def lively(config: EncoderConfig, seed: int = 2) -> "frozen.Model":
    """A model whose attention is not flat and whose biases and norms are not at their initial values."""
    torch.manual_seed(seed)
    model = weights.draw(config, HEADS if config.block == "bert" else OTHERS).eval()
    for name, parameter in model.named_parameters():
        wide = any(part in name for part in ("query", "key", "attention_in", "relative"))
        parameter.data += (0.1 if wide else 0.05) * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize("name", [*CONFIGS])
@pytest.mark.parametrize(("kind", "tolerance"), [("bfloat16", 0.03), ("int8", 0.05)])
@torch.no_grad()
def test_outputs_are_those_of_the_model(
    kind: frozen.Kind, tolerance: float, name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_fast(kind)
    monkeypatch.setenv("LAMBERT_NATIVE", kernels)
    config = CONFIGS[name]
    batch = make_batch(LENGTHS, config.vocabulary)
    expected = lively(config).outputs(batch)
    found = for_cpu(lively(config), kind).outputs(batch)
    assert found.keys() == expected.keys()
    for head, logits in expected.items():
        assert 0 < relative(found[head].float(), logits) < tolerance, head


@pytest.mark.skipif(library() is None, reason="the compiled kernels are not used on this machine")
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_the_blocks_that_the_compiled_kernels_compute(kind: frozen.Kind) -> None:
    def kernels(config: EncoderConfig) -> bool:
        block = for_cpu(lively(config), kind).encoder.blocks[0]
        return isinstance(block.attention_out, NativeProduct)

    assert all(map(kernels, [CONFIG, MODERN, replace(MODERN, modern=BIASED), CONFIGS["mpnet"]]))
    assert not any(map(kernels, [replace(MODERN, heads=4), replace(MODERN, intermediate=40)]))


@pytest.mark.parametrize("intermediate", [258, 8256])
@torch.no_grad()
def test_sizes_that_the_compiled_kernels_lack(intermediate: int) -> None:
    """Their products of bytes need a multiple of 4 inputs, at most 8192."""
    needs_fast("int8")
    config = replace(CONFIG, layers=1, intermediate=intermediate)
    batch = make_batch(LENGTHS, config.vocabulary)
    expected = lively(config).outputs(batch)["span"]
    assert relative(for_cpu(lively(config), "int8").outputs(batch)["span"], expected) < 0.05


@torch.no_grad()
def test_bfloat16_is_about_as_exact_as_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root mean square errors beside those of torch's products under autocast: 1.2 to 1.4 times as large for single
    models."""
    needs_fast("bfloat16")
    monkeypatch.setenv("LAMBERT_NATIVE", "0")
    batch = make_batch(LENGTHS * 4, CONFIG.vocabulary)
    ratios = []
    for seed in range(5):
        model = lively(CONFIG, seed)
        exact = model.outputs(batch)["span"]
        with torch.autocast("cpu", torch.bfloat16):
            auto = model.outputs(batch)["span"]
        ours = for_cpu(model, "bfloat16").outputs(batch)["span"]
        error, usual = ((found.float() - exact).square().mean().sqrt() for found in (ours, auto))
        ratios.append(error / usual)
    assert sum(ratios) / len(ratios) < 1.5


@pytest.mark.parametrize("config", [CONFIG, MODERN])
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@torch.no_grad()
def test_a_sequence_does_not_depend_on_its_batch(kind: frozen.Kind, config: EncoderConfig) -> None:
    needs_fast(kind)
    model = for_cpu(lively(config), kind)
    batch = make_batch(LENGTHS, CONFIG.vocabulary)
    alone = make_batch([sum(LENGTHS)], CONFIG.vocabulary)  # the same ids; now cut out the last sequence
    last = slice(-LENGTHS[-1], None)
    one = make_batch([LENGTHS[-1]], CONFIG.vocabulary)
    one = type(one)(
        alone.ids_T[last], batch.types_T[last], one.positions_T, one.bounds_S1, one.longest, {}
    )  # fmt: skip
    together, by_itself = (model.outputs(b)["span"].float() for b in (batch, one))
    assert relative(together[last], by_itself) < 0.02


def by_hand(states_TD: Tensor, linear: nn.Linear) -> Tensor:
    """Quantised and multiplied in float64, from the definition."""
    scale_N1 = linear.weight.abs().amax(1, keepdim=True) / 127
    whole_ND = (linear.weight / scale_N1).round().double()
    step_T1 = (states_TD.abs().amax(1, keepdim=True).float() / 127).bfloat16().double()
    whole_TD = torch.floor(states_TD.double() / step_T1.clamp(min=1e-30) + 0.5)
    return (whole_TD @ whole_ND.T) * step_T1 * scale_N1.T + linear.bias.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_int8_is_its_definition(dtype: torch.dtype) -> None:
    needs_fast("int8")
    torch.manual_seed(0)
    linear = nn.Linear(96, 40)
    states_TD = (torch.randn(300, 96) * torch.logspace(-3, 3, 300)[:, None]).to(dtype)
    states_TD[7] = 0
    found = Int8(linear.weight, linear.bias, dtype=torch.float32)(states_TD)
    expected = by_hand(states_TD, linear)
    # A value halfway between two steps may be rounded either way: one step of one weight.
    steps_T1 = states_TD.abs().amax(1, keepdim=True).double() / 127 * linear.weight.abs().max()
    assert ((found - expected).abs() <= 1.01 * steps_T1 + 1e-5).all()
    assert ((found - expected).abs() <= 1e-3 * steps_T1 + 1e-5).float().mean() > 0.95
    assert torch.equal(found[7], linear.bias)


@pytest.mark.parametrize(("precision", "kind"), [("bfloat16", Packed), ("int8", Int8)])
@torch.no_grad()
def test_layers_without_biases(precision: str, kind: type[nn.Module]) -> None:
    needs_fast(precision)
    torch.manual_seed(0)
    weight, states_TD = torch.randn(32, 64), torch.randn(50, 64).bfloat16()
    assert torch.equal(kind(weight, None)(states_TD), kind(weight, torch.zeros(32))(states_TD))


@pytest.mark.parametrize(("precision", "kind"), [("bfloat16", Packed), ("int8", Int8)])
@torch.no_grad()
def test_the_activation_follows_the_product(precision: str, kind: type[nn.Module]) -> None:
    needs_fast(precision)
    torch.manual_seed(0)
    linear, states_TD = nn.Linear(64, 32), torch.randn(50, 64).bfloat16()
    product = kind(linear.weight, linear.bias)
    plain = product(states_TD).float()
    assert relative(plain, linear(states_TD.float())) < 0.02
    for gelu in ("none", "tanh"):
        found = product(states_TD, gelu).float()
        assert relative(found, nn.functional.gelu(plain, approximate=gelu)) < 0.01


class OtherBlock(nn.Module):
    pass


class OtherEncoder(BertEncoder):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList([OtherBlock()])


def test_what_cannot_be_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "other", replace(FAMILIES["bert"], encoder=OtherEncoder))
    other = weights.draw(EncoderConfig(vocabulary=90, block="other"), {"span": 0})
    with monkeypatch.context() as able:
        able.setattr(frozen, "check", lambda kind: None)
        with pytest.raises(UsageError, match=r"int8 needs blocks derived from .*Block, not OtherBlock"):
            for_cpu(other, "int8")


@pytest.mark.parametrize("saturates", [torch.float32, torch.bfloat16])
def test_saturating_products_are_refused(saturates: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the products of either type are cut off; the others are made exact here, on every processor."""

    def product(self: Int8, states_TD: Tensor, gelu: str = "") -> Tensor:
        largest = 5000 if self.dtype == saturates and clips else torch.inf
        return torch.full((len(states_TD), len(self.scale_N)), min(127.0 * 64 + 1, largest)).to(self.dtype)

    monkeypatch.setattr(Int8, "forward", product)
    clips = False
    frozen.check("int8")
    clips = True
    with pytest.raises(MachineError, match="no fast int8 products: use float32"):
        for_cpu(lively(CONFIG), "int8")


def test_bfloat16_is_refused_where_the_processor_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = pytest.raises(MachineError, match="no fast bfloat16 products: use float32")
    with nullcontext() if torch.ops.mkldnn._is_mkldnn_bf16_supported() else refused:
        for_cpu(lively(CONFIG), "bfloat16")

    def no_kernel(*arguments: object) -> None:
        raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support avx512bw")

    monkeypatch.setattr(Packed, "__init__", no_kernel)
    with pytest.raises(MachineError, match="no fast bfloat16 products: use float32"):
        for_cpu(lively(CONFIG), "bfloat16")
