"""OpenVINO's files compute the same in OpenVINO, in float32 and int8, and nothing reports that they were made."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import cases, saved

from lambert.core.errors import DataError
from lambert.wings.convert import openvino
from lambert.wings.convert.formats import export
from lambert.wings.convert.settings import ExportConfig

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def exported(model: Path, out: Path, **settings: Any) -> list[str]:
    return [*export(openvino.FORMAT, ExportConfig(model, out, "openvino", **settings))]


def difference(lines: list[str]) -> float:
    return float(re.findall(r"largest difference of OpenVINO from Lambert (\S+)", "\n".join(lines))[0])


@pytest.mark.parametrize(("kind", "head"), cases(slow=[("roberta", "tag"), ("modernbert", "choice")]))
def test_equal_outputs(kind: str, head: str, tmp_path: Path) -> None:
    model = saved(kind, head, tmp_path / "model")
    assert difference(exported(model, tmp_path / "out")) <= 1e-5
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"openvino_model.xml", "openvino_model.bin", "config.json", "tokenizer.json", "README.md"}
    assert "model.onnx" not in names
    weights = (tmp_path / "out" / "openvino_model.bin").stat().st_size
    assert weights > 0.9 * (model / "model.safetensors").stat().st_size - 20_000  # float32, not float16


@pytest.mark.slow
def test_int8_has_fixed_scales(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("The train is late.\n\nYes.\nNo, the museum is closed.\n")
    model = saved("bert", "label", tmp_path / "model")
    lines = exported(model, tmp_path / "out", precision="int8", calibration=tmp_path / "texts.txt")
    assert 0 < difference(lines) < 0.25
    run = openvino.load_model(tmp_path / "out")
    ids = np.array([[2, 9, 11, 30, 3], [2, 40, 17, 8, 3]], dtype=np.int64)

    def logits(rows: Any) -> Any:
        return run({"input_ids": rows, "attention_mask": np.ones_like(rows), "token_type_ids": np.zeros_like(rows)})[
            "logits"
        ].copy()

    np.testing.assert_allclose(logits(ids[:1])[0], logits(ids)[0], atol=1e-5)


@pytest.mark.slow
def test_weights_of_7_bits_where_products_of_8_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "_exact_products", lambda: False)
    lines = exported(saved("bert", "label", tmp_path / "model"), tmp_path / "out", precision="int8")
    assert "note: weights have 7 bits: this processor has no 8-bit dot products (VNNI)." in lines
    model = openvino._import("openvino").Core().read_model(str(tmp_path / "out" / openvino.FILE))
    constants = [node.data for node in model.get_ops() if node.get_type_name() == "Constant"]
    largest = [int(np.abs(values.astype(int)).max()) for values in constants if values.dtype == np.int8]
    assert sum(value > 64 for value in largest) == 3 < len(largest)  # tables of pieces, positions and types only add


def test_calibration_texts(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n\n two \n")
    assert openvino.calibration_texts(path) == ["one", "two"]
    assert len(openvino.calibration_texts(None)) == 12
    path.write_text("\n \n")
    with pytest.raises(DataError, match="has no text"):
        openvino.calibration_texts(path)
    with pytest.raises(DataError, match=r"none\.txt cannot be read"):
        openvino.calibration_texts(tmp_path / "none.txt")


@pytest.mark.slow
def test_no_telemetry(tmp_path: Path) -> None:
    """The package of telemetry keeps its settings and counts in the home folder, before it sends anything."""
    code = (
        "import sys\nfrom lambert.wings.convert import openvino\n"
        "openvino._import('openvino'), openvino._import('nncf')\n"
        "from nncf.telemetry import telemetry\nprint(type(telemetry).__name__)\n"
        "assert not any(name.startswith('openvino_telemetry') for name in sys.modules)"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["MagicMock"]
    assert not (tmp_path / "intel").exists()
