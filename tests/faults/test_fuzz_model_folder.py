"""Model folders that somebody made: every file damaged, every value wrong. Each is used, or refused in one line with
an exit code that says whose fault it is; none is a bug of ours, and none takes more memory or time than its files.

LAMBERT_FUZZ_EXAMPLES is the number of examples of each test.
"""

import json
import os
import resource
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lambert.core.contents import SUMS

Lambert = Callable[..., Any]

EXAMPLES = int(os.environ.get("LAMBERT_FUZZ_EXAMPLES", "20"))
SECONDS, MEGABYTES = 60.0, 512
"""Far above what a refusal takes, and far below what a made-up size would."""
fuzzed = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 3, 31, 33, 64, 10**9, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.5, 1.0, 1e-40, 1e300]
) | st.sampled_from([float("nan"), float("inf"), float("-inf")])
TEXTS = st.sampled_from(["", "bert", "os:system", "gelu", "a\nb", "\0", "\ud800", "é", "x" * 500, "../x", "BertModel"])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=5
)
KEYS = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "type_vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "layer_norm_eps", "initializer_range", "hidden_act", "model_type", "architectures", "position_embedding_type",
    "is_decoder", "tie_word_embeddings", "lambert_block", "lambert", "id2label", "label2id", "num_labels",
    "problem_type", "dtype", "pad_token_id", "eos_token_id", "mask_token_id",
)  # fmt: skip
TASK_KEYS = ("name", "max_length", "labels", "top", "columns", "squad", "unheard_of")
CUTS = st.tuples(st.floats(0, 1), st.binary(max_size=8), st.booleans())
"""Where in a file, which bytes, and whether the rest of the file is gone."""


def damaged(content: bytes, cut: tuple[float, bytes, bool]) -> bytes:
    share, inserted, ends = cut
    at = int(share * len(content))
    return content[:at] + inserted + (b"" if ends else content[at + len(inserted) :])


@pytest.fixture(scope="module")
def check(pretrained: Path, tmp_path_factory: pytest.TempPathFactory, lambert: Lambert) -> Any:
    """A function that spoils a copy of a model folder and gives it to the verbs."""
    folder = tmp_path_factory.mktemp("fuzzed")

    def checked(spoil: Callable[[Path], None], *parts: str) -> None:
        model, out = folder / "model", folder / "out"
        for path in (model, out):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(pretrained / "model", model)
        (model / SUMS).unlink()  # it would refuse every change before anything is read
        spoil(model)
        for command in (
            ("predict", "--model", model),
            ("import", "--from", model, "--out", out),
        ):
            began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            called = lambert(*command, stdin='{"text": "the old [MASK]"}\n')
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            assert called.code in (0, 2, 3, 4), (command[0], called)
            assert time.process_time() - began < SECONDS, command[0]
            assert grown < MEGABYTES, (command[0], grown)
            if called.code:
                one_line(called, called.code)
                # weights beyond the range of float32, which only the outputs show
                computed = ("transformers computes other logits", "is not finite: the weights are too large")
                assert not parts or any(words in called.err for words in (*parts, *computed)), called
                assert not out.exists()
            else:
                for line in called.out.splitlines() if command[0] == "predict" else ():
                    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    return checked


def written(path: Path, values: object) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


@fuzzed
@example(changes={"num_hidden_layers": None, "id2label": [True]})
@example(changes={"max_position_embeddings": 1})
@example(changes={"pad_token_id": 160})
@example(changes={"layer_norm_eps": 0})
@example(changes={"eos_token_id": 10**6})
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
def test_settings_of_the_model(check: Any, changes: dict[str, Any]) -> None:
    def spoil(model: Path) -> None:
        written(model / "config.json", json.loads((model / "config.json").read_text()) | changes)

    check(spoil, "config.json", "model.safetensors", "vocabulary", "positions")


@fuzzed
@given(task=st.dictionaries(st.sampled_from(TASK_KEYS), VALUES, max_size=3) | VALUES)
def test_settings_of_the_task(check: Any, task: Any) -> None:
    def spoil(model: Path) -> None:
        known = {"name": "mask"} | task if isinstance(task, dict) else task
        written(model / "config.json", json.loads((model / "config.json").read_text()) | {"lambert": {"task": known}})

    check(spoil)


@pytest.mark.parametrize("depth", [100, 1_000, 100_000])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_deep_nesting(check: Any, file: str, depth: int) -> None:
    def spoil(model: Path) -> None:
        if file.endswith("index.json"):
            (model / "model.safetensors").unlink()
        (model / file).write_text('{"id2label": ' + "[" * depth + "]" * depth + "}")

    check(spoil, file)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json"])
@fuzzed
@given(cut=CUTS)
def test_damaged_files_of_text(check: Any, file: str, cut: tuple[float, bytes, bool]) -> None:
    def spoil(model: Path) -> None:
        (model / file).write_bytes(damaged((model / file).read_bytes(), cut))
        if file in ("vocab.txt", "tokenizer_config.json"):
            (model / "tokenizer.json").unlink()

    check(spoil)


