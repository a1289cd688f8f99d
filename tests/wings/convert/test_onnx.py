"""ONNX files compute the same in ONNX Runtime, in any batch, and their folders are complete."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from exported import cases, saved

from lambert.inference.text_model import load
from lambert.wings.convert import onnx
from lambert.wings.convert.formats import export
from lambert.wings.convert.settings import ExportConfig

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def exported(model: Path, out: Path, **settings: Any) -> list[str]:
    return [*export(onnx.FORMAT, ExportConfig(model, out, "onnx", **settings))]


@pytest.mark.parametrize(("kind", "head"), cases(("bert", "mlm"), slow=[("modernbert", "span")]))
def test_equal_outputs(kind: str, head: str, tmp_path: Path) -> None:
    lines = exported(saved(kind, head, tmp_path / "model"), tmp_path / "out")
    (found,) = re.findall(r"largest difference of ONNX Runtime from Lambert (\S+)", "\n".join(lines))
    assert 0 < float(found) <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    axes = ["batch", "choices", "length"] if head == "choice" else ["batch", "length"]
    assert all(value.shape == axes and value.type == "tensor(int64)" for value in session.get_inputs())
    assert all(value.shape[0] == "batch" for value in session.get_outputs())
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"model.onnx", "config.json", "tokenizer.json", "README.md", "SHA256SUMS"}
    assert "model.onnx.data" not in names
    assert "  model.onnx\n" in (tmp_path / "out" / "SHA256SUMS").read_text()


@pytest.mark.slow
def test_the_code_of_the_folder_gives_the_vectors_of_lambert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the weights are in a file of their own, as above 2 GB."""
    monkeypatch.setattr(onnx, "_ONE_FILE", 0)
    model = saved("electra", "first_vector", tmp_path / "model")
    exported(model, tmp_path / "out")
    assert (tmp_path / "out" / "model.onnx.data").is_file()
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path / "out")
    names: dict[str, Any] = {}
    exec(code, names)
    wanted = load(model).encode(["A text.", "Another, longer text."])
    np.testing.assert_allclose(names["outputs"][1], wanted, atol=2e-6)
    assert (tmp_path / "out" / "1_Pooling" / "config.json").is_file()


@pytest.mark.slow
def test_int8_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    lines = exported(saved("bert", "label", tmp_path / "model"), tmp_path / "out", precision="int8")
    assert any("do not depend on the batch" in line for line in lines)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    ids = np.array([[2, 9, 11, 30, 3], [2, 40, 17, 8, 3]], dtype=np.int64)
    loud = np.concatenate([ids, np.full_like(ids, 50)])

    def logits(rows: Any) -> Any:
        inputs = {"input_ids": rows, "attention_mask": np.ones_like(rows), "token_type_ids": np.zeros_like(rows)}
        return session.run(None, inputs)[0]

    assert np.array_equal(logits(ids[:1])[0], logits(loud)[0])
    small, large = (
        path.stat().st_size for path in (tmp_path / "out" / "model.onnx", tmp_path / "model" / "model.safetensors")
    )
    assert small < large
