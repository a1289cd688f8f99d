"""Sentence vectors: layouts of the data, training, scores, and the folder that sentence-transformers reads."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import one_line

import lambert as library
from lambert.core.errors import DataError
from lambert.model.vector_layers import Dense
from lambert.tasks import EmbedConfig, TaskConfig, learn
from lambert.tasks.config import Columns
from lambert.tasks.vectors import sentence_transformers
from lambert.text.tokenizers import tokenizer as tokenizers

Lambert = Callable[..., Any]
THINGS = ("river", "boat", "stone", "garden", "window", "house", "king", "bird")


def pairs(count: int = 32) -> list[dict[str, object]]:
    return [
        {"anchor": f"the {THINGS[i % 8]} near the road {i}", "positive": f"a bright {THINGS[i % 8]} {i}"}
        for i in range(count)
    ]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def tokenizer(pretrained: Path) -> Any:
    return tokenizers.load(pretrained / "model")


@pytest.mark.parametrize(
    ("row", "embed", "count", "loss"),
    [
        ({"anchor": "a", "positive": "b"}, {}, 2, "ranking"),
        ({"query": "a", "positive": "b", "negative_1": "c", "negative_2": "d"}, {}, 4, "ranking"),
        ({"sentence1": "a", "sentence2": "b", "score": 3}, {}, 2, "cosent"),
        ({"sentence1": "a", "sentence2": "b", "score": 0.3}, {"loss": "cosine"}, 2, "cosine"),
        ({"sentence1": "a", "sentence2": "b", "score": 0.3}, {"loss": "ranking"}, 2, "ranking"),
        ({"query": "a", "positive": "b", "negative": "c", "label": 1.5}, {"loss": "margin"}, 3, "margin"),
        ({"Anchor": "a", "Positive": "b", "Negative": "c"}, {}, 3, "ranking"),
        ({"query": "a", "positive": "b", "negative1": "c", "hard_negative": "d"}, {}, 4, "ranking"),
        ({"sentence_A": "a", "sentence_B": "b", "relatedness_score": 3}, {}, 2, "cosent"),
        ({"sentence1": "a", "sentence2": "b", "Score": 3}, {}, 2, "cosent"),
        ({"premise": "a", "hypothesis": "b", "label": 1.0}, {}, 2, "cosent"),
        ({"premise": "a", "hypothesis": "b", "label": 1}, {"loss": "cosent"}, 2, "cosent"),
        ({"anchor": "a", "positive": "b", "neg": 0.2, "score": 1.0}, {}, 2, "cosent"),
        ({"anchor": "a", "positive": "b", "negatives": ["c"], "score": 1.0}, {"loss": "cosent"}, 2, "cosent"),
        ({"text": "a"}, {}, 2, "ranking"),
        ({"text": "a", "other": "b"}, {"negatives": ("other",)}, 3, "ranking"),
    ],
)
def test_the_layout_is_that_of_the_columns(
    row: dict[str, object], embed: dict[str, Any], count: int, loss: str, tokenizer: Any, tmp_path: Path
) -> None:
    path = write(
        tmp_path / "train.jsonl",
        [row, {**row, next(iter(row)): "another", **{name: -1 for name in row if isinstance(row[name], int | float)}}],
    )
    config = TaskConfig(name="embed", max_length=16, embed=EmbedConfig(**embed))
    task, data = learn(config, tokenizer, path)
    assert (data.texts_NG.shape, task.config.embed.loss) == ((2, count), loss)
    batch = data.collate(np.zeros(2, np.int64), np.arange(2))
    assert batch.sequences == 2 * count
    assert batch.targets["vector"].count == 2


@pytest.mark.parametrize(("normalize", "unit"), [(None, False), (False, False), (True, True)])
def test_margins_are_those_of_the_vectors_that_the_model_gives(
    normalize: bool | None, unit: bool, tokenizer: Any, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {"query": f"a {i}", "positive": f"b {i}", "negative": f"c {i}", "label": 0.5 * i} for i in range(3)
    ]
    config = TaskConfig(name="embed", max_length=16, embed=EmbedConfig(loss="margin", normalize=normalize))
    task, data = learn(config, tokenizer, write(tmp_path / "train.jsonl", rows))
    assert task.config.embed.normalize is unit
    batch = data.collate(np.zeros(3, np.int64), np.arange(3))
    states_SD = torch.randn(9, 8, generator=torch.Generator().manual_seed(1))
    target = batch.targets["vector"]
    losses_N = target.loss(states_SD, target.labels_N)
    found = task.parse([{"text": text} for row in rows for text in list(row.values())[:3]], [""] * 9)
    vectors = np.stack(task.predictions(found, [{"vector": states_SD}])).reshape(3, 3, 8)
    margins = np.einsum("nd,nd->n", vectors[:, 0], vectors[:, 1] - vectors[:, 2])
    assert (margins - [0.0, 0.5, 1.0]) ** 2 == pytest.approx(losses_N.numpy(), rel=1e-4)
    modules = json.loads(task.model_files(8)["modules.json"])
    assert any(module["type"].endswith("Normalize") for module in modules) is unit


def test_layers_of_the_task_stay_where_they_are(tokenizer: Any, tmp_path: Path) -> None:
    config = TaskConfig(name="embed", max_length=16)
    task, data = learn(config, tokenizer, write(tmp_path / "train.jsonl", pairs(4)))
    task.layers = data.layers = [Dense(torch.nn.Linear(6, 5), torch.nn.Tanh())]  # as in fine-tuning
    batch = data.collate(np.zeros(4, np.int64), np.arange(4))
    target = batch.targets["vector"]
    for _ in range(2):
        loss = target.loss(torch.zeros(8, 6, device="meta"), target.labels_N.to("meta"))
        assert loss.device.type == "meta"
    assert task.width(6) == 5
    assert task.predictions(task.texts([("", "a")]), [{"vector": torch.ones(1, 6)}])[0].shape == (1, 5)


def test_prompts_precede_the_texts_of_their_columns(tokenizer: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", [{"query": "a b", "passage": "c d", "negative": "e"}])
    config = TaskConfig(name="embed", max_length=16, embed=EmbedConfig(prompt="find: ", prompt_b="read: "))
    _, data = learn(config, tokenizer, path)
    ids = data.collate(np.zeros(1, np.int64), np.arange(1)).ids_T.tolist()
    expected = [tokenizer.encode(text).ids for text in ("find: a b", "read: c d", "read: e")]
    assert ids == [number for row in expected for number in row]


@pytest.mark.parametrize(
    ("rows", "embed", "message"),
    [
        ([{"anker": "a", "positive": "b"}], {}, "no column 'text'"),
        ([{"anchor": "a", "positive": "b"}], {"loss": "cosent"}, "needs a score in the column 'label'"),
        ([{"anchor": "a", "positive": "b"}], {"loss": "margin"}, "needs a column of negatives"),
        ([{"anchor": "a", "positive": "b"}], {"negatives": ("hard",)}, "no column 'hard' (task.embed.negatives)"),
        (
            [{"query": "a", "positive": "b", "negatives": ["c"]}], {},
            "train.jsonl:1: the column 'negatives' holds a list. Give each negative a column of its own",
        ),
        (
            [{"Premise": "a", "Hypothesis": "b", "label": 2}], {},
            "train.jsonl:1: the label 2 of premise and hypothesis is a class of natural language inference",
        ),
        ([{"anchor": " ", "positive": "b"}], {}, "every example has an empty text"),
        ([{"anchor": 3, "positive": "b"}], {}, "train.jsonl:1: column 'anchor' holds 3, not text"),
        ([{"sentence1": "a", "sentence2": "b", "score": "NaN"}], {}, "not a finite number"),
        (
            [{"sentence1": "a", "sentence2": "b", "score": 1}, {"sentence1": "a", "sentence2": "c", "score": 4.5}],
            {"loss": "cosine"},
            "train.jsonl:2: column 'score' holds 4.5, and task.embed.loss = 'cosine' needs cosines from -1 to 1",
        ),
        (
            [{"sentence1": "a", "sentence2": text, "score": 4.5} for text in "bc"], {},
            "train.jsonl: every value (column 'score') is 4.5. Training needs at least two different ones.",
        ),
        (
            [{"query": "a", "positive": "b", "negative": "c", "label": [1, 2]}], {"loss": "margin"},
            "2 margins in the column 'label', but 1 negatives",
        ),
    ],
)  # fmt: skip
def test_wrong_data_is_named(
    rows: list[dict[str, object]], embed: dict[str, Any], message: str, tokenizer: Any, tmp_path: Path
) -> None:
    path = write(tmp_path / "train.jsonl", rows)
    with pytest.raises(DataError) as error:
        learn(TaskConfig(name="embed", max_length=16, embed=EmbedConfig(**embed)), tokenizer, path)
    assert message in str(error.value)


def test_numbers_that_may_be_scores_are_said(tokenizer: Any, tmp_path: Path) -> None:
    config, path = TaskConfig(name="embed", max_length=16), tmp_path / "train.jsonl"
    rows = [
        {"id": 1, "query": "a", "positive": "b", "judged": 4.5},
        {"id": 2, "query": "c", "positive": "d", "judged": 1},
    ]
    _, data = learn(config, tokenizer, write(path, rows))
    assert data.notes == [
        f"note: {path} is read as pairs that belong together, without the column 'judged' (4.5). If these are scores, "
        "set task.columns.label = 'judged'."
    ]
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0, 1)]
    _, data = learn(config, tokenizer, write(path, rows))
    assert data.notes == [
        f"note: {path}: the column 'label' holds 0 and 1, which are read as similarities: the larger number is that of "
        "the more similar texts."
    ]


FLAGS: dict[str, Any] = {
    "task__name": "embed", "task__max_length": 32, "train__batch_size": 16, "optim__lr": 3e-3,
    "optim__warmup_ratio": 0, "log__every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed")
    train, dev = write(folder / "train.jsonl", pairs()), write(folder / "dev.jsonl", pairs(16))
    settings = {**FLAGS, "train__steps": 16, "train__micro_tokens": 100}
    library.finetune(init=pretrained, data=train, dev=dev, out=folder / "run", **settings)
    return folder / "run"


def test_training_brings_pairs_together(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert min(losses[-3:]) < 0.9 * losses[0]
    scores = json.loads((run / "scores.json").read_text())
    assert scores["ndcg_10"] > 0.3
    assert (scores["queries"], scores["texts"]) == (16, 16)


def test_vectors_of_the_library_and_of_predict_are_equal(run: Path, lambert: Lambert) -> None:
    texts = ["the boat near the road 1", "a king"]
    model = library.load(run)
    vectors_ND = model.encode(texts)
    assert np.linalg.norm(vectors_ND, axis=1) == pytest.approx(1.0)
    assert np.array([model(text)["vector"] for text in texts]) == pytest.approx(vectors_ND, abs=1e-6)
    done = lambert("predict", model=run, stdin="".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert done.code == 0, done.err
    found = np.array([json.loads(line)["vector"] for line in done.out.splitlines()])
    assert found == pytest.approx(vectors_ND, abs=1e-6)


def test_evaluate_takes_pairs_scored_pairs_and_judgements(run: Path, tmp_path: Path) -> None:
    model = library.load(run)
    assert model.evaluate(write(tmp_path / "pairs.jsonl", pairs(8)))["mrr_10"] > 0.2
    scored = [{"sentence1": "a boat", "sentence2": f"a boat {'x ' * n}", "score": -n} for n in range(4)]
    assert set(model.evaluate(write(tmp_path / "scored.jsonl", scored))) >= {"spearman", "pearson", "spearman_se"}
    (tmp_path / "qrels").mkdir()
    write(tmp_path / "corpus.jsonl", [{"_id": str(i), "text": row["positive"]} for i, row in enumerate(pairs(8))])
    write(tmp_path / "queries.jsonl", [{"_id": str(i), "text": row["anchor"]} for i, row in enumerate(pairs(8))])
    judged = tmp_path / "qrels" / "test.tsv"
    judged.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{i}\t{i}\t1\n" for i in range(8)))
    found = model.evaluate(judged)
    assert (found["queries"], found["texts"]) == (8, 8)
    assert found["mrr_10"] == pytest.approx(model.evaluate(tmp_path / "pairs.jsonl")["mrr_10"])


def test_models_with_other_prompts_are_compared(run: Path, tmp_path: Path, lambert: Lambert) -> None:
    data, files = write(tmp_path / "dev.jsonl", pairs(8)), []
    for name, prompt in (("a", ""), ("b", "the ")):
        shutil.copytree(run / "model", tmp_path / name)
        config = tmp_path / name / "config.json"
        settings = json.loads(config.read_text())
        settings["lambert"]["task"]["embed"]["prompt_b"] = prompt
        config.write_text(json.dumps(settings))
        (tmp_path / name / "SHA256SUMS").unlink()
        files.append(tmp_path / f"{name}.jsonl")
        done = lambert("evaluate", model=tmp_path / name, data=data, examples=files[-1])
        assert done.code == 0, done.err
    assert "ndcg_10" in library.compare(*files)["comparisons"][0]["scores"]


def test_the_folder_describes_itself_to_sentence_transformers(run: Path) -> None:
    modules = json.loads((run / "model" / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["Transformer", "Pooling", "Normalize"]
    assert all((run / "model" / module["path"]).is_dir() for module in modules[:2])
    found = sentence_transformers.read_task(run / "model")
    assert (found.name, found.max_length, found.embed.pooling, found.embed.normalize) == ("embed", 32, "mean", True)


def test_a_folder_of_sentence_transformers_gives_its_vectors(run: Path, tmp_path: Path, lambert: Lambert) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(run / "model", foreign)
    settings = json.loads((foreign / "config.json").read_text())
    del settings["lambert"]
    (foreign / "config.json").write_text(json.dumps(settings))
    (foreign / "SHA256SUMS").unlink()
    expected_D = library.load(run).encode("a boat")
    assert library.load(foreign).encode("a boat") == pytest.approx(expected_D, abs=1e-6)
    done = lambert("import", **{"from": foreign, "out": tmp_path / "imported"})
    assert done.code == 0, done.err
    assert library.load(tmp_path / "imported").encode("a boat") == pytest.approx(expected_D, abs=1e-6)
    pooling = foreign / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_mode_attention": True}))
    with pytest.raises(DataError, match="has the pooling 'pooling_mode_attention'; known: cls, max"):
        library.load(foreign)


def test_a_batch_of_one_pair_is_refused(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    train = write(tmp_path / "train.jsonl", pairs())
    flags = {**FLAGS, "train__batch_size": 1, "train__steps": 1}
    done = lambert("finetune", init=pretrained, data=train, out=tmp_path / "run", **flags)
    one_line(done, 2, "train.batch_size = 1 is too small")


def test_texts_alone_need_dropout(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    texts = write(tmp_path / "texts.jsonl", [{"text": f"a {thing}"} for thing in THINGS])
    shutil.copytree(pretrained / "model", tmp_path / "model")
    (tmp_path / "model" / "SHA256SUMS").unlink()
    config = tmp_path / "model" / "config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}))
    flags = {**FLAGS, "train__batch_size": 8, "train__steps": 1, "init": tmp_path / "model"}
    done = lambert("finetune", data=texts, out=tmp_path / "run", **flags)
    one_line(done, 2, "texts.jsonl has single texts", f"the dropout of {tmp_path / 'model'} is 0", "give pairs")
    done = lambert("finetune", data=write(tmp_path / "pairs.jsonl", pairs(8)), out=tmp_path / "pairs", **flags)
    assert done.code == 0, done.err
    config.write_text(json.dumps(settings | {"hidden_dropout_prob": 0.0}))  # that of attention remains
    done = lambert("finetune", data=texts, out=tmp_path / "run", **flags)
    assert done.code == 0, done.err


def test_prefixes_of_the_vectors_are_trained(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    train = write(tmp_path / "train.jsonl", pairs())
    losses = {}
    for widths in ((), (8,), (32, 8)):  # with the same dropout, so the losses of the first update can be added
        out, flags = tmp_path / str(len(losses)), {**FLAGS, "train__steps": 1, "task__embed__widths": list(widths)}
        library.finetune(init=pretrained, data=train, out=out, **flags)
        losses[widths] = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    assert losses[(32, 8)] == pytest.approx(losses[()] + losses[(8,)], rel=1e-5)
    assert losses[(8,)] != pytest.approx(losses[()], rel=1e-4)
    flags = {**FLAGS, "task__embed__widths": 33}
    done = lambert("finetune", init=pretrained, data=train, out=tmp_path / "run", **flags)
    one_line(done, 2, "task.embed.widths has 33", "32 components")


def test_columns_may_be_named(pretrained: Path, tmp_path: Path) -> None:
    rows = [{"q": row["anchor"], "a": row["positive"]} for row in pairs(8)]
    tokenizer = tokenizers.load(pretrained / "model")
    config = TaskConfig(name="embed", max_length=16, columns=Columns(text="q", text_b="a"))
    _, data = learn(config, tokenizer, write(tmp_path / "train.jsonl", rows))
    assert len(data.texts_NG) == 8
