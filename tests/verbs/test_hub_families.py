"""Encoders of every family from raw text to answers, with tokenizers of their kinds, and their folders elsewhere."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gemma import gemma
from processors import needs_fast

import lambert
from lambert.core.errors import UsageError
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.verbs import pretrain as pretraining

Labelled = Callable[[str, str], Path]
SHAPE = {
    "model__layers": 3, "model__hidden": 32, "model__heads": 2, "model__intermediate": 48, "model__positions": 64,
    "packing__sequence_length": 48, "packing__mode": "full", "train__steps": 3, "train__batch_size": 8,
}  # fmt: skip
KINDS = {
    "modernbert": "bpe", "roberta": "bpe", "xlm-roberta": "unigram", "camembert": "unigram", "distilbert": "wordpiece",
    "electra": "wordpiece", "nomic_bert": "wordpiece", "gte": "unigram", "eurobert": "bpe", "mpnet": "mpnet",
    "bert": "xlm-r",
}  # fmt: skip
"""The kind of tokenizer by family. The multilingual MiniLM and E5 are BERTs with XLM-R's tokenizer."""
QUICK = "modernbert", "xlm-roberta", "electra", "mpnet"
"""A family with each kind of tokenizer."""


@pytest.mark.parametrize(
    "family", [*QUICK, *(pytest.param(family, marks=pytest.mark.slow) for family in KINDS if family not in QUICK)]
)
def test_from_text_to_answers(
    family: str, corpora: dict[str, Path], labelled: Labelled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lambert.pretrain(
        corpus=corpora[KINDS[family]], out=tmp_path / "run", model__block=family, **SHAPE,
        **({"model__embedding": 16} if family == "electra" else {}),
    )  # fmt: skip
    folder = run.folder / "model"
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert theirs.config.model_type == family
    words = transformers.AutoTokenizer.from_pretrained(folder)
    mask = "<mask>" if KINDS[family] in ("mpnet", "xlm-r") else "[MASK]"
    assert words.mask_token == mask
    ours = lambert.load(folder, precision="float32")
    text = "The old [MASK] walked slowly."
    ids = words(text.replace("[MASK]", mask), return_tensors="pt")
    with torch.no_grad():
        logits = theirs(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]).logits[0]
    at = ids["input_ids"][0].tolist().index(words.mask_token_id)
    (found,) = ours(text)["masks"]
    best = torch.softmax(logits[at], -1).sort(descending=True).values[: len(found)].tolist()
    assert [candidate["probability"] for candidate in found] == pytest.approx(best, rel=1e-4)

    rows = {"data": labelled("pair", "train"), "dev": labelled("pair", "dev")}
    tuned = lambert.finetune(
        init=folder, out=tmp_path / "tuned", **rows, task__max_length=40, train__steps=2, train__batch_size=8,
        task__columns__text="one", task__columns__text_b="two",
    )  # fmt: skip
    model = lambert.load(tuned.folder, precision="float32")
    net = transformers.AutoModelForSequenceClassification.from_pretrained(
        tuned.folder / "model", attn_implementation="eager"
    ).eval()
    words = transformers.AutoTokenizer.from_pretrained(tuned.folder / "model")
    given = words("the river stone", "the green house", return_tensors="pt")
    assert ("token_type_ids" in given) == (family in ("bert", "electra", "nomic_bert"))
    with torch.no_grad():
        expected = torch.softmax(net(**given).logits[0], -1)
    answer = model({"one": "the river stone", "two": "the green house"})
    probabilities = answer["probabilities"]
    wanted = {net.config.id2label[number]: float(chance) for number, chance in enumerate(expected)}
    assert probabilities == pytest.approx(wanted, abs=1e-5)
    assert model.encode(["one text", "another"]).shape == (2, 32)
    scores = lambert.evaluate(model=tuned.folder, data=rows["dev"]).scores
    assert scores["accuracy"] == tuned.scores["accuracy"]
    copied = lambert.import_model(lambert.export(tuned.folder, out=tmp_path / "hf").folder, out=tmp_path / "back")
    before, after = tuned.folder / "model", copied.folder
    for name in ("config.json", "tokenizer.json"):
        assert json.loads((after / name).read_text()) == json.loads((before / name).read_text())
    assert (after / "model.safetensors").read_bytes() == (before / "model.safetensors").read_bytes()
    short = {name: value for name, value in SHAPE.items() if not name.startswith("model__")}
    again = lambert.pretrain(init=folder, corpus=corpora[KINDS[family]], out=tmp_path / "again", **short)
    assert again.scores["mlm"] != run.scores["mlm"]
    needs_fast("bfloat16")  # last: the test ends here on other processors
    fast = lambert.load(tuned.folder, precision="bfloat16")
    near = fast({"one": "the river stone", "two": "the green house"})["probabilities"]
    assert near == pytest.approx(wanted, abs=0.02)


