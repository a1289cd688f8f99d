"""A table reads and writes config.json: what it holds, what a missing key means, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lambert.core.errors import DataError
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.config_keys import COMMON, ConfigKeys, rotary_base
from lambert.model.families import FAMILIES

PATH = Path("folder/config.json")
KEYS = ConfigKeys(
    fields={
        **COMMON, "activation": "act", "dropout": "drop", "modern.pooling": "pooling", "modern.mlp_bias": "bias",
        "modern.window": "window",
    },
    defaults={"init_range": 0.02, "pad": 3, "activation": "gelu", "dropout": 0.5, "modern.mlp_bias": True,
              "modern.pooling": "cls", "modern.window": 8},
    values={"modern.pooling": {"average": "mean", "mean": "mean", "first": "cls"}},
    constants={"segment_types": 0},
    fixed={"direction": "both"},
    written={"version": 2},
    older={"n_layer": "num_hidden_layers"},
    read=lambda found, settings, path: {"modern.window": found["modern.window"] // 2},
    write=lambda config: {"window": 2 * config.modern.window},
)  # fmt: skip
SIZES = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 90,
    "max_position_embeddings": 40,
}  # fmt: skip
CONFIG = EncoderConfig(
    layers=3, hidden=32, heads=4, intermediate=48, vocabulary=90, positions=40, segment_types=0, pad=3, dropout=0.5,
    modern=ModernConfig(pooling="cls", mlp_bias=True, window=4),
)  # fmt: skip


def test_missing_keys_mean_the_defaults() -> None:
    assert KEYS.from_json(SIZES, PATH) == CONFIG
    assert KEYS.from_json({**SIZES, "pad_token_id": None}, PATH) == CONFIG


def test_what_is_written_is_read() -> None:
    written = KEYS.to_json(dataclasses.replace(CONFIG, activation="gelu_tanh", pad=7))
    assert written == {
        **SIZES, "act": "gelu_new", "drop": 0.5, "pooling": "first", "bias": True, "window": 8, "version": 2,
        "initializer_range": 0.02, "pad_token_id": 7,
    }  # fmt: skip
    assert KEYS.from_json(written, PATH) == dataclasses.replace(CONFIG, activation="gelu_tanh", pad=7)
    assert KEYS.to_json(dataclasses.replace(CONFIG, modern=ModernConfig(pooling="mean")))["pooling"] == "average"


def test_a_whole_number_may_stand_for_a_fraction() -> None:
    found = KEYS.from_json({**SIZES, "drop": 0}, PATH)
    assert (found.dropout, type(found.dropout)) == (0.0, float)


def test_keys_of_older_files() -> None:
    older = {"n_layer" if key == "num_hidden_layers" else key: value for key, value in SIZES.items()}
    assert KEYS.from_json(older, PATH) == CONFIG
    assert KEYS.from_json({**SIZES, "n_layer": 9}, PATH) == CONFIG


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", "32", r"has hidden_size = '32'; it must be a whole number from 1 to 2147483647\.$"),
        ("hidden_size", 32.0, "whole number from 1"),
        ("hidden_size", True, "hidden_size = True; it must be a whole number"),
        ("hidden_size", None, "hidden_size = None; it must be"),
        ("vocab_size", 2**31, "from 1 to 2147483647"),
        ("num_hidden_layers", 0, "from 1 to"),
        ("pad_token_id", -1, r"it must be a whole number from 0 to 2147483647\."),
        ("pad_token_id", 90, r"has pad_token_id = 90, beyond its table of 90 words \(vocab_size\)"),
        ("drop", 1.5, r"has drop = 1\.5; it must be a number from 0 to 1\.$"),
        ("drop", float("nan"), "drop = nan; it must be a number from 0 to 1"),
        ("drop", None, "drop = None"),
        ("bias", 1, "has bias = 1; it must be true or false"),
        ("act", "relu", r"has act = 'relu'; supported: gelu, gelu_new, gelu_pytorch_tanh\."),
        ("act", ["gelu"], r"act = \['gelu'\]; supported"),
        ("pooling", {}, r"pooling = {}; supported: average, mean, first\."),
        ("direction", "left", r"has direction = 'left'; only 'both' is supported\."),
    ],
)
def test_other_values_are_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"^folder/config\.json has .*{message.removeprefix('has ')}"):
        KEYS.from_json({**SIZES, key: value}, PATH)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(DataError, match=r"^folder/config\.json lacks vocab_size, "):
        KEYS.from_json({key: value for key, value in SIZES.items() if key != "vocab_size"}, PATH)


def test_the_tables_of_the_families_name_fields() -> None:
    encoder = {one.name for one in dataclasses.fields(EncoderConfig)}
    known = encoder | {f"modern.{one.name}" for one in dataclasses.fields(ModernConfig)}
    for family in FAMILIES.values():
        keys = family.keys
        assert {*keys.fields, *keys.defaults, *keys.values, *keys.constants} <= known
        assert not keys.fields.keys() & keys.constants.keys()
        assert keys.values.keys() <= keys.fields.keys()


@pytest.mark.parametrize(
    ("settings", "rotary", "found"),
    [
        ({}, {}, 10.0), ({"base": 20}, {}, 20.0), ({}, {"rope_theta": 30.0}, 30.0), ({"base": None}, {}, 10.0),
        ({"base": 30}, {"rope_theta": 30.0, "rope_type": "default"}, 30.0),
    ],
)  # fmt: skip
def test_rotary_bases_of_both_generations(settings: Any, rotary: Any, found: float) -> None:
    assert rotary_base(settings, "base", rotary, 10.0, PATH) == found


@pytest.mark.parametrize(
    ("settings", "rotary", "message"),
    [
        ({"base": 20}, {"rope_theta": 30.0}, r"base = 20 and rope_theta = 30\.0 in rope_parameters, which contradict"),
        ({"base": 1}, {}, "base = 1; it must be a number above 1"),
        ({}, {"rope_theta": "x"}, "rope_theta = 'x'; it must be a number above 1"),
        ({}, {"rope_type": "yarn"}, "rope_type = 'yarn'; only 'default' is supported"),
        ({}, {"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5; only 1\.0"),
        ({"rope_scaling": {"factor": 2.0}}, {}, "rope_scaling = .*; only None is supported"),
    ],
)
def test_other_rotations_are_refused(settings: Any, rotary: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rotary_base(settings, "base", rotary, 10.0, PATH)
