"""Weights in several files, values that are no numbers, and a decoder that is not the embeddings."""

import json
import os
import re
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from lambert.core.errors import DataError
from lambert.model import files, weights
from lambert.model.config import EncoderConfig
from lambert.wings.convert.original import read_extras

CONFIG = EncoderConfig(vocabulary=90, hidden=32, intermediate=48, positions=40)
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights.save(weights.draw(CONFIG, {"mlm": 0, "nsp": 0}), tmp_path / "model")
    return tmp_path / "model"


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / files.WEIGHTS)


def change(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def split(folder: Path, *, pickled: bool = False) -> dict[str, Any]:
    """Divides the weights among two files; gives the index."""
    tensors = stored(folder)
    (folder / files.WEIGHTS).unlink()
    names = sorted(tensors)
    end = "bin" if pickled else "safetensors"
    shards = {f"a.{end}": names[:9], f"b.{end}": names[9:]}
    for shard, held in shards.items():
        (torch.save if pickled else safetensors.torch.save_file)({name: tensors[name] for name in held}, folder / shard)
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (folder / (files.PICKLED_INDEX if pickled else files.INDEX)).write_text(json.dumps(index))
    return index


@pytest.mark.parametrize("pickled", [False, True])
def test_several_files_hold_what_one_does(folder: Path, pickled: bool) -> None:
    before = stored(folder)
    split(folder, pickled=pickled)
    former = files.fingerprint(folder)
    model, report = weights.load(folder)
    assert report == weights.Report((), ())
    after = weights.state(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    second = next(folder.glob("b.*"))
    second.write_bytes(second.read_bytes() + b"0")
    assert files.fingerprint(folder) != former


@pytest.mark.parametrize(
    "shard", ["../a.safetensors", "/etc/passwd", "a/b", "..", "", "a\\b", "c:a", "a\0b", 3, None, ["a.safetensors"]]
)
def test_an_index_names_files_beside_it_alone(folder: Path, shard: object) -> None:
    index = split(folder)
    index["weight_map"][WORDS] = shard
    (folder / files.INDEX).write_text(json.dumps(index))
    with pytest.raises(DataError, match=f"{files.INDEX}: the file of {WORDS} is .*a file beside it"):
        files.read(folder)


def moved(index: dict[str, Any], folder: Path) -> None:
    index["weight_map"][WORDS] = "b.safetensors" if index["weight_map"][WORDS] == "a.safetensors" else "a.safetensors"


def unlisted(index: dict[str, Any], folder: Path) -> None:
    del index["weight_map"][WORDS]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda index, folder: (folder / "b.safetensors").unlink(), "names b.safetensors, which is missing"),
        (lambda index, folder: index["weight_map"].update(more="b.safetensors"), "lacks more, which"),
        (moved, rf"lacks {WORDS}|holds {WORDS}"),
        (unlisted, rf"holds {WORDS}, which {files.INDEX} does not list"),
        (lambda index, folder: index.clear(), "has no weight_map"),
    ],
)
def test_every_tensor_is_there_once(folder: Path, spoil: Callable[[Any, Path], object], message: str) -> None:
    index = split(folder)
    spoil(index, folder)
    (folder / files.INDEX).write_text(json.dumps(index))
    with pytest.raises(DataError, match=message):
        files.read(folder)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_that_are_not_finite_are_refused_by_name(folder: Path, value: float, dtype: torch.dtype) -> None:
    tensors = stored(folder)
    tensors[WORDS] = tensors[WORDS].to(dtype)
    tensors[WORDS][3, 5] = value
    safetensors.torch.save_file(tensors, folder / files.WEIGHTS)
    with pytest.raises(DataError, match=rf"{files.WEIGHTS}: 1 of 2,880 values of {WORDS} are NaN or infinite"):
        weights.load(folder)


def test_a_sum_that_overflows_is_no_reason_to_refuse(folder: Path) -> None:
    tensors = stored(folder)
    tensors[WORDS].fill_(3e38)
    safetensors.torch.save_file(tensors, folder / files.WEIGHTS)
    assert weights.load(folder)[0].encoder.words.weight.max() == 3e38


def test_whole_numbers_are_no_weights(folder: Path) -> None:
    tensors = stored(folder)
    tensors[WORDS] = tensors[WORDS].to(torch.int8)
    safetensors.torch.save_file(tensors, folder / files.WEIGHTS)
    with pytest.raises(DataError, match=f"{WORDS} is of int8"):
        weights.load(folder)


def test_a_decoder_that_is_not_the_embeddings_is_told_or_refused(folder: Path) -> None:
    tensors, decoder = stored(folder), "cls.predictions.decoder.weight"
    for value, told in ((tensors[WORDS].clone(), ()), (tensors[WORDS] + 1, ((decoder, WORDS),))):
        safetensors.torch.save_file(tensors | {decoder: value}, folder / files.WEIGHTS)
        model, report = weights.load(folder, {})
        assert report.untied == told
        assert torch.equal(model.encoder.words.weight, tensors[WORDS])
        assert [line.split()[1] for line in report.warnings()] == [copy for copy, _ in told]
    with pytest.raises(DataError, match=f"{decoder} that differs from {WORDS}: a decoder "):
        weights.load(folder)  # with the head that predicts masked pieces


@pytest.mark.parametrize(
    "keys",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": 10**9},
        {"intermediate_size": 10**9},
        {"vocab_size": 10**9},
        {"max_position_embeddings": 10**9},
        {"type_vocab_size": 10**9},
        {"architectures": ["BertForTokenClassification"], "num_labels": 10**9},
    ],
)
def test_sizes_that_are_made_up_cost_nothing(folder: Path, keys: dict[str, object]) -> None:
    change(folder, **keys)
    began = time.process_time()
    with pytest.raises(DataError):
        weights.load(folder)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("value", "said"),
    [(Fraction(1), "it calls fractions.Fraction, which no state dict needs"), (3, "is not a state dict")],
)
def test_advice_to_load_a_pickle_without_protection_is_not_quoted(folder: Path, value: object, said: str) -> None:
    (folder / files.WEIGHTS).unlink()
    torch.save({"a": value}, folder / files.PICKLED)
    with pytest.raises(DataError, match=re.escape(said)) as caught:
        weights.load(folder)
    assert not re.search("weights_only|trust|PyTorch|\x1b", str(caught.value))


def test_a_path_that_is_not_utf8_is_named(folder: Path) -> None:
    other = folder.with_name(os.fsdecode(b"m\xff"))
    folder.rename(other)
    with pytest.raises(DataError, match="only opens files whose paths are UTF-8"):
        weights.load(other)


def test_special_tokens_beyond_the_vocabulary_are_told_and_not_copied(folder: Path) -> None:
    assert weights.load(folder)[1].warnings() == []
    change(folder, eos_token_id=90, bos_token_id=[2, -1], cls_token_id=3, mask_token_id=None)
    model, report = weights.load(folder)
    assert report.warnings() == [
        "note: config.json has eos_token_id = 90, bos_token_id = [2, -1], which are ignored: the model has 90 pieces."
    ]
    assert read_extras(folder, model.config)[0] == {"cls_token_id": 3}


def test_a_fingerprint_is_of_all_files_with_weights(folder: Path) -> None:
    found = [files.fingerprint(folder), files.fingerprint(folder)]
    split(folder)
    found.append(files.fingerprint(folder))
    with (folder / "b.safetensors").open("ab") as file:
        file.write(b"\0")
    found.append(files.fingerprint(folder))
    assert found[0] == found[1]
    assert len(set(found)) == 3
