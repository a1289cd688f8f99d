"""Every kind of work through the command line, alone and beside its peers, on sizes that take no time."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import one_line
from sides import SideHere

from lambert.core.errors import UsageError
from lambert.core.shards import Split
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.masking import count_masked
from lambert.data.source import CorpusSource
from lambert.measure import ceilings
from lambert.measure.batches import with_gradients
from lambert.measure.ceilings import Ceilings
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.wings.bench import environments
from lambert.wings.bench import verb as bench
from lambert.wings.bench.verb import BenchConfig

Lambert = Callable[..., Any]
SIDE = {
    "sequences_per_second", "share_of_ceiling", "share_of_shaped_ceiling", "build_seconds", "compile_seconds", "check",
    "seconds", "memory_mb", "environment", "environments_tried",
}  # fmt: skip
WHOLE = {
    "settings", "unit", "sequences", "gflop", "threads", "torch", "machine", "device", "ceiling_gflops",
    "shaped_ceiling_gflops", "copy_gb_per_second", "sides",
}  # fmt: skip
TINY = {"size": "tiny", "rounds": 2, "sequences": 2, "length": 24}
WIDTH = 100


@pytest.fixture(autouse=True)
def sides_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every side is in a process of its own: here they are in this one. Peers have one environment."""
    monkeypatch.setattr(bench, "SideProcess", SideHere)
    monkeypatch.setattr(environments, "candidates", lambda device: [{}])
    monkeypatch.setattr(ceilings, "product_ceiling", lambda *_, **__: 1e10)  # half a second each
    monkeypatch.setattr(ceilings, "SUSTAINED", 0.01)
    monkeypatch.setattr(ceilings, "COPIED", 2**20)


def measure(lambert: Lambert, *peers: str, unit: str = "tokens", more: tuple[str, ...] = (), **settings: Any) -> Any:
    """The one JSON object of a run, its form checked."""
    done = lambert("bench", "--json", peer=",".join(peers), **settings)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert set(found) == WHOLE | {unit, f"padded_{unit}"}
    assert list(found["sides"]) == ["lambert", *peers]
    side = SIDE | {f"{unit}_per_second", f"padded_{unit}_per_second", *more}
    for name, figures in found["sides"].items():
        assert set(figures) == (side if name == "lambert" else side | {"ratio", "ratio_range"})
        assert len(figures["seconds"]) == found["settings"]["rounds"]
        assert figures["memory_mb"] > 50
        assert figures[f"{unit}_per_second"] > 0
    for peer in peers:
        low, high = found["sides"][peer]["ratio_range"]
        assert low <= found["sides"][peer]["ratio"] <= high
    return found


def test_pretraining_alone(lambert: Lambert) -> None:
    found = measure(lambert, **TINY)
    assert found["sides"]["lambert"]["check"] == pytest.approx(np.log(30522) + np.log(2), rel=0.02)
    assert found["ceiling_gflops"] == 10
    assert found["shaped_ceiling_gflops"] > 0


def test_pretraining_beside_peers(lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)  # a minute of compiling
    peers = ("transformers", "transformers-compiled")
    found = measure(lambert, *peers, **TINY, optimizer=True, precision="float32")
    assert [type(model).__name__ for model in compiled] == ["BertForPreTraining"]
    assert found["padded_tokens"] < 2 * 24  # to the longest of the batch
    # All sides have the same weights and data.
    for peer in peers:
        assert found["sides"][peer]["check"] == pytest.approx(found["sides"]["lambert"]["check"], abs=2e-3)


@pytest.mark.parametrize("padding", ["longest", "length"])
def test_finetuning(lambert: Lambert, padding: str) -> None:
    """Transformers' loss of spans also runs over the padding: the sides agree where there is none."""
    given = {**TINY, "work": "finetune", "padding": padding, "precision": "float32"}
    full = measure(lambert, "transformers", **given, lengths="full")
    assert full["padded_tokens"] == full["tokens"] == 2 * 24
    own, peer = (side["check"] for side in full["sides"].values())
    assert own == pytest.approx(np.log(24), rel=0.1)
    assert own == pytest.approx(peer, abs=2e-3)
    drawn = measure(lambert, **given, optimizer=True, dropout=0.1)
    assert (drawn["padded_tokens"] == 2 * 24) == (padding == "length")
    assert drawn["settings"]["lengths"] == "squad"


