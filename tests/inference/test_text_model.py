"""A model over texts: predictions, vectors, scores, and a folder to save it in."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import lambert as library
from lambert.core.errors import DataError, UsageError
from lambert.inference import text_model
from lambert.model import weights
from lambert.tasks import TaskConfig
from lambert.tasks.squad.squad import Squad

TEXTS = ["the king found a river near the old road", "a bird", "under the bright house the window walked slowly"]
Tuned = Callable[[str], Path]
Labelled = Callable[[str, str], Path]


@pytest.mark.parametrize("task", ["classify", "tag", "regress"])
def test_one_text_many_and_rows(task: str, tuned: Tuned, lambert: Any) -> None:
    model = library.load(tuned(task))
    assert model.task.config.name == task
    many = model(TEXTS)
    key = "tokens" if task == "tag" else "text"
    rows = [{key: text.split() if task == "tag" else text, "id": number} for number, text in enumerate(TEXTS)]
    said = lambert("predict", model=tuned(task), stdin="".join(json.dumps(row) + "\n" for row in rows))
    expected = [json.loads(line) for line in said.out.splitlines()]
    same = pytest.approx if task == "regress" else lambda row: row  # batches of other sizes round otherwise
    assert model(rows) == [same(row) for row in expected]
    if task == "tag":
        assert [row.pop("tokens") for row in many] == [text.split() for text in TEXTS]
        assert [[text[b:e] for b, e in row.pop("offsets")] for row, text in zip(many, TEXTS, strict=True)] == [
            text.split() for text in TEXTS
        ]
    assert [{"id": number, **row} for number, row in enumerate(many)] == [same(row) for row in expected]
    if task != "classify":
        assert model(rows[0]) == same(expected[0])
    assert model([]) == []


def test_a_pretrained_model_fills_masks_and_an_encoder_does_not(pretrained: Path, tmp_path: Path) -> None:
    model = library.load(pretrained)
    assert len(model("the [MASK] found a [MASK]")["masks"]) == 2
    with pytest.raises(DataError, match=r"text 2: no \[MASK\]"):
        model(["a [MASK]", "nothing"])
    with pytest.raises(UsageError, match="not fine-tuned"):
        model.evaluate([{"text": "a", "label": "b"}])
    bare = weights.load(pretrained / "model", {})[0]
    folder = model.save(tmp_path / "whole")
    for name in ("config.json", "SHA256SUMS"):
        (folder / name).unlink()
    weights.save(bare, folder)
    encoder = library.load(folder)
    assert np.array_equal(encoder.encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(DataError, match="has no head for 'mask'"):
        encoder("a [MASK]")


def test_questions_are_rows(tuned: Tuned) -> None:
    model = library.load(tuned("squad"))
    assert "answer" in model({"question": "the king found", "context": TEXTS[0]})
    with pytest.raises(DataError, match="text 1: 'question'"):
        model("who")
    with pytest.raises(UsageError, match="text 1 is neither a text nor a row"):
        model([3])  # type: ignore[list-item]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_transformers(pooling: Any, pretrained: Path) -> None:
    model = library.load(pretrained)
    found = model.encode(TEXTS, pooling=pooling)
    assert (found.dtype, found.shape) == (np.float32, (3, 32))
    net = transformers.AutoModel.from_pretrained(pretrained / "model").eval()
    for text, vector in zip(TEXTS, found, strict=True):
        ids = torch.tensor([model.tokenizer.encode(text).ids])
        with torch.inference_mode():
            states_TD = net(ids).last_hidden_state[0]
        expected = states_TD.mean(0) if pooling == "mean" else states_TD[0]
        assert np.allclose(vector, expected.numpy(), atol=2e-5)
        assert np.allclose(model.encode(text, pooling=pooling), vector, atol=1e-6)
    assert model.encode([]).shape == (0, 32)
    assert model.encode("river " * 500).shape == (32,)  # cut to its positions


def test_texts_are_cut_as_the_tokenizer_of_another_library_says(pretrained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(pretrained / "model", folder, ignore=shutil.ignore_patterns("SHA256SUMS"))
    for name, changes in (("tokenizer_config.json", {"model_max_length": 8}), ("config.json", {"lambert": None})):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**values, **changes}))
    text, model = "river " * 50, library.load(folder)
    cut = model.encode("river " * 6)
    assert np.allclose(model.encode(text), cut, atol=1e-6)
    assert not np.allclose(model.encode(text, max_length=32), cut, atol=1e-3)
    ours, short = (library.load(folder, task="embed").encode(one) for one in (text, "river " * 6))
    assert np.allclose(ours, short, atol=1e-6)


def test_vectors_of_several_kinds_do_not_mix(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Counted(text_model.Embed):
        def __init__(self, config: TaskConfig, tokenizer: Any) -> None:
            made.append(config.embed.pooling)
            super().__init__(config, tokenizer)

    kinds: list[dict[str, Any]] = [{}, {"pooling": "cls"}, {"max_length": 8}, {"pooling": "max", "max_length": 8}]
    alone = [library.load(pretrained).encode("river " * 20, **kind) for kind in kinds]
    assert len({vector.tobytes() for vector in alone}) == 4
    model = library.load(pretrained)
    monkeypatch.setattr(text_model, "Embed", Counted)
    for _ in range(2):
        for kind, vector in zip(kinds, alone, strict=True):
            for _ in range(3):
                assert np.array_equal(model.encode("river " * 20, **kind), vector)
    assert made == ["", "cls", "", "max"] * 2


def test_wrong_requests_are_answered(pretrained: Path, tmp_path: Path) -> None:
    model = library.load(pretrained)
    with pytest.raises(UsageError, match="Did you mean 'mean'"):
        model.encode(TEXTS, pooling="men")  # type: ignore[arg-type]
    for length in (-1, 0, 7, 65):
        with pytest.raises(UsageError, match=rf"^max_length = {length} must be from 8 to 64, the model's positions\.$"):
            model.encode(TEXTS, max_length=length)
    for wrong in ("8", 8.5):
        with pytest.raises(UsageError, match=f"^max_length = {wrong!r} must be from 8 to 64"):
            model.encode(TEXTS, max_length=wrong)  # type: ignore[arg-type]
    assert np.array_equal(model.encode(TEXTS, max_length=np.int64(8)), model.encode(TEXTS, max_length=8))
    for count in ("2", -1, 1.5):
        with pytest.raises(UsageError, match=f"^top = {count!r} must be a whole number from 1 on"):
            model("the [MASK] was", top=count)  # type: ignore[arg-type]
    assert len(model("the [MASK] was", top=np.int64(2))["masks"][0]) == 2
    with pytest.raises(UsageError, match=r"^folder must be a path, not None\.$"):
        library.load(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="The encoder has 7 positions, fewer than 8: use one with more"):
        TaskConfig().resolve_length(7)
    with pytest.raises(UsageError, match="takes texts, not int"):
        model.encode([1])  # type: ignore[list-item]
    with pytest.raises(DataError, match="No such model folder"):
        library.load(tmp_path / "nowhere")
    for name, value in {"task": 1, "precision": torch.float32, "device": 5, "micro_tokens": "8", "code": 1}.items():
        with pytest.raises(UsageError, match=f"^{name} must be "):
            library.load(pretrained, **{name: value})  # type: ignore[arg-type]
    unset = dict.fromkeys(["task", "precision", "device", "micro_tokens", "code"])
    assert repr(library.load(pretrained, **unset)) == repr(model)  # type: ignore[arg-type]
    assert repr(library.load(library.Result(pretrained))) == repr(model)
    for settings in (
        {"batch_size": "8"}, {"batch_size": float("inf")}, {"truncate_dim": 4.0}, {"prompt": b"x"}, {"prompt": ["a"]},
        {"prompt_name": 1}, {"pooling": 1},
    ):  # fmt: skip
        with pytest.raises(UsageError, match=rf"^{next(iter(settings))} must be "):
            model.encode(TEXTS, **settings)  # type: ignore[arg-type]
    for texts, prompt in (["a", "\ud800"], None), ("a", "\ud800"):
        with pytest.raises(DataError, match="half of a surrogate pair"):
            model.encode(texts, prompt=prompt)
    for folder in (None, 5, "", "a\0b"):
        with pytest.raises(UsageError, match=r"^folder "):
            model.save(folder)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="squid"):
        library.load(pretrained, task="squid")


def test_scores_are_those_of_evaluate(tuned: Tuned, labelled: Labelled, lambert: Any) -> None:
    data = labelled("classify", "dev")
    expected = json.loads(lambert("evaluate", model=tuned("classify"), data=data, json=True).out)
    assert library.load(tuned("classify")).evaluate(data) == pytest.approx(expected)


def test_notes_about_labelled_data_are_warnings(tuned: Tuned) -> None:
    model = library.load(tuned("classify"))
    assert model.has_head
    assert model.task_config == model.task.config
    first, *others = model.task_config.labels
    with pytest.warns(UserWarning, match=f"note: no row of data has .*{others[0]}"):
        model.evaluate([{"text": "a river", "label": first}])


def test_an_encoder_trained_on_is_saved(tuned: Tuned, tmp_path: Path) -> None:
    model = library.load(tuned("classify"))
    before = model(TEXTS)
    with torch.no_grad():
        model.encoder.words.weight.mul_(1.5)
    after, vectors = model(TEXTS), model.encode(TEXTS)
    assert after != before
    again = library.load(model.save(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text()
    assert card.startswith(f'---\nlibrary_name: transformers\nbase_model: "{model.path.name}"\npipeline_tag: text-cl')
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert again(TEXTS) == after
    assert np.array_equal(again.encode(TEXTS), vectors)
    model._inference = dataclasses.replace(model._inference, precision="int8")
    with pytest.raises(UsageError, match="int8 cannot be saved"):
        model.save(tmp_path / "rounded")


@pytest.mark.parametrize("top", [1, 3])
def test_the_most_probable_are_listed(top: int, tuned: Tuned, pretrained: Path, lambert: Any) -> None:
    model = library.load(tuned("classify"))
    plain, listed = model(TEXTS), model(TEXTS, top=top)
    for ours, theirs in zip(listed, plain, strict=True):
        ranked = sorted(theirs["probabilities"].items(), key=lambda item: -item[1])[:top]
        assert [*ours["probabilities"].items()] == ranked
        assert ours["label"] == ranked[0][0]
    stdin = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    said = lambert("predict", model=tuned("classify"), top=top, stdin=stdin)
    assert [json.loads(line) for line in said.out.splitlines()] == listed
    assert len(library.load(pretrained)("a [MASK]", top=top + 5)["masks"][0]) == top + 5
    for task in ("regress", "tag"):
        with pytest.raises(UsageError, match="top is for classify, multilabel, squad and mask"):
            library.load(tuned(task))("a river", top=top)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_candidate_answers(version: str, tuned: Tuned) -> None:
    model = library.load(tuned("squad"))
    assert isinstance(model.task, Squad)
    model.task.config = dataclasses.replace(
        model.task.config, squad=dataclasses.replace(model.task.config.squad, version=version)
    )
    row = {"question": "the king found", "context": "the  king found a river . the bird found a stone ."}
    plain, found = model(row), model(row, top=50)
    candidates = found.pop("candidates")
    assert found == plain
    chances = [candidate["probability"] for candidate in candidates]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) == pytest.approx(1.0)
    none = [candidate for candidate in candidates if not candidate["text"]]

    assert len(none) == int(version == "2.0")
    for candidate in candidates:
        if candidate["text"]:
            part = row["context"][candidate["start"] : candidate["end"]]
            assert " ".join(part.split()) == candidate["text"]
        else:
            assert candidate["start"] is candidate["end"] is None
    chosen = next(candidate for candidate in candidates if candidate["text"] == plain["answer"])
    assert chosen["probability"] == plain["probability"]
    assert model(row, top=2)["candidates"] == candidates[:2]
