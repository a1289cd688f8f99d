import json
import logging
import sys
from pathlib import Path

import pytest

from lambert.core.errors import DataError, LambertError, MachineError, UsageError
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare

datasets = pytest.importorskip("datasets")
TEXT = "the river runs under an old stone bridge, number {} of them all."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of two splits on disk, which `datasets` loads by the path of its folder."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("lambert.wings.corpus.remote.fetch.TRIES", 1)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("lambert.wings.corpus.remote.fetch.BACKOFF", 0.0)
    home = tmp_path / "set"
    home.mkdir()
    for split, count in (("train", 50), ("test", 7)):
        rows = [{"text": TEXT.format(number), "id": number} for number in range(count)]
        (home / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def config(url: str, out: Path) -> PrepareConfig:
    return PrepareConfig((url,), out, steps=("extract", "tokens"), vocabulary=100, workers=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_data_set_is_streamed_by_name(folder: Path, tmp_path: Path) -> None:
    url = f"datasets://{folder}?split=test"
    manifest = prepare(config(url, tmp_path / "out"))
    assert manifest["documents"]["read"] == 7
    assert manifest["inputs"][0]["file"] == f"datasets://{folder}/test.jsonl?split=test"
    assert prepare(config(f"datasets://{folder}", tmp_path / "all"))["documents"]["read"] == 50


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_what_cannot_be_loaded_is_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LambertError, match="no-such-set") as error:
        prepare(config("datasets://nobody/no-such-set", tmp_path / "out"))
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="split"):
        prepare(config(f"datasets://{folder}?split=none", tmp_path / "out"))
    with pytest.raises(UsageError, match="spilt is unknown"):
        prepare(config(f"datasets://{folder}?spilt=test", tmp_path / "out"))


def test_no_hub_is_found_out_at_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    levels = [logging.getLogger(name).level for name in ("datasets", "huggingface_hub")]
    with pytest.raises(MachineError, match=r"http://127\.0\.0\.1:1 does not answer \(Connection refused\)"):
        prepare(config("datasets://nobody/set", tmp_path / "out"))
    assert levels == [logging.getLogger(name).level for name in ("datasets", "huggingface_hub")]


def test_a_missing_library_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"needs datasets: pip install 'lambert-bert\[hub\]'"):
        prepare(config(f"datasets://{folder}", tmp_path / "out"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_documents_between_the_steps_load_in_datasets(folder: Path, tmp_path: Path) -> None:
    chosen = config(str(folder), tmp_path / "out")
    prepare(chosen)
    parts = sorted(map(str, (chosen.work_folder / "extract").glob("*.parquet")))
    rows = datasets.load_dataset("parquet", data_files=parts, split="train", cache_dir=str(tmp_path / "cache"))
    assert sorted(rows["text"])[0] == TEXT.format(0)
    assert len(rows) == 57
    assert set(rows["error"]) == {""}
