"""Every recipe is a complete run that the command line takes, says where its values come from, and means what the
publication means by them."""

import dataclasses
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lambert.commands import parse
from lambert.optim.schedule import schedule
from lambert.runs.expect import expectation
from lambert.verb import all_verbs, settings_of
from lambert.verbs import demo

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
PUBLISHED = sorted(RECIPES.rglob("*.toml"))
ALL = [*PUBLISHED, *sorted((demo.PACKAGE / demo.RECIPES).glob("*.toml"))]
SOURCES = (
    "Devlin et al.", "You et al.", "Turc et al.", "google-research/bert", "NVIDIA", "determined-ai", "ours",
    "AnswerDotAI/ModernBERT", "lindvalllab",
)  # fmt: skip
VERBS = {"input": "prepare", "corpus": "pretrain", "data": "finetune"}


def parsed(path: Path) -> Any:
    """The settings that `lambert VERB path` would run with."""
    verb = next(verb for key, verb in VERBS.items() if key in tomllib.loads(path.read_text(encoding="utf-8")))
    config = parse.settings([verb, str(path)])
    assert type(config) is settings_of(all_verbs()[verb])
    return config


def unsourced(text: str) -> list[str]:
    """Lines with a value that neither a comment of their own nor a comment above them traces to a source. "the same"
    repeats the line before it."""
    wrong, header, last = [], "", ""
    for line in text.splitlines():
        if line.startswith("#"):
            header += line + "\n"
        elif re.match(r"\w+ = ", line):
            own = line.partition("  #")[2]
            if own and not own.strip().startswith("the same"):
                last = own
            named = re.search(r"(?i)source of every value", header) and any(source in header for source in SOURCES)
            if not named and not any(source in (last if own else "") for source in SOURCES):
                wrong.append(line)
    return wrong


def test_there_are_recipes() -> None:
    assert len(PUBLISHED) >= 12
    assert len(ALL) == len(PUBLISHED) + 3


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_the_command_line_takes_it(path: Path) -> None:
    config = parsed(path)

    values = tomllib.loads(path.read_text(encoding="utf-8"))
    expect = values.pop("expect", None)
    assert expect is None or config.expect == expectation(expect, str(path))

    def same(settings: Any, values: dict[str, Any]) -> None:
        for name, value in values.items():
            found = getattr(settings, name)
            if isinstance(value, dict):
                same(found, value)
            elif isinstance(value, list):
                assert [*map(str, found)] == [*map(str, value)], name
            else:
                assert str(found) == str(value) or found == value, name

    same(config, values)
    if "train" in {field.name for field in dataclasses.fields(config)}:
        assert config.train.updates(1_000_000) > 0
        schedule(config.optim, config.train.updates(1_000_000))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_every_value_has_a_source(path: Path) -> None:
    assert unsourced(path.read_text(encoding="utf-8")) == []


def test_a_value_without_a_source_is_found() -> None:
    assert unsourced("# A recipe.\nlr = 1\n") == ["lr = 1"]
    assert unsourced("# Source of every value: hearsay.\nlr = 1  # why not\n") == ["lr = 1  # why not"]
    assert unsourced("# A recipe.\nlr = 1  # Devlin et al., 2018\neps = 2  # the same\n") == []
    assert unsourced("# A recipe.\nlr = 1  # Devlin et al., 2018\neps = 2\n") == ["eps = 2"]


def unshown(text: str) -> list[str]:
    """Methods that a recipe tolerates without naming the folder of benchmarks where it was run with them."""
    folders = re.findall(r"\bbenchmarks/[\w-]+", "".join(re.findall(r"(?m)^tolerates = .*", text)))
    shown = all((RECIPES.parent / folder).is_dir() for folder in folders) if folders else False
    return [] if shown else [*tomllib.loads(text).get("exchange", {}).get("tolerates", [])]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_what_a_recipe_tolerates_was_measured(path: Path) -> None:
    assert unshown(path.read_text(encoding="utf-8")) == []


def test_what_was_not_measured_is_found() -> None:
    line = '[exchange]\ntolerates = ["int8"]'
    assert unshown(line) == ["int8"]
    assert unshown(f"{line}  # benchmarks/hearsay") == ["int8"]
    assert unshown(f"{line}  # benchmarks/network: three seeds, to the end") == []


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_a_recipe_leaves_no_optimizer_setting_to_defaults(path: Path) -> None:
    """Defaults may move; a published run may not. Settings of other optimizers and schedules need not be there."""
    values = tomllib.loads(path.read_text(encoding="utf-8"))["optim"]
    assert {"name", "lr", "betas", "eps", "weight_decay", "max_grad_norm", "schedule"} <= set(values)
    assert {"warmup_steps", "warmup_ratio"} & set(values)


