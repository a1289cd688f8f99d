"""Classifiers of transformers and CrossEncoders of sentence-transformers: pairs where rows have them, and scores."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import tokenizer

import lambert as library
from lambert.core.errors import DataError
from lambert.text.tokenizers import tokenizer as tokenizers

PAIRS = [("the meeting was moved", "Yes."), ("prices rose", "the central bank said " * 9), ("a", "")]
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a classifier of transformers with this number of labels."""

    def made(labels: int = 1, family: str = "Bert") -> Path:
        import transformers

        words, folder = tokenizer(), tmp_path / "model"
        config = getattr(transformers, f"{family}Config")(
            vocab_size=words.get_vocab_size(), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=48, max_position_embeddings=32, num_labels=labels, initializer_range=0.3, pad_token_id=0,
        )  # fmt: skip
        torch.manual_seed(0)
        getattr(transformers, f"{family}ForSequenceClassification")(config).eval().save_pretrained(folder)
        tokenizers.save(words, folder, longest=24)
        return folder

    return made


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def values_of(folder: Path) -> list[float]:
    rows = library.load(folder)([{"text": text, "text_b": text_b} for text, text_b in PAIRS])
    return [row["value"] for row in rows]


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("", {}),
        ("config.json", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}),
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.activation.Softplus"}),
    ],
)
def test_scores_are_those_of_a_cross_encoder(
    file: str, named: dict[str, Any], make: Make, tmp_path: Path, lambert: Any
) -> None:
    from sentence_transformers import CrossEncoder

    folder = make()
    if file != "config.json":  # as versions from 5.4 write it
        CrossEncoder(str(folder), device="cpu").save_pretrained(str(tmp_path / "new"))
        folder = tmp_path / "new"
    if file:
        changed(folder / file, **named)
    wanted = CrossEncoder(str(folder), device="cpu").predict([*PAIRS])
    np.testing.assert_allclose(values_of(folder), wanted, atol=2e-6)
    if file:
        with pytest.raises(DataError, match="text_b"):  # a reranker has no score for one text
            library.load(folder)([{"text": PAIRS[0][0]}])
    done = lambert("import", **{"from": folder, "out": tmp_path / "imported"})
    assert done.code == 0, done.err
    np.testing.assert_allclose(values_of(tmp_path / "imported"), wanted, atol=2e-6)
    np.testing.assert_allclose(CrossEncoder(str(tmp_path / "imported")).predict([*PAIRS]), wanted, atol=2e-6)


def test_settings_of_a_module_that_is_not_there_are_not_read(make: Make) -> None:
    """transformers, SentenceTransformer and CrossEncoder read sentence_bert_config.json only beside modules.json."""
    folder = make()
    before = values_of(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    assert values_of(folder) == before


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_scores_of_several_labels_keep_their_activation(make: Make, tmp_path: Path, lambert: Any) -> None:
    from sentence_transformers import CrossEncoder

    folder = make(3)
    changed(
        folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Softmax"},
        sbert_ce_default_activation_function="torch.nn.modules.activation.Softmax",
    )  # fmt: skip
    done = lambert("export", model=folder, format="hf", out=tmp_path / "copy")
    assert done.code == 0, done.err
    wanted = CrossEncoder(str(folder), device="cpu").predict([*PAIRS])
    np.testing.assert_allclose(CrossEncoder(str(tmp_path / "copy"), device="cpu").predict([*PAIRS]), wanted, atol=2e-6)
    found = [
        [*row["probabilities"].values()]
        for row in library.load(folder)([dict(zip(("text", "text_b"), row, strict=True)) for row in PAIRS])
    ]
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    key = "sbert_ce_default_activation_function"  # of versions before 4
    kept = [json.loads((one / "config.json").read_text())[key] for one in (folder, tmp_path / "copy")]
    assert kept[0] == kept[1]


def test_a_file_of_modules_that_are_not_there_names_no_activation(make: Make) -> None:
    folder = make()
    before = values_of(folder)
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid"})
    )
    assert values_of(folder) == before