def test_optimizers(lambert: Lambert) -> None:
    more = ("milliseconds", "ns_per_parameter", "gb_per_second")
    peers = ("adamw", "adamw-foreach")
    found = measure(lambert, *peers, work="optimizer", size="tiny", rounds=2, unit="parameters", more=more)
    layer = 4 * (128**2 + 128) + 2 * (128 * 512) + 512 + 128 + 4 * 128
    heads = 2 * (128**2 + 128) + 2 * 128 + 30522 + 2 * 129  # pooler, transform, its norm, the decoder's bias, nsp
    assert found["parameters"] == (30522 + 512 + 2) * 128 + 2 * 128 + 2 * layer + heads
    # The value is an entry of a layer norm's scale, 1 before: LAMB and Adam both move it by the learning rate, 1e-3.
    checks = [side["check"] for side in found["sides"].values()]
    assert checks == [checks[0]] * 3
    assert abs(checks[0] - 1) == pytest.approx(1e-3)
    for side, traffic in zip(found["sides"].values(), (40, 28, 28), strict=True):
        assert side["gb_per_second"] == pytest.approx(traffic / side["ns_per_parameter"], rel=0.01)
        assert side["ns_per_parameter"] == pytest.approx(1e6 * side["milliseconds"] / found["parameters"], rel=0.01)


@pytest.mark.parametrize("packing", ["pairs", "full"])
def test_loading_a_corpus(lambert: Lambert, corpus: Path, packing: str) -> None:
    given = {"work": "loader", "corpus": corpus, "rounds": 2, "length": 48, "packing": packing, "seed": 3}
    found = measure(lambert, "dataloader", **given, sequences=1, consumes=1000, more=("times_consumed",))
    # One sequence an update: the round is the whole epoch.
    specials = roles.specials(tokenizers.load(corpus))
    config = PackingConfig(mode=packing, sequence_length=48)  # type: ignore[arg-type]
    source = CorpusSource(Split(corpus), config, MaskingConfig(), specials, 3)
    numbers = np.arange(source.size(0))
    lengths_S = source.lengths(np.zeros_like(numbers), numbers)
    assert (found["sequences"], found["tokens"]) == (len(numbers), lengths_S.sum())
    assert found["padded_tokens"] == found["tokens"]
    own, peer = found["sides"].values()
    assert own["check"] == count_masked(MaskingConfig(), lengths_S).sum()
    assert peer["check"] == pytest.approx(own["check"], rel=0.4)  # it draws how many, Lambert takes 15%
    assert own["times_consumed"] == pytest.approx(own["tokens_per_second"] / 1000, rel=0.01)


def test_loading_random_documents(lambert: Lambert) -> None:
    found = measure(lambert, "dataloader", work="loader", rounds=1, length=64, sequences=512)
    assert found["sequences"] == 2048
    own, peer = found["sides"].values()
    assert own["check"] == pytest.approx(0.15 * found["tokens"], rel=0.05)
    assert peer["check"] == pytest.approx(own["check"], rel=0.1)
    assert found["padded_tokens"] == 2048 * 64  # the longest of 512
    words = measure(lambert, work="loader", rounds=1, length=64, sequences=512, whole_word=True)
    assert words["tokens"] == found["tokens"]


