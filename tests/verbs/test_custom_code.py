"""Folders with code of their own (`auto_map`), as EuroBERT and NomicBERT had: the code is neither run nor copied."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lambert as library

Lambert = Callable[..., Any]
AUTO_MAP = {
    "AutoConfig": "modeling_x.XConfig",
    "AutoModel": "modeling_x.XModel",
    "AutoModelForMaskedLM": "modeling_x.XForMaskedLM",
    "AutoTokenizer": ["modeling_x.XTokenizer", None],
}
SHAPE = {
    "model__layers": 1, "model__hidden": 32, "model__heads": 2, "model__intermediate": 48, "model__positions": 64,
}  # fmt: skip
SHORT = {"packing__sequence_length": 48, "packing__mode": "full", "train__steps": 1, "train__batch_size": 8}


def repository(model: Path, out: Path, trap: Path) -> Path:
    """A copy of a model folder whose files name a class in a module beside them, which makes the file `trap`."""
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("SHA256SUMS"))
    (out / "modeling_x.py").write_text(
        f"open({str(trap)!r}, 'w').close()\nraise SystemExit('the code of the folder')\n"
    )
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((out / name).read_text())
        (out / name).write_text(json.dumps(settings | {"auto_map": AUTO_MAP, "trust_remote_code": True}))
    return out


@pytest.mark.parametrize("family", ["bert", "eurobert"])
def test_code_of_a_folder_is_not_run(
    family: str, corpora: dict[str, Path], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpora["wordpiece"]
    made = library.pretrain(corpus=corpus, out=tmp_path / "made", model__block=family, **SHAPE, **SHORT)
    trap = tmp_path / "trap"
    folder = repository(made.folder / "model", tmp_path / "repository", trap)
    monkeypatch.chdir(folder)
    out = tmp_path / "out"
    commands: list[tuple[str, dict[str, Any]]] = [
        ("import", {"from": folder, "out": out / "imported"}),
        ("pretrain", {"init": folder, "corpus": corpus, "out": out / "run", **SHORT}),
        ("export", {"model": folder, "format": "hf", "out": out / "exported"}),
        ("predict", {"model": folder, "stdin": json.dumps({"text": "the [MASK] stone"})}),
    ]
    for verb, settings in commands:
        done = lambert(verb, **settings)
        assert done.code == 0, done.err
        assert ("auto_map, code that is not run" in done.out) == (verb != "predict")
        assert not trap.exists(), verb
    assert json.loads(done.out)["masks"]
    written = [path for path in out.rglob("*") if path.is_file()]
    assert {"imported", "run", "exported"} == {path.relative_to(out).parts[0] for path in written}
    assert not [path for path in written if path.suffix == ".py"]
    assert not [path for path in written if path.suffix == ".json" and "auto_map" in path.read_text()]
    assert json.loads((out / "imported/config.json").read_text())["model_type"] == family
