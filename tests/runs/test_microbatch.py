"""How many tokens are computed at once: what is found, what is kept, and what happens when it was too many."""

import json
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import last_line
from forked import Forked
from tiny import free_port

from lambert.core.batch import Batch, Ints, Target, flat_batch
from lambert.core.errors import DataError, MachineError
from lambert.core.world import World
from lambert.data.stream import balance, even_bounds
from lambert.engine.loop import OutOfMemory
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.planning.memory import bytes_per_token, bytes_per_weight, weight_count
from lambert.planning.micro_batches import LEAST, divide_update
from lambert.runs import microbatch, updates
from lambert.runs.microbatch import MicrobatchSize, Sample, check_model
from lambert.wings.plan.costs.devices import Cluster, Device
from lambert.wings.plan.costs.steps import find_micro_tokens
from lambert.wings.plan.costs.work import Workload, shapes_of

Lambert = Callable[..., Any]
MB = 10**6


class Words:
    """Sequences of 20 tokens and, at every tenth place, of 60; a quarter of the tokens is predicted."""

    def __init__(self, size: int = 1000) -> None:
        self._size = size

    def size(self, epoch: int) -> int:
        return self._size

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        return np.where(indices_S % 10 == 0, 60, 20)

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        lengths_S = self.lengths(epochs_S, indices_S)
        ids_T = np.zeros(lengths_S.sum(), dtype=np.int64)
        at_N = torch.arange(0, len(ids_T), 4)
        return flat_batch(ids_T, ids_T, lengths_S, {"mlm": Target(at_N, torch.zeros_like(at_N))})


@dataclass(frozen=True, slots=True)
class Beside(World):
    """One of two ranks; the other's answer is given."""

    other: int = 0

    def largest(self, number: int) -> int:
        return max(number, self.other)


CONFIG = EncoderConfig(vocabulary=500)
EACH = bytes_per_token(CONFIG, torch.float32, torch.device("cpu"), longest=60, predicted=0.25)


@pytest.fixture(scope="module")
def model() -> Model:
    return weights.draw(CONFIG, {"mlm": 0})


