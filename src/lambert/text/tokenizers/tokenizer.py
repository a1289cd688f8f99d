"""Builds, loads and saves tokenizers of the `tokenizers` library.

Tokenizers that are built here have the normalizer and pre-tokenizer of BERT (Devlin et al. 2019; `tokenization.py` of
google-research/bert); others follow their files (`folder`).
"""

import hashlib
import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers, processors

from lambert.core.errors import DataError, UsageError, quote
from lambert.core.modules import transformer_settings
from lambert.text.tokenizers import classes, folder, roles
from lambert.text.tokenizers.classes import CONTINUATION
from lambert.text.tokenizers.folder import CONFIG, JSON, VOCABULARY, file_in
from lambert.text.tokenizers.roles import ROLES, Declared, declare, get_declared
from lambert.text.tokenizers.trial import library_errors

__all__ = [
    "CONFIG", "CONTINUATION", "JSON", "SPECIAL_PIECES", "VOCABULARY", "build", "describe", "file_in",
    "fingerprint", "load", "normalization", "rebuild", "save", "with_mask",
]  # fmt: skip

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def build(pieces: list[str], *, lowercase: bool, strip_accents: bool | None = None) -> Any:
    """Returns BERT's tokenizer for a vocabulary in order of ids. By default, lower-casing also strips accents, as
    published."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    kind = classes.CLASSES["BertTokenizer"]
    names = {role: str(name) for role, name in kind.names.items() if name in ids}
    settings = {**kind.settings, "do_lower_case": lowercase, "strip_accents": strip_accents}
    tokenizer = kind.start({"model": {"vocab": ids}}, names, settings)
    tokenizer.add_special_tokens([piece for piece in SPECIAL_PIECES if piece in ids])
    if "[CLS]" in ids and "[SEP]" in ids:
        tokenizer.post_processor = kind.template(tokenizer, names, settings)
    return _plain(tokenizer, Declared(names))


def _plain(tokenizer: Tokenizer, found: Declared) -> Tokenizer:
    """Returns the tokenizer, set to encode "[SEP]" in a text as ordinary text, which `tokenizer.json` cannot store, and
    added special tokens as one id each (`roles.Declared`)."""
    declare(tokenizer, found)
    own = roles.special_ids(tokenizer)
    added = tokenizer.get_added_tokens_decoder()
    markers = {token.content for number, token in added.items() if token.special and number not in own}
    if markers:
        values = json.loads(tokenizer.to_str())
        for token in values["added_tokens"]:
            token["special"] = token["special"] and token["content"] not in markers
        tokenizer = Tokenizer.from_str(json.dumps(values))
    declare(tokenizer, replace(found, markers=frozenset(markers)))
    tokenizer.encode_special_tokens = True
    return tokenizer


def with_mask(tokenizer: Any) -> Any:
    """Returns a copy that encodes the mask token in a text as such; other special tokens of the template stay text."""
    mask, values = roles.piece(tokenizer, "mask"), describe(tokenizer)
    for token in values["added_tokens"]:
        if token["content"] == mask:
            token["special"] = False
    copy = rebuild(values, tokenizer)
    if all(token["content"] != mask for token in values["added_tokens"]):  # adding it again would change its settings
        copy.add_tokens([AddedToken(mask, normalized=False, special=False)])
    return copy


def rebuild(values: dict[str, Any], original: Tokenizer | None = None) -> Tokenizer:
    """Returns the tokenizer with this content of `tokenizer.json` and the declarations of `original`."""
    return _plain(Tokenizer.from_str(_serialise(values)), get_declared(original))


def load(path: Path, *, lowercase: bool | None = None, needs: Collection[str] = ()) -> Any:
    """Loads a tokenizer, without truncation and padding. Its ids are those of AutoTokenizer of transformers, except
    that the template's own special tokens in a text ([CLS], [SEP], [PAD], [UNK], [MASK]) are ordinary text.

    Args:
        path: Model folder, or its `tokenizer.json`, `vocab.txt`, or `vocab.json` with `merges.txt` beside it. The other
            files of the folder are read too.
        lowercase: Whether text is lower-cased, for a `vocab.txt`; for BERT's `tokenizer.json` it must agree with the
            file. None: as in `tokenizer_config.json` beside a `vocab.txt`, otherwise false if any piece has capitals.
        needs: Roles of the special tokens that the vocabulary must have, such as mask (`roles.find_id`).

    Raises:
        DataError: A file is missing or damaged, contradicts another, or lacks a special token; or the tokenizer is of a
            kind that Lambert does not read.
        UsageError: `lowercase` contradicts BERT's `tokenizer.json`, or is given for a tokenizer of another kind.
    """
    path = Path(path)
    lowercases_first = path.is_dir() and _lowercases_first(path)
    if path.is_dir():
        path = file_in(path)
    if not path.is_file():
        raise DataError(f"No such tokenizer: {path}. Give a {VOCABULARY}, a {JSON} or a folder that holds one.")
    with library_errors(f"{path} is not a tokenizer"):
        tokenizer = folder.read(path, lowercase)
        folder.check_length(tokenizer, path)
        if path.suffix == ".json" and lowercase not in (None, found := normalization(tokenizer).get("lowercase")):
            says = "is not BERT's" if found is None else f"has lowercase = {str(found).lower()}"
            raise UsageError(f"{path} {says}: leave the setting lowercase out or use another tokenizer.")
        tokenizer = _plain(_add_template(tokenizer, path), get_declared(tokenizer))
        if lowercases_first and not normalization(tokenizer).get("lowercase"):
            former = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *former])
        for role in needs:
            roles.piece(tokenizer, role, str(path))
    return tokenizer


def _add_template(tokenizer: Tokenizer, path: Path) -> Tokenizer:
    """Gives the tokenizer BERT's template if it has none. Raises DataError if a model has learnt without a template."""
    if any(tokenizer.encode("").special_tokens_mask):
        return tokenizer
    if path.with_name("config.json").is_file() and path.suffix == ".json":
        raise DataError(
            f"{path} puts no special tokens around a text (post_processor), and Lambert's models need one before it "
            "and one after it. Use a model that was trained with them."
        )
    cls, sep = roles.find_id(tokenizer, "cls"), roles.find_id(tokenizer, "sep")
    if cls is not None and sep is not None:
        names = {"cls": roles.content(tokenizer, cls), "sep": roles.content(tokenizer, sep)}
        template = classes.bert_template(tokenizer, names, {})
        old = tokenizer.post_processor
        tokenizer.post_processor = template if old is None else processors.Sequence([old, template])
    return tokenizer


