"""Folders of every kind, against `AutoTokenizer` of transformers (version 5)."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from lambert.core.errors import DataError
from lambert.text.tokenizers import tokenizer as tk
from lambert.text.tokenizers.encoding import Encoder
from lambert.text.tokenizers.roles import get_declared
from lambert.text.tokenizers.words import WordEncoder, scheme

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

TEXTS = [
    "",
    "   ",
    "Ann met Bob.",
    " ann  met bob ",
    "Möchte naïve Ångström ÉCOLE cafe\u0301",
    "東京 and 한국어",
    "[E1] ann [/E1] met",
    "ann[E1]bob <ent>x Ent ent ENT entity",
    "x<new>y <NEW> covid Covid covid-19",
    "tabs\tand\nlines\r\nand\u00a0spaces\u3000wide",
    "😀 👍🏽 smile…",
    "a\u200bb\u00adc\ufeffd",
    "don't stop—ever «quoted» 50% a_b",
    "x" * 101 + " ann",
    "İstanbul ǅ ß ﬁ １２",
    "met  [E1]  bob\t[/E1]",
]
ROLES = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
WORDS = "ann Ann met bob Bob and möchte mochte naïve cafe café ecole 東 京 東京 covid ent entity x y"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZöéï.,'%[]<>/-_0123456789"


def pieces(names: Mapping[str, str] = ROLES) -> list[str]:
    found = [names[role] for role in ("pad", "unk", "cls", "sep", "mask") if role in names]
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS if letter.isalnum())]
    return [*dict.fromkeys([*found, *letters, *WORDS.split()])]


def wordpiece(names: Mapping[str, str] = ROLES, *, lowercase: bool = True) -> dict[str, Any]:
    """Returns the tokenizer.json of BERT's kind."""
    made = tk.build(pieces(names), lowercase=lowercase)
    return dict(tk.describe(made))


def bytes_(prefix: bool = False) -> dict[str, Any]:
    """Returns the tokenizer.json of RoBERTa's kind."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<s>", "<pad>", "</s>", "<unk>", *alphabet, "an", "ann", "Ġa", "Ġan", "Ġann", "me", "Ġm", "<mask>"]
    merges = [("a", "n"), ("an", "n"), ("Ġ", "a"), ("Ġa", "n"), ("Ġan", "n"), ("m", "e"), ("Ġ", "m")]
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix)
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    return dict(json.loads(made.to_str()))


def unigram(*, unknown: int = 3, scheme: str = "always") -> dict[str, Any]:
    """Returns the tokenizer.json of XLM-R's kind."""
    named = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    words = [("▁", -3.0), *((f"▁{word}", -2.0) for word in WORDS.split()), *((letter, -6.0) for letter in LETTERS)]
    made = Tokenizer(models.Unigram([*named, *words, ("<mask>", 0.0)], unknown))
    marks = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    return dict(json.loads(made.to_str()))


def changed(values: dict[str, Any], **model: Any) -> dict[str, Any]:
    return {**values, "model": {**values["model"], **model}}


def token(content: str, **flags: bool) -> dict[str, Any]:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": content, **usual, **flags}


