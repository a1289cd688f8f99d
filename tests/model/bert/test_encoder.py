"""The model on flat batches gives the logits, losses and gradients of Hugging Face's BertForPreTraining."""

import math
from itertools import pairwise

import pytest
import torch
import transformers
from flat import make_batch, padded, relative

from lambert.core.batch import Batch
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.families import FAMILIES
from lambert.model.heads import Model

LENGTHS = [17, 40, 3, 17, 64]
HEADS = {"mlm": 0, "nsp": 0}


def peer(config: EncoderConfig) -> transformers.BertForPreTraining:
    """Hugging Face's model of these settings, with biases and norms that are not at their initial values."""
    torch.manual_seed(5)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.intermediate,
            hidden_act={"gelu": "gelu", "gelu_tanh": "gelu_new"}[config.activation],
        )
    )
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    return model.eval()


def both(config: EncoderConfig, dtype: torch.dtype) -> tuple[Model, transformers.BertForPreTraining]:
    theirs = peer(config).to(dtype)
    ours = Model(config, HEADS).to(dtype).eval()
    report = weights.assign(ours, theirs.state_dict())
    assert report == weights.Report((), ())
    return ours, theirs


def labels(batch: Batch) -> dict[str, torch.Tensor]:
    inside = torch.arange(batch.longest) < batch.bounds_S1.diff()[:, None]
    labels_T = torch.full_like(batch.ids_T, -100)
    labels_T[batch.targets["mlm"].at_N] = batch.targets["mlm"].labels_N
    rows = torch.full(inside.shape, -100)
    rows[inside] = labels_T
    return {"labels": rows, "next_sentence_label": batch.targets["nsp"].labels_N}


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "activation"),
    [(2, 128, 2, "gelu"), (2, 128, 2, "gelu_tanh"), (4, 256, 4, "gelu"), (12, 384, 12, "gelu")],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
def test_parity(layers: int, hidden: int, heads: int, dtype: torch.dtype, tolerance: float, activation: str) -> None:
    config = EncoderConfig(layers, hidden, heads, 4 * hidden, vocabulary=500, activation=activation)
    ours, theirs = both(config, dtype)
    batch = make_batch(LENGTHS if layers < 12 else [17, 3, 24, 17], config.vocabulary)
    expected = theirs(**padded(batch), **labels(batch))
    inside = padded(batch)["attention_mask"].bool()
    with torch.no_grad():
        outputs = ours.outputs(batch)
    mlm = expected.prediction_logits.detach()[inside][batch.targets["mlm"].at_N]
    assert float((outputs["mlm"] - mlm).abs().max()) <= tolerance
    assert float((outputs["nsp"] - expected.seq_relationship_logits.detach()).abs().max()) <= tolerance

    counts_K = torch.tensor([batch.targets[name].count for name in ours.objectives])
    loss = (ours(batch) / counts_K).sum()
    assert float(loss.detach()) == pytest.approx(
        float(expected.loss.detach()), abs=1e-6 if dtype == torch.float32 else 1e-12
    )
    loss.backward()
    expected.loss.backward()
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    largest = max(float(grad.abs().max()) for grad in wanted.values())
    for name, parameter in ours.named_parameters():
        theirs_name = FAMILIES["bert"].names.to_folder(name)
        if theirs_name.endswith("self.key.bias"):  # moves every score of a query alike: its gradient is exactly zero
            assert float(parameter.grad.abs().max()) < 1e-6 * largest
        else:
            assert relative(parameter.grad, wanted[theirs_name]) <= 1e-4, theirs_name


def test_activations_are_told_apart_by_the_tolerance() -> None:
    config = EncoderConfig(vocabulary=500)
    ours, _ = both(config, torch.float32)
    other = Model(EncoderConfig(vocabulary=500, activation="gelu_tanh"), HEADS).eval()
    other.load_state_dict(ours.state_dict())
    batch = make_batch(LENGTHS, 500)
    with torch.no_grad():
        assert float((ours.outputs(batch)["mlm"] - other.outputs(batch)["mlm"]).abs().max()) > 2e-5


def fresh(**settings: object) -> Model:
    return weights.draw(EncoderConfig(vocabulary=300, **settings), HEADS, seed=1)


