"""Programs of torch compute the same in a process that does not import Lambert."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import cases, saved

from lambert.core.errors import MachineError
from lambert.inference.text_model import load
from lambert.wings.convert import program
from lambert.wings.convert.formats import export
from lambert.wings.convert.settings import ExportConfig

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
SLOW = os.environ.get("LAMBERT_TEST_EXPORTS") == "all"


@pytest.mark.parametrize(("kind", "head"), cases(slow=[("distilbert", "value"), ("modernbert", "multilabel")]))
def test_equal_outputs(kind: str, head: str, tmp_path: Path) -> None:
    lines = [*export(program.TORCH, ExportConfig(saved(kind, head, tmp_path / "m"), tmp_path / "out", "torch"))]
    assert "unpickles" in lines[0]
    assert (tmp_path / "out" / "model.pt2").is_file()


@pytest.mark.slow
def test_elsewhere(tmp_path: Path) -> None:
    model = saved("modernbert", "vector", tmp_path / "model")
    [*export(program.TORCH, ExportConfig(model, tmp_path / "out", "torch"))]
    ids = load(model).tokenizer.encode("A text.").ids
    code = (
        f"import sys, torch\nids = torch.tensor([{ids}, {ids[::-1]}])\n"
        "net = torch.export.load('model.pt2').module()\n"
        "torch.save(net(ids, torch.ones_like(ids))[1].detach(), 'found.pt')\n"
        "assert not any(name.startswith('lambert') for name in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-P", "-c", code], check=True, cwd=tmp_path / "out", env=environment)
    found: Any = torch.load(tmp_path / "out" / "found.pt")
    np.testing.assert_allclose(found[0].numpy(), load(model).encode("A text."), atol=2e-6)


@pytest.mark.skipif(not SLOW, reason="compiles for minutes; make test-exports")
@pytest.mark.parametrize(("kind", "head"), [("bert", "label"), ("modernbert", "span"), ("electra", "choice")])
def test_native_code(kind: str, head: str, tmp_path: Path) -> None:
    lines = [*program.export_aoti(ExportConfig(saved(kind, head, tmp_path / "m"), tmp_path / "out", "aoti"))]
    assert "native code for processors like this one" in lines[0]
    run = program._load_aoti(tmp_path / "out")
    ids = np.full((2, 2, 9) if head == "choice" else (2, 9), 9, dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if kind != "modernbert":
        inputs["token_type_ids"] = np.zeros_like(ids)
    assert np.isfinite(run(inputs)["0"]).all()


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match=r"install g\+\+"):
        [*program.export_aoti(ExportConfig(tmp_path, tmp_path / "out", "aoti"))]