@fuzzed
@given(
    part=st.sampled_from(["model", "normalizer", "added_tokens", "post_processor", "truncation"]),
    key=st.sampled_from(["", "vocab", "type", "unk_token", "max_input_chars_per_word", "lowercase"]),
    value=VALUES,
)
def test_values_of_the_tokenizer(check: Any, part: str, key: str, value: Any) -> None:
    def spoil(model: Path) -> None:
        found = json.loads((model / "tokenizer.json").read_text())
        if key and isinstance(found[part], dict):
            found[part][key] = value
        else:
            found[part] = value
        written(model / "tokenizer.json", found)

    check(spoil)


@fuzzed
@given(
    name=st.sampled_from(["bert.embeddings.word_embeddings.weight", "cls.predictions.bias", "unheard.of"]),
    entry=st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F64", "I64", "BOOL", "F16", "F8_E4M3", "X", 3]),
            "shape": st.lists(st.sampled_from([0, 1, 2, 32, 160, 2**31, 2**62, -1]), max_size=3),
            "data_offsets": st.lists(st.sampled_from([0, 4, 128, 2**40, -1]), min_size=1, max_size=3),
        }
    )
    | VALUES,
)
def test_header_of_the_weights(check: Any, name: str, entry: Any) -> None:
    def spoil(model: Path) -> None:
        path = model / "model.safetensors"
        content = path.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.dumps(json.loads(content[8 : 8 + size]) | {name: entry}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])

    check(spoil, "model.safetensors")


@fuzzed
@given(cut=CUTS)
def test_damaged_weights(check: Any, cut: tuple[float, bytes, bool]) -> None:
    def spoil(model: Path) -> None:
        path = model / "model.safetensors"
        path.write_bytes(damaged(path.read_bytes(), (cut[0] ** 8, *cut[1:])))  # the header is where most may be damaged

    check(spoil, "model.safetensors")


def as_tensor(kind: str, tensor: torch.Tensor) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "whole numbers": lambda: tensor.to(torch.int64),
        "complex": lambda: tensor.to(torch.complex64),
        "nan": lambda: torch.full_like(tensor, torch.nan),
        "infinite": lambda: torch.full_like(tensor, torch.inf),
        "huge": lambda: torch.full_like(tensor, 3e38),
        "too large": lambda: torch.full(tensor.shape, 1e300, dtype=torch.float64),
        "half": tensor.half,
        "repeated": lambda: torch.zeros(1).expand(2**20, 2**20),
        "no rows": lambda: tensor[:0],
        "scalar": lambda: torch.tensor(1.0),
        "sparse": tensor.to_sparse,
        "meta": lambda: tensor.to("meta"),
        "text": lambda: "text",
        "list": lambda: [tensor],
    }
    return made[kind]()


KINDS = ["whole numbers", "complex", "nan", "infinite", "huge", "too large", "half", "no rows", "scalar"]
PICKLED_KINDS = [*KINDS, "repeated", "sparse", "meta", "text", "list"]
PLACES = st.sampled_from(
    ["bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.weight", "cls.predictions.bias", "x", ""]
)


@fuzzed
@example(name="bert.embeddings.word_embeddings.weight", kind="scalar", cut=(0.0078125, b"", True), legacy=True)
@given(name=PLACES, kind=st.sampled_from(PICKLED_KINDS), cut=st.none() | CUTS, legacy=st.booleans())
def test_pickled_weights(check: Any, name: str, kind: str, cut: tuple[float, bytes, bool] | None, legacy: bool) -> None:
    def spoil(model: Path) -> None:
        tensors: dict[Any, Any] = load_file(model / "model.safetensors")
        (model / "model.safetensors").unlink()
        tensors[name] = as_tensor(kind, tensors.get(name, torch.ones(2)))
        path = model / "pytorch_model.bin"
        torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)
        if cut is not None:
            path.write_bytes(damaged(path.read_bytes(), cut))

    check(spoil, "pytorch_model.bin")


@fuzzed
@given(name=PLACES, kind=st.sampled_from(KINDS))
def test_values_of_the_weights(check: Any, name: str, kind: str) -> None:
    def spoil(model: Path) -> None:
        tensors = load_file(model / "model.safetensors")
        tensors[name] = as_tensor(kind, tensors.get(name, torch.ones(2)))
        save_file(tensors, model / "model.safetensors")

    check(spoil, "model.safetensors", "is not finite")


@fuzzed
@given(index=st.dictionaries(st.sampled_from(["weight_map", "metadata"]), VALUES, max_size=2) | VALUES, cut=CUTS)
def test_index_of_several_files(check: Any, index: Any, cut: tuple[float, bytes, bool]) -> None:
    def spoil(model: Path) -> None:
        (model / "model.safetensors").rename(model / "one.safetensors")
        names = load_file(model / "one.safetensors")
        if isinstance(index, dict) and isinstance(index.get("weight_map"), dict):
            index["weight_map"] = dict.fromkeys(names, "one.safetensors") | index["weight_map"]
        path = model / "model.safetensors.index.json"
        written(path, index)
        if cut[2]:
            written(path, {"weight_map": dict.fromkeys(names, "one.safetensors")})
            path.write_bytes(damaged(path.read_bytes(), cut))

    check(spoil, "safetensors")