def test_roberta_with_its_own_tokenizer(corpora: dict[str, Path], tmp_path: Path) -> None:
    run = lambert.pretrain(corpus=corpora["roberta"], out=tmp_path / "run", model__block="roberta", **SHAPE)
    folder = run.folder / "model"
    config = transformers.AutoConfig.from_pretrained(folder)
    learnt = tokenizers.load(folder)
    assert config.pad_token_id == roles.find_id(learnt, "pad")
    assert config.max_position_embeddings == 64 + config.pad_token_id + 1
    assert roles.template(learnt).between == 2
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    ours = lambert.load(folder, precision="float32")
    given = words("the river stone", return_tensors="pt")
    with torch.no_grad():
        states = theirs(input_ids=given["input_ids"]).last_hidden_state[0]
    np.testing.assert_allclose(ours.encode(["the river stone"])[0], states.mean(0).numpy(), atol=2e-5)
    assert len(ours("the <mask> stone")["masks"]) == len(ours("the [MASK] stone")["masks"]) == 1


def test_modernbert_with_a_tokenizer_of_gemmas_kind(texts: Path, labelled: Labelled, tmp_path: Path) -> None:
    """mmBERT: a ModernBERT whose texts are not divided into words before their pieces are looked up."""
    tokenizer = gemma(texts.read_text(encoding="utf-8").splitlines(), 500)
    tokenizers.save(tokenizer, tmp_path / "mmbert", longest=64, segments=False)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "sep_token_id": 1, "bos_token_id": 2, "cls_token_id": 1}
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.ModernBertConfig(
        **shape, **ids, vocab_size=512, max_position_embeddings=64, global_rope_theta=16e4, local_rope_theta=16e4
    )
    transformers.ModernBertForMaskedLM(config).save_pretrained(tmp_path / "mmbert")

    corpus = lambert.prepare(
        input=(texts,), out=tmp_path / "corpus", documents="line", tokenizer=str(tmp_path / "mmbert"), workers=1
    ).folder
    short = {name: value for name, value in SHAPE.items() if not name.startswith("model__")}
    run = lambert.pretrain(
        init=tmp_path / "mmbert", corpus=corpus, out=tmp_path / "run", masking__whole_word=True, **short
    )
    folder = run.folder / "model"
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert (words.mask_token, words.cls_token, words.pad_token) == ("<mask>", "<bos>", "<pad>")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    given = words("The old <mask> walked slowly.", return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**given).logits[0]
    at = given["input_ids"][0].tolist().index(words.mask_token_id)
    (found,) = lambert.load(folder, precision="float32")("The old [MASK] walked slowly.")["masks"]
    best = torch.softmax(logits[at, : roles.size(tokenizer)], -1).sort(descending=True).values[: len(found)].tolist()
    assert [candidate["probability"] for candidate in found] == pytest.approx(best, rel=1e-4)

    rows = {"data": labelled("pair", "train"), "dev": labelled("pair", "dev")}
    tuned = lambert.finetune(
        init=folder, out=tmp_path / "tuned", **rows, task__max_length=40, train__steps=2, train__batch_size=8,
        task__columns__text="one", task__columns__text_b="two",
    )  # fmt: skip
    net = transformers.AutoModelForSequenceClassification.from_pretrained(
        tuned.folder / "model", attn_implementation="eager"
    ).eval()
    ids = tokenizer.encode("the river stone", "the green house").ids
    assert [ids[0], ids[-1], ids.count(1), ids.count(2)] == [2, 1, 2, 2]
    with torch.no_grad():
        chances = torch.softmax(net(input_ids=torch.tensor([ids])).logits[0], -1)
    answer = lambert.load(tuned.folder, precision="float32")({"one": "the river stone", "two": "the green house"})
    wanted = {net.config.id2label[number]: float(chance) for number, chance in enumerate(chances)}
    assert answer["probabilities"] == pytest.approx(wanted, abs=1e-5)


