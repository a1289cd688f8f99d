"""Words of real novels as new pieces of an encoder's vocabulary, compared with transformers."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line
from novels import paragraphs

import lambert as library
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.tokens import expansion
from lambert.wings.corpus.tokens.additions import choose_division

Lambert = Callable[..., Any]
PIECES, WORDS = 901, 40


@pytest.fixture(scope="session")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Paragraphs of a novel that the vocabulary was not learnt from, one a line."""
    path = tmp_path_factory.mktemp("extend") / "domain.txt"
    path.write_text("".join(f"{part}\n" for part in paragraphs(1, 300)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def base(domain: Path, lambert: Lambert) -> Path:
    """A BertForMaskedLM of transformers with a vocabulary learnt from another novel."""
    from transformers import BertConfig, BertForMaskedLM

    texts, corpus, folder = (domain.with_name(name) for name in ("other.txt", "corpus", "base"))
    texts.write_text("".join(f"{part}\n" for part in paragraphs(0, 200)), encoding="utf-8")
    done = lambert("prepare", input=texts, out=corpus, documents="line", vocabulary=PIECES, workers=1)
    assert done.code == 0, done.err
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    net = BertForMaskedLM(BertConfig(vocab_size=PIECES, max_position_embeddings=128, **shape))
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    net.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(corpus / name, folder)
    return folder


@pytest.fixture(scope="session")
def larger(base: Path, domain: Path, lambert: Lambert) -> Path:
    """The model with words of the novel."""
    out = domain.with_name("larger")
    done = lambert("extend", base, input=domain, out=out, words=WORDS, documents="line", heldout=0.1)
    assert done.code == 0, done.err
    assert f"words     {WORDS} added, {PIECES} to {PIECES + WORDS} pieces: " in done.out
    assert "verified: reads back bit for bit; largest difference from transformers" in done.out
    return out


def added(folder: Path) -> list[tuple[str, int, list[str]]]:
    """The new words, their counts and their pieces."""
    rows = [line.split("\t") for line in (folder / "added_words.tsv").read_text().splitlines()]
    return [(word, int(count), pieces.split()) for word, count, pieces in rows]


def greedy(text: str, vocabulary: dict[str, int]) -> list[int]:
    """WordPiece as Devlin et al. 2018 describe it, for ASCII text."""
    ids = []
    for word in re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower()):
        at, found = 0, []
        while at < len(word):
            mark = "##" if at else ""
            end = next((e for e in range(len(word), at, -1) if mark + word[at:e] in vocabulary), 0)
            if not end:
                found = [vocabulary["[UNK]"]]
                break
            found.append(vocabulary[mark + word[at:end]])
            at = end
        ids += found
    return ids


def test_the_words_are_those_that_save_most_tokens(base: Path, larger: Path, domain: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(base)
    config = PrepareConfig(input=(domain,), out="unused", documents="line")
    counts = expansion.read(config, 0.1, lambda done, total: None).counts
    words = Counter(
        word
        for text, count in counts.items()
        for word in re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower())
        for _ in range(count)
    )
    saves = {word: n * (len(theirs.tokenize(word)) - 1) for word, n in words.items() if n >= 5 and word.isalpha()}
    best = sorted(saves, key=lambda word: (-saves[word], word))[:WORDS]
    assert [word for word, *_ in added(larger)] == best
    assert all((count, pieces) == (words[word], theirs.tokenize(word)) for word, count, pieces in added(larger))
    assert min(saves[word] for word in best) > 0


def test_other_programs_read_the_same_tokens(base: Path, larger: Path, domain: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, BertTokenizer

    old = (base / "vocab.txt").read_text().splitlines()
    pieces = (larger / "vocab.txt").read_text().splitlines()
    assert pieces == old + [word for word, *_ in added(larger)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    auto, fast = AutoTokenizer.from_pretrained(larger), Tokenizer.from_file(str(larger / "tokenizer.json"))
    plain = BertTokenizer(str(larger / "vocab.txt"), do_lower_case=True)
    assert len(auto) == len(pieces)
    changed = 0
    for text in domain.read_text().splitlines():
        expected = greedy(text, ids)
        assert auto(text, add_special_tokens=False)["input_ids"] == expected
        assert plain(text, add_special_tokens=False)["input_ids"] == expected
        assert fast.encode(text).ids == [ids["[CLS]"], *expected, ids["[SEP]"]]
        changed += len(expected) < len(greedy(text, dict(zip(old, range(len(old)), strict=True))))
    assert changed > 100


def test_transformers_computes_the_same_logits_of_old_pieces(base: Path, larger: Path, domain: Path) -> None:
    """Those of a new word are the means of those of its pieces."""
    from transformers import AutoTokenizer, BertForMaskedLM

    old, new = (BertForMaskedLM.from_pretrained(folder).eval() for folder in (base, larger))
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (base, larger))
    assert new.get_input_embeddings().weight.shape == (PIECES + WORDS, 32)
    assert new.cls.predictions.bias.shape == new.cls.predictions.decoder.bias.shape == (PIECES + WORDS,)
    same = [text[:150] for text in domain.read_text().splitlines()]
    same = [text for text in same if before(text)["input_ids"] == after(text)["input_ids"]]
    assert len(same) > 5
    rows = [before.convert_tokens_to_ids(pieces) for _, _, pieces in added(larger)]
    for text in same:
        inputs = before(text, return_tensors="pt")
        with torch.no_grad():
            expected, found = old(**inputs).logits[0], new(**inputs).logits[0]
        assert found.shape == (len(inputs["input_ids"][0]), PIECES + WORDS)
        assert torch.equal(found[:, :PIECES], expected)
        means = torch.stack([expected[:, row].mean(1) for row in rows], 1)
        assert float((found[:, PIECES:] - means).abs().max()) < 1e-4


def test_tokens_per_word_are_those_of_the_documents_that_prepare_holds_out(
    base: Path, domain: Path, tmp_path: Path
) -> None:
    model = library.extend(base, input=domain, out=tmp_path / "m", words=WORDS, documents="line", heldout=0.1)
    common = {"input": (domain,), "documents": "line"}
    texts = expansion.read(PrepareConfig(out=tmp_path / "none", **common), 0.1, lambda done, total: None)
    for folder, name in ((base, "tokens_per_word_before"), (model.folder, "tokens_per_word")):
        corpus = library.prepare(**common, out=tmp_path / name, heldout=0.1, tokenizer=folder, min_tokens=1).folder
        split = json.loads((corpus / "manifest.json").read_text())["splits"]["heldout"]
        division = choose_division(tokenizers.load(folder), "")
        found = division.fragments(division.counts(texts.heldout), unknown=1)
        assert (texts.heldout_documents, found.tokens) == (split["documents"], split["tokens"])
        ids = (corpus / "heldout").glob("*.bin")
        assert sum(len(path.read_bytes()) // 2 for path in ids) == found.tokens
        words = division.counts(texts.heldout)
        known = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        spelt = {word: count for word, count in words.items() if word.isalnum()}
        tokens = sum(count * len(greedy(word, known)) for word, count in spelt.items())
        assert model.scores[name] == tokens / sum(spelt.values())
    assert model.scores["tokens_per_word"] < model.scores["tokens_per_word_before"]


def test_a_padded_table_stays_padded(base: Path, domain: Path, tmp_path: Path, lambert: Lambert) -> None:
    from transformers import BertForMaskedLM

    padded = tmp_path / "padded"
    shutil.copytree(base, padded)
    net = BertForMaskedLM.from_pretrained(base)
    net.resize_token_embeddings(PIECES, pad_to_multiple_of=64)
    net.save_pretrained(padded)
    assert net.config.vocab_size == 960
    done = lambert("extend", padded, input=domain, out=tmp_path / "out", words=100, documents="line")
    assert done.code == 0, done.err
    again = BertForMaskedLM.from_pretrained(tmp_path / "out")
    assert again.config.vocab_size == again.get_input_embeddings().num_embeddings == 1024
    assert torch.equal(again.cls.predictions.bias[:PIECES], net.cls.predictions.bias[:PIECES])
    assert len((tmp_path / "out" / "vocab.txt").read_text().splitlines()) == 1001
    assert lambert("import", "--from", tmp_path / "out", out=tmp_path / "plain").code == 0
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["vocab_size"] == 1024


@pytest.mark.parametrize("task", ["classify", "tag", "squad"])
def test_a_tuned_model_keeps_its_head_and_its_task(
    task: str, tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the aerofoil of an aerofoil\n" * 5)
    model = tuned(task) / "model"
    done = lambert("extend", model.parent, input=text, out=tmp_path / "out", words=1)
    assert done.code == 0, done.err
    first, last = (json.loads((folder / "config.json").read_text()) for folder in (model, tmp_path / "out"))
    assert {name for name in first if first[name] != last[name]} == {"vocab_size"}
    row: dict[str, str] = {"text": "the king found a river near the road"}
    row = row if task != "squad" else {"question": "who found a river", "context": row["text"]}
    answers = [library.load(folder)(row) for folder in (model, tmp_path / "out")]
    assert answers[0] == answers[1]


def test_from_the_text_to_a_tuned_model(
    base: Path, domain: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """The commands of docs/adapt.md, and a list of words beside those of the text."""
    words = tmp_path / "words.txt"
    words.write_text("\ufeffAerofoil\tfrom a table\nthe\n\nin-plane\n" + "x" * 101 + "\naerofoil\n", encoding="utf-8")
    done = lambert("extend", base, input=domain, out=tmp_path / "m", words=3, word_list=words, documents="line")
    assert done.code == 0, done.err
    assert "list      1 words are pieces already: the" in done.out
    assert "list      2 lines are not one word for the tokenizer and are omitted: in-plane, xxx" in done.out
    assert [word for word, *_ in added(tmp_path / "m")][:1] == ["aerofoil"]
    assert len(added(tmp_path / "m")) == 4
    done = lambert("prepare", input=domain, out=tmp_path / "c", tokenizer=tmp_path / "m", documents="line")
    assert done.code == 0, done.err
    done = lambert(
        "pretrain", init=tmp_path / "m", corpus=tmp_path / "c", out=tmp_path / "p", packing__mode="full",
        packing__sequence_length=64, train__steps=3, train__batch_size=4,
    )  # fmt: skip
    assert done.code == 0, done.err
    again = lambert("extend", tmp_path / "p", input=domain, out=tmp_path / "twice", words=2, documents="line")
    assert again.code == 0, again.err
    assert not {word for word, *_ in added(tmp_path / "m")} & {word for word, *_ in added(tmp_path / "twice")}
    done = lambert(
        "finetune", init=tmp_path / "p", data=labelled("classify", "train"), out=tmp_path / "t", train__steps=2,
    )  # fmt: skip
    assert done.code == 0, done.err


def test_one_document_is_not_held_out(base: Path, domain: Path, tmp_path: Path) -> None:
    assert library.extend(base, input=domain, out=tmp_path / "one", words=2).scores == {}
    assert library.extend(base, input=domain, out=tmp_path / "drawn", words=2, heldout=0.999).scores == {}
    two = [tmp_path / "a.txt", tmp_path / "b.txt"]
    lines = domain.read_text().splitlines()
    for path, own in zip(two, (lines[:150], lines[150:]), strict=True):
        path.write_text("\n".join(own))
    found = library.extend(base, input=two, out=tmp_path / "two", words=2, heldout=1e-9)
    assert found.scores["tokens_per_word"] < found.scores["tokens_per_word_before"]


# --- refused ---


def test_what_cannot_be_added(base: Path, domain: Path, tmp_path: Path, lambert: Lambert) -> None:
    def refused(code: int, *parts: str, **settings: object) -> None:
        given = {"input": domain, "out": tmp_path / "out", "words": 5, "documents": "line", **settings}
        one_line(
            lambert("extend", base, **{name: value for name, value in given.items() if value is not None}), code, *parts
        )
        assert not (tmp_path / "out").exists()

    plain, words = tmp_path / "plain.txt", tmp_path / "words.txt"
    plain.write_text("the and of the\n" * 20)
    words.write_text("the\nAnd\nin-plane\n")
    refused(3, "tokenizer.json splits no word of the text that occurs at least 5 times", input=plain)
    refused(2, "words = 90,000, but the text has only", "that occur at least 5 times", words=90_000)
    refused(3, "words.txt has no word to add", word_list=words)
    refused(3, "No such file", word_list=tmp_path / "none.txt")
    refused(2, "extend requires --words, the number of words to add, or --word-list", words=None)
    refused(2, "extend requires --input", input=None)
    refused(2, "documents = 'page' is unknown", documents="page")
    refused(2, "https://host/a.txt is remote", input="https://host/a.txt")
    refused(3, "No such file or folder", input=tmp_path / "missing")


def test_models_that_cannot_be_extended(base: Path, domain: Path, tmp_path: Path, lambert: Lambert) -> None:
    from tokenizers import Tokenizer, models

    broken = tmp_path / "broken"
    shutil.copytree(base, broken)
    flags = {"input": domain, "words": 2, "documents": "line"}
    for name in ("tokenizer.json", "vocab.txt"):
        (broken / name).unlink()
    one_line(lambert("extend", broken, out=tmp_path / "out", **flags), 3, f"No tokenizer in {broken}")
    Tokenizer(models.Unigram([("a", 0.0), ("b", -1.0)], unk_id=0)).save(str(broken / "tokenizer.json"))
    parts = "tokenizer.json has pieces of Unigram", "tokenizer_config.json is one for WordPiece"
    one_line(lambert("extend", broken, out=tmp_path / "out", **flags), 3, *parts)
    pieces = (base / "vocab.txt").read_text()
    (broken / "tokenizer.json").unlink()
    (broken / "vocab.txt").write_text(pieces + "".join(f"more{number}\n" for number in range(200)))
    one_line(lambert("extend", broken, out=tmp_path / "out", **flags), 3, "vocabulary does not match the weights")
    one_line(lambert("extend", tmp_path / "none", out=tmp_path / "out", **flags), 3, "No such model folder")
    one_line(lambert("extend", out=tmp_path / "out", **flags), 2, "extend requires a MODEL folder")
    one_line(lambert("extend", base, base, out=tmp_path / "out", **flags), 2, "takes one MODEL folder")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    one_line(lambert("extend", base, out=tmp_path / "out", **flags), 2, "out exists already")
    assert (tmp_path / "out" / "mine").read_text() == "mine"
