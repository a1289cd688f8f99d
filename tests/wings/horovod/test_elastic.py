"""Elastic training: what a commit keeps, how an epoch is split anew, and jobs that lose and gain ranks."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lambert.horovod as hvd
from lambert.wings.horovod import elastic
from lambert.wings.horovod.run import main


def in_world(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    monkeypatch.setattr(elastic, "rank", lambda: rank)
    monkeypatch.setattr(elastic, "size", lambda: size)


@pytest.mark.usefixtures("alone")
def test_a_state_goes_back_to_its_last_commit() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = elastic.TorchState(model, optimizer, batch=3, best={"loss": 1.0})

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.batch += 1

    step()
    state.commit()
    kept = [p.detach().clone() for p in model.parameters()]
    momentum = optimizer.state[model.weight]["momentum_buffer"].clone()
    for _ in range(2):  # restoring twice: what is kept must not be what is trained
        step()
        step()
        assert state.batch == 6
        state.restore()
        assert state.batch == 4
        assert state.best == {"loss": 1.0}
        torch.testing.assert_close([p.detach() for p in model.parameters()], kept)
        torch.testing.assert_close(optimizer.state[model.weight]["momentum_buffer"], momentum)
    step()
    state.sync()
    state.restore()
    assert state.batch == 4
    assert torch.equal(model.weight, kept[0]) is False  # synchronizing commits tensors, as rank 0 has them
    other = nn.Linear(2, 1)
    state.model = other
    assert state.model is other
    nn.init.zeros_(other.weight)
    state.restore()
    assert other.weight.ne(0).any()


@pytest.mark.usefixtures("alone")
def test_the_function_is_called_again_after_failures_and_changes() -> None:
    calls: list[tuple[int, int]] = []
    resets: list[int] = []
    state = elastic.ObjectState(batch=0, seen=0)
    state.register_reset_callbacks([lambda: resets.append(state.batch)])

    @elastic.run
    def train(state: Any, scale: int, *, name: str) -> str:
        """Trains."""
        calls.append((state.batch, state.seen))
        while state.batch < 6:
            state.batch += 1
            state.seen += scale
            if state.batch == 3 and len(calls) == 1:
                raise hvd.HorovodInternalError("a peer is gone")
            if state.batch == 5 and len(calls) == 2:
                raise hvd.HostsUpdatedInterrupt(True)
            if state.batch % 2 == 0:
                state.commit()
        return name

    assert train.__doc__ == "Trains."
    assert train(state, 10, name="done") == "done"
    # The failure at batch 3 went back to 2; the interrupt at 5 lost nothing.
    assert calls == [(0, 0), (2, 20), (5, 50)]
    assert resets == [2, 5]
    assert state.seen == 60


@pytest.mark.usefixtures("alone")
def test_other_errors_pass() -> None:
    @elastic.run
    def train(state: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(elastic.ObjectState())


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_split_an_epoch_whose_rest_other_ranks_take_over(shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    length, batch = 23, 2
    seen: list[int] = []
    state: dict[str, Any] = {}
    for size in (3, 2, 4):
        done: list[list[int]] = []
        for rank in range(size):
            in_world(monkeypatch, rank, size)
            sampler = elastic.ElasticSampler(range(length), shuffle=shuffle, seed=5)
            if state:
                sampler.load_state_dict(state)
            order = list(sampler)
            assert len(order) == len(sampler) == -(-(length - len(seen)) // size)
            done.append(order[: batch if size != 4 else len(order)])
            assert sampler.get_indices(0, batch) == order[:batch]
            sampler.record_batch(0, batch)
        state = sampler.state_dict()
        seen += sorted(set().union(*done)) if size == 4 else [index for order in done for index in order]
    assert sorted(seen) == list(range(length))


def test_epochs_have_orders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    in_world(monkeypatch, 0, 1)
    sampler = elastic.ElasticSampler(range(50))
    first = list(sampler)
    sampler.record_batch(0, 10)
    sampler.set_epoch(1)
    second = list(sampler)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second != list(range(50))
    oracle = list(range(50))
    random.Random(1).shuffle(oracle)
    assert second == oracle


def test_samples_named_one_by_one_do_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    in_world(monkeypatch, 1, 2)
    sampler = elastic.ElasticSampler(range(9), shuffle=False)
    sampler.record_indices(torch.tensor([0, 4]))
    sampler.load_state_dict(sampler.state_dict())
    assert sampler.remaining_indices == [1, 2, 3, 5, 6, 7, 8]
    assert list(sampler) == [2, 5, 7, 1]
    empty = elastic.ElasticSampler(range(0))
    assert list(empty) == []
    short = elastic.ElasticSampler(range(1))
    assert list(short) == [0]


TRAIN = """
import json, os, sys, time
import torch
import lambert.horovod as hvd
from lambert.wings.horovod import elastic