def _lowercases_first(folder: Path) -> bool:
    """Returns whether texts are lower-cased before the tokenizer's normalizer, as older folders of
    sentence-transformers may set."""
    found = transformer_settings(folder).get("do_lower_case")
    if not isinstance(found, bool | None):
        raise DataError(f"{folder}: do_lower_case is {quote(found)}, not true or false, in the module Transformer.")
    return bool(found)


def describe(tokenizer: Any) -> dict[str, Any]:
    """Returns the content of the tokenizer's `tokenizer.json`."""
    values: dict[str, Any] = json.loads(tokenizer.to_str())
    markers = get_declared(tokenizer).markers
    for token in values["added_tokens"]:
        token["special"] = token["special"] or token["content"] in markers
    return values


def fingerprint(tokenizer: Any) -> str:
    """Returns the SHA-256 of the `tokenizer.json` that `save` writes."""
    return hashlib.sha256(_serialise(describe(tokenizer)).encode()).hexdigest()


def _serialise(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def normalization(tokenizer: Any) -> dict[str, bool]:
    """Returns whether the tokenizer lower-cases (`lowercase`) and strips accents (`strip_accents`); empty if its
    normalizer is not BERT's."""
    normalizer = _bert_normalizer(describe(tokenizer))
    if not normalizer:
        return {}
    lowercase, strips = bool(normalizer["lowercase"]), normalizer["strip_accents"]
    return {"lowercase": lowercase, "strip_accents": lowercase if strips is None else bool(strips)}


def _bert_normalizer(values: dict[str, Any]) -> dict[str, Any]:
    normalizer = values["normalizer"] or {}
    return normalizer if normalizer.get("type") == "BertNormalizer" else {}


def save(tokenizer: Any, out: Path, longest: int = 512, *, segments: bool = True) -> None:
    """Writes `tokenizer.json`, `tokenizer_config.json` and, for WordPiece, `vocab.txt`, for AutoTokenizer.

    Args:
        longest: Number of tokens to which other libraries truncate a text on request.
        segments: Whether the model reads segment types, which other libraries then give to it.
    """
    values, found = describe(tokenizer), get_declared(tokenizer)
    out.mkdir(parents=True, exist_ok=True)
    (out / JSON).write_text(_serialise(values), encoding="utf-8")
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if normalizer := _bert_normalizer(values):
        config["do_lower_case"] = normalizer["lowercase"]
        config["strip_accents"] = normalizer["strip_accents"]
        config["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    for role in ROLES:
        try:
            config[f"{role}_token"] = found.names[role] if role in ("bos", "eos") else roles.piece(tokenizer, role)
        except (DataError, KeyError):
            continue  # a vocabulary without it
    if found.markers:
        texts = {token["content"]: token["id"] for token in values["added_tokens"]}
        config["additional_special_tokens"] = sorted(found.markers, key=texts.__getitem__)
    if found.truncation_side != "right":
        config["truncation_side"] = found.truncation_side
    config["model_max_length"] = longest
    config["model_input_names"] = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    if _is_bert(out / JSON, config, values):
        config["tokenizer_class"] = "BertTokenizer"
    (out / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if values["model"].get("type") == "WordPiece" and roles.size(tokenizer) == len(ids):  # a line for each id
        lines = "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__))
        (out / VOCABULARY).write_text(lines, encoding="utf-8", newline="\n")


def _is_bert(path: Path, config: dict[str, Any], values: dict[str, Any]) -> bool:
    """Returns whether the class BertTokenizer of transformers makes the same tokenizer from this tokenizer.json."""
    if values["model"].get("type") != "WordPiece" or not _bert_normalizer(values):
        return False
    try:
        found = folder.as_class(path, config, "BertTokenizer")
        return bool(found.to_str() == Tokenizer.from_str(_serialise(values)).to_str())
    except DataError:
        return False
