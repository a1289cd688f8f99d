"""Run folders as sentence-transformers reads them, and folders of sentence-transformers as Lambert reads them.

The folders are those of benchmarks/sentence_transformers_folders, which compares all of them.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import lambert as library
from benchmarks.sentence_transformers_folders import run as folders
from lambert.core.errors import DataError
from lambert.tasks import EmbedConfig, TaskConfig
from lambert.tasks.vectors import sentence_transformers

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


@pytest.mark.parametrize(
    ("loss", "similarity"), [("ranking", ""), ("margin", ""), ("", "dot"), ("", "euclidean"), ("margin", "manhattan")]
)
def test_the_files_are_read_as_they_were_written(loss: Any, similarity: Any, tmp_path: Path) -> None:
    embed = EmbedConfig(loss=loss, similarity=similarity, pooling="cls", prompt="query: ", prompt_b="passage: ")
    files = sentence_transformers.files(TaskConfig(name="embed", max_length=64, embed=embed), 8)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sentence_transformers.files(sentence_transformers.read_task(tmp_path), 8) == files


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_pairs_and_searches_are_scored_by_the_similarity_of_the_folder(
    name: str, tuned: Callable[[str], Path], tmp_path: Path
) -> None:
    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer

    shutil.copytree(tuned("embed") / "model", tmp_path / "model", ignore=shutil.ignore_patterns("SHA256SUMS", "2_*"))
    plain = json.loads((tmp_path / "model" / "modules.json").read_text())[:2]  # without Normalize
    (tmp_path / "model" / "modules.json").write_text(json.dumps(plain))
    changed(tmp_path / "model" / "config_sentence_transformers.json", similarity_fn_name=name)
    changed(tmp_path / "model" / "config.json", lambert=None)
    net, model = SentenceTransformer(str(tmp_path / "model"), device="cpu"), library.load(tmp_path / "model")
    others = ["a king saw the boat", "the bright river", "an old road near the house 7"]
    similar = net.similarity(net.encode(TEXTS), net.encode(others)).numpy()
    truth = [4, 0, 3, 1, 2, 5, 0, 1, 3]
    texts = [(a, b) for a in TEXTS for b in others]
    scored = [{"sentence1": a, "sentence2": b, "score": score} for (a, b), score in zip(texts, truth, strict=True)]
    expected = spearmanr(similar.ravel(), truth).statistic
    assert model.evaluate(scored)["spearman"] == pytest.approx(expected, abs=1e-6)
    places = (similar > np.diagonal(similar)[:, None]).sum(1)
    found = [{"anchor": a, "positive": b} for a, b in zip(TEXTS, others, strict=True)]
    assert model.evaluate(found)["mrr_10"] == pytest.approx((1 / (1 + places)).mean())
    copy = library.import_model(tmp_path / "model", out=tmp_path / "copy").folder
    assert sentence_transformers.similarity_name(copy) == name


@pytest.mark.parametrize(("given", "written"), [("", "cosine"), ("euclidean", "euclidean")])
def test_training_says_that_it_compares_by_another_function(
    given: str, written: str, tuned: Callable[[str], Path], labelled: Callable[[str, str], Path], tmp_path: Path
) -> None:
    shutil.copytree(tuned("embed") / "model", tmp_path / "model", ignore=shutil.ignore_patterns("SHA256SUMS"))
    changed(tmp_path / "model" / "config_sentence_transformers.json", similarity_fn_name="euclidean")
    run = library.finetune(
        init=tmp_path / "model", data=labelled("embed", "train"), out=tmp_path / "run", train__steps=1,
        task__name="embed", task__columns__text_b="text_b", task__embed__similarity=given,
    )  # fmt: skip
    said = f"{tmp_path / 'model'} compares vectors by euclidean; the scores of this run and its model folder compare"
    assert (said in (run.folder / "log.txt").read_text()) is not bool(given)
    assert library.load(run.folder).similarity_fn_name == written


Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Writes a folder of a family and an age, with a pooling, prompts and a limit."""
    work = tmp_path_factory.mktemp("folders")

    def made(
        family: str = "bert",
        age: str = "3.4",
        modes: tuple[str, ...] = ("mean",),
        prompts: str = "none",
        limit: int = 0,
    ) -> Path:
        if not (work / family).exists():
            folders.encoder(family, work / family)
        folder = work / f"folder-{len(list(work.iterdir()))}"
        shutil.copytree(work / family, folder)
        folders.describe(folder, age, modes, prompts, limit)
        return folder

    return made


