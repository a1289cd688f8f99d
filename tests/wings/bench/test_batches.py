"""Lengths, random batches, and the same batches in padded rows."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lambert.core.errors import DataError
from lambert.measure.batches import draw_batch, layer_shapes
from lambert.model.config import EncoderConfig
from lambert.wings.bench.batches import FITTED, draw_lengths, encoder_of, pad, width_of
from lambert.wings.bench.training import peer_inputs
from lambert.wings.bench.verb import BenchConfig

ENCODER = EncoderConfig(vocabulary=30522)


@pytest.mark.parametrize("lengths", ["wikipedia", "squad"])
@pytest.mark.parametrize(("sequences", "length"), [(1, 16), (2, 16), (8, 32), (8, 384), (64, 128)])
def test_lengths_fill_as_much_as_measured(lengths: str, sequences: int, length: int) -> None:
    config = BenchConfig(sequences=sequences, length=length, lengths=lengths).resolve()
    sizes_S = draw_lengths(config)
    assert sizes_S.shape == (sequences,)
    assert (sizes_S >= 1).all()
    assert (sizes_S <= length).all()
    assert abs(sizes_S.mean() / length - FITTED[lengths][0]) <= max(0.02, 0.5 / (sequences * length))
    assert (draw_lengths(config) == sizes_S).all()


def test_squad_lengths_have_the_measured_shape() -> None:
    """Percentiles of the training file's windows: 5% have 84 tokens, 50% 159, 95% 299."""
    found = draw_lengths(BenchConfig(work="finetune", sequences=20000).resolve())
    assert np.percentile(found, [5, 50, 95]) == pytest.approx([84, 159, 299], rel=0.05)


def test_the_work_decides_what_is_not_set() -> None:
    found = {work: BenchConfig(work=work).resolve() for work in ("pretrain", "finetune", "inference", "loader")}
    assert [(c.lengths, c.length, c.sequences) for c in found.values()] == [
        ("wikipedia", 512, 8),
        ("squad", 384, 8),
        ("squad", 384, 8),
        ("wikipedia", 512, 256),
    ]
    given = BenchConfig(work="finetune", lengths="full", length=64, sequences=3).resolve()
    assert (given.lengths, given.length, given.sequences) == ("full", 64, 3)
    assert encoder_of(BenchConfig(size="tiny", length=700)).positions == 700


def test_lengths_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("3\n40\n17\n")
    config = BenchConfig(lengths=str(path), length=32, sequences=3)
    assert sorted(draw_lengths(config).tolist()) == [3, 17, 32]
    many = draw_lengths(BenchConfig(lengths=str(path), length=32, sequences=30))
    assert set(many.tolist()) == {3, 17, 32}
    path.write_text("3\n\n")
    with pytest.raises(DataError, match=r"lengths.txt:2 is not a length"):
        draw_lengths(config)
    path.write_text("")
    with pytest.raises(DataError, match="holds no length"):
        draw_lengths(config)


def test_a_batch_has_its_targets() -> None:
    batch = draw_batch(ENCODER, np.array([10, 30]), 0)
    assert [*batch.targets] == ["mlm", "nsp"]
    assert batch.targets["mlm"].count == 6
    assert (batch.ids_T[batch.targets["mlm"].at_N] == 103).all()
    assert batch.types_T.tolist() == [0] * 5 + [1] * 5 + [0] * 15 + [1] * 15
    spans_N2 = draw_batch(ENCODER, np.array([10, 30] * 20), 0, ("span",)).targets["span"].labels_N
    assert (spans_N2[:, 0] <= spans_N2[:, 1]).all()
    assert (spans_N2[:, 1] < torch.tensor([10, 30] * 20)).all()
    assert not draw_batch(ENCODER, np.array([10]), 0, ()).targets


@pytest.mark.parametrize("heads", [("mlm", "nsp"), ("span",)])
def test_padded_rows_hold_the_same_sequences(heads: tuple[str, ...]) -> None:
    batch = draw_batch(ENCODER, np.array([10, 30, 20]), 0, heads)
    assert width_of(BenchConfig(length=64), batch) == 30
    assert width_of(BenchConfig(length=64, padding="length"), batch) == 64
    for width in (30, 64):
        found = peer_inputs(batch, width)
        assert all(found[name].equal(values) for name, values in pad(batch, width).items())
        inside = found["attention_mask"].bool()
        assert inside.shape == (3, width)
        assert inside.sum(1).tolist() == [10, 30, 20]
        assert found["input_ids"][inside].equal(batch.ids_T)
        assert found["token_type_ids"][inside].equal(batch.types_T)
        assert not found["input_ids"][~inside].any()
        if heads == ("span",):
            assert found["end_positions"].equal(batch.targets["span"].labels_N[:, 1])
        else:
            predicted = found["labels"][inside] != -100
            assert predicted.nonzero().flatten().equal(batch.targets["mlm"].at_N)
            assert (found["labels"][~inside] == -100).all()


def test_the_products_of_a_layer_are_those_counted() -> None:
    from lambert.planning import operations as flops

    encoder = EncoderConfig(layers=3, hidden=32, heads=2, intermediate=48)
    products = sum(2 * rows * inner * columns for rows, inner, columns in layer_shapes(encoder, 50))
    attention = 2 * 2 * 32 * (20**2 + 30**2)
    assert 3 * (products + attention) == flops.encoder_forward(encoder, [20, 30])