def rates(name: str, updates: Iterable[int]) -> dict[int, float]:
    """The learning rates of a recipe at these updates, counted from 1."""
    config = parsed(RECIPES / f"{name}.toml")
    rate = schedule(config.optim, config.train.steps)
    return {number: rate(number - 1) for number in updates}


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # run_pretraining.py's PolyWarmUpScheduler: number of the update, counted from 1, and its learning rate
        (
            "lamb-large-128",
            {1: 2.99865e-6, 1000: 2.99865e-3, 2000: 5.99729e-3, 2001: 5.07589e-3, 7037: 7.15199e-5, 7038: 0.0},
        ),
        ("lamb-large-512", {1: 1.99936e-5, 200: 3.99872e-3, 201: 3.73393e-3, 1562: 1.01177e-4, 1563: 0.0}),
    ],
)
def test_lamb_follows_the_published_learning_rates(name: str, published: dict[int, float]) -> None:
    assert rates(name, published) == pytest.approx(published, rel=1e-5)


def decay(done: float) -> float:
    """ModernBERT's third phase after this share of its tokens: 1 - sqrt, to a thousandth."""
    return 3e-4 * (1e-3 + (1 - 1e-3) * (1 - done**0.5))


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # AnswerDotAI/ModernBERT, the configurations of the three phases: 8e-4 and 3e-4, at the end a thousandth of it
        ("modernbert-base-1024", {2_500: 4e-4, 5_000: 8e-4, 5_001: 8e-4, 200_000: 8e-4, 374_900: 8e-4}),
        ("modernbert-base-8192", {1: 3e-4, 26_500: 3e-4, 53_000: 3e-4}),
        ("modernbert-base-decay", {1: 3e-4, 2_651: decay(0.25), 5_301: decay(0.5), 10_601: 3e-7}),
        # JHU-CLSP/ettin-encoder-vs-decoder, the encoders of 17 to 68 million parameters: 3e-3; the decay is ours
        ("modernbert-mini", {20: 1.5e-3, 40: 3e-3, 41: 3e-3, 1_000: 3e-3, 1_800: 3e-3}),
    ],
)
def test_modernbert_follows_the_published_learning_rates(name: str, published: dict[int, float]) -> None:
    assert rates(name, published) == pytest.approx(published, rel=1e-6)


def test_modernberts_phases_have_the_published_tokens() -> None:
    """AnswerDotAI/ModernBERT: 1.719 trillion, of which 3 billion in the warm-up and 50 billion in the growth of the
    batch; then 250 and 50 billion."""

    def billions(name: str, steps: str) -> float:
        config = parsed(RECIPES / f"modernbert-base-{name}.toml")
        updates = config.optim.warmup_steps if steps == "warmup_steps" else getattr(config.train, steps)
        return float(config.train.sizes.before(updates) * config.packing.sequence_length / 1e9)

    assert billions("1024", "warmup_steps") == pytest.approx(3, rel=0.02)
    assert billions("1024", "ramp_steps") == pytest.approx(50, rel=0.01)
    assert billions("1024", "steps") == pytest.approx(1_719, rel=0.001)
    assert billions("8192", "steps") == pytest.approx(250, rel=0.001)
    assert billions("decay", "steps") == pytest.approx(50, rel=0.001)


@pytest.mark.parametrize("size", ["base", "large"])
def test_the_two_stages_of_bert_are_one_schedule(size: str) -> None:
    """google-research/bert, optimization.py: 1e-4 n / 10,000 below there, then 1e-4 (1 - n / 1,000,000)."""
    first, second = (parsed(RECIPES / f"bert-{size}-{length}.toml") for length in (128, 512))
    assert first.train.steps + second.train.steps == 1_000_000
    assert (second.init, second.keep_moments) == (first.out, True)
    rates = [schedule(config.optim, config.train.steps) for config in (first, second)]
    for number in (1, 500, 9_999, 10_000, 10_001, 400_000, 900_000, 900_001, 950_000, 1_000_000):
        stage = number > first.train.steps
        rate = rates[stage](number - 1 - stage * first.train.steps)
        published = 1e-4 * (number / 10_000 if number < 10_000 else 1 - number / 1_000_000)
        assert rate == pytest.approx(published, rel=1e-9, abs=1e-18)


def test_stages_that_follow_one_another_agree_on_the_corpus_and_the_shape() -> None:
    followed, configs = 0, {path: parsed(path) for path in ALL}
    for path, config in configs.items():
        stage = "corpus" in {field.name for field in dataclasses.fields(config)} and config.init is not None
        if stage and path.name not in ("adapt.toml", "continue-modernbert.toml"):  # they begin with a model folder
            before = next(one for one in configs.values() if one.out == config.init)
            assert config.corpus == before.corpus
            if config.model is not None:  # a later phase of ModernBERT, with other angles
                angles = dataclasses.replace(before.model.modern, theta=config.model.modern.theta)
                assert config.model == dataclasses.replace(before.model, modern=angles)
            assert config.packing.sequence_length <= (config.model or before.model).positions
            followed += 1
    assert followed == 5
