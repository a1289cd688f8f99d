"""Tags, answers and vectors of families other than BERT, with byte-level BPE and Unigram, beside transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from labelled import SETTINGS

import lambert as library

Lambert = Callable[..., Any]
Labelled = Callable[[str, str], Path]
KINDS = [("modernbert", "bpe"), ("modernbert", "gemma"), ("xlm-roberta", "xlm-r")]
"""Families and kinds of tokenizers. mmBERT is a ModernBERT with a tokenizer of Gemma's kind."""
SHAPE = {
    "model__layers": 2, "model__hidden": 32, "model__heads": 2, "model__intermediate": 48, "model__positions": 64,
    "packing__sequence_length": 48, "packing__mode": "full", "train__steps": 1, "train__batch_size": 8,
}  # fmt: skip
WORDS = ["the", "king", "found", "a", "river", ",", "near", "the", "old", "road"]
QUESTION, CONTEXT = "the king found", "the king found a river near the old road ."


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def encoder(request: pytest.FixtureRequest, corpora: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, kind = request.param
    out = tmp_path_factory.mktemp(family) / "run"
    return library.pretrain(corpus=corpora[kind], out=out, model__block=family, **SHAPE).folder


@pytest.fixture
def tuned(encoder: Path, labelled: Labelled, tmp_path: Path, lambert: Lambert) -> Callable[[str], Path]:
    """`tuned(task)`: the encoder fine-tuned in two steps; its scores are those of `lambert evaluate`."""

    def run(task: str) -> Path:
        out, dev = tmp_path / task, labelled(task, "dev")
        short = {"task__max_length": 64, "train__steps": 2, "train__batch_size": 8, "optim__lr": 1e-3}
        found = library.finetune(
            init=encoder, data=labelled(task, "train"), dev=dev, out=out, **short, **SETTINGS[task]
        ).scores
        done = lambert("evaluate", model=out, data=dev, json=True)
        assert done.code == 0, done.err
        assert json.loads(done.out) == pytest.approx(found, abs=1e-6)
        return out

    return run


def net_of(run: Path, kind: str) -> tuple[Any, Any]:
    """transformers' model and tokenizer of a run."""
    net = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(run / "model", attn_implementation="eager")
    return net.eval(), transformers.AutoTokenizer.from_pretrained(run / "model")


def outputs(model: Any, row: dict[str, object]) -> Any:
    data = model.task.parse([row], ["row"])
    return model.task.soft(data, model.outputs(data))


def predicted(lambert: Lambert, run: Path, row: dict[str, object]) -> dict[str, Any]:
    done = lambert("predict", model=run, stdin=json.dumps(row))
    assert done.code == 0, done.err
    answer: dict[str, Any] = json.loads(done.out)
    return answer


def test_tags(tuned: Callable[[str], Path], lambert: Lambert) -> None:
    run = tuned("tag")
    net, words = net_of(run, "TokenClassification")
    given = words([f" {word}" for word in WORDS], is_split_into_words=True, return_tensors="pt")
    owners = given.word_ids()
    with torch.no_grad():
        logits_ML = net(**given).logits[0]
    wanted_WL = torch.softmax(torch.stack([logits_ML[owners.index(word)] for word in range(len(WORDS))]), -1)
    found_WL = outputs(library.load(run), {"tokens": WORDS})
    np.testing.assert_allclose(found_WL, wanted_WL.numpy(), atol=1e-5)
    tags = [net.config.id2label[int(label)] for label in wanted_WL.argmax(-1)]
    assert predicted(lambert, run, {"tokens": WORDS})["tags"] == tags
    text = " ".join(WORDS).replace(" ,", ",").replace("found", "found  \t")
    of_text = predicted(lambert, run, {"text": text})
    assert of_text["tokens"] == WORDS == [text[begin:end] for begin, end in of_text["offsets"]]
    assert of_text["tags"] == tags


def test_answers(tuned: Callable[[str], Path], lambert: Lambert) -> None:
    run = tuned("squad")
    net, words = net_of(run, "QuestionAnswering")
    given = words(QUESTION, CONTEXT, return_tensors="pt", return_offsets_mapping=True)
    offsets = given.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        out = net(**given)
    wanted_M2 = torch.stack([out.start_logits[0], out.end_logits[0]], -1).numpy()
    row = {"question": QUESTION, "context": CONTEXT}
    np.testing.assert_allclose(outputs(library.load(run), row), wanted_M2, atol=2e-5)
    inside = [at for at, part in enumerate(given.sequence_ids()) if part == 1]
    sums = {
        (first, last): wanted_M2[first, 0] + wanted_M2[last, 1]
        for first in inside for last in inside if first <= last < first + 30
    }  # fmt: skip
    first, last = max(sums, key=sums.__getitem__)
    answer = predicted(lambert, run, row)
    assert answer["answer"] == CONTEXT[offsets[first][0] : offsets[last][1]].strip()
    assert CONTEXT[answer["start"] : answer["end"]] == answer["answer"]


def test_a_head_that_transformers_lacks_is_named(
    corpora: dict[str, Path], labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    init = library.pretrain(
        corpus=corpora["wordpiece"], out=tmp_path / "run", model__block="nomic_bert", **SHAPE
    ).folder
    data, out = labelled("choice", "train"), tmp_path / "tuned"
    flags = {"train__steps": 2, "train__batch_size": 8, "task__max_length": 40, **SETTINGS["choice"]}
    done = lambert("finetune", init=init, data=data, dev=labelled("choice", "dev"), out=out, **flags)
    assert done.code == 0, done.err
    assert (done.out + done.err).count("transformers has no NomicBertForMultipleChoice, so only Lambert reads") == 1
    answer = library.load(out)({"text": "the king found", "choices": ["a boat", "a garden"]})
    assert answer["choice"] in (0, 1)


def test_vectors(tuned: Callable[[str], Path], lambert: Lambert) -> None:
    from sentence_transformers import SentenceTransformer

    run, texts = tuned("embed"), ["the king found a river", "a boat, near the old road", "under"]
    found_ND = library.load(run).encode(texts)
    net = SentenceTransformer(str(run / "model"), device="cpu")
    for n, text in enumerate(texts):
        np.testing.assert_allclose(found_ND[n], net.encode(text), atol=1e-5)
    assert predicted(lambert, run, {"text": texts[0]})["vector"] == pytest.approx(found_ND[0].tolist(), abs=1e-5)
