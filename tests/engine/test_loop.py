from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import Share, Tiny, adamw, batch_of, schedule, steps, updates, weights
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.errors import MachineError
from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.engine.gradients import Gradients
from lambert.engine.loop import OutOfMemory, evaluate, train
from lambert.engine.precision import Precision


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def gradients_of(micro: int, dtype: torch.dtype) -> Tensor:
    """Of the first global batch, split into micro-batches of `micro` sequences; lr 0 keeps the weights."""
    net = Tiny(dropout=0).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for _ in steps(net, optimizer, Precision("float32"), stop=1, micro=micro, max_grad_norm=0):
        pass
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_any_split_into_micro_batches_gives_the_gradient_of_one_big_batch(dtype: torch.dtype, bound: float) -> None:
    whole = gradients_of(16, dtype)
    for micro in (8, 4, 2, 1, 3):
        parts = gradients_of(micro, dtype)
        assert (parts - whole).abs().max() <= bound * whole.abs().max()


def test_the_gradient_is_that_of_the_sum_of_mean_losses() -> None:
    net = Tiny(dropout=0).double()
    update = next(updates(size=16, micro=16))
    sums_K = net(update.shares[0][0][1])
    (sums_K[0] / update.counts["mlm"] + sums_K[1] / update.counts["nsp"]).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])
    assert torch.allclose(gradients_of(2, torch.float64), expected, rtol=1e-12, atol=1e-15)


def test_a_step_tells_what_the_update_did() -> None:
    net = Tiny(dropout=0)
    sums_K = net(next(updates(micro=16)).shares[0][0][1]).detach()
    counts = next(updates()).counts
    found = list(steps(net, adamw(net), Precision("float32"), stop=3))
    first = found[0]
    assert [step.index for step in found] == [1, 2, 3]
    assert [step.lr for step in found] == [schedule(0), schedule(1), schedule(2)]
    means = {"mlm": float(sums_K[0]) / counts["mlm"], "nsp": float(sums_K[1]) / counts["nsp"]}
    assert first.losses == pytest.approx(means, rel=1e-5)
    assert first.loss == pytest.approx(sum(first.losses.values()))
    assert first.tokens == 96
    assert first.sequences == 16
    assert first.seconds > 0
    assert first.grad_norm == pytest.approx(float(gradients_of(16, torch.float32).norm()), rel=1e-5)
    assert not first.skipped
    assert first.non_finite is None
    assert first.due(1)
    assert found[1].due(2)
    assert not found[2].due(2)
    assert not found[2].due(0)


def test_an_objective_without_targets_contributes_nothing() -> None:
    net = Tiny(dropout=0)
    batch = batch_of([3, 6, 9])
    assert set(batch.targets) == {"mlm"}
    before = net.nsp.weight.clone()
    update = Share([[(0, batch)]], {"mlm": 3 + 2 + 1, "nsp": 0}, [batch.tokens], 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = list(trained(net, optimizer, iter([update]), schedule=lambda _: 0.1))
    assert list(found[0].losses) == ["mlm"]
    assert torch.equal(net.nsp.weight, before)
    assert net.nsp.weight.grad is not None
    assert not net.nsp.weight.grad.any()


def trained(net: nn.Module, optimizer: Any, batches: Iterator[Share], **changed: Any) -> Any:
    settings: dict[str, Any] = {
        "schedule": schedule,
        "max_grad_norm": 1.0,
        "precision": Precision("float32"),
        "world": World(),
        "seed": 3,
        "start": 0,
        "steps": 100,
    }
    return train(net, optimizer, batches, **(settings | changed))


def test_it_ends_where_the_data_ends_and_closes_it() -> None:
    closed = []

    def two() -> Iterator[Share]:
        try:
            source = updates()
            yield next(source)
            yield next(source)
        finally:
            closed.append(True)

    net = Tiny()
    assert len(list(trained(net, adamw(net), two()))) == 2
    running = trained(net, adamw(net), two())
    next(running)
    running.close()
    assert len(closed) == 2


def test_dropout_is_a_function_of_seed_update_and_micro_batch() -> None:
    def ending(start: int, seed: int, noise: int) -> Tensor:
        torch.manual_seed(noise)
        net = Tiny(dropout=0.5)
        for _ in trained(net, torch.optim.SGD(net.parameters()), updates(0), start=start, steps=start + 1, seed=seed):
            torch.rand(noise)
        return weights(net)

    assert torch.equal(ending(4, 1, 1), ending(4, 1, 2))
    assert not torch.equal(ending(4, 1, 1), ending(5, 1, 1))
    assert not torch.equal(ending(4, 1, 1), ending(4, 2, 1))


def test_the_global_norm_is_clipped() -> None:
    def moved(clip: float) -> Tensor:
        net = Tiny(dropout=0)
        before = weights(net)
        optimizer = torch.optim.SGD(net.parameters())
        list(trained(net, optimizer, updates(), schedule=lambda _: 1.0, max_grad_norm=clip, steps=1))
        return weights(net) - before

    free = moved(0)
    assert moved(0.01).norm() == pytest.approx(0.01, rel=1e-3)
    assert torch.allclose(moved(0.01) * float(free.norm()) / 0.01, free, rtol=1e-3, atol=1e-5)
    assert torch.equal(moved(1e6), free)


def test_evaluate_means_over_targets_in_evaluation_mode() -> None:
    net = Tiny(dropout=0.5)
    net.train()
    parts = [batch_of([0, 1, 2]), batch_of([3, 4, 5, 6, 7]), batch_of([3, 6])]
    scores = evaluate(net, parts, Precision("float32"), World())
    assert net.training
    net.eval()
    whole = batch_of([0, 1, 2, 3, 4, 5, 6, 7, 3, 6])
    sums_K, hits_K = (values.detach() for values in net.score(whole))
    counts = [whole.targets[name].count for name in net.objectives]
    expected = {
        "mlm": sums_K[0] / counts[0],
        "mlm_accuracy": hits_K[0] / counts[0],
        "nsp": sums_K[1] / counts[1],
        "nsp_accuracy": hits_K[1] / counts[1],
    }
    assert scores == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5)
    assert set(evaluate(net, [batch_of([3])], Precision("float32"), World())) == {"mlm", "mlm_accuracy"}


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory: x")]
)
def test_running_out_of_memory_says_what_to_lower(error: Exception) -> None:
    class Hungry(Tiny):
        def forward(self, batch: Batch) -> Tensor:
            raise error

    net = Hungry()
    with pytest.raises(MachineError, match=r"update 1, .* 24 tokens .*micro_tokens"):
        next(trained(net, adamw(net), updates()))