@pytest.mark.parametrize(
    ("family", "age", "modes", "prompts", "limit"),
    [
        ("bert", "2021", ("max",), "none", 16),
        ("bert", "3.4", ("mean", "lasttoken"), "excluded", 16),
        ("bert", "6.2", ("cls", "max", "mean"), "default", 0),
        ("roberta", "5.4", ("weightedmean",), "excluded", 16),
        ("roberta", "2021", ("cls",), "default", 0),
        ("modernbert", "5.2", ("lasttoken",), "excluded", 0),
        ("mpnet", "6.2", ("mean_sqrt_len_tokens",), "excluded", 16),
    ],
)
def test_folders_of_all_ages_give_the_same_vectors(
    family: str, age: str, modes: tuple[str, ...], prompts: str, limit: int, make: Make
) -> None:
    assert folders.difference(make(family, age, modes, prompts, limit)) <= folders.LARGEST


def appended(folder: Path, kind: str, settings: dict[str, Any] | None, tensors: dict[str, torch.Tensor]) -> None:
    """Adds a module before Normalize."""
    path, name = folder / "modules.json", f"X_{kind}"
    modules = json.loads(path.read_text())
    modules.insert(-1, {"path": name, "type": f"sentence_transformers.models.{kind}"})
    path.write_text(json.dumps([{**module, "idx": n, "name": str(n)} for n, module in enumerate(modules)]))
    if settings is not None:
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(settings))
    if tensors:
        save_file(tensors, folder / name / "model.safetensors")


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / 4


@pytest.fixture(scope="module")
def layered(make: Make) -> Path:
    """A folder with Dense, LayerNorm, a smaller width, and two poolings in an order that flags cannot say."""
    folder = make("bert", "5.4", ("cls", "mean"), "default", 16)
    dense = {"in_features": 64, "out_features": 24, "bias": True, "use_residual": True}
    dense["activation_function"] = "torch.nn.modules.activation.GELU"
    weights = {"linear.weight": drawn(24, 64), "linear.bias": drawn(24), "residual.weight": drawn(24, 64)}
    appended(folder, "Dense", dense, weights)
    appended(folder, "LayerNorm", {"dimension": 24}, {"norm.weight": drawn(24), "norm.bias": drawn(24)})
    changed(folder / "config_sentence_transformers.json", truncate_dim=20)
    return folder


def test_layers_after_the_pooling(layered: Path, tmp_path: Path, lambert: Any) -> None:
    assert folders.difference(layered) <= folders.LARGEST
    assert library.load(layered).dimensions == 20
    done = lambert("import", **{"from": layered, "out": tmp_path / "imported"})
    assert done.code == 0, done.err
    assert folders.difference(tmp_path / "imported") <= folders.LARGEST
    wanted = library.load(layered).encode(TEXTS)
    np.testing.assert_allclose(library.load(tmp_path / "imported").encode(TEXTS), wanted, atol=1e-6)


def test_fine_tuning_keeps_what_a_folder_says(layered: Path, tmp_path: Path) -> None:
    rows = [{"query": f"the {word}", "positive": f"a {word} road"} for word in folders.WORDS]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = library.finetune(
        init=layered, data=tmp_path / "train.jsonl", out=tmp_path / "run", train__steps=1, task__name="embed"
    )
    model = library.load(result.folder)
    embed = model.embed
    assert (embed.pooling, embed.default_prompt, embed.prompt) == ("mean+cls", "s2p_query", "find: ")
    assert (model.task.config.max_length, model.dimensions) == (16, 20)
    assert "(Dense, LayerNorm) stay as they are" in (result.folder / "log.txt").read_text()
    assert folders.difference(result.folder / "model") <= folders.LARGEST


def test_prompts_by_name(make: Make) -> None:
    from sentence_transformers import SentenceTransformer

    folder = make("bert", "5.2", prompts="excluded")
    changed(
        folder / "config_sentence_transformers.json",
        prompts={"passage": "road: ", "topic": "a "},
        default_prompt_name=None,
    )
    net, model = SentenceTransformer(str(folder), device="cpu"), library.load(folder)
    for name in ("passage", "topic", "query"):
        np.testing.assert_allclose(
            model.encode(TEXTS, prompt_name=name), net.encode(TEXTS, prompt_name=name), atol=2e-6
        )
    np.testing.assert_allclose(model.encode(TEXTS, prompt="see: "), net.encode(TEXTS, prompt="see: "), atol=2e-6)
    assert model.embed.prompt_b == "road: "
    row = model({"text": TEXTS[0], "prompt_name": "topic"})
    np.testing.assert_allclose(row["vector"], net.encode(TEXTS[0], prompt_name="topic"), atol=2e-6)
    with pytest.raises(DataError, match="the model's prompts are: query, document, passage, topic"):
        model({"text": "a", "prompt_name": "x"})
    with pytest.raises(library.UsageError, match=r"prompt_name = 'topics' is unknown\. Did you mean 'topic'"):
        model.encode("a", prompt_name="topics")