def write(folder: Path, files: Mapping[str, Any], kind: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": {"model_type": kind}, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def check(folder: Path) -> None:
    """Compares ids and offsets of all texts with transformers', from this folder and from what Lambert writes of it."""
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), tk.load(folder)
    wanted = [theirs(text, add_special_tokens=False, return_offsets_mapping=True) for text in TEXTS]
    for text, want in zip(TEXTS, wanted, strict=True):
        got = ours.encode(text, add_special_tokens=False)
        assert got.ids == want["input_ids"], (text, got.tokens, theirs.convert_ids_to_tokens(want["input_ids"]))
        assert got.offsets == want["offset_mapping"], text
        assert ours.encode(text).ids == theirs(text).input_ids
        assert ours.encode(text, "ann").ids == theirs(text, "ann").input_ids
    lines = [text for text in TEXTS if not set("\n\r\t") & set(text)]
    expected = [ours.encode(text, add_special_tokens=False).ids for text in lines]
    if scheme(ours) and (words := WordEncoder(ours)).takes(data := ("\n".join(lines) + "\n").encode()):
        found = [number for some in words(data) for number in some.ids_T.tolist()]
        assert found == [number for ids in expected for number in ids]
    encoded = Encoder(ours.to_str(), "en", "line")(["[E1] ann met [/E1]"])
    assert encoded.ids_T.tolist() == ours.encode("[E1] ann met [/E1]", add_special_tokens=False).ids
    out = folder / "written"
    tk.save(ours, out)
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    again, reread = tk.load(out), transformers.AutoTokenizer.from_pretrained(out)
    assert tk.fingerprint(again) == tk.fingerprint(ours)
    assert get_declared(again).markers == get_declared(ours).markers
    for text, want in zip(TEXTS, wanted, strict=True):
        assert again.encode(text, add_special_tokens=False).ids == want["input_ids"]
        assert reread(text, add_special_tokens=False).input_ids == want["input_ids"]


