"""Settings that are found by the model's width and by the data."""

import dataclasses
from typing import Any

import pytest

from lambert.core.errors import UsageError
from lambert.model.config import EncoderConfig
from lambert.runs.defaults import (
    FinetuneOptimConfig,
    FinetuneTrainConfig,
    FreshEncoderConfig,
    finetuning_lr,
)
from lambert.tasks import TaskConfig


def shape(hidden: int = 128) -> EncoderConfig:
    return EncoderConfig(hidden=hidden)


def test_what_a_recipe_names_is_kept() -> None:
    assert FreshEncoderConfig(init_range=0.1).shape(100) == EncoderConfig(vocabulary=100, init_range=0.1)
    assert TaskConfig(max_length=64).resolve_length(32).max_length == 64
    assert FinetuneOptimConfig(lr=3e-5).resolve(shape()).lr == 3e-5
    for given in ({"steps": 7}, {"epochs": 0.5}, {"steps": 7, "epochs": 2.0}):
        settings: dict[str, Any] = dict(given)
        assert FinetuneTrainConfig(**settings).resolve(1000) == FinetuneTrainConfig(**settings)


MODERN = {"dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5}


def test_what_is_not_given_is_as_in_the_family() -> None:
    assert FreshEncoderConfig(block="roberta").shape(100, 1) == EncoderConfig(
        block="roberta", vocabulary=100, pad=1, segment_types=1, position_offset=2
    )
    shape = FreshEncoderConfig(block="modernbert").shape(100)
    assert {name: getattr(shape, name) for name in MODERN} == MODERN
    given = FreshEncoderConfig(block="modernbert", dropout=0.1, norm_eps=1e-12).shape(100)
    assert (given.dropout, given.attention_dropout, given.norm_eps) == (0.1, 0.0, 1e-12)
    resolved = FreshEncoderConfig(block="modernbert", dropout=0.2).resolve(shape)
    assert {name: getattr(resolved, name) for name in MODERN} == {**MODERN, "dropout": 0.2}
    assert resolved.shape(100) == dataclasses.replace(shape, dropout=0.2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pad": 3}, "model.pad = 3, but a fresh BERT for this tokenizer has 1: leave it out"),
        ({"vocabulary": 99}, "model.vocabulary = 99, but a fresh BERT for this tokenizer has 100"),
        ({"block": "roberta", "position_offset": 4}, "model.position_offset = 4, but a fresh RoBERTa .* has 2"),
        ({"block": "roberta", "segment_types": 3}, "model.segment_types = 3, but a fresh RoBERTa .* has 1"),
        ({"block": "distilbert", "norm_eps": 1e-5}, "model.norm_eps = 1e-05, but a fresh DistilBERT .* has 1e-12"),
        ({"block": "modernbert", "segment_types": 1}, "model.segment_types = 1, but a fresh ModernBERT .* has 0"),
    ],
)  # fmt: skip
def test_what_the_family_or_the_tokenizer_determines(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FreshEncoderConfig(**given).shape(100, 1)
    assert FreshEncoderConfig(block=given.get("block", "bert"), pad=1).shape(100, 1).pad == 1


def test_the_learning_rate_falls_with_the_width() -> None:
    assert finetuning_lr(768) == 2e-5
    assert finetuning_lr(384) == pytest.approx(8e-5)
    assert finetuning_lr(128) == pytest.approx(7.2e-4)
    assert finetuning_lr(32) == 1e-3
    assert FinetuneOptimConfig().resolve(shape(384)).lr == finetuning_lr(384)


@pytest.mark.parametrize(
    ("task", "positions", "length"),
    [("classify", 512, 512), ("tag", 64, 64), ("squad", 512, 384), ("classify", 2048, 512)],
)
def test_the_length_is_the_models(task: str, positions: int, length: int) -> None:
    assert TaskConfig(name=task).resolve_length(positions).max_length == length


@pytest.mark.parametrize(("sequences", "steps"), [(48, 300), (3200, 300), (3201, 301), (32_000, 3000)])
def test_three_epochs_and_at_least_three_hundred_updates(sequences: int, steps: int) -> None:
    assert FinetuneTrainConfig().resolve(sequences).steps == steps


def test_resolved_settings_stay_as_they_are() -> None:
    task, optim = TaskConfig().resolve_length(), FinetuneOptimConfig().resolve(shape())
    train = FinetuneTrainConfig().resolve(100)
    assert (task.resolve_length(768), optim.resolve(shape(768)), train.resolve(10**6)) == (task, optim, train)


def test_warmup_steps_take_the_place_of_the_share() -> None:
    assert FinetuneOptimConfig(warmup_steps=5).warmup_ratio == 0.1


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (TaskConfig, {"max_length": 4}), (FinetuneTrainConfig, {"batch_size": 0}),
        (FinetuneOptimConfig, {"lr": -1.0}), (FinetuneOptimConfig, {"warmup_ratio": 1.0}),
        (FreshEncoderConfig, {"heads": 3}), (FreshEncoderConfig, {"init_range": -0.1}),
    ],
)  # fmt: skip
def test_settings_out_of_range(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        kind(**wrong)


def test_an_end_above_the_learning_rate_is_refused_once_it_is_known() -> None:
    config = FinetuneOptimConfig(end_lr=1e-4)
    assert dataclasses.replace(config, lr=1e-3).resolve(shape()).end_lr == 1e-4
    with pytest.raises(UsageError, match="end_lr"):
        config.resolve(shape(768))
