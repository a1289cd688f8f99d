import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from patience import HANGS
from tiny import Tiny, adamw, batch_of, free_port, start, steps

from lambert.core.batch import Batch
from lambert.core.errors import UsageError
from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.distributed.group import Group
from lambert.engine.loop import OutOfMemory, evaluate
from lambert.engine.precision import Precision


def ranks(size: int, work: Any, *arguments: Any) -> None:
    port = free_port()
    processes = [start(work, *arguments, rank=rank, world=size, port=port) for rank in range(size)]
    for process in processes:
        process.join(HANGS)
    assert [process.exitcode for process in processes] == [0] * size


def ten_steps(out: Path) -> None:
    world = detect("cpu")
    net = Tiny()
    found = list(steps(net, adamw(net), Precision("float32"), stop=10, world=world))
    scores = evaluate(net, [batch_of([n]) for n in range(world.rank, 12, world.size)], Precision("float32"), world)
    losses = [(step.loss, step.grad_norm, step.losses) for step in found]
    torch.save((dict(net.named_parameters()), losses, scores), out / f"{world.size}-{world.rank}.pt")
    world.close()


def test_one_two_and_four_ranks_take_the_same_ten_steps(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    ten_steps(tmp_path)
    alone, losses, scores = torch.load(tmp_path / "1-0.pt")
    for size in (2, 4):
        ranks(size, ten_steps, tmp_path)
        for rank in range(size):
            net, seen, theirs = torch.load(tmp_path / f"{size}-{rank}.pt")
            for name, parameter in alone.items():
                assert (net[name] - parameter).abs().max() <= 1e-5 * parameter.abs().max()
            for (a, b, c), (d, e, f) in zip(losses, seen, strict=True):
                assert (a, b) == pytest.approx((d, e), rel=1e-5)
                assert c == pytest.approx(f, rel=1e-5)
            assert theirs == pytest.approx(scores, rel=1e-5)


def test_who_runs_out_of_memory_while_ranks_meet_accuses_nobody() -> None:
    nobody: Any = None  # to ask
    with pytest.raises(RuntimeError, match="not enough memory"), Group(0, 2, detector=nobody).collective("summing"):
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes.")


def collectives(out: Path) -> None:
    world = detect("cpu")
    first = world.is_first
    tensor = torch.full((3,), float(world.rank))
    world.broadcast([tensor])
    answers = (
        world.sum(torch.tensor([1.0, float(world.rank)])).tolist(),
        tensor.tolist(),
        world.broadcast_text("sagt: äöü" if first else "?" * 99),
        world.broadcast_text("" if first else "x"),
        world.largest(10 - world.rank),
    )
    assert answers == ([2.0, 1.0], [0.0, 0.0, 0.0], "sagt: äöü", "", 10)
    (out / str(world.rank)).touch()
    world.close()


def test_collectives_give_every_rank_the_same(tmp_path: Path) -> None:
    ranks(2, collectives, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


LEAVING = """
import glob, torch
from lambert.distributed.detection import detect

world = detect("cpu")
parameter = torch.nn.Parameter(torch.ones(3))
parameter.grad = torch.ones(3)
torch.optim.SGD([parameter]).step()
world.sum(parameter.grad)
world.close()
names = [open(path).read().strip() for path in glob.glob("/proc/self/task/*/comm")]
assert not [name for name in names if "gloo" in name], names
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for threads in /proc")
@pytest.mark.slow
def test_no_thread_of_the_group_outlives_it() -> None:
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    # Processes of their own, since those of `ranks` have imported all of torch before.
    processes = [
        subprocess.Popen([sys.executable, "-c", LEAVING], env={**os.environ, **common, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(HANGS) for process in processes] == [0, 0]


def overflow_on_one_rank(out: Path) -> None:
    world = detect("cpu")
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float16")

    def explode(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (float("inf") if world.rank == 1 and step_number == 2 else 1)

    net.dense.weight.register_hook(explode)
    step_number, seen = 1, []
    for step in steps(net, optimizer, precision, stop=4, world=world):
        seen.append((step.skipped, step.non_finite, precision.scale, net.dense.weight.detach().clone()))
        step_number += 1
    assert [entry[0] for entry in seen] == [False, True, False, False]
    assert seen[1][1] == "dense.weight"
    assert [entry[2] for entry in seen] == [65536, 32768, 32768, 32768]
    assert torch.equal(seen[0][3], seen[1][3])
    assert not torch.equal(seen[1][3], seen[2][3])
    (out / str(world.rank)).touch()
    world.close()


def test_an_overflow_on_one_rank_is_skipped_by_all(tmp_path: Path) -> None:
    ranks(2, overflow_on_one_rank, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


class Short(Tiny):
    """Runs out of memory on the second rank, if it is to."""

    short = False

    def forward(self, batch: Batch) -> torch.Tensor:
        if self.short and batch.tokens > 12:
            raise MemoryError
        return super().forward(batch)


def out_of_memory_on_one_rank(out: Path) -> None:
    world, ended = detect("cpu"), []
    for strikes in (False, True):
        net, precision = Short(), Precision("float32")
        optimizer = adamw(net)
        list(steps(net, optimizer, precision, stop=3, world=world))
        net.short = strikes and world.rank == 1
        if strikes:
            with pytest.raises(OutOfMemory) as error:
                list(steps(net, optimizer, precision, start=3, stop=5, world=world))
            assert (error.value.update, error.value.tokens, error.value.longest) == (4, 24, 6)
        list(steps(net, optimizer, precision, start=3, stop=5, micro=2, world=world))
        ended.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
    assert torch.equal(*ended)
    (out / str(world.rank)).touch()
    world.close()


def test_memory_that_runs_out_on_one_rank_sends_all_back_together(tmp_path: Path) -> None:
    ranks(2, out_of_memory_on_one_rank, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("error", "left"), [(None, False), (GeneratorExit(), False), (ValueError("bug"), True)])
def test_a_generator_that_is_closed_is_no_failure_of_the_rank(error: BaseException | None, left: bool) -> None:
    watch = mock.Mock()
    group = Group(0, 2, detector=watch)
    with mock.patch.object(Group, "close") as close:
        group.__exit__(type(error) if error else None, error, None)
    assert close.called
    assert watch.leave.called == left


def test_a_world_of_one_answers_the_same_questions() -> None:
    world = World()
    tensor = torch.tensor([1.5])
    world.broadcast([tensor])
    world.close()
    assert world.sum(tensor).tolist() == [1.5]
    assert world.broadcast_text("a") == "a"
    assert world.largest(3) == 3
    assert world.is_first


@pytest.mark.parametrize(
    ("device", "message"), [("gpu", "unknown"), ("cuda:99", "needs GPU 99"), ("meta", "not supported")]
)
def test_a_device_that_is_not_there_is_a_usage_error(device: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        detect(device)
