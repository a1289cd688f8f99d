"""Self-attention relations: loss and gradients are those of padded batches of Hugging Face's BERT, in plain torch."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import transformers
from flat import make_batch, padded
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lambert.core.batch import Batch, Target
from lambert.model import relations, weights
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.model.relations import RelationStudent, RelationTeacher, relation_loss
from lambert.planning import operations

LENGTHS = [17, 40, 3, 17, 64, 17]
HEADS = {"mlm": 0, "nsp": 0}
TEACHER = EncoderConfig(4, 96, 6, 128, vocabulary=300, dropout=0.0, attention_dropout=0.0)
STUDENT = EncoderConfig(2, 48, 4, 96, vocabulary=300, dropout=0.0, attention_dropout=0.0)


def peer(config: EncoderConfig, seed: int) -> transformers.BertForPreTraining:
    torch.manual_seed(seed)
    shape = transformers.BertConfig(
        vocab_size=config.vocabulary, hidden_size=config.hidden, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, intermediate_size=config.intermediate,
    )  # fmt: skip
    model = transformers.BertForPreTraining(shape)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.double().eval()


def ours(config: EncoderConfig, theirs: transformers.BertForPreTraining) -> Model:
    model = Model(config, HEADS).double()
    weights.assign(model, theirs.state_dict())
    return model


def vectors(model: transformers.BertForPreTraining, batch: Batch, layer: int) -> list[Tensor]:
    """Queries, keys and values [S, M, D] of a layer, for padded rows."""
    states_SMD = model.bert(**padded(batch), output_hidden_states=True).hidden_states[layer]
    attention = model.bert.encoder.layer[layer].attention.self
    return [project(states_SMD) for project in (attention.query, attention.key, attention.value)]


def log_relations(x_SMD: Tensor, heads: int, inside_SM: Tensor) -> Tensor:
    """Logarithms of the relations [S, H, M, M]; keys that are padding have probability 0."""
    x_SHME = x_SMD.view(*x_SMD.shape[:2], heads, -1).transpose(1, 2)
    scores = x_SHME @ x_SHME.transpose(-1, -2) / math.sqrt(x_SHME.shape[-1])
    return scores.masked_fill(~inside_SM[:, None, None, :], -1e30).log_softmax(-1)


def expected_loss(own: list[Tensor], theirs: list[Tensor], heads: int, inside_SM: Tensor) -> Tensor:
    """The sum over sequences of equation L_i of the paper, summed over queries, keys and values."""
    total = torch.zeros((), dtype=torch.float64)
    for ours_SMD, theirs_SMD in zip(own, theirs, strict=True):
        student, teacher = (log_relations(x, heads, inside_SM) for x in (ours_SMD, theirs_SMD))
        divergence_SHMM = torch.nn.functional.kl_div(student, teacher, reduction="none", log_target=True)
        divergence_SHM = divergence_SHMM.sum(-1) * inside_SM[:, None, :]
        total = total + (divergence_SHM.sum((1, 2)) / (heads * inside_SM.sum(1))).sum()
    return total


@pytest.mark.parametrize(("layer", "heads"), [(3, 6), (2, 12), (0, 1)])
def test_parity_with_padded_batches(layer: int, heads: int) -> None:
    teacher, student = peer(TEACHER, 1), peer(STUDENT, 2)
    batch = make_batch(LENGTHS, 300)
    batch = replace(batch, ids_T=batch.ids_T.clamp(min=1))  # Hugging Face's table has no gradient for the padding, 0
    batch = batch.with_targets({**batch.targets, "relations": Target(torch.arange(6), torch.arange(6))})
    inside_SM = padded(batch)["attention_mask"].bool()
    with torch.no_grad():
        theirs = vectors(teacher, batch, layer)
    expected = expected_loss(vectors(student, batch, 1), theirs, heads, inside_SM)
    expected.backward()

    model = ours(STUDENT, student)
    net = RelationStudent(model, RelationTeacher(ours(TEACHER, teacher).eval().encoder, layer, heads, 1.0))
    assert net.objectives == ("mlm", "nsp", "relations")
    sums_K = net.train()(batch)
    torch.testing.assert_close(sums_K[2], expected.detach().to(sums_K.dtype), rtol=1e-6, atol=0)
    torch.testing.assert_close(sums_K[:2], model(batch))
    sums_K[2].backward()
    wanted = {name: parameter.grad for name, parameter in student.named_parameters() if parameter.grad is not None}
    found = {
        weights.family_of(STUDENT).names.to_folder(name): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    }
    assert {"bert.encoder.layer.1.attention.self.value.weight"} <= found.keys() <= wanted.keys()
    for name, grad in wanted.items():
        torch.testing.assert_close(found.get(name, torch.zeros_like(grad)), grad, rtol=1e-6, atol=1e-9)


def test_the_loss_does_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of equal length are computed together, in parts of bounded memory."""
    generator = torch.Generator().manual_seed(3)
    own_TF, theirs_TF = (torch.randn(sum(LENGTHS), 3 * width, generator=generator) for width in (48, 96))
    bounds = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    whole = relation_loss(own_TF, theirs_TF, torch.tensor(bounds), 12)
    parts = [
        relation_loss(own_TF[low:high], theirs_TF[low:high], torch.tensor([0, high - low]), 12)
        for low, high in pairwise(bounds)
    ]
    torch.testing.assert_close(whole, torch.stack(parts).sum())
    monkeypatch.setattr(relations, "_CACHED", 1)
    torch.testing.assert_close(relation_loss(own_TF, theirs_TF, torch.tensor(bounds), 12), whole)


def test_equal_relations_have_no_loss_and_no_gradient() -> None:
    own_TF = torch.randn(30, 3 * 48, generator=torch.Generator().manual_seed(4), requires_grad=True)
    loss = relation_loss(own_TF, own_TF.detach(), torch.tensor([0, 10, 30]), 4)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-6)
    assert own_TF.grad is not None
    assert float(own_TF.grad.abs().max()) < 1e-7


def test_operations_are_those_that_torch_counts() -> None:
    batch = make_batch(LENGTHS, 300)
    model, teacher = Model(STUDENT, HEADS), Model(TEACHER, {})
    net = RelationStudent(model, RelationTeacher(teacher.encoder, 2, 12, 1.0))
    counted = []
    for called in (net, model):
        with FlopCounterMode(display=False) as counter:
            called(batch).sum().backward()
        counted.append(counter.get_total_flops())
    assert counted[0] - counted[1] == operations.relations(STUDENT, TEACHER, 2, LENGTHS)
