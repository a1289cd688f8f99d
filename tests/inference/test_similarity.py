"""encode and similarity as those of sentence-transformers, whose folder is read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lambert
from lambert.core.errors import DataError, UsageError

TEXTS = ["the king found a river", "a bird", "stone and boat", "the"]


@pytest.fixture(scope="module")
def folder(tuned: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("vectors") / "model"
    shutil.copytree(tuned("embed") / "model", copy)
    (copy / "SHA256SUMS").unlink()
    return copy


def named(folder: Path, name: str) -> Path:
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"similarity_fn_name": name}))
    return folder


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_sentence_transformers(folder: Path, name: str) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = lambert.load(named(folder, name))
    function = sentence_transformers.SimilarityFunction.to_similarity_fn(name)
    assert model.similarity_fn_name == name
    vectors = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    for a, b in ((vectors, vectors[:2]), (vectors[0], vectors), (torch.tensor(vectors), vectors.tolist())):
        found, expected = model.similarity(a, b), function(a, b)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(found, expected)


def test_other_similarities_and_no_vectors_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"has similarity_fn_name = 'maxsim'; known: cosine, dot"):
        lambert.load(named(folder, "maxsim")).similarity([1.0], [2.0])
    model = lambert.load(named(folder, "cosine"))
    for a, b, said in (
        ("a", "b", "those of texts come from encode"),
        ([[1.0, 2.0]], [[1.0]], "have 2 and 1 components"),
        ([[[1.0]]], [[1.0]], "3 dimensions"),
    ):
        with pytest.raises(UsageError, match=said):
            model.similarity(a, b)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": 1},
        {"normalize_embeddings": True},
        {"convert_to_tensor": True, "show_progress_bar": False},
        {"convert_to_numpy": False},
        {"truncate_dim": 5, "normalize_embeddings": True, "prompt": ""},
    ],
)
def test_arguments_of_encode_mean_what_they_do_there(folder: Path, settings: dict[str, Any]) -> None:
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(named(folder, "cosine")))
    model = lambert.load(folder)
    for given in (TEXTS, TEXTS[1], np.array(TEXTS), tuple(TEXTS)):
        found, expected = model.encode(given, **settings), theirs.encode(given, **settings)
        assert type(found) is type(expected)
        if isinstance(found, list):
            found, expected = torch.stack(found), torch.stack(expected)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)


def test_encode_takes_columns_and_refuses_tables(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    model = lambert.load(named(folder, "cosine"))
    vectors = model.encode(TEXTS)
    for column in (pandas.Series(TEXTS), pandas.Series(TEXTS, dtype="category"), arrow.array(TEXTS), iter(TEXTS)):
        np.testing.assert_allclose(model.encode(column), vectors, atol=1e-6)
    assert model.encode([], convert_to_tensor=True).shape == (0, vectors.shape[1])
    for wrong, said in (
        (pandas.DataFrame({"text": TEXTS}), r"not a DataFrame: give a column of it"),
        (arrow.table({"text": TEXTS}), r"not a Table: give a column of it"),
        (pandas.Series(["a", None]), "not float: text 2 is nan|not NoneType: text 2"),
    ):
        with pytest.raises(UsageError, match=said):
            model.encode(wrong)
    for settings in ({"batch_size": 0}, {"truncate_dim": 0}):
        with pytest.raises(UsageError, match="must be 1 or more"):
            model.encode("a", **settings)
    assert capfd.readouterr() == ("", "")
    model.encode(TEXTS, show_progress_bar=True)
    assert "encode: 4/4 (100%) texts" in capfd.readouterr().err
