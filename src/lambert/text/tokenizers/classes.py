"""Builds the tokenizer classes that encoders on the Hub name in tokenizer_config.json, as transformers 5 does.

These classes read only the vocabulary (and merges) of a tokenizer.json. Normalizer, pre-tokenizer and template are
their own, with settings of tokenizer_config.json. Source: transformers 5.23, models/*/tokenization_*.py.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

Names = Mapping[str, str]
"""Special tokens by role."""
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """How transformers builds a tokenizer of a class."""

    model: str
    """Kind of its pieces: `type` of the model in tokenizer.json."""
    files: str
    """Files that replace a missing tokenizer.json; empty if Lambert reads none."""
    names: Mapping[str, str | AddedToken]
    """Special tokens by role, unless files name others."""
    settings: Settings
    """Settings and their defaults."""
    start: Callable[[dict[str, Any], Names, Settings], Tokenizer]
    """Returns the tokenizer, without added tokens and template, from the content of a tokenizer.json: its model and the
    character table of its normalizer."""
    template: Callable[[Tokenizer, Names, Settings], Any]
    """Returns the post-processor; None to keep that of tokenizer.json."""
    template_roles: tuple[str, ...] = ("cls", "sep")
    """Special tokens that the template needs."""
    extra: tuple[str, ...] = ()
    """Further special tokens, unless files name them."""


LONGEST_WORD = 100  # maximum characters of a word, otherwise [UNK], as in Hugging Face; google-research/bert has 200
CONTINUATION = "##"


def _wordpiece(values: dict[str, Any], names: Names, settings: Settings) -> Tokenizer:
    vocabulary = values["model"]["vocab"]
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token=names.get("unk", "[UNK]"), max_input_chars_per_word=LONGEST_WORD)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings["tokenize_chinese_chars"],
        strip_accents=settings["strip_accents"],
        lowercase=settings["do_lower_case"],
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return tokenizer


def _bytes(values: dict[str, Any], names: Names, settings: Settings) -> Tokenizer:
    model = values["model"]
    tokenizer = Tokenizer(
        models.BPE(model["vocab"], _pairs(model), continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings["add_prefix_space"])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _herbert(values: dict[str, Any], names: Names, settings: Settings) -> Tokenizer:
    model = values["model"]
    tokenizer = Tokenizer(
        models.BPE(model["vocab"], _pairs(model), unk_token=names.get("unk", "<unk>"), end_of_word_suffix="</w>")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return tokenizer


def _pairs(model: dict[str, Any]) -> list[tuple[str, str]]:
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(first, second) for first, second in merges]


def _unigram(unknown: Callable[[list[Any], Names], int]) -> Callable[[dict[str, Any], Names, Settings], Tokenizer]:
    """Returns the `start` of a SentencePiece class; `unknown` returns the id of its unknown token."""

    def start(values: dict[str, Any], names: Names, settings: Settings) -> Tokenizer:
        pieces = [(piece, score) for piece, score in values["model"]["vocab"]]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown(pieces, names), byte_fallback=False))
        if table := next(_tables(values.get("normalizer")), None):
            tokenizer.normalizer = normalizers.Precompiled(base64.b64decode(table))
        scheme = "always" if settings["add_prefix_space"] else "never"
        marks = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
        return tokenizer

    return start


def _tables(normalizer: dict[str, Any] | None) -> Iterator[str]:
    """Yields the character tables in a normalizer and its parts."""
    parts = (normalizer or {}).get("normalizers", [normalizer or {}])
    return (part["precompiled_charsmap"] for part in parts if part.get("type") == "Precompiled")


def bert_template(tokenizer: Tokenizer, names: Names, settings: Settings) -> Any:
    """Returns the post-processor [CLS] A [SEP] and [CLS] A [SEP] B [SEP]."""
    cls, sep = names["cls"], names["sep"]
    return processors.TemplateProcessing(
        single=[f"{cls}:0", "$A:0", f"{sep}:0"],
        pair=[f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"],
        special_tokens=[(name, _id(tokenizer, name)) for name in (cls, sep)],
    )


def _roberta_template(tokenizer: Tokenizer, names: Names, settings: Settings) -> Any:
    sep, cls = ((names[role], _id(tokenizer, names[role])) for role in ("sep", "cls"))
    trim, space = settings.get("trim_offsets", True), settings.get("add_prefix_space", False)
    return processors.RobertaProcessing(sep, cls, trim_offsets=trim, add_prefix_space=space)


def _sentencepiece_template(tokenizer: Tokenizer, names: Names, settings: Settings) -> Any:
    first, last = names["bos"], names["eos"]
    return processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", last, last, "$B", last],
        special_tokens=[(name, _id(tokenizer, name)) for name in (first, last)],
    )


def _herbert_template(tokenizer: Tokenizer, names: Names, settings: Settings) -> Any:
    return processors.BertProcessing((names["sep"], 2), (names["cls"], 0))  # ids as in its published vocabulary


def _id(tokenizer: Tokenizer, name: str) -> int:
    number = tokenizer.token_to_id(name)
    assert number is not None, name  # names are added before
    return int(number)


_ROBERTA = {
    "bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"
}  # fmt: skip
_MPNET = {role: AddedToken(name, lstrip=role == "mask") for role, name in (_ROBERTA | {"unk": "[UNK]"}).items()}
_TEXT: Settings = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_BYTES: Settings = {"add_prefix_space": False, "trim_offsets": True}

_BERT = TokenizerClass(
    "WordPiece",
    "vocab.txt",
    {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
    _TEXT,
    _wordpiece,
    bert_template,
)
_BYTE_LEVEL = TokenizerClass("BPE", "vocab.json and merges.txt", _ROBERTA, _BYTES, _bytes, _roberta_template)
_SPM: Settings = {"add_prefix_space": True}

CLASSES: Mapping[str, TokenizerClass] = {
    **dict.fromkeys(
        (
            "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer",
            "SqueezeBertTokenizer", "LayoutLMTokenizer", "LxmertTokenizer", "DPRQuestionEncoderTokenizer",
            "DPRContextEncoderTokenizer", "DPRReaderTokenizer",
        ),
        _BERT,
    ),
    **dict.fromkeys(("RobertaTokenizer", "LongformerTokenizer", "BartTokenizer", "LEDTokenizer"), _BYTE_LEVEL),
    "MPNetTokenizer": TokenizerClass("WordPiece", "vocab.txt", _MPNET, _TEXT, _wordpiece, _roberta_template),
    "XLMRobertaTokenizer": TokenizerClass(
        "Unigram", "", _ROBERTA, _SPM, _unigram(lambda pieces, names: 3), _sentencepiece_template, ("bos", "eos")
    ),
    "CamembertTokenizer": TokenizerClass(
        "Unigram",
        "",
        _ROBERTA | {"mask": AddedToken("<mask>", lstrip=True, special=True)},
        _SPM,
        _unigram(lambda pieces, names: next((n for n, (one, _) in enumerate(pieces) if one == names.get("unk")), 0)),
        _sentencepiece_template,
        ("bos", "eos"),
        ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    ),
    "HerbertTokenizer": TokenizerClass(
        "BPE",
        "vocab.json and merges.txt",
        {role: _ROBERTA[role] for role in ("unk", "sep", "pad", "cls", "mask")},
        {},
        _herbert,
        _herbert_template,
    ),
    "GPT2Tokenizer": TokenizerClass(
        "BPE", "", dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"), {"add_prefix_space": False}, _bytes,
        lambda tokenizer, names, settings: None, (),
    ),
}  # fmt: skip
"""Classes by name, without `Fast` at its end."""

GENERIC = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
"""Classes that do exactly what tokenizer.json says."""
OF_MODEL = {
    "bert": "BertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer", "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "gte": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer", "mpnet": "MPNetTokenizer", "modernbert": "TokenizersBackend",
}  # fmt: skip
"""Class of a folder that names none, by model_type in config.json."""
AS_FILE = ("modernbert",)
"""Values of model_type for which transformers reads tokenizer.json whatever class is named."""
WITHOUT_FILE = {
    "RoFormerTokenizer": "divides texts with jieba",
    **dict.fromkeys(
        (
            "BartphoTokenizer", "BertGenerationTokenizer", "BertJapaneseTokenizer", "BertweetTokenizer",
            "BioGptTokenizer", "CTRLTokenizer", "CanineTokenizer", "CpmTokenizer", "FlaubertTokenizer",
            "M2M100Tokenizer", "MarianTokenizer", "PLBartTokenizer", "PhobertTokenizer", "ProphetNetTokenizer",
            "RoCBertTokenizer", "TapasTokenizer", "XLMTokenizer",
        ),
        "divides texts with code of its own",
    ),
    **dict.fromkeys(
        (
            "AlbertTokenizer", "BarthezTokenizer", "BigBirdTokenizer", "BlenderbotTokenizer", "CLIPTokenizer",
            "CodeLlamaTokenizer", "CohereTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer", "FNetTokenizer",
            "FunnelTokenizer", "GPTNeoXTokenizer", "GemmaTokenizer", "LayoutLMv2Tokenizer", "LayoutLMv3Tokenizer",
            "LayoutXLMTokenizer", "LlamaTokenizer", "LukeTokenizer", "MBart50Tokenizer", "MBartTokenizer",
            "MLukeTokenizer", "MarkupLMTokenizer", "NllbTokenizer", "OpenAIGPTTokenizer", "PegasusTokenizer",
            "Qwen2Tokenizer", "ReformerTokenizer", "RemBertTokenizer", "SeamlessM4TTokenizer", "SplinterTokenizer",
            "T5Tokenizer", "UdopTokenizer", "WhisperTokenizer", "XGLMTokenizer", "XLNetTokenizer",
        ),
        "has a normalizer and a template of its own",
    ),
}  # fmt: skip
"""Other classes of transformers that ignore tokenizer.json, and how they divide texts instead."""
WITHOUT_SEGMENTS = ("DistilBertTokenizer", "DPRReaderTokenizer")
"""Classes with BERT's pieces that give models no segment types, unless model_input_names lists them."""
AS_FILE_WITH_BYTES = ("LlamaTokenizer",)
"""Classes that do exactly what tokenizer.json says if its pieces are bytes."""
