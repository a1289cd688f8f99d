"""Run folders as sentence-transformers reads them, and the settings that Lambert reads from its folders."""

import json
from pathlib import Path

import numpy as np
import pytest

import lambert as library
from lambert.tasks import EmbedConfig, TaskConfig, sentence_transformers

TEXTS = ["the boat near the road 1", "a king", "the old house was bright . the river saw a bird"]


@pytest.mark.parametrize(("loss", "pooling"), [("ranking", "mean"), ("margin", "cls")])
def test_a_run_folder_gives_the_same_vectors_there(loss: str, pooling: str, pretrained: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    rows = [{"query": f"a {word}", "positive": f"the {word}", "negative": "b", "label": 1.5} for word in TEXTS]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"loss": loss, "pooling": pooling, "prompt": "find: ", "prompt_b": "a text: "}
    library.finetune(
        init=pretrained, data=tmp_path / "train.jsonl", out=tmp_path / "run", train__steps=2, task__name="embed",
        task__max_length=32, **{f"task__embed__{name}": value for name, value in settings.items()},
    )  # fmt: skip
    model, net = library.load(tmp_path / "run"), SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    assert net.similarity_fn_name == ("dot" if loss == "margin" else "cosine")
    wanted = model.encode(TEXTS)
    np.testing.assert_allclose(net.encode_query(TEXTS), wanted, atol=1e-5)
    np.testing.assert_allclose(net.encode(TEXTS, prompt_name="query"), wanted, atol=1e-5)
    np.testing.assert_allclose(net.encode_document(TEXTS), model.encode(TEXTS, prompt="a text: "), atol=1e-5)
    np.testing.assert_allclose(net.encode(TEXTS), model.encode(TEXTS, prompt=""), atol=1e-5)
    assert np.abs(model.encode(TEXTS, prompt="") - wanted).max() > 1e-3


@pytest.mark.parametrize("loss", ["ranking", "margin"])
def test_the_files_are_read_as_they_were_written(loss: str, tmp_path: Path) -> None:
    embed = EmbedConfig(loss=loss, pooling="cls", prompt="query: ", prompt_b="passage: ")  # type: ignore[arg-type]
    files = sentence_transformers.files(TaskConfig(name="embed", max_length=64, embed=embed), 8)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sentence_transformers.files(sentence_transformers.described(tmp_path), 8) == files