VOCABULARY = "".join(f"{piece}\n" for piece in pieces())
SIZE = len(pieces())
LOWER = {"do_lower_case": True}
BERT: dict[str, Mapping[str, Any]] = {
    "settings": {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {"do_lower_case": False}},
    "accents kept": {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "strip_accents": False}},
    "accents stripped": {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {"do_lower_case": False, "strip_accents": True}},
    "ideographs": {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "tokenize_chinese_chars": False}},
    "distilbert": {
        tk.VOCABULARY: VOCABULARY, tk.CONFIG: {"tokenizer_class": "DistilBertTokenizerFast", "do_lower_case": False}
    },
    "added": {tk.VOCABULARY: VOCABULARY, tk.CONFIG: LOWER, "added_tokens.json": {"covid": SIZE + 1, "<new>": SIZE}},
    "added and special": {
        tk.VOCABULARY: VOCABULARY, tk.CONFIG: LOWER, "added_tokens.json": {"[E1]": SIZE, "[/E1]": SIZE + 1},
        "special_tokens_map.json": {"additional_special_tokens": ["[E1]", "[/E1]"], "unk_token": "[UNK]"},
    },
    "extra special": {
        tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "extra_special_tokens": ["[E1]", "[/E1]"]}
    },
    "additional special": {
        tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "additional_special_tokens": ["[E1]", "[/E1]"]}
    },
    "model's own special": {
        tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "extra_special_tokens": {"entity": "<ent>"}, "new_token": "<n>"}
    },
    "decoder": {
        tk.VOCABULARY: VOCABULARY,
        tk.CONFIG: {**LOWER, "added_tokens_decoder": {
            str(SIZE): token("[E1]"), str(SIZE + 1): token("Ent", special=False, normalized=True),
            str(SIZE + 2): token("<new>", special=False, lstrip=True), str(SIZE + 3): token("[/E1]", rstrip=True),
            str(SIZE + 4): token("covid", special=False, single_word=True), "0": token("[PAD]"),
        }},
    },
    "a marker in the vocabulary": {
        tk.VOCABULARY: VOCABULARY + "[E1]\n[/E1]\n",
        tk.CONFIG: {**LOWER, "additional_special_tokens": ["[E1]", "[/E1]"]},
    },
    "other names": {
        tk.VOCABULARY: "".join(f"{piece}\n" for piece in pieces({role: f"<{role}>" for role in ROLES})),
        tk.CONFIG: {**LOWER, **{f"{role}_token": f"<{role}>" for role in ROLES}},
    },
    "other names in the map": {
        tk.VOCABULARY: "".join(f"{piece}\n" for piece in pieces({role: f"<{role}>" for role in ROLES})),
        tk.CONFIG: LOWER, "special_tokens_map.json": {f"{role}_token": token(f"<{role}>") for role in ROLES},
    },
    "no mask": {
        tk.VOCABULARY: "".join(f"{piece}\n" for piece in pieces() if piece != "[MASK]"), tk.CONFIG: LOWER
    },
    "no mask, but another token": {
        tk.VOCABULARY: "".join(f"{piece}\n" for piece in pieces() if piece != "[MASK]"),
        tk.CONFIG: {**LOWER, "additional_special_tokens": ["[E1]"]},
    },
    "json": {tk.JSON: wordpiece(), tk.CONFIG: LOWER},
    "json against settings": {tk.JSON: wordpiece(lowercase=False), tk.CONFIG: LOWER},
    "json against other settings": {tk.JSON: wordpiece(), tk.CONFIG: {"do_lower_case": False, "strip_accents": True}},
    "json alone": {tk.JSON: wordpiece()},
    "json, generic": {
        tk.JSON: wordpiece(lowercase=False), tk.CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast", **LOWER}
    },
    "json, unknown class": {tk.JSON: wordpiece(), tk.CONFIG: {"tokenizer_class": "MyTokenizer"}},
    "json without template": {tk.JSON: {**wordpiece(), "post_processor": None}, tk.CONFIG: LOWER},
    "json and added": {
        tk.JSON: wordpiece(), tk.CONFIG: LOWER, "added_tokens.json": {"<new>": SIZE},
        "special_tokens_map.json": {"additional_special_tokens": ["[E1]"]},
    },
    "json, generic, and decoder": {
        tk.JSON: wordpiece(),
        tk.CONFIG: {
            "tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["[/E1]"],
            "added_tokens_decoder": {str(SIZE): token("[E1]"), str(SIZE + 1): token("<new>", special=False)},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BERT)
def test_bert(tmp_path: Path, name: str) -> None:
    check(write(tmp_path, BERT[name], "bert"))


def with_added(values: dict[str, Any], *tokens: dict[str, Any]) -> dict[str, Any]:
    size = max(token["id"] for token in values["added_tokens"]) + 1
    first = max(size, len(values["model"]["vocab"]))
    added = [{"id": first + number, **one} for number, one in enumerate(tokens)]
    return {**values, "added_tokens": [*values["added_tokens"], *added]}


MARKERS = (token("[E1]"), token("[/E1]"), token("<new>", special=False, normalized=True))


def merges(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "vocab.json": values["model"]["vocab"],
        "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in values["model"]["merges"]),
    }


OTHERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "roberta": ("roberta", {tk.JSON: bytes_(), tk.CONFIG: {"tokenizer_class": "RobertaTokenizerFast"}}),
    "roberta, space": (
        "roberta", {tk.JSON: bytes_(), tk.CONFIG: {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": True}}
    ),
    "roberta, space in the file alone": ("roberta", {tk.JSON: bytes_(True)}),
    "roberta, generic with space": (
        "roberta", {tk.JSON: bytes_(True), tk.CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}}
    ),
    "roberta, markers": (
        "roberta", {tk.JSON: with_added(bytes_(), *MARKERS), tk.CONFIG: {"tokenizer_class": "RobertaTokenizer"}}
    ),
    "roberta, words": ("roberta", merges(bytes_())),
    "roberta, words and space": ("roberta", {**merges(bytes_()), tk.CONFIG: {"add_prefix_space": True}}),
    "roberta, words and added": (
        "roberta", {**merges(bytes_()), "added_tokens.json": {"<ent>": len(bytes_()["model"]["vocab"])}}
    ),
    "roberta, words and markers": (
        "roberta", {**merges(bytes_()), tk.CONFIG: {"additional_special_tokens": ["[E1]", "[/E1]"]}}
    ),
    "xlm-r": ("xlm-roberta", {tk.JSON: unigram(), tk.CONFIG: {"tokenizer_class": "XLMRobertaTokenizer"}}),
    "xlm-r, no space": ("xlm-roberta", {tk.JSON: unigram(), tk.CONFIG: {"add_prefix_space": False}}),
    "xlm-r, never in the file": ("xlm-roberta", {tk.JSON: unigram(scheme="never")}),
    "xlm-r, markers": ("xlm-roberta", {tk.JSON: with_added(unigram(), *MARKERS)}),
    "xlm-r, generic": (
        "xlm-roberta",
        {tk.JSON: with_added(unigram(), *MARKERS), tk.CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}},
    ),
    "camembert": ("camembert", {tk.JSON: unigram(), tk.CONFIG: {"tokenizer_class": "CamembertTokenizerFast"}}),
    "modernbert": (
        "modernbert",
        {
            tk.JSON: with_added(bytes_(), *MARKERS),
            tk.CONFIG: {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True},
        },
    ),
    "modernbert, words of BERT": ("modernbert", {tk.JSON: wordpiece(lowercase=False), tk.CONFIG: LOWER}),
    "electra": ("electra", {tk.VOCABULARY: VOCABULARY, tk.CONFIG: LOWER}),
    "gte": ("gte", {tk.JSON: unigram()}),
    "nomic": ("nomic_bert", {tk.JSON: wordpiece(), tk.CONFIG: {**LOWER, "tokenizer_class": "BertTokenizer"}}),
    "llama with bytes": ("roberta", {tk.JSON: bytes_(), tk.CONFIG: {"tokenizer_class": "LlamaTokenizer"}}),
    "gpt2": (
        "roberta", {tk.JSON: bytes_(True), tk.CONFIG: {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<unk>"}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_families(tmp_path: Path, name: str) -> None:
    kind, files = OTHERS[name]
    check(write(tmp_path, files, kind))


def test_mpnet(tmp_path: Path) -> None:
    names = {"pad": "<pad>", "unk": "[UNK]", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    text = "".join(f"{piece}\n" for piece in pieces(names))
    for files in ({tk.VOCABULARY: text, tk.CONFIG: LOWER}, {tk.VOCABULARY: text, tk.CONFIG: {"do_lower_case": False}}):
        check(write(tmp_path, files, "mpnet"))


def test_herbert(tmp_path: Path) -> None:
    words = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, *(f"{x}</w>" for x in LETTERS), "an", "ann</w>", "<mask>"]
    ids = {word: number for number, word in enumerate(dict.fromkeys(words))}
    files = {"vocab.json": ids, "merges.txt": "#version: 0.2\na n\nan n</w>\n"}
    check(write(tmp_path, {**files, tk.CONFIG: {"tokenizer_class": "HerbertTokenizerFast"}}, "bert"))


REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "an unknown token that is not there": (
        {tk.VOCABULARY: VOCABULARY.replace("[UNK]\n", "<unk>\n"), tk.CONFIG: LOWER}, r"no piece \[UNK\].*unk_token"
    ),
    "another algorithm": (
        {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {"tokenizer_class": "BertJapaneseTokenizer"}}, "BertJapaneseTokenizer"
    ),
    "PhoBERT": (
        {tk.VOCABULARY: VOCABULARY, "bpe.codes": "", "config.json": {"tokenizer_class": "PhobertTokenizer"}}, "Phobert"
    ),
    "RoFormer": ({tk.JSON: wordpiece(), tk.CONFIG: {"tokenizer_class": "RoFormerTokenizerFast"}}, "jieba"),
    "code": ({tk.JSON: wordpiece(), tk.CONFIG: {"tokenizer_class": "BertJapaneseTokenizer"}}, "code of its own.*Fast"),
    "rules of its own": ({tk.JSON: unigram(), tk.CONFIG: {"tokenizer_class": "T5Tokenizer"}}, "template of its own"),
    "rules for pieces": ({tk.JSON: unigram(), tk.CONFIG: {"tokenizer_class": "LlamaTokenizerFast"}}, "of its own"),
    "rules named by the model": (
        {tk.JSON: unigram(), "config.json": {"model_type": "bert", "tokenizer_class": "AlbertTokenizer"}}, "of its own"
    ),
    "pieces of another kind": ({tk.JSON: bytes_(), tk.CONFIG: LOWER}, "pieces of BPE.* WordPiece"),
    "a vocabulary of another family": (
        {tk.VOCABULARY: VOCABULARY, "config.json": {"model_type": "roberta"}}, "vocab.json and merges.txt"
    ),
    "case unknown": ({tk.VOCABULARY: VOCABULARY}, "do_lower_case"),
    "case unknown in a json": ({tk.JSON: wordpiece(lowercase=False)}, "do_lower_case"),
    "no special tokens around a text": (
        {tk.JSON: {**wordpiece(), "post_processor": None}, tk.CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}},
        "no special tokens around a text",
    ),
    "an unknown token of tokenizer.json that is not there": (
        {tk.JSON: changed(wordpiece(), unk_token="<none>"), tk.CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}},
        "'<none>' as the token for unknown pieces",
    ),
    "no unknown token": (
        {tk.JSON: changed(unigram(), unk_id=None), tk.CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}},
        "None as the token for unknown pieces",
    ),
    "a lost token": (
        {tk.VOCABULARY: VOCABULARY, tk.CONFIG: LOWER, "added_tokens.json": {"<new>": SIZE + 1}}, "id .*lost"
    ),
    "a tokenizer.json that is missing": (
        {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}}, "missing"
    ),
    "a setting of another type": (
        {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {"do_lower_case": "yes"}}, "do_lower_case = 'yes'"
    ),
    "a side": ({tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "truncation_side": "up"}}, "truncation_side = 'up'"),
    "a token of another type": (
        {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "additional_special_tokens": [5]}}, "5 for a token"
    ),
    "special tokens of another type": (
        {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "extra_special_tokens": 5}}, "extra_special_tokens = 5"
    ),
    "a file beside it of another kind": (
        {tk.VOCABULARY: VOCABULARY, tk.CONFIG: LOWER, "modules.json": [], "sentence_bert_config.json": [1]},
        "not a JSON object",
    ),
}  # fmt: skip