hvd.init()
out, fail_at, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
first = os.environ["HOROVOD_ELASTIC_GENERATION"] == "0"
model = torch.nn.Linear(3, 1)
torch.nn.init.constant_(model.weight, 0.0 if first else 5.0)
state = elastic.TorchState(model, sizes=[])

@elastic.run
def train(state):
    while state.sizes.count(2) < steps:
        with torch.no_grad():
            model.weight += hvd.allreduce(torch.ones(1, 3), name="change")
        if first and hvd.rank() == 1 and len(state.sizes) == fail_at:
            os._exit(9)
        state.sizes = [*state.sizes, hvd.size()]
        if fail_at < 0 and hvd.size() == 1:
            open(out + "/started", "w").close()
            time.sleep(0.02)
        state.commit()

train(state)
found = {"sizes": state.sizes, "weight": model.weight[0, 0].item(), "first": first}
json.dump(found, open(f"{out}/{hvd.rank()}.json", "w"))
"""


def job(tmp_path: Path, *options: str, fail_at: int, steps: int) -> tuple[int, list[dict[str, Any]]]:
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path), str(fail_at), str(steps)]
    code = main([*options, *command])
    return code, [json.loads(file.read_text()) for file in sorted(tmp_path.glob("?.json"))]


@pytest.mark.slow
def test_a_rank_that_fails_is_replaced_by_one_that_takes_over_the_state(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0", "0"]
    code, found = job(tmp_path, *options, fail_at=3, steps=8)
    told = capfd.readouterr().err
    assert code == 0, told
    assert "rank 1 on localhost failed with exit code 9" in told
    assert "generation 1: 2 ranks, 1 new" in told
    # The change of the step that failed is undone, and the new rank has the weight of the old ones.
    assert found == [{"sizes": [2] * 8, "weight": 8.0, "first": first} for first in (True, False)]


@pytest.mark.slow
def test_a_job_grows_when_hosts_appear(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = f"if [ -e {tmp_path}/started ]; then echo localhost:2; else echo localhost:1; fi"
    options = ["-np", "1", "--min-np", "1", "--max-np", "2", "--host-discovery-script", script]
    code, found = job(tmp_path, *options, fail_at=-1, steps=5)
    assert code == 0, capfd.readouterr().err
    sizes = found[0]["sizes"]
    # No step is lost or repeated: the interrupt comes after a commit.
    assert sizes == [1] * (len(sizes) - 5) + [2] * 5
    assert found == [{"sizes": sizes, "weight": float(len(sizes)), "first": first} for first in (True, False)]


@pytest.mark.parametrize(
    ("options", "script", "code", "message"),
    [
        ("-np 2 --min-np 2", "exit 0", 0, "generation 0: 2 ranks"),
        ("-np 2 --min-np 1", "exit 3", 3, "exit code 3"),
        ("-np 2 --min-np 2", "[ $RANK = 0 ] || exit 4; sleep 60", 4, "2 ranks are needed, and only 1 are possible"),
        ("-np 2 --min-np 1 --elastic-timeout 1", "[ $RANK = 0 ] || exit 5; sleep 1; exit 6", 6, "exit code 6"),
    ],
)
def test_a_job_that_cannot_go_on_ends(
    options: str, script: str, code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*options.split(), "sh", "-c", script]) == code
    assert message in capfd.readouterr().err