def test_tokenizers(lambert: Lambert, corpus: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # put back at the end
    given = {"work": "tokenizer", "rounds": 2, "tokenizer": corpus / "vocab.txt", "text": texts}
    found = measure(lambert, "tokenizers", **given, unit="bytes", more=("mb_per_second",))
    assert found["bytes"] == texts.stat().st_size
    tokens = len(tokenizers.load(corpus).encode(texts.read_text(), add_special_tokens=False))
    assert [side["check"] for side in found["sides"].values()] == [tokens] * 2
    for side in found["sides"].values():
        assert side["mb_per_second"] == pytest.approx(side["bytes_per_second"] / 1e6, abs=1e-3)


def test_works_and_peers_from_outside(lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from lambert.wings.bench.work import Work, sides\n"
    text += "def work(config, world): return Work(sides(config, lambda: lambda: 1.0, {}, 2.0), tokens=10)\n"
    text += "def peer(value): return lambda: value\n"
    (tmp_path / "bench_mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = measure(lambert, "bench_mine:peer", work="bench_mine:work", rounds=1)
    assert [side["check"] for side in found["sides"].values()] == [1, 2]


@pytest.mark.slow
def test_tables_fit_a_terminal(lambert: Lambert, corpus: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works: list[dict[str, Any]] = [
        {"peer": "transformers", "sequences": 64, "length": 16, "size": "tiny"},
        {"work": "optimizer", "peer": "adamw-foreach", "size": "tiny"},
        {"work": "loader", "corpus": corpus, "length": 48, "consumes": 1.0},
        {"work": "tokenizer", "tokenizer": corpus, "text": texts},
    ]
    for given in works:
        done = lambert("bench", rounds=1, **given)
        lines = done.out.splitlines()
        assert max(map(len, lines)) <= WIDTH, done.out
        assert any(line.startswith("lambert ") for line in lines)
        assert any("times " + given.get("peer", "") in line for line in lines) == ("peer" in given)
        assert ("10.0 GFLOP/s" in done.out) == ("work" not in given)
    shown = lambert("bench", **{**TINY, "lengths": "full"}).out
    assert "2 sequences of up to 24 tokens, 100% full" in shown


def test_ceilings_keep_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([3.0, 5.0, 4.0])
    monkeypatch.setattr(ceilings, "product_ceiling", lambda *_, **__: next(found))
    best = Ceilings(torch.device("cpu"), torch.float32, ((8, 16, 32),), products=True)
    rates = iter([2.0, 9.0, 4.0])
    monkeypatch.setattr(ceilings, "measure_sustained", lambda *_: next(rates))
    seen = []
    for _ in range(3):
        rates_now = best.measure()
        seen.append((rates_now.product, rates_now.shaped, rates_now.copy))
    assert [product for product, _, _ in seen] == [3, 5, 5]
    assert [shaped for _, shaped, _ in seen] == [2, 5.5, 4]
    assert 0 < seen[0][2] <= seen[1][2] <= seen[2][2]
    without = Ceilings(torch.device("cpu"), torch.float32, (), products=False).measure()
    assert (without.product, without.shaped) == (0, 0)


def test_products_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(work: Callable[[], object], device: torch.device) -> float:
        work()
        return 0.15

    monkeypatch.setattr(ceilings, "seconds_of", seconds)
    shapes = with_gradients(((8, 16, 32),))
    assert shapes == ((8, 16, 32), (8, 32, 16), (32, 8, 16))
    rate = ceilings.measure_sustained(torch.device("cpu"), torch.float32, shapes)
    assert rate == pytest.approx(3 * 2 * 8 * 16 * 32 / 0.15)
    assert ceilings.measure_sustained(torch.device("cpu"), torch.float32, ()) == 0


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"work": "pretrian"}, 2, "Did you mean 'pretrain'?"),
        ({"size": "tinny"}, 2, "Did you mean 'tiny'?"),
        ({"peer": "transformer", **TINY}, 2, "Did you mean 'transformers'?"),
        ({"peer": "transformers,adam", **TINY}, 2, "peer = 'adam' is unknown"),
        ({"work": "optimizer", "peer": "adanw", "size": "tiny"}, 2, "Did you mean 'adamw'?"),
        ({"work": "loader", "peer": "dataloader", "whole_word": True}, 2, "drop --whole-word"),
        ({"work": "loader", "corpus": "nowhere"}, 3, "No prepared corpus at nowhere"),
        ({"work": "tokenizer"}, 2, "needs --tokenizer"),
        ({"work": "tokenizer", "tokenizer": "vocab.txt", "text": "nowhere.txt"}, 3, "nowhere.txt"),
        ({"lengths": "squat"}, 2, "Did you mean 'squad'?"),
        ({"device": "gpu"}, 2, "device"),
        ({"rounds": 0}, 2, "rounds = 0 must be at least 1"),
        ({"sequences": -1}, 2, "sequences = -1 must be at least 0"),
        ({"length": 8}, 2, "length of at least 16"),
        ({"dropout": 1}, 2, "dropout"),
        ({"consumes": -1}, 2, "consumes"),
        ({"padding": "shortest"}, 2, "padding"),
        ({"work": "run"}, 2, "make one by `lambert prepare"),
        ({"work": "run", "corpus": "nowhere"}, 3, "No prepared corpus at nowhere"),
        ({"work": "run", "corpus": "nowhere", "peer": "transformers-export"}, 2, "mean 'transformers-expert'?"),
        ({"work": "run", "corpus": "nowhere", "precision": "float16"}, 2, "take bfloat16 or float32"),
        ({"work": "run", "corpus": "nowhere", "profile": "trace.json"}, 2, "profile is not for the work run"),
        ({"work": "run", "corpus": "nowhere", "updates": 1}, 2, "updates = 1 must be at least 2"),
    ],
)
def test_what_cannot_be_measured(lambert: Lambert, settings: dict[str, Any], code: int, said: str) -> None:
    done = lambert("bench", **settings)
    assert done.out == ""
    one_line(done, code, said)


def test_a_missing_peer_says_what_to_install(lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for given in (TINY, {"work": "run", "corpus": "nowhere"}):
        done = lambert("bench", **given, peer="transformers")
        one_line(done, 2, "pip install 'lambert-bert[hf]'")


def test_compiling_needs_a_compiler(lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    done = lambert("bench", **TINY, peer="transformers-compiled")
    assert done.code == 4
    assert "needs a C++ compiler" in done.err


@pytest.mark.parametrize("setting", ["padding", "packing", "precision"])
def test_settings_are_checked_without_the_command_line(setting: str) -> None:
    with pytest.raises(UsageError, match=f"{setting} = 'no' is unknown"):
        BenchConfig(**{setting: "no"})


@pytest.mark.parametrize("setting", [{"optimizer": True}, {"compile": True}, {"accumulate": 2}])
def test_settings_of_training_are_refused_elsewhere(setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is for the works pretrain and finetune, not for inference"):
        BenchConfig(work="inference", **setting)


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder: name a file"):
        BenchConfig(profile=tmp_path)