def test_texts_are_lower_cased_first_only_beside_modules(tmp_path: Path) -> None:
    files = {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {"do_lower_case": False}}
    folder = write(tmp_path, {**files, "sentence_bert_config.json": {"do_lower_case": True}}, "bert")
    assert tk.normalization(tk.load(folder))["lowercase"] is False
    (folder / "modules.json").write_text("[]")
    assert tk.normalization(tk.load(folder)) == {}  # a step before BERT's


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    files, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        tk.load(write(tmp_path, files, "bert"))


@pytest.mark.parametrize(
    "config",
    [
        {"model_input_names": ["input_ids", "attention_mask"]},
        {"tokenizer_class": "DistilBertTokenizerFast"},
        {"tokenizer_class": "DistilBertTokenizer", "model_input_names": ["input_ids", "token_type_ids"]},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"tokenizer_class": "MyTokenizer", "model_input_names": ["input_ids", "token_type_ids"]},
        {},
    ],
)
@pytest.mark.parametrize("processor", ["TemplateProcessing", "BertProcessing"])
def test_segments(tmp_path: Path, config: Mapping[str, Any], processor: str) -> None:
    """A model whose inputs have no segment types gets those of 0."""
    values = wordpiece()
    if processor == "BertProcessing":
        values["post_processor"] = {"type": processor, "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    folder = write(tmp_path, {tk.JSON: values, tk.CONFIG: {**LOWER, **config}}, "bert")
    want = transformers.AutoTokenizer.from_pretrained(folder)("ann", "met bob")
    tk.save(tk.load(folder), tmp_path / "written")
    for read in (folder, tmp_path / "written"):
        got = tk.load(read).encode("ann", "met bob")
        assert (got.ids, got.type_ids) == (want["input_ids"], want.get("token_type_ids", [0] * len(got.ids)))


def test_a_json_without_added_tokens_is_read(tmp_path: Path) -> None:
    bare = {key: value for key, value in wordpiece().items() if key != "added_tokens"}
    whole, found = (
        tk.load(write(tmp_path / name, {tk.JSON: content, tk.CONFIG: LOWER}, "bert"))
        for name, content in (("whole", wordpiece()), ("bare", bare))
    )
    assert [found.encode(text).ids for text in TEXTS] == [whole.encode(text).ids for text in TEXTS]


def test_a_vocabulary_is_enough_where_the_usual_class_needs_a_json(tmp_path: Path) -> None:
    """transformers cannot read such a folder of ModernBERT; nothing contradicts BERT's pieces."""
    found = tk.load(write(tmp_path / "modern", {tk.VOCABULARY: VOCABULARY, tk.CONFIG: LOWER}, "modernbert"))
    usual = tk.load(write(tmp_path / "bert", {tk.VOCABULARY: VOCABULARY, tk.CONFIG: LOWER}, "bert"))
    assert found.encode("ann Anna").ids == usual.encode("ann Anna").ids


def test_white_space_at_the_ends_of_lines_of_a_vocabulary(tmp_path: Path) -> None:
    ends = (" ", "\t", "", "\u00a0", "\u3000\u2028", " \r")
    spaced = [f"{piece}{ends[number % len(ends)]}" for number, piece in enumerate(pieces())]
    folder = write(tmp_path, {tk.VOCABULARY: "\n".join([*spaced, "\u2003", "x\x1c", ""]), tk.CONFIG: LOWER}, "bert")
    ours, theirs = tk.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert [ours.encode(text).ids for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    assert ours.get_vocab() | {"": len(spaced)} == theirs.get_vocab() | {"\u2003": len(spaced)}
    (tmp_path / tk.VOCABULARY).write_text("\n".join([*pieces(), "ann ", ""]))
    assert tk.load(tmp_path).token_to_id("ann") == pieces().index("ann")


def test_the_templates_own_tokens_are_text_and_markers_are_not(tmp_path: Path) -> None:
    files = {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "additional_special_tokens": ["[E1]"]}}
    ours = tk.load(write(tmp_path, files, "bert"))
    ids = ours.encode("[CLS] ann [SEP] [E1] [PAD] [MASK] [UNK]", add_special_tokens=False).ids
    assert ids.count(SIZE) == 1
    assert not {0, 2, 3, 4} & set(ids)
    masked = tk.with_mask(ours).encode("[CLS] ann [SEP] [E1] [PAD] [MASK]", add_special_tokens=False).ids
    assert (masked.count(SIZE), masked.count(4)) == (1, 1)
    assert not {0, 2, 3} & set(masked)


def test_padding_and_truncation_of_the_file_are_left_off(tmp_path: Path) -> None:
    side = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    values = {**wordpiece(), "padding": {"strategy": {"Fixed": 16}, **side}, "truncation": cut}
    ours = tk.load(write(tmp_path, {tk.JSON: values, tk.CONFIG: LOWER}, "bert"))
    assert ours.encode("ann met bob and").tokens == ["[CLS]", "ann", "met", "bob", "and", "[SEP]"]


def test_a_side_is_kept(tmp_path: Path) -> None:
    files = {tk.VOCABULARY: VOCABULARY, tk.CONFIG: {**LOWER, "truncation_side": "left"}}
    tk.save(tk.load(write(tmp_path, files, "bert")), tmp_path / "out")
    assert get_declared(tk.load(tmp_path / "out")).truncation_side == "left"
    (tmp_path / "out/config.json").write_text('{"model_type": "bert"}')
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").truncation_side == "left"


def test_a_body_may_have_pieces_of_another_kind(tmp_path: Path) -> None:
    """Nothing but the type of the model names BERT's class."""
    found = tk.load(write(tmp_path, {tk.JSON: unigram()}, "bert"))
    assert found.encode("ann").tokens == Tokenizer.from_str(json.dumps(unigram())).encode("ann").tokens
