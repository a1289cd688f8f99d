"""Words of a novel as new pieces of encoders of every family, with tokenizers of their kinds, by transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from commands import one_line
from novels import paragraphs
from renamed import of_mpnet
from tokenizers import AddedToken, Tokenizer

import lambert as library
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.tokens import expansion
from lambert.wings.corpus.tokens.additions import choose_division

Lambert = Callable[..., Any]
WORDS = 30
PIECES = {"bpe": 320, "unigram": 200, "wordpiece": 200}
SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
ROBERTA = SHAPE | {"max_position_embeddings": 160, "type_vocab_size": 1}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 128}
CASES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "roberta": ("roberta", "bpe", ROBERTA, 0),
    "modernbert": ("modernbert", "bpe", SHAPE | {"max_position_embeddings": 128}, 64),
    "modernbert-unbiased": ("modernbert", "bpe", SHAPE | {"max_position_embeddings": 128, "decoder_bias": False}, 8),
    "xlm-roberta": ("xlm-roberta", "unigram", ROBERTA, 0),
    "camembert": ("camembert", "unigram", ROBERTA, 8),
    "multilingual-bert": ("bert", "unigram", SHAPE | {"max_position_embeddings": 128}, 35),
    "distilbert": ("distilbert", "wordpiece", DISTIL, 0),
    "gte": ("gte", "unigram", SHAPE | {"max_position_embeddings": 128}, 8),
    "eurobert": ("eurobert", "bpe", SHAPE | {"max_position_embeddings": 128, "num_key_value_heads": 1}, 64),
    "mpnet": ("mpnet", "mpnet", ROBERTA, 0),
    "nomic_bert": ("nomic_bert", "wordpiece", SHAPE | {"max_position_embeddings": 128}, 64),
    "electra": ("electra", "wordpiece", SHAPE | {"embedding_size": 16, "max_position_embeddings": 128}, 64),
}
"""model_type, kind of tokenizer, settings, and to a multiple of what the table is padded; 35: rows that it has more."""


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Paragraphs of a novel that the vocabularies were not learnt from, one a line."""
    path = tmp_path_factory.mktemp("extend") / "domain.txt"
    path.write_text("".join(f"{part}\n" for part in paragraphs(1, 150)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Corpora of another novel, with a tokenizer of each kind."""
    folder = tmp_path_factory.mktemp("learnt")
    texts = folder / "other.txt"
    texts.write_text("".join(f"{part}\n" for part in paragraphs(0, 60)), encoding="utf-8")
    for kind, pieces in PIECES.items():
        library.prepare(
            input=(texts,), out=folder / kind, documents="line", tokenizer_kind=kind, vocabulary=pieces, workers=1
        )
    return {kind: folder / kind for kind in PIECES} | {"mpnet": of_mpnet(folder / "wordpiece", folder / "mpnet")}


def made(case: str, learnt: dict[str, Path], out: Path) -> Any:
    """A folder of transformers with random weights. The mask of its tokenizer is the last piece."""
    model_type, kind, settings, padding = CASES[case]
    tokenizer = tokenizers.load(learnt[kind])
    if kind in ("bpe", "unigram"):
        values = tokenizers.describe(tokenizer)
        values["added_tokens"] = [token for token in values["added_tokens"] if token["content"] != "[MASK]"]
        tokenizer = tokenizers.rebuild(values)
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    pieces = roles.size(tokenizer)
    rows = -(-pieces // padding) * padding if padding and padding != 35 else pieces + padding
    ids = {f"{role}_token_id": roles.find_id(tokenizer, role) for role in ("pad", "cls", "sep")}
    ids |= {"bos_token_id": ids["cls_token_id"], "eos_token_id": ids["sep_token_id"]}
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(model_type, **settings, **ids, vocab_size=rows)
    net = transformers.AutoModelForMaskedLM.from_config(config).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    net.save_pretrained(out)
    tokenizers.save(tokenizer, out, longest=128, segments=model_type in ("bert", "electra", "nomic_bert"))
    return net


@pytest.mark.parametrize("case", [*CASES])
def test_transformers_reads_the_new_words(case: str, learnt: dict[str, Path], domain: Path, tmp_path: Path) -> None:
    *_, padding = CASES[case]
    old, base = made(case, learnt, tmp_path / "base"), tmp_path / "base"
    found = library.extend(base, input=domain, out=tmp_path / "out", words=WORDS, documents="line")
    assert found.scores["tokens_per_word"] < found.scores["tokens_per_word_before"]
    before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (base, found.folder))
    first = roles.size(tokenizers.load(base))
    rows = [line.split("\t") for line in (found.folder / "added_words.tsv").read_text("utf-8").splitlines()]
    assert len(rows) == WORDS
    own = Tokenizer.from_file(str(found.folder / "tokenizer.json"))
    assert not list(found.folder.glob("merges.txt")) + list(found.folder.glob("vocab.json"))
    assert roles.size(own) == first + WORDS
    for number, (word, _, pieces) in enumerate(rows, first):
        assert after(f"x {word}", add_special_tokens=False)["input_ids"][-1] == number
        divided = before.convert_tokens_to_ids(pieces.split(" "))
        assert before(f"x {word}", add_special_tokens=False)["input_ids"][-len(divided) :] == divided

    new = transformers.AutoModelForMaskedLM.from_pretrained(found.folder).eval()
    size = new.get_input_embeddings().num_embeddings
    if padding == 35:
        assert size == first + 35
    else:
        assert size == (-(-(first + WORDS) // padding) * padding if padding else first + WORDS)
    tied = new.get_output_embeddings().weight.data_ptr() == new.get_input_embeddings().weight.data_ptr()
    assert tied == (case != "eurobert")
    means = [before.convert_tokens_to_ids(pieces.split(" ")) for *_, pieces in rows]
    same, taken = 0, 0
    for text in domain.read_text("utf-8").splitlines():
        ids = after(text, truncation=True, max_length=100)["input_ids"]
        assert own.encode(text).ids[:99] == ids[:99]
        taken += sum(number >= first for number in ids)
        if ids != before(text, truncation=True, max_length=100)["input_ids"]:
            continue
        same += 1
        with torch.no_grad():
            expected, logits = (net(torch.tensor([ids])).logits[0] for net in (old, new))
        assert float((logits[:, :first] - expected[:, :first]).abs().max()) < 1e-4
        mean = torch.stack([expected[:, row].mean(1) for row in means], 1)
        assert float((logits[:, first : first + WORDS] - mean).abs().max()) < 1e-4
    assert same > 1
    assert taken > 100

    library_words = roles.specials(tokenizers.load(found.folder))
    assert not library_words.continuation_V[first:].any()


@pytest.mark.parametrize("case", ["modernbert", "xlm-roberta", "distilbert"])
def test_words_take_the_places_of_unused_pieces(
    case: str, learnt: dict[str, Path], domain: Path, tmp_path: Path, lambert: Lambert
) -> None:
    made(case, learnt, tmp_path / "base")
    tokenizer = tokenizers.load(tmp_path / "base")
    tokenizer.add_tokens([f"[unused{number}]" for number in range(8)])
    first = roles.size(tokenizer)
    net = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "base").eval()
    net.resize_token_embeddings(first)
    net.save_pretrained(tmp_path / "base")
    tokenizers.save(tokenizer, tmp_path / "base", longest=128, segments=False)
    unused = [tokenizer.token_to_id(f"[unused{number}]") for number in range(8)]
    flags = {"input": domain, "documents": "line"}
    done = lambert("extend", tmp_path / "base", out=tmp_path / "few", words=5, **flags)
    assert done.code == 0, done.err
    assert "unused    5 of them in place of [unused0] and the like" in done.out
    done = lambert("extend", tmp_path / "base", out=tmp_path / "more", words=12, **flags)
    assert done.code == 0, done.err
    done = lambert("extend", tmp_path / "base", out=tmp_path / "kept", words=5, **flags, replace_unused="false")
    assert done.code == 0, done.err
    for name, words, places in (
        ("few", 5, unused[:5]), ("more", 12, [*unused, *range(first, first + 4)]), ("kept", 5, range(first, first + 5)),
    ):  # fmt: skip
        new = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / name).eval()
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        assert new.get_input_embeddings().num_embeddings == max(first, *(place + 1 for place in places))
        table, before = (one.get_input_embeddings().weight for one in (new, net))
        rows = [line.split("\t") for line in (tmp_path / name / "added_words.tsv").read_text("utf-8").splitlines()]
        assert len(rows) == words
        for place, (word, _, pieces) in zip(places, rows, strict=True):
            assert theirs(f"x {word}", add_special_tokens=False)["input_ids"][-1] == place
            divided = [tokenizer.token_to_id(piece) for piece in pieces.split(" ")]
            assert torch.allclose(table[place], before[divided].mean(0), atol=1e-6)
        others = [number for number in range(first) if number not in places]
        assert torch.equal(table[others], before[others])
        kept = [piece for piece in theirs.get_vocab() if piece.startswith("[unused")]
        assert len(kept) == 8 - sum(place in unused for place in places)


@pytest.mark.parametrize("case", ["roberta", "xlm-roberta"])
def test_the_folder_is_written_again_as_it_is(
    case: str, learnt: dict[str, Path], domain: Path, tmp_path: Path, lambert: Lambert
) -> None:
    made(case, learnt, tmp_path / "base")
    flags = {"input": domain, "documents": "line", "words": 5}
    assert lambert("extend", tmp_path / "base", out=tmp_path / "once", **flags).code == 0
    for source, out in (("once", "twice"), ("twice", "thrice")):
        done = lambert("import", "--from", tmp_path / source, out=tmp_path / out)
        assert done.code == 0, done.err
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "thrice" / name).read_bytes() == (tmp_path / "once" / name).read_bytes(), name
    done = lambert("extend", tmp_path / "once", out=tmp_path / "more", **flags)
    assert done.code == 0, done.err
    first, more = (tokenizers.load(tmp_path / name).get_vocab() for name in ("once", "more"))
    assert first.items() < more.items()
    assert len(more) == len(first) + 5


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokens_per_word_are_those_of_the_documents_that_prepare_holds_out(
    kind: str, learnt: dict[str, Path], domain: Path, tmp_path: Path
) -> None:
    case = {"bpe": "modernbert", "unigram": "xlm-roberta"}[kind]
    made(case, learnt, tmp_path / "base")
    common = {"input": (domain,), "documents": "line"}
    larger = library.extend(tmp_path / "base", **common, out=tmp_path / "out", words=WORDS, heldout=0.1)
    texts = expansion.read(PrepareConfig(out=tmp_path / "none", **common), 0.1, lambda done, total: None)
    for folder, name in ((tmp_path / "base", "tokens_per_word_before"), (larger.folder, "tokens_per_word")):
        corpus = library.prepare(**common, out=tmp_path / name, heldout=0.1, tokenizer=folder, min_tokens=1).folder
        split = json.loads((corpus / "manifest.json").read_text())["splits"]["heldout"]
        division = choose_division(tokenizers.load(folder), "")
        found = division.fragments(division.counts(texts.heldout), unknown=-1)
        assert (texts.heldout_documents, found.tokens) == (split["documents"], split["tokens"])
        assert larger.scores[name] == found.tokens_per_word


def test_continued_pre_training_masks_the_new_words(
    learnt: dict[str, Path], domain: Path, tmp_path: Path, lambert: Lambert
) -> None:
    """The commands of docs/adapt.md with RoBERTa's kind of tokenizer."""
    made("roberta", learnt, tmp_path / "base")
    words = tmp_path / "words.txt"
    words.write_text("Aerofoil\taerofoil\nthe\nin-plane\naerofoil\n", encoding="utf-8")
    done = lambert(
        "extend", tmp_path / "base", input=domain, out=tmp_path / "m", words=3, word_list=words, documents="line"
    )
    assert done.code == 0, done.err
    assert "list      1 words are pieces already: the" in done.out
    assert "list      1 lines are not one word for the tokenizer and are omitted: in-plane" in done.out
    added = [line.split("\t")[0] for line in (tmp_path / "m" / "added_words.tsv").read_text("utf-8").splitlines()]
    assert added[:2] == ["Aerofoil", "aerofoil"]
    assert len(added) == 5
    done = lambert("prepare", input=domain, out=tmp_path / "c", tokenizer=tmp_path / "m", documents="line")
    assert done.code == 0, done.err
    done = lambert(
        "pretrain", init=tmp_path / "m", corpus=tmp_path / "c", out=tmp_path / "p", packing__mode="full",
        packing__sequence_length=64, train__steps=2, train__batch_size=4, masking__whole_word="true",
    )  # fmt: skip
    assert done.code == 0, done.err


def test_words_that_contain_added_tokens_are_left_out(
    learnt: dict[str, Path], tmp_path: Path, lambert: Lambert
) -> None:
    made("roberta", learnt, tmp_path / "base")
    tokenizer = tokenizers.load(tmp_path / "base")
    tokenizer.add_tokens(["foil"])
    tokenizers.save(tokenizer, tmp_path / "base")
    net = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    net.resize_token_embeddings(roles.size(tokenizer))
    net.save_pretrained(tmp_path / "base")
    text = tmp_path / "text.txt"
    text.write_text("an aerofoil is laminar and laminar\n" * 9)
    flags = {"input": text, "documents": "line"}
    done = lambert("extend", tmp_path / "base", out=tmp_path / "out", **flags, words=2)
    assert done.code == 0, done.err
    assert "words     1 omitted, because" in done.out
    assert "still divides them: aerofoil" in done.out
    assert "words     1 added" in done.out
    (tmp_path / "words.txt").write_text("aerofoil\n")
    done = lambert("extend", tmp_path / "base", out=tmp_path / "none", **flags, word_list=tmp_path / "words.txt")
    one_line(done, 3, "still splits every one of the words")
    assert not (tmp_path / "none").exists()


def test_ids_with_gaps(tmp_path: Path) -> None:
    """New words follow the largest id, also in transformers."""
    letters = [*map(chr, range(33, 127)), *(f"##{chr(code)}" for code in range(97, 123))]
    values = tokenizers.describe(tokenizers.build([*tokenizers.SPECIAL_PIECES, *letters], lowercase=True))
    ids = values["model"]["vocab"]
    values["model"]["vocab"] = {piece: number + 7 * (number > 20) for piece, number in ids.items()}
    gapped = tokenizers.rebuild(values)
    size = len(ids) + 7
    config = transformers.BertConfig(vocab_size=size, **SHAPE, max_position_embeddings=64)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "base")
    tokenizers.save(gapped, tmp_path / "base", longest=64)
    (tmp_path / "text.txt").write_text("aerofoil in a flow of laminar air\n" * 8)
    library.extend(tmp_path / "base", input=tmp_path / "text.txt", documents="line", words=2, out=tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    found = theirs("aerofoil laminar zz", add_special_tokens=False)["input_ids"]
    assert found == [size, size + 1, *gapped.encode("zz", add_special_tokens=False).ids]
    net = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert net.get_input_embeddings().num_embeddings == size + 2