class Hungry(Tiny):
    """Cannot take the second micro-batch of more than `most` tokens of an update; 0: takes all."""

    most = 0

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__(dropout)
        self.large = 0

    def forward(self, batch: Batch) -> Tensor:
        large = 0 < self.most < batch.tokens
        self.large += large
        if large and self.large == 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return super().forward(batch)


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_an_update_that_ran_out_of_memory_can_be_begun_anew(name: str) -> None:
    def ending(most: int) -> tuple[Tensor, dict[str, Any]]:
        net, precision = Hungry(), Precision(name)
        optimizer = adamw(net)
        list(steps(net, optimizer, precision, stop=3))
        before, net.most = weights(net), most
        if most:
            with pytest.raises(OutOfMemory) as error:
                list(steps(net, optimizer, precision, start=3, stop=5))
            assert (error.value.update, error.value.tokens, error.value.longest) == (4, 24, 6)
            assert torch.equal(weights(net), before)
        list(steps(net, optimizer, precision, start=3, stop=5, micro=2))
        return weights(net), precision.state()

    (calm, calmly), (struck, after) = ending(0), ending(12)
    assert torch.equal(calm, struck)
    assert calmly == after


def test_a_sequence_that_does_not_fit_alone_is_told_apart() -> None:
    net = Hungry()
    net.most, net.large = 5, 1
    with pytest.raises(OutOfMemory, match="One sequence alone does not fit") as error:
        list(steps(net, adamw(net), Precision("float32"), stop=1, micro=1))
    assert (error.value.tokens, error.value.longest) == (6, 6)


def test_memory_that_runs_out_in_the_optimizer_is_no_update_to_begin_anew() -> None:
    class Greedy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise MemoryError

    net = Tiny()
    with pytest.raises(MachineError, match=r"update 1, .* 24 tokens .*micro_tokens") as error:
        list(trained(net, Greedy(net.parameters()), updates()))
    assert not isinstance(error.value, OutOfMemory)


def test_other_errors_are_passed_on_as_they_are() -> None:
    class Broken(Tiny):
        def forward(self, batch: Batch) -> Tensor:
            raise RuntimeError("shapes")

    net = Broken()
    with pytest.raises(RuntimeError, match="shapes"):
        next(trained(net, adamw(net), updates()))


def test_a_frozen_parameter_stays() -> None:
    net = Tiny()
    net.dense.requires_grad_(False)
    before = net.dense.weight.clone()
    list(trained(net, adamw(net), updates(), steps=2))
    assert torch.equal(before, net.dense.weight)
    assert Gradients(net).names == ["pieces.weight", "decoder.bias", "nsp.weight", "nsp.bias"]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype, it says
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_on_a_gpu_the_host_waits_for_nothing_inside_an_update(name: str) -> None:
    class Straight(Tiny):
        def logits(self, batch: Batch) -> dict[str, Tensor]:
            states_TD = torch.tanh(self.dense(self.dropout(self.pieces(batch.ids_T))))
            target = batch.targets["mlm"]
            return {"mlm": self.decoder(states_TD.index_select(0, target.at_N))}

    world = detect("cuda")
    net = Straight().to(world.device)
    optimizer, precision = adamw(net, fused=True), Precision(name, world.device)
    shares = [replace(share, counts=share.counts | {"nsp": 0}) for share, _ in zip(updates(), range(8), strict=False)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = list(trained(net, optimizer, iter(shares), world=world, precision=precision))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found[-1].loss < found[0].loss
    assert all(step.seconds > 0 for step in found)


def test_all_of_a_net_is_in_training_mode_in_each_update() -> None:
    net = Tiny(dropout=0)
    found = steps(net, adamw(net), Precision("float32"), stop=2)
    modes = []
    net.nsp.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    net.nsp.eval()
    next(found)
    net.eval()
    next(found)
    assert modes
    assert all(modes)