@pytest.mark.filterwarnings("ignore:note. 1 row of .* has an empty text")
@pytest.mark.parametrize("family", ["Bert", "DistilBert"])
def test_rows_with_and_without_a_second_text(family: str, make: Make, tmp_path: Path, lambert: Any) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = make(3, family)
    net, words = (
        AutoModelForSequenceClassification.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    texts = [*PAIRS, ("a text alone",), ("the meeting " * 20,)]
    found = library.load(folder)([dict(zip(("text", "text_b"), row, strict=False)) for row in texts])
    wanted = []
    for row in texts:
        with torch.inference_mode():
            logits = net(**words(*([text] for text in row), truncation=True, return_tensors="pt")).logits
        wanted.append(logits[0].softmax(-1).tolist())
    np.testing.assert_allclose([[*row["probabilities"].values()] for row in found], wanted, atol=2e-6)
    rows = [{"text": a, "text_b": b, "label": "LABEL_1"} for a, b in PAIRS]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(UserWarning, match="has the labels 'LABEL_0', 'LABEL_2'"):
        scores = library.load(folder).evaluate(tmp_path / "dev.jsonl")
    assert scores["loss"] == pytest.approx(-np.log([row[1] for row in wanted[:3]]).mean(), abs=1e-5)
    done = lambert(
        "predict", model=folder, stdin=json.dumps({"text": "a", "text_c": "b"}) + "\n", columns__text_b="text_b"
    )
    assert "'text_b' is missing" in done.out + done.err


def test_what_a_classifier_lacks_is_named(make: Make) -> None:
    from safetensors.torch import load_file, save_file

    folder = make(3)
    changed(folder / "config.json", architectures=None)
    with pytest.raises(DataError, match=r'no architectures, so the head in classifier\.weight .*"BertForSequenceClass'):
        library.load(folder)(["a"])
    changed(folder / "config.json", architectures=["BertForSequenceClassification"])
    tensors = load_file(folder / "model.safetensors")
    del tensors["bert.pooler.dense.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"has no head for 'classify' \(no bert\.pooler\.dense\.weight\)"):
        library.load(folder)(["a"])


@pytest.mark.parametrize("segments", [True, False])
def test_a_roberta_whose_tokenizer_gives_segments(segments: bool, make: Make, tmp_path: Path, lambert: Any) -> None:
    """As in one that was trained from scratch: the default of RobertaConfig is two types."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder, copy, tuned = make(3, "Roberta"), tmp_path / "copy", tmp_path / "tuned"
    tokenizers.save(tokenizer(), folder, longest=31, segments=segments)
    done = lambert("import", **{"from": folder, "out": copy})
    assert done.code == 0, done.err
    rows = [{"text": a, "text_b": b, "label": f"LABEL_{n}"} for n, (a, b) in enumerate(PAIRS)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = lambert(
        "finetune", init=folder, data=tmp_path / "data.jsonl", out=tuned, task__name="classify",
        task__columns__text_b="text_b", train__epochs=1, train__batch_size=8, optim__lr=1e-9,
    )  # fmt: skip
    assert done.code == 0, done.err
    predicted = []
    for one in (folder, copy, tuned / "model"):
        net, words = AutoModelForSequenceClassification.from_pretrained(one).eval(), AutoTokenizer.from_pretrained(one)
        with torch.inference_mode():
            logits = [net(**words([a], [b], truncation=True, return_tensors="pt")).logits[0] for a, b in PAIRS]
        wanted = torch.stack(logits).softmax(-1).numpy()
        predicted.append([[*row["probabilities"].values()] for row in library.load(one)(rows)])
        np.testing.assert_allclose(predicted[-1], wanted, atol=2e-6)
    np.testing.assert_allclose(predicted[1:], predicted[:1] * 2, atol=2e-5)


@pytest.mark.parametrize(
    ("labels", "file", "values", "message"),
    [
        (1, "config.json", {"sentence_transformers": {"activation_fn": "mine.Act"}}, "names the activation 'mine.Act'"),
        (3, "config.json", {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, "of 3 labels"),
        (
            3,
            "config.json",
            {
                "problem_type": "multi_label_classification",
                "sentence_transformers": {"activation_fn": "torch.nn.Softmax"},
            },
            "only Identity and Sigmoid",
        ),
        (1, "modules.json", [{"path": "", "type": "sentence_transformers.models.Transformer"}] * 2, "Transformer, Tr"),
    ],
)
def test_what_no_score_can_be_is_named(labels: int, file: str, values: Any, message: str, make: Make) -> None:
    folder = make(labels)
    if isinstance(values, dict):
        changed(folder / file, **values)
    else:
        (folder / file).write_text(json.dumps(values))
    with pytest.raises(DataError, match=message):
        library.load(folder)
