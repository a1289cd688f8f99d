"""Outputs by graphs, with a recorder that computes its work again instead of replaying it."""

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch
from flat import make_batch
from recorders import Again

from lambert.core.world import World
from lambert.engine.precision import Precision
from lambert.inference import graphs
from lambert.inference.graphs import GraphedOutputs, find_graphs
from lambert.inference.outputs import compute_outputs
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model


def build() -> Model:
    torch.manual_seed(0)
    config = EncoderConfig(vocabulary=100, hidden=32, layers=2, heads=2, intermediate=48, positions=64)
    return Model(config, {"label": 3, "tag": 5, "span": 0}).eval()


def test_outputs_are_those_without_graphs() -> None:
    model, recorder, world, precision = build(), Again(), World(), Precision("float32")
    graphed = GraphedOutputs(model, precision, world, recorder)
    draw = np.random.default_rng(0)
    for number in range(30):
        lengths = [int(n) for n in draw.integers(1, 33, int(draw.integers(1, 12)))]
        batch = make_batch(lengths, 100, seed=number).with_targets({})
        if number % 3 == 2:
            batch = replace(batch, pooled_from_S=batch.bounds_S1[:-1].long())
        exact = compute_outputs(model, precision, world, batch)
        found = graphed(batch)
        assert set(found) == set(exact)
        for name, rows in exact.items():
            torch.testing.assert_close(found[name], rows, atol=1e-5, rtol=1e-5)
    assert recorder.replayed > 10
    assert recorder.replayed + recorder.recorded <= 30


def test_a_result_stays_when_the_next_batch_is_computed() -> None:
    model = build()
    graphed = GraphedOutputs(model, Precision("float32"), World(), Again())
    batches = [make_batch([9, 4], 100, seed=seed).with_targets({}) for seed in range(3)]
    graphed(batches[0])
    first = graphed(batches[1])
    before = {name: rows.clone() for name, rows in first.items()}
    graphed(batches[2])
    assert all(torch.equal(first[name], rows) for name, rows in before.items())


def test_threads_take_turns() -> None:
    model, precision, world = build(), Precision("float32"), World()
    graphed = GraphedOutputs(model, precision, world, Again())
    batches = [make_batch([9, 4], 100, seed=seed).with_targets({}) for seed in range(24)]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(graphed, batches)]
    for batch, outputs in zip(batches, found, strict=True):
        exact = compute_outputs(model, precision, world, batch)
        for name, rows in exact.items():
            torch.testing.assert_close(outputs[name], rows, atol=1e-5, rtol=1e-5)


def test_batches_with_targets_have_no_graphs() -> None:
    batch = make_batch([9, 4], 100)
    with pytest.raises(ValueError, match="without targets"):
        GraphedOutputs(build(), Precision("float32"), World(), Again())(batch)


def test_who_has_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, precision = make_batch([9, 4], 100).with_targets({}), Precision("float32")
    monkeypatch.setattr(graphs, "CudaRecorder", lambda device: Again())
    monkeypatch.setenv("LAMBERT_GRAPHS", "1")
    assert find_graphs(build(), precision, World(), batch) is None
    gpu = World(device=torch.device("cuda:0"))
    model = build()
    found = find_graphs(model, precision, gpu, batch)
    assert found is not None
    assert find_graphs(model, precision, gpu, batch) is found
    assert find_graphs(model, precision, gpu, make_batch([9, 4], 100)) is None
    other = Precision("bfloat16")
    assert find_graphs(model, other, gpu, batch) is not found
    alive = ref(model)
    del model, found
    gc.collect()
    assert alive() is None
    monkeypatch.delenv("LAMBERT_GRAPHS")
    assert find_graphs(build(), precision, gpu, batch) is None


def test_a_model_in_training_has_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs read copies of the weights as these were when they were recorded."""
    model, precision, asked = build(), Precision("float32"), []

    def find(*arguments: object) -> GraphedOutputs:
        asked.append(arguments)
        return GraphedOutputs(model, precision, World(), Again())

    monkeypatch.setattr("lambert.inference.outputs.find_graphs", find)
    batch = make_batch([9, 4], 100).with_targets({})
    compute_outputs(model, precision, World(), batch)
    assert not asked
    compute_outputs(model, precision, World(), batch, constant=True)
    assert asked