def test_an_encoder_with_fewer_layers_than_kinds_of_layers(corpora: dict[str, Path], tmp_path: Path) -> None:
    shape = SHAPE | {"model__layers": 2, "model__block": "modernbert"}
    run = lambert.pretrain(corpus=corpora["bpe"], out=tmp_path / "run", **shape)
    config = lambert.load(run.folder).model.config
    assert (config.modern.global_every, config.dropout, config.attention_dropout, config.norm_eps) == (3, 0, 0, 1e-5)
    kept = tomllib.loads((run.folder / "config.toml").read_text())["model"]
    assert (kept["dropout"], kept["norm_eps"]) == (0, 1e-5)
    again = shape | {"model__modern__window": 32}
    with pytest.raises(lambert.UsageError, match=r"^model__modern__window = 32, but .* has 64. With init, leave"):
        lambert.pretrain(corpus=corpora["bpe"], init=run.folder, out=tmp_path / "again", **again)
    lambert.pretrain(corpus=corpora["bpe"], init=run.folder, out=tmp_path / "again", **shape)
    (found,) = lambert.load(run.folder)("The old [MASK] walked.")["masks"]
    assert not any("\u0120" in candidate["token"] for candidate in found)


def test_pairs_for_next_sentences_need_bert(corpora: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(lambert.UsageError, match=r'ModernBERT does not have. Set packing__mode = "full"'):
        lambert.pretrain(
            corpus=corpora["bpe"], out=tmp_path / "run", model__block="modernbert", **SHAPE | {"packing__mode": "pairs"}
        )


def test_learning_bytes_is_repeatable(texts: Path, corpora: dict[str, Path], tmp_path: Path) -> None:
    lambert.prepare(
        input=(texts,), out=tmp_path / "again", documents="line", tokenizer_kind="bpe", vocabulary=300, heldout=0.2,
        workers=1,
    )  # fmt: skip
    first, second = ((folder / "tokenizer.json").read_bytes() for folder in (corpora["bpe"], tmp_path / "again"))
    assert first == second


@pytest.mark.parametrize(
    ("family", "setting", "value"),
    [
        ("bert", "embedding", 16), ("bert", "position_offset", 2), ("bert", "segment_types", 0),
        ("bert", "modern__window", 3), ("roberta", "embedding", 16), ("modernbert", "embedding", 16),
        ("roberta", "position_offset", 9), ("distilbert", "norm_eps", 1e-5), ("electra", "pad", 7),
    ],
)  # fmt: skip
def test_settings_of_other_families_are_refused(
    family: str, setting: str, value: float, corpora: dict[str, Path], tmp_path: Path
) -> None:
    settings = {**SHAPE, f"model__{setting}": value}
    named = rf"model__{setting} = {value}[ ,]|\[model\]"
    with pytest.raises(lambert.UsageError, match=named):
        lambert.pretrain(corpus=corpora["wordpiece"], out=tmp_path / "run", model__block=family, **settings)
    assert not (tmp_path / "run" / "model").exists()


def test_a_later_phase_changes_what_no_weight_depends_on(
    corpora: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = []

    def corpus_source(split: Any, *arguments: Any) -> Any:
        found = made(split, *arguments)
        sources.extend([found] * (split.name == "train"))
        return found

    made = pretraining.CorpusSource
    monkeypatch.setattr(pretraining, "CorpusSource", corpus_source)
    block = {"model__block": "modernbert", "model__dropout": 0.0, "model__attention_dropout": 0.0}
    shape = SHAPE | block | {"model__modern__theta": 10_000.0}
    first = lambert.pretrain(corpus=corpora["bpe"], out=tmp_path / "first", **shape, masking__rate=0.3)
    longer = shape | {"model__positions": 96, "packing__sequence_length": 96, "model__modern__theta": 160_000.0}
    more = {"init": first.folder, "corpus": corpora["bpe"], "keep_moments": True}
    second = lambert.pretrain(out=tmp_path / "second", **longer, **more, masking__rate=0.15)
    batches = [source.collate(np.zeros(8, np.int64), np.arange(8)) for source in sources]
    assert [batch.targets["mlm"].count / batch.tokens for batch in batches] == pytest.approx([0.3, 0.15], abs=0.01)
    config = transformers.AutoConfig.from_pretrained(second.folder / "model")
    assert config.max_position_embeddings == 96
    assert config.rope_parameters["full_attention"]["rope_theta"] == 160_000
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == 10_000
    short = {name: value for name, value in SHAPE.items() if not name.startswith("model__")}
    third = lambert.pretrain(out=tmp_path / "kept", **short, **more, model__modern__theta=20_000.0)
    config = transformers.AutoConfig.from_pretrained(third.folder / "model")
    assert config.rope_parameters["full_attention"]["rope_theta"] == 20_000
    assert (config.max_position_embeddings, config.num_hidden_layers) == (64, 3)
    with pytest.raises(UsageError, match="model__modern__window = 8"):
        lambert.pretrain(out=tmp_path / "third", **longer, **more, model__modern__window=8)
