"""Losses are sums over targets, and equal Hugging Face's where it has the same head."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import transformers
from flat import make_batch, padded

from lambert.core.batch import Batch, Target
from lambert.core.errors import UsageError
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.heads import HEADS, Head, Model
from lambert.model.objectives import decode

CONFIG = EncoderConfig(vocabulary=200, dropout=0.0, attention_dropout=0.0)
LENGTHS = [9, 4, 15, 4]
ALL = {"mlm": 0, "nsp": 0, "label": 3, "multilabel": 3, "value": 0, "choice": 0, "tag": 5, "span": 0}


def full_batch(rows: slice = slice(None)) -> Batch:
    """Targets for every head; `rows` takes some of each."""
    sentences = torch.arange(4)[rows]
    tokens = torch.tensor([1, 5, 9, 10, 30])[rows]
    spans = torch.tensor([[2, 5], [0, 0], [14, 14], [1, 3]])[rows]
    return make_batch(
        LENGTHS,
        200,
        mlm=Target(tokens, torch.tensor([4, 199, 0, 7, 7])[rows]),
        nsp=Target(sentences, torch.tensor([0, 1, 1, 0])[rows]),
        label=Target(sentences, torch.tensor([2, 0, 1, 1])[rows]),
        multilabel=Target(sentences, torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])[rows]),
        value=Target(sentences, torch.tensor([0.5, -2.0, 3.0, 0.0])[rows]),
        choice=Target(torch.tensor([0, 1, 3])[rows], torch.tensor([[1, 0], [2, 1], [1, 0]])[rows]),
        tag=Target(tokens, torch.tensor([4, 0, 1, 2, 2])[rows]),
        span=Target(sentences, spans),
    )


def peer(kind: type, **settings: object) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=200, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, **settings
    )
    return kind(config).eval()


def test_rounding_the_vocabulary_up_changes_no_logit_and_no_gradient() -> None:
    torch.manual_seed(0)
    rows_ND, words_VD, bias_V = torch.randn(5, 8), torch.randn(21, 8), torch.randn(21)
    weight_NV, found = torch.randn(5, 21), []
    for multiple in (1, 16):
        leaves = [tensor.clone().requires_grad_() for tensor in (rows_ND, words_VD, bias_V)]
        logits_NV = decode(*leaves, multiple)
        (logits_NV * weight_NV).sum().backward()
        found.append([logits_NV.detach(), *(leaf.grad for leaf in leaves)])
    expected = rows_ND @ words_VD.T + bias_V
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(wide, narrow)
    torch.testing.assert_close(found[1][0], expected)


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "electra", "modernbert", "mpnet", "nomic_bert", "gte", "eurobert"]
)
def test_losses_are_those_of_the_outputs(family: str) -> None:
    """Training computes some rows only; inference computes all."""
    config = replace(CONFIG, block=family, init_range=0.1)
    model = weights.draw(config, {name: labels for name, labels in ALL.items() if name != "nsp"}).eval()
    batch = full_batch(slice(1, None))
    found = model(batch)
    for name, logits in model.outputs(batch).items():
        target, head = batch.targets[name], model.heads[name]
        assert isinstance(head, Head)
        rows = logits if head.everywhere or name == "mlm" else logits[target.at_N]
        expected = head.loss(rows, target, batch)
        torch.testing.assert_close(found[model.objectives.index(name)], expected, msg=name)


def test_label_is_that_of_hugging_face() -> None:
    theirs, batch = peer(transformers.BertForSequenceClassification, num_labels=3), full_batch()
    ours = Model(CONFIG, {"label": 3}).eval()
    assert weights.assign(ours, theirs.state_dict()) == weights.Report((), ())
    expected = theirs(**padded(batch), labels=batch.targets["label"].labels_N)
    torch.testing.assert_close(ours.outputs(batch)["label"], expected.logits, rtol=0, atol=2e-5)
    torch.testing.assert_close(ours(batch)[0] / 4, expected.loss)


def test_value_is_that_of_hugging_face() -> None:
    theirs, batch = peer(transformers.BertForSequenceClassification, num_labels=1), full_batch()
    ours = Model(CONFIG, {"value": 0}).eval()
    assert weights.assign(ours, theirs.state_dict()) == weights.Report((), ())
    torch.testing.assert_close(ours(batch)[0] / 4, theirs(**padded(batch), labels=batch.targets["value"].labels_N).loss)


def test_multilabel_is_that_of_hugging_face() -> None:
    settings = {"num_labels": 3, "problem_type": "multi_label_classification"}
    theirs, batch = peer(transformers.BertForSequenceClassification, **settings), full_batch()
    ours = Model(CONFIG, {"multilabel": 3}).eval()
    assert weights.assign(ours, theirs.state_dict()) == weights.Report((), ())
    expected = theirs(**padded(batch), labels=batch.targets["multilabel"].labels_N)
    torch.testing.assert_close(ours.outputs(batch)["multilabel"], expected.logits, rtol=0, atol=2e-5)
    torch.testing.assert_close(ours(batch)[0] / batch.targets["multilabel"].count, expected.loss)


def test_choice_is_that_of_hugging_face() -> None:
    theirs, batch = peer(transformers.BertForMultipleChoice), full_batch()
    ours = Model(CONFIG, {"choice": 0}).eval()
    assert weights.assign(ours, theirs.state_dict()) == weights.Report((), ())
    rows = {name: value.view(2, 2, -1) for name, value in padded(batch).items()}
    expected = theirs(**rows, labels=torch.tensor([1, 0]))
    target = Target(torch.tensor([0, 2]), torch.tensor([[2, 1], [2, 0]]))
    ours_batch = batch.with_targets({"choice": target})
    torch.testing.assert_close(ours.outputs(batch)["choice"].view(2, 2), expected.logits, rtol=0, atol=2e-5)
    torch.testing.assert_close(ours(ours_batch)[0] / 2, expected.loss)


def test_choices_of_different_numbers_do_not_mix() -> None:
    model, batch = weights.draw(CONFIG, {"choice": 0}).eval(), full_batch()
    logits_S = model.outputs(batch)["choice"][:, 0]
    expected = -logits_S[:3].log_softmax(0)[2] - logits_S[3:].log_softmax(0)[0]
    several = Target(torch.tensor([0, 3]), torch.tensor([[3, 2], [1, 0]]))
    torch.testing.assert_close(model(batch.with_targets({"choice": several}))[0], expected)


@pytest.mark.parametrize("name", ["label", "multilabel", "value", "choice", "tag"])
def test_a_weighted_loss_is_that_of_repeated_targets(name: str) -> None:
    model, batch = weights.draw(CONFIG, {name: ALL[name]}).eval(), full_batch()
    target = batch.targets[name]
    repeats = torch.arange(len(target.at_N)) % 3 + 1
    repeated = Target(*(tensor.repeat_interleave(repeats, 0) for tensor in (target.at_N, target.labels_N)))
    weighted = Target(target.at_N, target.labels_N, repeats.float())
    assert weighted.count == repeated.count == int(repeats.sum())
    sums = [model(batch.with_targets({name: kind}))[0] for kind in (weighted, repeated)]
    torch.testing.assert_close(*sums)


def test_tag_is_that_of_hugging_face() -> None:
    theirs, batch = peer(transformers.BertForTokenClassification, num_labels=5), full_batch()
    ours = Model(CONFIG, {"tag": 5}).eval()
    assert weights.assign(ours, theirs.state_dict()) == weights.Report((), ())
    rows = padded(batch)
    labels_T = torch.full((batch.tokens,), -100)
    labels_T[batch.targets["tag"].at_N] = batch.targets["tag"].labels_N
    labels = torch.full(rows["input_ids"].shape, -100)
    labels[rows["attention_mask"].bool()] = labels_T
    expected = theirs(**rows, labels=labels)
    torch.testing.assert_close(ours(batch)[0] / 5, expected.loss)
    inside = rows["attention_mask"].bool()
    torch.testing.assert_close(ours.outputs(batch)["tag"], expected.logits[inside], rtol=0, atol=2e-5)


def test_span_is_that_of_hugging_face_without_padding() -> None:
    theirs, batch = peer(transformers.BertForQuestionAnswering), full_batch()
    ours = Model(CONFIG, {"span": 0}).eval()
    assert weights.assign(ours, theirs.state_dict()) == weights.Report((), ())
    total = 0.0
    for s, (start, end) in enumerate(zip(batch.bounds_S1.tolist(), batch.bounds_S1.tolist()[1:], strict=False)):
        first, last = batch.targets["span"].labels_N[s, None].T
        one = theirs(
            input_ids=batch.ids_T[None, start:end],
            token_type_ids=batch.types_T[None, start:end],
            start_positions=first,
            end_positions=last,
        )
        total = total + one.loss
        logits = torch.stack([one.start_logits[0], one.end_logits[0]], 1)
        torch.testing.assert_close(ours.outputs(batch)["span"][start:end], logits, rtol=0, atol=2e-5)
    torch.testing.assert_close(ours(batch)[0], total)


@pytest.mark.parametrize("name", ALL)
def test_a_loss_adds_up_over_its_targets(name: str) -> None:
    model = weights.draw(CONFIG, {name: ALL[name]}).eval()
    parts = [model.score(full_batch(rows)) for rows in (slice(0, 1), slice(1, 3), slice(3, None))]
    whole = model.score(full_batch())
    torch.testing.assert_close(sum(sums for sums, _ in parts), whole[0])
    assert sum(int(hits) for _, hits in parts) == int(whole[1])
    assert whole[0].dtype == torch.float32


@pytest.mark.parametrize("narrow", [False, True])
def test_no_targets_give_zero_and_zero_gradients(narrow: bool) -> None:
    model = weights.draw(CONFIG, ALL).train()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        sums_K, hits_K = model.score(full_batch(slice(0, 0)))
    sums_K.sum().backward()
    assert sums_K.tolist() == [0.0] * 8
    assert hits_K.tolist() == [0] * 8
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_sums_come_in_the_order_of_the_heads() -> None:
    batch = full_batch()
    one, two = weights.draw(CONFIG, {"mlm": 0, "tag": 5}), weights.draw(CONFIG, {"tag": 5, "mlm": 0})
    assert two.objectives == ("tag", "mlm")
    torch.testing.assert_close(one.eval()(batch), two.eval()(batch).flip(0))


def test_hits_count_right_predictions() -> None:
    model = weights.draw(CONFIG, ALL).eval()
    batch = full_batch()
    outputs = model.outputs(batch)
    assert {name: tuple(logits.shape) for name, logits in outputs.items()} == {
        "mlm": (5, 200), "nsp": (4, 2), "label": (4, 3), "multilabel": (4, 3), "value": (4, 1), "choice": (4, 1),
        "tag": (32, 5), "span": (32, 2),
    }  # fmt: skip
    at_N = batch.targets["mlm"].at_N
    spans = [part.argmax(0) for part in outputs["span"].tensor_split(batch.bounds_S1[1:-1].long())]
    right = make_batch(
        LENGTHS,
        200,
        mlm=Target(at_N, outputs["mlm"].argmax(-1)),
        nsp=Target(torch.arange(4), outputs["nsp"].argmax(-1)),
        label=Target(torch.arange(4), outputs["label"].argmax(-1)),
        multilabel=Target(torch.arange(4), (outputs["multilabel"].sigmoid() >= 0.5).float()),
        value=Target(torch.arange(4), outputs["value"].flatten().detach()),
        choice=Target(torch.tensor([0, 3]), torch.tensor([[3, int(outputs["choice"][:3].argmax())], [1, 0]])),
        tag=Target(at_N, outputs["tag"][at_N].argmax(-1)),
        span=Target(torch.arange(4), torch.stack(spans)),
    )
    right = Batch(batch.ids_T, batch.types_T, batch.positions_T, batch.bounds_S1, batch.longest, right.targets)
    assert model.score(right)[1].tolist() == [5, 4, 4, 4, 4, 2, 5, 4]


def test_outputs_need_no_targets() -> None:
    model = weights.draw(CONFIG, ALL).eval()
    batch = full_batch()
    bare = Batch(batch.ids_T, batch.types_T, batch.positions_T, batch.bounds_S1, batch.longest, {})
    assert set(model.outputs(bare)) == set(ALL) - {"mlm"}


def test_the_decoder_is_the_table_of_words() -> None:
    model = weights.draw(CONFIG, {"mlm": 0})
    batch = full_batch()
    before = model.outputs(batch)["mlm"]
    untouched = torch.ones(200, dtype=torch.bool)
    untouched[batch.ids_T.unique()] = False
    free = int(untouched.nonzero()[0])
    with torch.no_grad():
        model.encoder.words.weight[free] += 1
    changed = (model.outputs(batch)["mlm"] != before).any(0)
    assert changed.nonzero().flatten().tolist() == [free]


def test_an_unknown_head_is_refused() -> None:
    with pytest.raises(UsageError, match="Did you mean 'span'"):
        Model(CONFIG, {"spam": 2})


def test_vectors_are_means_and_first_states() -> None:
    model = weights.draw(CONFIG, {"vector": 0, "first_vector": 0}).eval()
    batch = full_batch()
    states_TD, found = model.encoder(batch), model.outputs(batch)
    bounds = batch.bounds_S1.tolist()
    means_SD = torch.stack([states_TD[low:high].mean(0) for low, high in pairwise(bounds)])
    torch.testing.assert_close(found["vector"], means_SD)
    assert found["first_vector"].equal(states_TD[bounds[:-1]])


def test_every_head_is_tested_here() -> None:
    assert set(HEADS) == {*ALL, "vector", "first_vector"}
