"""Named pipes, devices and sockets in the places of files: each is refused in one line at once, without being read."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lambert.core import contents, files, lock, settings
from lambert.core.errors import LambertError
from lambert.engine import metrics_file
from lambert.inference.answer_file import input_identity
from lambert.tasks import Columns
from lambert.tasks.reading.table import read_labelled_rows
from lambert.tasks.scores import examples
from lambert.text import rows
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.wings.convert import openvino
from lambert.wings.corpus.reading import readers
from lambert.wings.corpus.tokens import expansion
from lambert.wings.serve.config import ServeConfig, read_api_key

VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] a b"


def tokenizer(path: Path) -> None:
    (path.parent / "vocab.txt").write_text(VOCABULARY.replace(" ", "\n"))
    tokenizers.load(path.parent)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "labelled rows": ("train.csv", lambda path: list(read_labelled_rows(path, Columns(), []))),
    "rows": ("rows.jsonl", lambda path: list(rows.read_lines(path))),
    "text": ("text.txt", lambda path: list(readers.read(path, readers.Layout()))),
    "Parquet": ("rows.parquet", lambda path: list(readers.read(path, readers.Layout()))),
    "input to predict": ("rows.csv", lambda path: input_identity([path])),
    "rows of a run": ("metrics.jsonl", lambda path: metrics_file.truncate(path, 1)),
    "lock": ("lock.json", lambda path: lock.lock_folder(path.parent).__enter__()),
    "recipe": ("recipe.toml", settings.read),
    "settings": ("config.json", files.json_object),
    "hashed": ("model.safetensors", contents.sha256),
    "model files": ("model.safetensors", lambda path: contents.model_files(path.parent)),
    "settings of a tokenizer": ("tokenizer_config.json", tokenizer),
    "scored examples": ("examples.jsonl", examples.read),
    "words": ("words.txt", expansion.read_word_list),
    "texts of a calibration": ("texts.txt", openvino.calibration_texts),
    "key": ("key", lambda path: read_api_key(ServeConfig(("m=folder",), api_key_file=path))),
    "replaced": ("out.csv", lambda path: files.check_replaceable(path, lambda begin: False, "predict")),
}  # fmt: skip


@pytest.fixture(params=["pipe", "/dev/zero", "socket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def made(name: str) -> Path:
        path = tmp_path / name
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "socket":
            monkeypatch.chdir(tmp_path)  # the address of a socket has at most 108 bytes
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(name)
        else:
            path.symlink_to(request.param)
        return path

    return made


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused(reader: str, place: Callable[[str], Path]) -> None:
    name, read = READERS[reader]
    path = place(name)
    with pytest.raises(LambertError) as refused:
        read(path)
    assert "not a file" in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.timeout(60)
def test_rows_are_not_written_into_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(LambertError, match=r"metrics.jsonl is a named pipe"):
        metrics_file.AppendOnlyFile(tmp_path / "metrics.jsonl", pytest.fail).write("{}")