@pytest.mark.parametrize("changed", range(len(LENGTHS)))
@pytest.mark.parametrize("narrow", [False, True])
def test_sequences_do_not_leak(changed: int, narrow: bool) -> None:
    model = fresh().eval()
    batch = make_batch(LENGTHS, 300)
    start, end = batch.bounds_S1[changed : changed + 2].tolist()
    ids_T = batch.ids_T.clone()
    ids_T[start:end] = (ids_T[start:end] + 7) % 300
    other = Batch(ids_T, batch.types_T, batch.positions_T, batch.bounds_S1, batch.longest, batch.targets)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        before, after = model.encoder(batch), model.encoder(other)
        before_nsp, after_nsp = model.outputs(batch)["nsp"], model.outputs(other)["nsp"]
    outside = torch.ones(batch.tokens, dtype=torch.bool)
    outside[start:end] = False
    assert torch.equal(before[outside], after[outside])
    others = [s for s in range(batch.sequences) if s != changed]
    assert torch.equal(before_nsp[others], after_nsp[others])
    assert not torch.equal(before[start:end], after[start:end])


def test_packed_equals_one_by_one() -> None:
    model = fresh().eval()
    batch = make_batch(LENGTHS, 300)
    pull_TD = torch.randn(batch.tokens, 128, generator=torch.Generator().manual_seed(0))
    states = model.encoder(batch)
    (states * pull_TD).sum().backward()
    packed = {name: p.grad.clone() for name, p in model.encoder.named_parameters()}
    model.zero_grad()
    for start, end in pairwise(batch.bounds_S1.tolist()):
        one = Batch(
            batch.ids_T[start:end],
            batch.types_T[start:end],
            batch.positions_T[start:end],
            torch.tensor([0, end - start], dtype=torch.int32),
            end - start,
            {},
        )
        alone = model.encoder(one)
        torch.testing.assert_close(alone, states[start:end], rtol=0, atol=1e-5)
        (alone * pull_TD[start:end]).sum().backward()
    for name, parameter in model.encoder.named_parameters():
        if not name.endswith("key.bias"):
            assert relative(parameter.grad, packed[name]) <= 1e-5, name


def test_bfloat16_autocast_is_near() -> None:
    model = fresh().eval()
    batch = make_batch(LENGTHS, 300)
    with torch.no_grad():
        exact = model(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            near = model(batch)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, rtol=5e-3, atol=0)


def test_a_fresh_model_knows_nothing() -> None:
    config = EncoderConfig(vocabulary=30522)
    model = weights.draw(config, HEADS, seed=3).train()
    batch = make_batch([128] * 8, config.vocabulary)
    mlm, nsp = (model(batch).detach() / torch.tensor([batch.targets[n].count for n in HEADS])).tolist()
    assert mlm + nsp == pytest.approx(math.log(30522) + math.log(2), abs=0.15)


def test_overfits_sixteen_sequences() -> None:
    config = EncoderConfig(intermediate=256, vocabulary=100, dropout=0.0, attention_dropout=0.0)
    model, batch = weights.draw(config, HEADS), make_batch([12] * 16, 100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    counts_K = torch.tensor([batch.targets[name].count for name in model.objectives])
    for _ in range(100):
        optimizer.zero_grad()
        (model(batch) / counts_K).sum().backward()
        optimizer.step()
    with torch.no_grad():
        sums_K, hits_K = model.score(batch)
    assert float(sums_K[0] / counts_K[0]) < 0.05
    assert int(hits_K[1]) == 16


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [2, 512], [512], [3] * 50])
def test_edge_lengths_stay_finite(sizes: list[int], narrow: bool) -> None:
    model = fresh().train()
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        sums_K = model(make_batch(sizes, 300))
    sums_K.sum().backward()
    assert torch.isfinite(sums_K).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_dropout_follows_the_global_seed() -> None:
    model, batch = fresh().train(), make_batch(LENGTHS, 300)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model(batch).detach())
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


@torch.no_grad()
def test_a_model_in_bfloat16_under_autocast() -> None:
    """The compiled kernels read tables and weights in float32; a model of another type is computed by torch."""
    config = EncoderConfig(vocabulary=100, layers=1, hidden=64, heads=2, intermediate=128, positions=64, dropout=0.0)
    model, batch = weights.draw(config, {"label": 2}).eval(), make_batch(LENGTHS, 100)
    exact_TD = model.encoder(batch)
    with torch.autocast("cpu", torch.bfloat16):
        found_TD = model.bfloat16().encoder(batch)
    assert relative(found_TD.float(), exact_TD) < 0.02
