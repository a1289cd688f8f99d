"""Builds, loads and saves tokenizers.

The `tokenizers` library converts text to ids: those that are built here with the normalizer and pre-tokenizer of BERT
(Devlin et al. 2019; `tokenization.py` of google-research/bert), those of other kinds as their files say.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lambert.core.errors import DataError, UsageError
from lambert.corpus.tokens import roles

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
LONGEST_WORD = 100  # characters; a longer word is [UNK], as in Hugging Face; google-research/bert has 200
JSON, VOCABULARY, CONFIG = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
PIECES, MERGES = "vocab.json", "merges.txt"
"""Files of byte-level BPE in older folders."""
DERIVED = (VOCABULARY, CONFIG)
"""Files that `save` writes besides `tokenizer.json`, for other libraries."""


def build(pieces: list[str], *, lowercase: bool, strip_accents: bool | None = None) -> Any:
    """Returns BERT's tokenizer for a vocabulary in order of ids. Unless `strip_accents` is given, lower-casing also
    strips accents, as published."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens([piece for piece in SPECIAL_PIECES if piece in ids])
    if "[CLS]" in ids and "[SEP]" in ids:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
        )
    return _plain(tokenizer)


def _plain(tokenizer: Any) -> Any:
    """Sets the tokenizer to encode "[SEP]" in a text as ordinary text, which `tokenizer.json` cannot store."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def with_mask(tokenizer: Any) -> Any:
    """Returns a copy that encodes the name of the mask token in a text as that token. Other special tokens stay
    ordinary text."""
    mask, values = roles.piece(tokenizer, "mask"), described(tokenizer)
    for token in values["added_tokens"]:
        if token["content"] == mask:
            token["special"] = False
    copy = rebuilt(values)
    if all(token["content"] != mask for token in values["added_tokens"]):  # adding it again would change its settings
        copy.add_tokens([AddedToken(mask, normalized=False, special=False)])
    return copy


def rebuilt(values: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer with this content of `tokenizer.json`."""
    tokenizer: Tokenizer = _plain(Tokenizer.from_str(_serialised(values)))
    return tokenizer


def load(path: Path, *, lowercase: bool | None = None, needs: Collection[str] = ()) -> Any:
    """Loads a tokenizer, without truncation and padding. It encodes special pieces in a text as ordinary text.

    Args:
        path: Model folder, `tokenizer.json`, `vocab.txt`, or `vocab.json` with `merges.txt` beside it.
        lowercase: Whether text is lower-cased, for a `vocab.txt`; for BERT's `tokenizer.json` what it says. None: as in
            `tokenizer_config.json` beside a `vocab.txt`, else false if any piece has capitals.
        needs: Roles of the special tokens that the vocabulary must have, such as mask (`roles.named`).

    Raises:
        DataError: A file is missing or damaged, or lacks a special token.
        UsageError: `lowercase` contradicts BERT's `tokenizer.json`, or is given for a tokenizer of another kind.
    """
    path = Path(path)
    if path.is_dir():
        path = file_in(path)
    tokenizer = _load(path, lowercase)
    for role in needs:
        roles.piece(tokenizer, role, str(path))
    return tokenizer


def _load(path: Path, lowercase: bool | None) -> Any:
    if not path.is_file():
        raise DataError(f"No such tokenizer: {path}. Give a {VOCABULARY}, a {JSON} or a folder that holds one.")
    if path.suffix == ".json":
        tokenizer = _byte_level(path) if path.name == PIECES else _from_json(path)
        if lowercase not in (None, found := lowercases(tokenizer)):
            says = "is not BERT's" if found is None else f"has lowercase = {str(found).lower()}"
            raise UsageError(f"{path} {says}: leave the setting lowercase out or use another tokenizer.")
        return tokenizer
    pieces = _pieces(path)
    if lowercase is None:
        lowercase = _configured(path.parent / CONFIG)
    if lowercase is None:
        lowercase = not any(piece != piece.lower() for piece in pieces if not piece.startswith(("[", "<")))
    return build(pieces, lowercase=lowercase)


def file_in(folder: Path) -> Path:
    """Returns the tokenizer file of a folder. Raises DataError if there is none."""
    names = [JSON, VOCABULARY, *([PIECES] if (folder / MERGES).is_file() else [])]
    files = [folder / name for name in names if (folder / name).is_file()]
    if not files and any(folder.glob("*.model")):
        raise DataError(
            f"{folder} has a SentencePiece model and no {JSON}. Write one with transformers: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})."
        )
    if not files:
        raise DataError(f"No tokenizer in {folder}: neither {JSON} nor {VOCABULARY}.")
    return files[0]