def test_formats_that_cannot_leave_prompts_out_are_refused(make: Make, tmp_path: Path, lambert: Any) -> None:
    done = lambert("export", model=make("bert", "5.2", prompts="excluded"), out=tmp_path / "out", format="torch")
    assert (done.code, "cannot leave the tokens of prompts out" in done.err) == (2, True)


@pytest.mark.parametrize("stated", ["", '{"__version__": "0.3.0"}'])
def test_a_folder_from_before_2021_keeps_its_encoder_in_a_folder(stated: str, make: Make, tmp_path: Path) -> None:
    folder, old = make("bert", "2021", limit=16), tmp_path / "old"
    shutil.copytree(folder, old / "0_Transformer", ignore=shutil.ignore_patterns("modules.json", "1_Pooling"))
    shutil.copytree(folder / "1_Pooling", old / "1_Pooling")
    modules = json.loads((folder / "modules.json").read_text())
    (old / "modules.json").write_text(json.dumps([modules[0] | {"path": "0_Transformer"}, *modules[1:]]))
    (old / "0_Transformer" / "sentence_bert_config.json").rename(old / "0_Transformer" / "sentence_roberta_config.json")
    if stated:  # in the root, before version 0.4
        (old / "config.json").write_text(stated)
    assert folders.difference(old) <= folders.LARGEST


def test_texts_are_lower_cased_first(make: Make) -> None:
    folder = make("roberta", "2021")
    changed(folder / "sentence_bert_config.json", do_lower_case=True)
    assert folders.difference(folder) <= folders.LARGEST


@pytest.mark.parametrize("module", ["StaticEmbedding", "Router"])
@pytest.mark.parametrize("path", ["", "0_First"])
def test_models_without_an_encoder_are_named(module: str, path: str, tmp_path: Path) -> None:
    (tmp_path / path).mkdir(exist_ok=True)
    rows = [{"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{module}"}]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match=f"model of sentence-transformers with {module}: only models whose"):
        library.load(tmp_path)


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        ("WordWeights", {}, "modules.json has the module WordWeights, not supported after Pooling"),
        (
            "Dense",
            {"in_features": 32, "out_features": 4, "activation_function": "mine.Act"},
            "the module Dense has the",
        ),
        ("Dense", {"in_features": 32, "out_features": 4, "activation_function": "torch.nn.PReLU"}, "PReLU is no"),
        ("Dense", {"in_features": 32, "out_features": 4, "module_input_name": "token_embeddings"}, "supported: sent"),
        ("LayerNorm", {}, "the module LayerNorm has dimension = None"),
    ],
)
def test_other_modules_are_named(module: str, settings: dict[str, Any], message: str, make: Make) -> None:
    folder = make()
    appended(folder, module, settings, {})
    with pytest.raises(DataError, match=message):
        library.load(folder)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "of a SparseEncoder"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "default_prompt = 'x' is not among"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "attention"]}, "has the pooling"),
        ("sentence_bert_config.json", {"do_lower_case": "yes"}, "do_lower_case is 'yes', not true or false"),
        ("sentence_bert_config.json", {"query_length": 8}, "query_length = 8 in the module Transformer"),
        ("sentence_bert_config.json", {"processing_kwargs": 5}, "processing_kwargs = 5 in the module Transformer"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": 5}}, "'text': 5"),
        ("sentence_bert_config.json", {"max_seq_length": 4}, "max_length = 4 must be"),
    ],
)
def test_other_settings_are_named(name: str, values: dict[str, Any], message: str, make: Make) -> None:
    folder = make()
    changed(folder / name, **values)
    with pytest.raises(DataError, match=message):
        library.load(folder)


def test_a_layer_that_does_not_fit_is_named(layered: Path, make: Make, tmp_path: Path) -> None:
    folder = make()
    settings = {"in_features": 48, "out_features": 4, "bias": False, "activation_function": "torch.nn.GELU"}
    appended(folder, "Dense", settings, {"linear.weight": drawn(4, 48)})
    with pytest.raises(DataError, match="the module Dense after Pooling cannot take vectors of 32 components"):
        library.load(folder)
    rows = [{"query": f"the {word}", "positive": f"a {word} road"} for word in folders.WORDS]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"task__name": "embed", "task__embed__pooling": "cls", "train__steps": 1}
    with pytest.raises(DataError, match="the module Dense after Pooling cannot take vectors of 32 components"):
        library.finetune(init=layered, data=tmp_path / "train.jsonl", out=tmp_path / "run", **settings)


def test_code_from_outside_is_named(make: Make) -> None:
    folder = make()
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[0] | {"type": "custom_st.Transformer"}, *modules[1:]]))
    with pytest.raises(DataError, match=r"the module custom_st\.Transformer, code from outside"):
        library.load(folder)


def test_a_folder_may_be_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert sentence_transformers.root(Path()) is None
