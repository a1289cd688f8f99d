"""What cannot be exported is refused with one line, and nothing is left behind."""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Called
from exported import saved

from lambert.core.errors import DataError, UsageError
from lambert.wings.convert import onnx
from lambert.wings.convert.formats import compare_outputs, export
from lambert.wings.convert.original import read
from lambert.wings.convert.sample import LargestDifference, samples
from lambert.wings.convert.settings import ExportConfig

FORMATS = ("hf", "sentence-transformers", "onnx", "openvino", "torch", "aoti")
Command = Callable[..., Called]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("bert", "label", tmp_path_factory.mktemp("refused") / "model")


def refused(done: Called, code: int, *parts: str) -> None:
    assert done.code == code, done.err
    assert done.err.count("\n") == 1, done.err
    assert all(part in done.err for part in parts), done.err


@pytest.mark.parametrize("format", FORMATS)
def test_a_cut_folder(format: str, model: Path, tmp_path: Path, lambert: Command) -> None:
    for name in ("config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        (tmp_path / "cut").mkdir(exist_ok=True)
        (tmp_path / "cut" / name).write_bytes((model / name).read_bytes())
    data = (model / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(data[: len(data) // 2])
    refused(lambert("export", model=tmp_path / "cut", out=tmp_path / "out", format=format), 3, "cut short")
    assert {path.name for path in tmp_path.iterdir()} == {"cut"}


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_there_is_left_alone(format: str, model: Path, tmp_path: Path, lambert: Command) -> None:
    (tmp_path / "mine").write_text("mine")
    refused(lambert("export", model=model, out=tmp_path, format=format), 2, f"{tmp_path} exists already")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    refused(lambert("export", model=tmp_path / "none", out=tmp_path / "new", format=format), 3, "none")


def test_an_unknown_format(model: Path, tmp_path: Path, lambert: Command) -> None:
    for wrong, near in {
        "onyx": "onnx",
        "open-vino": "openvino",
        "sentence_transformers": "sentence-transformers",
    }.items():
        done = lambert("export", model=model, out=tmp_path / "new", format=wrong)
        refused(done, 2, f"--format = '{wrong}' is unknown. Did you mean '{near}'?")


@pytest.mark.parametrize(
    ("format", "precision", "have"),
    [
        ("hf", "int8", "float32 and bfloat16"),
        ("sentence-transformers", "int8", "float32 and bfloat16"),
        ("onnx", "bfloat16", "float32 and int8"),
        ("openvino", "bfloat16", "float32 and int8"),
        ("torch", "int8", "it has float32."),
        ("aoti", "bfloat16", "it has float32."),
    ],
)
def test_a_precision_that_a_format_lacks(
    format: str, precision: str, have: str, model: Path, tmp_path: Path, lambert: Command
) -> None:
    done = lambert("export", model=model, out=tmp_path / "out", format=format, precision=precision)
    refused(done, 2, f"--format {format} has no precision '{precision}'", have)


@pytest.mark.parametrize(
    ("format", "package", "extra"),
    [
        ("onnx", "onnxscript", "onnx"),
        ("onnx", "onnxruntime", "onnx"),
        ("openvino", "openvino", "openvino"),
        ("sentence-transformers", "sentence_transformers", "vectors"),
    ],
)
def test_a_missing_package(
    format: str,
    package: str,
    extra: str,
    model: Path,
    tmp_path: Path,
    lambert: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))
    done = lambert("export", model=model, out=tmp_path / "out", format=format)
    refused(done, 2, f"--format {format} needs {package}: pip install 'lambert-bert[{extra}]'.")


def test_calibration_is_for_int8_of_openvino(model: Path, tmp_path: Path, lambert: Command) -> None:
    done = lambert("export", model=model, out=tmp_path / "out", format="onnx", calibration=model / "vocab.txt")
    refused(done, 2, "--calibration is for --format openvino --precision int8")


def test_a_head_without_weights(tmp_path: Path, lambert: Command) -> None:
    model = saved("bert", "", tmp_path / "model")
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"architectures": ["BertForSequenceClassification"]}))
    done = lambert("export", model=model, out=tmp_path / "out", format="onnx")
    refused(done, 3, "classifier")
    assert not (tmp_path / "out").exists()


def test_other_outputs_leave_nothing(model: Path, tmp_path: Path) -> None:
    """A runtime that computes something else: wrong by a little, not finite, of another shape, without the output."""
    original = read(ExportConfig(model, tmp_path / "out", "onnx"))
    right = {rows.inputs["input_ids"].tobytes(): rows.expected["logits"] for rows in samples(original)}

    def write(*_: Any) -> None:
        (tmp_path / "written").touch()

    for change, message in [
        (lambda values: {"logits": values + 1e-3}, "computes other outputs: they differ by up to 1.0e-03"),
        (lambda values: {"logits": values * np.nan}, "is not finite"),
        (lambda values: {"logits": values[:, :2]}, "has the shape"),
        (lambda values: {"scores": values}, "has no output 'logits'"),
    ]:

        def opened(folder: Path, change: Any = change) -> Any:
            return lambda inputs: change(right[inputs["input_ids"].tobytes()])

        form = replace(onnx.FORMAT, write=write, load=opened)
        with pytest.raises(DataError, match=message):
            [*export(form, ExportConfig(model, tmp_path / "out", "onnx"))]
        assert [path.name for path in tmp_path.iterdir()] == ["written"]
    exact = compare_outputs(original, lambda inputs: {"logits": right[inputs["input_ids"].tobytes()]})
    assert (exact.absolute, exact.outputs["logits"][1] > 0) == (0.0, True)


def test_differences_are_those_of_tokens(model: Path, tmp_path: Path) -> None:
    """What a runtime computes for padding does not count."""
    original = read(ExportConfig(saved("bert", "tag", tmp_path / "tag"), tmp_path / "out", "onnx"))
    rows = next(rows for rows in samples(original) if len(set(rows.lengths)) > 1)
    shape = (*rows.inputs["input_ids"].shape, 5)
    found = np.full(shape, 1e9, dtype=np.float32)
    found[rows.inputs["attention_mask"] > 0] = rows.expected["logits"]
    difference = LargestDifference()
    difference.add(rows, {"logits": found})
    assert difference.absolute == 0
    found[0, 0, 0] += 1
    difference.add(rows, {"logits": found})
    assert difference.absolute == pytest.approx(1, abs=1e-3)


def test_a_block_from_outside(model: Path, tmp_path: Path) -> None:
    from lambert.wings.convert.original import check_traceable

    original = read(ExportConfig(model, tmp_path / "out"))
    object.__setattr__(original.model, "config", replace(original.model.config, block="mine:Block"))
    with pytest.raises(UsageError, match=r"--format torch cannot contain the block mine:Block: use --format hf"):
        check_traceable(original.model, "torch")