def _byte_level(path: Path) -> Any:
    """Returns RoBERTa's tokenizer from `vocab.json` and the `merges.txt` beside it."""
    try:
        model = models.BPE.from_file(str(path), str(path.with_name(MERGES)))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{path} and {MERGES} are no tokenizer: {' '.join(str(error).split())}.") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    first, last = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    if first is None or last is None:
        raise DataError(f"{path} has no piece <s> or </s>: it is not RoBERTa's. Give a {JSON} instead.")
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", last), ("<s>", first), add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)])
    return _plain(tokenizer)


def _from_json(path: Path) -> Any:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{path} is not a tokenizer: {' '.join(str(error).split())}.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _plain(tokenizer)


def _pieces(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line} is not UTF-8 text (byte 0x{error.object[error.start]:02x}).") from error
    pieces = [line.rstrip("\r") for line in text.split("\n")]
    if pieces[-1] == "":
        pieces.pop()
    lines: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if piece in lines:
            raise DataError(
                f"{path}:{number} repeats the piece {piece!r} of line {lines[piece]}: ids would shift. Correct it."
            )
        lines[piece] = number
    return pieces


def _configured(path: Path) -> bool | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("do_lower_case")
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} is not a JSON object: {error}.") from error
    return found if isinstance(found, bool) else None


def described(tokenizer: Any) -> dict[str, Any]:
    """Returns the content of the tokenizer's `tokenizer.json`."""
    values: dict[str, Any] = json.loads(tokenizer.to_str())
    return values


def fingerprint(tokenizer: Any) -> str:
    """Returns the SHA-256 of the `tokenizer.json` that `save` writes."""
    return hashlib.sha256(_serialised(described(tokenizer)).encode()).hexdigest()


def _serialised(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def lowercases(tokenizer: Any) -> bool | None:
    """Returns whether the tokenizer lower-cases, or None if its normalizer is not BERT's."""
    return _lowercases(described(tokenizer))


def _lowercases(values: dict[str, Any]) -> bool | None:
    normalizer = values["normalizer"] or {}
    return bool(normalizer["lowercase"]) if normalizer.get("type") == "BertNormalizer" else None


def normalization(tokenizer: Any) -> dict[str, bool]:
    """Returns whether the tokenizer lower-cases (`lowercase`) and strips accents (`strip_accents`), or nothing if its
    normalizer is not BERT's."""
    normalizer = described(tokenizer)["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer":
        return {}
    lowercase, strips = bool(normalizer["lowercase"]), normalizer["strip_accents"]
    return {"lowercase": lowercase, "strip_accents": lowercase if strips is None else bool(strips)}


def save(tokenizer: Any, folder: Path, longest: int = 512, *, segments: bool = True) -> None:
    """Writes `tokenizer.json`, `tokenizer_config.json` and, for WordPiece, `vocab.txt`, as AutoTokenizer expects
    them.

    Args:
        longest: Number of tokens to which other libraries shorten a text when they are asked to.
        segments: Whether the model reads segment types, which they then give to it.
    """
    values = described(tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JSON).write_text(_serialised(values), encoding="utf-8")
    lowercase = _lowercases(values)
    # transformers gives its BertTokenizer BERT's template; MPNet's tokenizer has another one with the same normalizer.
    bert = lowercase is not None and roles.bert_template(tokenizer)
    config: dict[str, Any] = {"tokenizer_class": "BertTokenizer" if bert else "PreTrainedTokenizerFast"}
    if lowercase is not None:
        normalizer = values["normalizer"]
        config["do_lower_case"] = lowercase
        config["strip_accents"] = normalizer["strip_accents"]
        config["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    for role in ("pad", "unk", "cls", "sep", "mask"):
        try:
            config[f"{role}_token"] = roles.piece(tokenizer, role)
        except DataError:
            continue  # a vocabulary without it
    config["model_max_length"] = longest
    config["model_input_names"] = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if values["model"].get("type") == "WordPiece" and roles.size(tokenizer) == len(ids):  # a line for each id
        lines = "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__))
        (folder / VOCABULARY).write_text(lines, encoding="utf-8", newline="\n")
