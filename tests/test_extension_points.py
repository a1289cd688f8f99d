"""CONTRIBUTING.md says where each kind of extension goes: the dicts are there, and one more of each kind is used."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from lambert import updates, verbs
from lambert.core.errors import UsageError
from lambert.core.world import World
from lambert.distributed.config import TRAITS, Name
from lambert.distributed.exchange.overlapped import METHODS
from lambert.engine.trackers import TRACKERS, check_trackers
from lambert.model.config import EncoderConfig
from lambert.model.families import FAMILIES, family_of
from lambert.model.heads import HEADS, Model
from lambert.optim import optimizers, schedule
from lambert.optim.config import OptimConfig
from lambert.planning.traffic import UPDATE_BYTES
from lambert.tasks.config import TASKS, TaskConfig
from lambert.verb import Verb, all_verbs, packages
from lambert.verbs.settings.training import verb_of
from lambert.verbs.sweep import search, sweep
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.works import WORKS, work_of
from lambert.wings.convert.verb import FORMATS
from lambert.wings.corpus import cleaning
from lambert.wings.corpus.filters import FILTERS
from lambert.wings.corpus.reading import readers
from lambert.wings.plan.recipe import read_run
from lambert.wings.plan.settings import PlanConfig

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/lambert"
SHAPE = {"vocabulary": 50, "hidden": 8, "heads": 2, "intermediate": 16, "layers": 1}


def named() -> Iterator[tuple[str, str]]:
    """The dicts that the table names, each with its file."""
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    for row in rows[1:]:
        places = row.rsplit("|", 2)[1]
        for names, file in re.findall(r"((?:`[A-Z]+`(?:, | and )?)+) in `([\w/]+\.py)`", places):
            yield from ((name, file) for name in re.findall(r"`([A-Z]+)`", names))


def test_the_dicts_are_where_the_table_says() -> None:
    found = list(named())
    assert len(found) >= 12
    for name, file in found:
        nodes = ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body
        targets = [one for node in nodes for one in getattr(node, "targets", [getattr(node, "target", None)])]
        assert name in [getattr(one, "id", "") for one in targets], f"{name} is not in {file}"


@pytest.mark.parametrize(
    ("setting", "table"),
    [
        ("optim.name", optimizers.OPTIMIZERS), ("optim.schedule", schedule.SCHEDULES), ("model.block", FAMILIES),
        ("task.name", TASKS), ("log.trackers", TRACKERS), ("exchange.method", METHODS), ("sampler", search.SAMPLERS),
        ("pruner", search.PRUNERS), ("format", readers.READERS), ("format", FORMATS), ("work", WORKS),
        ("clean", {**FILTERS, **cleaning.CLEANERS}),
    ],
)  # fmt: skip
def test_the_help_of_a_setting_has_every_name(setting: str, table: Any) -> None:
    """docs/settings.md has the help of all settings. Of several with this name, one must have all names."""
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| `{re.escape(setting)}` .*", page, re.MULTILINE)
    lacking = [[name for name in table if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", row)] for row in rows]
    assert min(lacking, key=len) == []


def test_the_traffic_of_every_optimizer_is_known() -> None:
    assert set(UPDATE_BYTES) == set(optimizers.OPTIMIZERS)


def test_the_traits_of_every_exchange_method_are_known() -> None:
    assert [*TRAITS] == [*METHODS] == [*get_args(Name)]
    assert all(TRAITS[name].bits == 0 or str(TRAITS[name].bits) in name for name in METHODS)


@dataclass(frozen=True, slots=True)
class MineConfig:
    """Settings of one more verb."""

    words: str = "none"
    """What it says."""


def run(config: MineConfig, say: Callable[[str], None] = print) -> None:
    say(f"mine says {config.words}")


@dataclass(frozen=True, slots=True)
class PairsConfig:
    """Settings of one more verb that trains."""

    pairs: Path
    """What it learns from."""
    out: Path = Path("out")
    """Run folder."""
    cache: Path | None = None
    """Folder of features."""


def train_on_pairs(config: PairsConfig, stop: Any = None, say: Any = None) -> Iterator[str]:
    yield f"an update on {config.pairs}"


def score_names(config: PairsConfig) -> list[str]:
    return ["rank", "rank_se"]


def prepare_trial(config: PairsConfig, sweep: Path) -> PairsConfig:
    return replace(config, cache=sweep / "features")


@pytest.fixture
def add_verb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Verb], None]]:
    """`add_verb(record)`: a verb whose places are in this module."""
    monkeypatch.setitem(sys.modules, f"lambert.{__name__}", sys.modules[__name__])

    def add(record: Verb) -> None:
        monkeypatch.setattr(verbs, "VERBS", (*verbs.VERBS, record))
        all_verbs.cache_clear()

    yield add
    all_verbs.cache_clear()


def test_a_verb(lambert: Any, add_verb: Callable[[Verb], None]) -> None:
    """One record: it is parsed, called, and listed by the help."""
    add_verb(Verb("mine", "One more verb.", f"{__name__}:run", f"{__name__}:MineConfig", takes="flags"))
    assert lambert("mine", words="aloud").out == "mine says aloud\n"
    assert "One more verb." in lambert("--help").out
    assert lambert("mine", "--wrods", "x").code == 2
    assert len(packages()) == 7


def test_a_verb_that_trains(add_verb: Callable[[Verb], None], tmp_path: Path) -> None:
    """One record: `updates` of the library, the recipes of other verbs and sweeps find it."""
    mine = Verb(
        "mine", "One more verb.", f"{__name__}:train_on_pairs", f"{__name__}:PairsConfig", order=45, data="pairs",
        updates=f"{__name__}:train_on_pairs", scores=f"{__name__}:score_names", trial=f"{__name__}:prepare_trial",
    )  # fmt: skip
    add_verb(mine)
    assert [*updates(pairs="a.csv", out=tmp_path)] == ["an update on a.csv"]
    with pytest.raises(UsageError, match="data for finetune or pairs for mine"):
        updates(out=tmp_path)
    (tmp_path / "recipe.toml").write_text('pairs = "a.csv"\nlearns = "well"\n')
    assert verb_of(tmp_path / "recipe.toml") is mine
    config: Any = PairsConfig(Path("a.csv"))
    assert sweep.score_names(config) == ["rank"]
    assert sweep.prepare_trial(config, tmp_path).cache == tmp_path / "features"
    with pytest.raises(UsageError, match="is not a recipe of pretrain or finetune, the verbs that plan predicts"):
        read_run(PlanConfig(tmp_path / "recipe.toml"))


def test_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "mine", replace(FAMILIES["bert"], title="Mine"))
    config = EncoderConfig(block="mine", **SHAPE)  # type: ignore[arg-type]
    assert family_of(config).title == "Mine"
    assert Model(config, {"label": 2}).encoder.config is config


def test_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(HEADS["label"]):  # type: ignore[name-defined, misc]
        """One more head."""

    monkeypatch.setitem(HEADS, "mine", Mine)
    assert type(Model(EncoderConfig(**SHAPE), {"mine": 2}).heads["mine"]) is Mine  # type: ignore[arg-type]


def test_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    from lambert import tasks

    monkeypatch.setitem(TASKS, "mine", TASKS["classify"])
    config = TaskConfig(name="mine")
    assert tasks.resolve(config, Path("rows.csv")).name == "mine"
    assert tasks.task_class(config).__name__ == "Classify"


def test_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(stream: Any, layout: readers.Layout) -> Iterator[readers.Piece]:
        yield readers.Piece(stream.read(1 << 20).decode().upper(), "line 1")

    monkeypatch.setitem(readers.READERS, "mine", read)
    monkeypatch.setitem(readers.SUFFIXES, ".mine", "mine")
    (tmp_path / "a.mine").write_text("loud")
    assert [piece.text for piece in readers.read(tmp_path / "a.mine", readers.Layout())] == ["LOUD"]


def test_an_optimizer_and_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(groups: Any, config: OptimConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD([one for group in groups for _, one in group["params"]], config.lr)

    monkeypatch.setitem(optimizers.OPTIMIZERS, "mine", build)
    monkeypatch.setitem(schedule.SCHEDULES, "mine", lambda progress, config: 0.5)
    config = OptimConfig(name="mine", schedule="mine", lr=1.0, end_lr=0.0)
    assert isinstance(optimizers.build(torch.nn.Linear(2, 2), config), torch.optim.SGD)
    assert schedule.schedule(config, 10)(5) == 0.5


def test_what_a_name_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaning function, a sampler, a pruner, a tracker and a kind of work."""
    monkeypatch.setitem(cleaning.CLEANERS, "mine", str.strip)
    assert cleaning.find_cleaner("mine") is str.strip
    monkeypatch.setitem(search.SAMPLERS, "mine", lambda space, seed: "sampler")
    monkeypatch.setitem(search.PRUNERS, "mine", lambda every, updates: "pruner")
    assert search.build_pruner("mine", 1, 1) == "pruner"  # type: ignore[comparison-overlap]
    assert search.build_sampler("mine", [], 0)
    monkeypatch.setitem(TRACKERS, "mine", TRACKERS["tensorboard"])
    check_trackers(["mine"])
    monkeypatch.setitem(WORKS, "mine", lambda config, world: "work")
    assert work_of(replace(BenchConfig(), work="mine"), World()) == "work"