@pytest.fixture
def find(model: Model, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def found(of: MicrobatchSize, free: int, world: World | None = None, batch_size: int = 1000) -> str:
        monkeypatch.setattr(microbatch, "free_memory", lambda device: free)
        optimizer = torch.optim.SGD(model.parameters())
        return of.find(Words(), model, optimizer, torch.float32, batch_size, world or World())

    return found


def room_for(model: Model, tokens: float) -> int:
    """Free memory in which `tokens` fit beside gradients, moments, and a copy of weights and moments to be saved."""
    held = (bytes_per_weight(torch.float32) + 12) * sum(parameter.numel() for parameter in model.parameters())
    return round(tokens * EACH) + held + 1


# --- what is found ---


def test_what_the_data_says() -> None:
    assert Sample.of(Words()) == Sample(60, 24.0, 0.25)
    assert Sample.of(Words(10**9)).mean == pytest.approx(24, rel=0.05)
    with pytest.raises(DataError, match="no sequence"):
        Sample.of(Words(0))


@pytest.mark.parametrize(("fitting", "tokens"), [(100, 64), (159, 64), (161, 128), (10**6, 2048), (0.5, 1)])
def test_it_is_a_power_of_two_below_the_memory_with_a_margin(
    fitting: float, tokens: int, model: Model, find: Callable[..., str]
) -> None:
    of = MicrobatchSize()
    assert f"up to {tokens:,} tokens" in find(of, room_for(model, fitting))
    assert of.tokens == tokens


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_the_exchange_holds_back_and_the_copy_that_is_saved_take_room(
    device: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def room(world: World, residuals_per_weight: int) -> int:
        monkeypatch.setattr(microbatch, "free_memory", lambda device: 10**9)
        return microbatch._room(model, torch.optim.SGD(model.parameters()), torch.float32, world, residuals_per_weight)

    weights = sum(parameter.numel() for parameter in model.parameters())
    first, second = (World(rank=rank, device=torch.device(device)) for rank in (0, 1))
    on_host = device == "cpu"
    assert room(second, 0) - room(second, 1) == 4 * weights
    assert room(first, 0) - room(first, 1) == (8 if on_host else 4) * weights
    assert room(second, 0) - room(first, 0) == (12 if on_host else 0) * weights


@pytest.mark.parametrize("devices", [1, 2])
def test_the_planner_expects_what_a_run_finds(devices: int, model: Model, find: Callable[..., str]) -> None:
    """On a machine whose processes share the memory, of which the first has the copy of a checkpoint."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    for tokens in (100, 159, 161, 321):
        free = devices * (room_for(model, tokens) - 12 * weights) + 12 * weights
        world = World() if devices == 1 else Beside(size=devices, other=-(10**6))
        of = MicrobatchSize()
        find(of, free, world, batch_size=10**6)
        memory = free / devices + 4 * weights
        device = Device("CPU", {"float32": 1e12}, 1e10, memory, 0.0, "", "cpu", measured=True)
        work = Workload(CONFIG, [20] * 9 + [60], 10**6, {"mlm": 6.0}, precision="float32")
        assert find_micro_tokens(work, Cluster(device, devices), shapes_of(CONFIG, work.targets, {})) == of.tokens


def test_moments_that_are_there_are_not_counted_again(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    for _ in range(2):
        of, there = MicrobatchSize(), sum(t.nbytes for slots in optimizer.state.values() for t in slots.values())
        free = room_for(model, 200) - there
        monkeypatch.setattr(microbatch, "free_memory", lambda device, free=free: free)
        of.find(Words(), model, optimizer, torch.float32, 1000, World())
        found.append(of.tokens)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    model.zero_grad()
    assert found == [128, 128]


def test_the_recipes_word_counts(find: Callable[..., str]) -> None:
    of = MicrobatchSize(300)
    assert find(of, 1) == ""
    assert of.tokens == 300


def test_ranks_take_the_least_and_share_the_machine(
    model: Model, find: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = MicrobatchSize()
    find(of, 2 * room_for(model, 1000), Beside(size=2, other=-161))
    assert of.tokens == 128
    find(of := MicrobatchSize(), 2 * room_for(model, 161), Beside(size=2, other=-1000))
    assert of.tokens == 128
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    find(of := MicrobatchSize(), room_for(model, 161), Beside(size=2, other=-1000))
    assert of.tokens == 128


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("longest", [128, 512])
def test_ranks_get_equal_shares_whatever_their_number(ranks: int, longest: int) -> None:
    """Work of the rank with the most of it, as a multiple of an equal share, over a hundred updates."""
    micro_tokens, shares = divide_update(2048, 1024, 256 * longest / 2, longest, ranks), []
    for lengths_S in np.random.default_rng(1).integers(10, longest + 1, (100, 256)):
        cuts = [(n, low, high) for n, (low, high) in enumerate(even_bounds(lengths_S, micro_tokens))]
        assert max(lengths_S[low:high].sum() for _, low, high in cuts) <= micro_tokens
        work = [sum(lengths_S[low:high].sum() for _, low, high in own) for own in balance(cuts, lengths_S, ranks)]
        shares.append(max(work) * ranks / lengths_S.sum())
    assert float(np.mean(shares)) < 1.06


@pytest.mark.parametrize(
    ("update", "ranks", "tokens"),
    [
        (100_000, 2, 2048), (6000, 2, 1564), (3000, 2, 1024), (500, 2, 314),
        (6000, 4, 1564), (3000, 4, 814), (6000, 8, 814), (100_000, 8, 2048),
    ],
)  # fmt: skip
def test_small_updates_are_cut_up_for_ranks_but_no_further(update: int, ranks: int, tokens: int) -> None:
    assert divide_update(2048, 1024, update, 128, ranks) == tokens


def test_no_rank_of_a_shipped_recipe_waits_without_a_micro_batch() -> None:
    """256 sequences of 128 tokens on eight GPUs (recipes/bert-base-128.toml)."""
    lengths_S = np.full(256, 115)
    tokens = divide_update(65_536, LEAST["cuda"], lengths_S.sum(), 128, 8)
    cuts = [(n, low, high) for n, (low, high) in enumerate(even_bounds(lengths_S, tokens))]
    assert {len(own) for own in balance(cuts, lengths_S, 8)} == {1}


def test_one_rank_computes_a_small_update_at_once(model: Model, find: Callable[..., str]) -> None:
    """And a run that continues with more ranks divides it."""
    of, room = MicrobatchSize(), room_for(model, 10**6)
    find(of, room, batch_size=125)
    assert of.tokens == 2048
    again = MicrobatchSize()
    again.load(of.state())
    assert find(again, room, batch_size=125) == ""
    four = Beside(size=4, other=-(10**6))
    assert "are too few for 4 ranks. They are now of up to 780" in find(again, 4 * room, four, batch_size=125)
    assert find(again, 4 * room, four, batch_size=125) == ""


def test_a_deterministic_run_does_not_ask_how_much_memory_there_is(find: Callable[..., str], model: Model) -> None:
    of = MicrobatchSize(0, deterministic=True)
    assert find(of, 1) == ""
    assert of.tokens == 2048
    with pytest.raises(OutOfMemory):
        of.lower(OutOfMemory("no memory", 3, 2048, 60))


# --- what is kept ---


def test_a_continued_run_keeps_what_it_had(model: Model, find: Callable[..., str]) -> None:
    of = MicrobatchSize()
    find(of, room_for(model, 200))
    assert of.state() == {"setting": 0, "tokens": 128}
    again = MicrobatchSize()
    again.load(of.state())
    assert find(again, room_for(model, 10**6)) == ""
    assert find(again, room_for(model, 129)) == ""  # no margin: it is known to work
    assert again.tokens == 128
    said = find(again, room_for(model, 127))
    assert again.tokens == 64
    assert "up to 128 tokens, as before in this run, do not fit any more" in said
    assert "other masks" in said


@pytest.mark.parametrize(("setting", "tokens"), [(0, 50), (100, 50), (200, 200)])
def test_a_lowered_one_stays_unless_the_recipe_says_something_else(setting: int, tokens: int) -> None:
    of = MicrobatchSize(100)
    of.lower(OutOfMemory("", 3, 100, 20))
    again = MicrobatchSize(setting)
    again.load(of.state())
    assert again.tokens == tokens


# --- too many ---


def test_it_is_lowered_once_and_never_below_a_sequence() -> None:
    error = OutOfMemory("no", 3, 90, 20)
    of = MicrobatchSize(100)
    assert "update 3: micro-batches of up to 100 tokens become 45" in of.lower(error)
    assert of.tokens == 45
    with pytest.raises(OutOfMemory):
        of.lower(error)
    with pytest.raises(OutOfMemory):
        MicrobatchSize(100).lower(OutOfMemory("no", 3, 90, 90))


def hungry(patch: pytest.MonkeyPatch, above: int, after: int, times: int = 1) -> None:
    """After update `after` the second micro-batch of more than `above` tokens finds no memory, and the fourth, ...
    What such a failure held must be free when the update is begun anew, also if another thread collects garbage."""
    done, large = 0, 0
    held: list[weakref.ref[torch.Tensor]] = []
    train, forward = updates.train, Model.forward

    def counted(*arguments: Any, **settings: Any) -> Iterator[Any]:
        nonlocal done
        for step in train(*arguments, **settings):
            done = step.index
            yield step

    def limited(self: Model, batch: Batch) -> torch.Tensor:
        nonlocal large
        assert not any(reference() is not None for reference in held)
        if done >= after and batch.tokens > above:
            large += 1
            if large % 2 == 0 and large <= 2 * times:
                activations = torch.empty(8)
                held.append(weakref.ref(activations))
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
        return forward(self, batch)

    patch.setattr(updates, "train", counted)
    patch.setattr(updates, "release", lambda device: None)
    patch.setattr(Model, "forward", limited)


@pytest.fixture
def same(corpus: Path, small: dict[str, object]) -> dict[str, object]:
    return {"corpus": corpus, **small, "train__steps": 8, "train__save_every": 2, "train__keep_checkpoints": 9}


def trained(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def lowered(text: str) -> int:
    found = re.search(r"out of memory in update (\d+): micro-batches of up to \S+ tokens become (\d+),", text)
    assert found is not None, text
    return int(found[2])


def undone(run: Path, other: Path, after: int) -> Path:
    """A copy of a run as if it had been killed after that update."""
    shutil.copytree(run, other)
    shutil.rmtree(other / "model")
    for folder in (other / "checkpoints").iterdir():
        if int(folder.name[-6:]) > after:
            shutil.rmtree(folder)
    return other


def test_out_of_memory_lowers_it_once_and_the_update_is_begun_anew(
    same: dict[str, object], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    same["train__micro_tokens"] = 200
    assert lambert("pretrain", out=tmp_path / "calm", **same).code == 0
    with monkeypatch.context() as patch:
        hungry(patch, above=120, after=4)
        struck = lambert("pretrain", out=tmp_path / "struck", **same)
    assert struck.code == 0, struck.err
    smaller = lowered(struck.err)
    assert lowered((tmp_path / "struck" / "log.txt").read_text()) == smaller < 120
    assert "in update 5:" in struck.err
    # With the smaller setting from update 5 on: the same weights, dropout included, and not those of the calm run.
    reference = undone(tmp_path / "calm", tmp_path / "reference", 4)
    assert lambert("pretrain", out=reference, **{**same, "train__micro_tokens": smaller}).code == 0
    assert trained(tmp_path / "struck") == trained(reference) != trained(tmp_path / "calm")
    # Continued with the recipe as it is, the run keeps the smaller one.
    again = undone(tmp_path / "struck", tmp_path / "again", 6)
    assert lambert("pretrain", out=again, **same).code == 0
    assert json.loads((again / "environment.json").read_text())["micro_tokens"] == smaller
    assert trained(again) == trained(reference)


def test_a_second_time_ends_the_run(
    same: dict[str, object], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    hungry(monkeypatch, above=0, after=4, times=2)
    struck = lambert("pretrain", out=tmp_path / "run", **same, train__micro_tokens=200)
    assert struck.err.count("out of memory in update 5") == 1
    last_line(struck, 4, "lambert: Out of memory on cpu in update 5, with micro-batches of up")


def test_found_recorded_and_kept_to_the_bit(
    same: dict[str, object], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"micro-batches of up to ([\d,]+) tokens \("
    free = 80 * MB
    monkeypatch.setattr(microbatch, "free_memory", lambda device: free)
    monkeypatch.setattr(microbatch, "bytes_per_token", lambda *arguments, **settings: MB)
    done = lambert("pretrain", out=tmp_path / "run", **same)
    assert done.code == 0, done.err
    (found,) = map(int, re.findall(said, done.err))
    assert found == 32  # 79 are free: four fifths, and a power of two
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["micro_tokens"] == found
    given = lambert("pretrain", out=tmp_path / "given", **same, train__micro_tokens=found)
    assert not re.findall(said, given.err)
    assert trained(tmp_path / "given") == trained(tmp_path / "run")
    free = 10**12
    again = lambert("pretrain", out=undone(tmp_path / "run", tmp_path / "again", 4), **same)
    assert not re.findall(said, again.err)
    assert trained(tmp_path / "again") == trained(tmp_path / "run")
    other = lambert("pretrain", out=tmp_path / "other", **same)
    assert re.findall(said, other.err) == ["2,048"]
    free = 20 * MB
    short = lambert("pretrain", out=undone(tmp_path / "run", tmp_path / "short", 4), **same)
    assert f"up to {found} tokens, as before in this run, do not fit any more" in short.err
    assert json.loads((tmp_path / "short" / "environment.json").read_text())["micro_tokens"] < found


def limited(most: int) -> None:
    """On the second rank, models have memory for `most` tokens."""
    forward = Model.forward

    def forward_limited(self: Model, batch: Any) -> Any:
        if os.environ["RANK"] == "1" and batch.tokens > most:
            raise MemoryError
        return forward(self, batch)

    Model.forward = forward_limited  # type: ignore[method-assign]


def ranked(port: int, most: int, **settings: object) -> list[str]:
    """What two ranks printed of a pre-training in which the second has memory for `most` tokens."""
    flags = [f"--{name.replace('__', '.')}={value}" for name, value in settings.items()]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        Forked("pretrain", *flags, variables={**common, "RANK": str(rank)}, prepare=limited, arguments=(most,))
        for rank in range(2)
    ]
    called = [process.called() for process in processes]
    assert [each.code for each in called] == [0, 0], called
    return [each.err for each in called]


@pytest.mark.slow
def test_one_rank_out_of_memory_lowers_it_on_all(same: dict[str, object], tmp_path: Path) -> None:
    same |= {"train__device": "cpu", "train__steps": 4}
    first, second = ranked(free_port(), 120, out=tmp_path / "struck", **same, train__micro_tokens=200)
    assert "become" not in second  # one rank speaks for all
    smaller = lowered(first)
    ranked(free_port(), 10**6, out=tmp_path / "reference", **same, train__micro_tokens=smaller)
    assert trained(tmp_path / "struck") == trained(tmp_path / "reference")
    first, _ = ranked(free_port(), 10**6, out=tmp_path / "found", **same)
    assert "have no work" not in first


def test_a_model_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, gradients and two moments of 4 bytes each; of four ranks with shared moments, half a weight of these."""
    config = EncoderConfig(layers=2, hidden=64, heads=4, intermediate=128, vocabulary=1000)
    weights = weight_count(config)
    monkeypatch.setattr(microbatch, "free_memory", lambda device: 16 * weights)
    check_model(config, "lamb", World(), shard_optimizer=False)
    monkeypatch.setattr(microbatch, "free_memory", lambda device: 16 * weights - 1)
    with pytest.raises(MachineError, match=rf"The model has {weights:,} weights: .* GB of memory are free"):
        check_model(config, "lamb", World(), shard_optimizer=False)
    check_model(config, "package.module:optimizer", World(), shard_optimizer=False)


def test_such_a_model_is_exit_code_4(corpus: Path, tmp_path: Path, lambert: Callable[..., Any]) -> None:
    sizes = {"model__hidden": 2**20, "model__heads": 1, "model__layers": 1000, "model__intermediate": 2**22}
    done = lambert("pretrain", corpus=corpus, out=tmp_path / "run", train__device="cpu", train__steps=1, **sizes)
    assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
    assert "Lower model.layers (1,000), model.hidden (1,048,576)" in done.err
    assert not (tmp_path / "run" / "checkpoints").exists()
