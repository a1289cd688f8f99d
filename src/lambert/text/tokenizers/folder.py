"""Reads the tokenizer of a folder as `AutoTokenizer` of transformers 5 does.

A folder describes a tokenizer in several files, some of which override others: tokenizer.json, or vocab.txt, or
vocab.json with merges.txt; the class and its settings in tokenizer_config.json (or the class of the model's family in
config.json); added tokens in `added_tokens_decoder` of tokenizer_config.json, or else in special_tokens_map.json,
added_tokens.json and tokenizer.json. Source: transformers 5.23, tokenization_utils_base.py (`_from_pretrained`),
tokenization_utils_tokenizers.py and models/auto/tokenization_auto.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, processors

from lambert.core.errors import DataError, quote
from lambert.core.files import json_object, read_file
from lambert.text.tokenizers import classes
from lambert.text.tokenizers.classes import CLASSES, TokenizerClass
from lambert.text.tokenizers.roles import ROLES, Declared, declare, get_declared
from lambert.text.tokenizers.trial import check_parts, library_errors

JSON, VOCABULARY, CONFIG = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
PIECES, MERGES = "vocab.json", "merges.txt"
"""Files of byte-level BPE in older folders."""
ADDED, SPECIAL = "added_tokens.json", "special_tokens_map.json"
_LONGEST = 256
"""Maximum characters of the unknown token, which the library copies for each unknown word (our choice)."""
_SPACES = "".join(filter(str.isspace, map(chr, range(0x20, 0x3001)))) + "\t\n\v\f\r"
"""Unicode's White_Space, which Rust strips; Python's has U+001C to U+001F too."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


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
        model = folder / "model"
        named = f" Name {model}, which has one." if any((model / name).is_file() for name in (JSON, VOCABULARY)) else ""
        raise DataError(f"No tokenizer in {folder}: neither {JSON} nor {VOCABULARY}.{named}")
    return files[0]


def read(path: Path, lowercase: bool | None) -> Tokenizer:
    """Returns the tokenizer in a file, with the settings of the files beside it. All of its special tokens are special.
    `lowercase` overrides do_lower_case for a vocab.txt. Raises DataError for files that contradict one another, and for
    a tokenizer that needs code that Lambert lacks."""
    config, model = _object(path.with_name(CONFIG)), _object(path.with_name("config.json"))
    name = _class(config, model)
    tokenizer = _read(path, config, model, name, lowercase)
    return tokenizer if _gives_segments(config, name) else _without_segments(tokenizer)


def _read(
    path: Path, config: Mapping[str, Any], model: Mapping[str, Any], name: str, lowercase: bool | None
) -> Tokenizer:
    if path.suffix == ".json" and path.name != PIECES:
        if name in classes.WITHOUT_FILE and not (name in classes.AS_FILE_WITH_BYTES and _has_bytes(path)):
            raise DataError(
                f"{path.parent} has the tokenizer {name}, which {classes.WITHOUT_FILE[name]}, whatever {JSON} says: "
                f"Lambert does not have it. Take a model with another tokenizer or, if this {JSON} is what the model "
                f'learnt with, put "tokenizer_class": "PreTrainedTokenizerFast" into {CONFIG}.'
            )
        kind = CLASSES.get(name)
        if kind is not None and not config and "tokenizer_class" not in model and _kind_of_pieces(path) != kind.model:
            kind = None  # the class follows from model_type, and this file has other pieces
        return _from_json(path, config, kind)
    if name in classes.GENERIC and not config.get("tokenizer_class"):
        name = ""  # the class of model_type reads tokenizer.json, which is missing; this file suffices
    kind = CLASSES.get(name) if name else CLASSES["BertTokenizer" if path.name != PIECES else "RobertaTokenizer"]
    if kind is None or not kind.files:
        raise DataError(_needs_json(path, name))
    if path.name not in kind.files and (path.name == PIECES or kind is not CLASSES["BertTokenizer"]):
        raise DataError(f"{name} is read from {kind.files}, not from {path}. Give the {JSON} of this tokenizer.")
    return _from_vocabulary(path, config, kind, lowercase, stated=bool(config or model))


def as_class(path: Path, config: Mapping[str, Any], name: str) -> Tokenizer:
    """Returns the tokenizer that transformers makes from a tokenizer.json with this tokenizer_config.json and class."""
    return _from_json(path, config, CLASSES[name])


def _needs_json(path: Path, name: str) -> str:
    if name in classes.GENERIC:
        return f"{path.with_name(CONFIG)} describes {path.name} as a part of a {JSON}, which is missing. Fetch it."
    return (
        f"{path.parent} has the tokenizer {name}, which needs code beside {path.name}, and no {JSON}. Write one with "
        "transformers, if it has a fast tokenizer of this kind, or take a model with another tokenizer."
    )


def _class(config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Returns the name, without `Fast`, of the class with which transformers reads the folder; empty if unknown."""
    kind = model.get("model_type")
    if kind in classes.AS_FILE:
        return "TokenizersBackend"
    name = config.get("tokenizer_class") or model.get("tokenizer_class") or classes.OF_MODEL.get(str(kind), "")
    return str(name).removesuffix("Fast")


def _kind_of_pieces(path: Path) -> object:
    pieces = _object(path).get("model")
    return pieces.get("type") if isinstance(pieces, dict) else None


def _gives_segments(config: Mapping[str, Any], name: str) -> bool:
    """Returns whether transformers gives models the segment types of the template; if not, all are 0."""
    usual = name == "" or (name in CLASSES and name not in classes.WITHOUT_SEGMENTS)
    names = config.get("model_input_names", ["token_type_ids"] * usual)
    if not isinstance(names, list):
        raise DataError(f"model_input_names = {quote(names)} in {CONFIG} is not a list of names.")
    return "token_type_ids" in names


def _without_segments(tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer with all segment types of its template set to 0."""
    if not any(tokenizer.encode("", "").type_ids):
        return tokenizer
    values = json.loads(tokenizer.to_str())
    last = values["post_processor"]
    for processor in last.get("processors", [last]):
        if processor["type"] == "BertProcessing":
            (sep, sep_id), (cls, cls_id) = processor["sep"], processor["cls"]
            template = processors.TemplateProcessing(
                single=[cls, "$A", sep], pair=[cls, "$A", sep, "$B", sep], special_tokens=[(cls, cls_id), (sep, sep_id)]
            )
            processor.clear()
            processor.update(json.loads(template.__getstate__()))
        for part in (*processor.get("single", ()), *processor.get("pair", ())):
            for token in part.values():
                token["type_id"] = 0
    copy: Tokenizer = Tokenizer.from_str(json.dumps(values))
    declare(copy, get_declared(tokenizer))
    return copy


def _has_bytes(path: Path) -> bool:
    """Returns whether the pieces of a tokenizer.json are bytes."""
    return "ByteLevel" in json.dumps(_object(path).get("pre_tokenizer"))


def _from_json(path: Path, config: Mapping[str, Any], kind: TokenizerClass | None) -> Tokenizer:
    try:
        text = read_file(path).decode()
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a tokenizer: {error}.") from error
    if isinstance(values, dict):
        check_parts(values, path)
    with library_errors(f"{path} is not a tokenizer"):
        tokenizer: Tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    own = {token["id"]: _parse_token(token, path) for token in values.get("added_tokens") or ()}
    tokens = _tokens(path, config, kind, own)
    if kind is None:
        _check_constant(tokenizer, path)
        _check_unknown(tokenizer, values["model"], path)
        _add(tokenizer, tokens, path)
        return tokenizer
    if (found := type(tokenizer.model).__name__) != kind.model:
        raise DataError(
            f"{path} has pieces of {found}, and the class in {path.with_name(CONFIG)} is one for {kind.model}. Correct "
            f"tokenizer_class: PreTrainedTokenizerFast stands for what {JSON} says."
        )
    normalizer = values.get("normalizer") or {}
    if normalizer.get("lowercase") is False and "do_lower_case" not in config and "do_lower_case" in kind.settings:
        raise DataError(
            f"{path} keeps capitals, and the class that transformers reads it with lower-cases by default: put "
            f'"do_lower_case": false or true into {path.with_name(CONFIG)}.'
        )
    return _assemble(values, config, kind, tokens, path, tokenizer.post_processor)


def _check_constant(tokenizer: Tokenizer, path: Path) -> None:
    """Raises DataError if the model draws pieces at random."""
    if value := getattr(tokenizer.model, "dropout", None):
        raise DataError(
            f"{path} has BPE dropout = {value:g}, so it splits a text at random: set model.dropout to null there."
        )


def check_length(tokenizer: Tokenizer, path: Path) -> None:
    """Raises DataError if the unknown token is so long that its copies would fill the memory."""
    if len(name := getattr(tokenizer.model, "unk_token", None) or "") > _LONGEST:
        raise DataError(f"{path}: the token for unknown words has {len(name):,} characters. Correct unk_token.")


def _check_unknown(tokenizer: Tokenizer, model: Mapping[str, Any], path: Path) -> None:
    """Raises DataError if texts may have unknown pieces and the vocabulary has no token for them."""
    if type(tokenizer.model).__name__ == "Unigram":
        lacking = model.get("unk_id") is None and not model.get("byte_fallback")
    else:
        lacking = model.get("unk_token") not in (None, *model["vocab"])
    if lacking:
        name = model.get("unk_token", model.get("unk_id"))
        raise DataError(
            f"{path} has {quote(name)} as the token for unknown pieces, which its vocabulary lacks: texts with unknown "
            "characters cannot be encoded. Correct the model in it."
        )


def _from_vocabulary(
    path: Path, config: Mapping[str, Any], kind: TokenizerClass, lowercase: bool | None, *, stated: bool
) -> Tokenizer:
    if path.name == PIECES:
        with library_errors(f"{path} and {MERGES} are not a tokenizer"):
            vocabulary, merges = models.BPE.read_file(str(path), str(path.with_name(MERGES)))
        model: dict[str, Any] = {"vocab": vocabulary, "merges": merges}
    else:
        pieces = read_pieces(path)
        model = {"vocab": {piece: number for number, piece in enumerate(pieces)}}
        if lowercase is None and "do_lower_case" not in config:
            lowercase = not any(piece != piece.lower() for piece in pieces if not piece.startswith(("[", "<")))
            if stated and not lowercase:
                raise DataError(
                    f"{path} has pieces with capitals, and {CONFIG} does not say whether texts are lower-cased, which "
                    'transformers does by default: put "do_lower_case": false or true into it.'
                )
        if lowercase is not None:
            config = {**config, "do_lower_case": lowercase}
    return _assemble({"model": model}, config, kind, _tokens(path, config, kind, {}), path)


def _assemble(
    values: dict[str, Any],
    config: Mapping[str, Any],
    kind: TokenizerClass,
    tokens: "_Tokens",
    path: Path,
    given: Any = None,
) -> Tokenizer:
    """Returns the tokenizer that transformers builds from the vocabulary in `values`; `given` is the template of
    classes without one."""
    settings = {key: config.get(key, usual) for key, usual in kind.settings.items()}
    for key, value in settings.items():
        if not isinstance(value, bool) and (value is not None or kind.settings[key] is not None):
            raise DataError(f"{path.with_name(CONFIG)} has {key} = {quote(value)}; it must be true or false.")
    names = {role: token.content for role, token in tokens.names.items()}
    unknown = names.get("unk")
    if kind.model == "WordPiece" and unknown not in values["model"]["vocab"]:
        raise DataError(
            f"{path} has no piece {unknown}, the token for unknown words: if another piece is meant, name it in "
            f'{path.with_name(CONFIG)}, as in "unk_token": "<unk>".'
        )
    tokenizer = kind.start(values, names, settings)
    _add(tokenizer, tokens, path)
    if all(tokenizer.token_to_id(names.get(role, "")) is not None for role in kind.template_roles):
        tokenizer.post_processor = kind.template(tokenizer, names, settings) or given
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokens to add to a vocabulary."""

    numbered: Mapping[int, AddedToken]
    """Tokens to which a file gives an id."""
    names: Mapping[str, AddedToken]
    """Special tokens by role, in transformers' order."""
    extra: tuple[AddedToken, ...]
    """Further special tokens."""
    usual: frozenset[str]
    """Default special tokens of the class, which a vocabulary may lack."""
    truncation_side: str
    """As in `Declared`."""


def _tokens(
    path: Path, stated: Mapping[str, Any], kind: TokenizerClass | None, own: Mapping[int, AddedToken]
) -> _Tokens:
    """Returns the tokens that the files beside `path` add. `own` are the added tokens of tokenizer.json."""
    config, place = dict(stated), path.with_name(CONFIG)
    if not config.get("extra_special_tokens") and "additional_special_tokens" in config:
        config["extra_special_tokens"] = config.pop("additional_special_tokens")
    if "added_tokens_decoder" in config:
        decoder = config["added_tokens_decoder"]
        if not isinstance(decoder, dict):
            raise DataError(f"{place} has added_tokens_decoder = {quote(decoder)}; it must be a table.")
        numbered = {_number(key, place): _parse_token(token, place) for key, token in decoder.items()}
    else:
        special = _object(path.with_name(SPECIAL))
        if isinstance(more := special.get("extra_special_tokens"), list):
            special["extra_special_tokens"] = [*(_extra(config, place) or []), *more]
        config |= special
        names = {_content(config[f"{role}_token"], place) for role in ROLES if config.get(f"{role}_token")}
        names |= {_content(token, place) for token in _extra(config, place) or []}
        beside = path.with_name(ADDED)
        numbered = {
            _number(number, beside): AddedToken(token, normalized=token not in names, special=token in names)
            for token, number in _object(beside).items()
        }
        numbered |= own
    further = {key[:-6]: value for key, value in config.items() if key.endswith("_token") and key[:-6] not in ROLES}
    further = {role: value for role, value in further.items() if isinstance(value, str | dict)}
    extra = _extra(config, place)
    if isinstance(extra, dict):
        further, extra = further | extra, []
    usual: Mapping[str, str | AddedToken] = {} if kind is None else kind.names
    by_content = {token.content: token for token in numbered.values()}
    found: dict[str, AddedToken] = {}
    for role in ROLES:
        if f"{role}_token" in config:
            value = config[f"{role}_token"]
            if value is not None:
                found[role] = by_content.get(_content(value, place)) or _parse_token(value, place)
        elif role in usual:
            found[role] = _parse_token(usual[role], place)
    found |= {role: _parse_token(value, place) for role, value in further.items()}
    by_default = () if kind is None else kind.extra
    extra_tokens = tuple(_parse_token(token, place) for token in (by_default if extra is None else extra))
    side = config.get("truncation_side", "right")
    if side not in ("left", "right"):
        raise DataError(f"{place} has truncation_side = {quote(side)}; it must be left or right.")
    contents = {_content(value, place) for value in usual.values()} | {*by_default}
    return _Tokens(numbered, found, extra_tokens, frozenset(contents), side)


def _add(tokenizer: Tokenizer, tokens: _Tokens, path: Path) -> None:
    """Adds tokens in transformers' order, and declares the special ones. Default special tokens that the vocabulary
    lacks are added only before other tokens, whose ids they shift."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    names = {token.content for token in tokens.names.values()}
    adding = [token for _, token in sorted(tokens.numbered.items())]
    known = {token.content for token in (*adding, *tokenizer.get_added_tokens_decoder().values())}
    for token in (*tokens.names.values(), *tokens.extra):
        if token.content not in known:
            adding.append(token)
            known.add(token.content)
    given = {token.content for token in tokens.numbered.values()}
    lacking = [token.content for token in adding if token.content not in vocabulary]
    while lacking and lacking[-1] in tokens.usual - given:
        without = lacking.pop()
        adding = [token for token in adding if token.content != without]
    for token in adding:
        token.special = token.special or token.content in names
    tokenizer.add_tokens(adding)
    for number, token in tokens.numbered.items():
        if token.content not in vocabulary and (got := tokenizer.token_to_id(token.content)) != number:
            raise DataError(
                f"{path.parent} gives the added token {token.content!r} the id {number}, and the tokens before it end "
                f"at {(got or 0) - 1}: some were lost, or the id is wrong. Take the complete files of the tokenizer."
            )
    held = {role: token.content for role, token in tokens.names.items() if role in ROLES}
    held = {role: name for role, name in held.items() if tokenizer.token_to_id(name) is not None}
    declare(tokenizer, Declared(held, truncation_side=tokens.truncation_side))


def _parse_token(value: Any, path: Path) -> AddedToken:
    """Returns a token of a JSON file, given as text or as a table with flags; special by default."""
    if isinstance(value, AddedToken):
        return AddedToken(value.content, **{flag: getattr(value, flag) for flag in _FLAGS})
    if isinstance(value, str):
        return AddedToken(value, special=True)
    flags = {flag: value[flag] for flag in _FLAGS if flag in value} if isinstance(value, dict) else {}
    if not isinstance(value, dict) or not all(isinstance(flag, bool) for flag in flags.values()):
        raise DataError(f"{path} has {quote(value)} for a token; it must be a text, or a table with content and flags.")
    return AddedToken(_content(value, path), **({"special": True} | flags))


def _content(value: Any, path: Path) -> str:
    """Returns the text of a token of a JSON file."""
    content = value.get("content") if isinstance(value, dict) else getattr(value, "content", value)
    if not isinstance(content, str) or not content:
        raise DataError(f"{path} has {quote(value)} for a token; it must be a text, or a table with content and flags.")
    return content


def _extra(config: Mapping[str, Any], path: Path) -> list[Any] | dict[str, Any] | None:
    """Returns the extra special tokens of a tokenizer_config.json: a list, or a table by role."""
    found = config.get("extra_special_tokens", config.get("additional_special_tokens"))
    if not isinstance(found, list | dict | None):
        raise DataError(f"{path} has extra_special_tokens = {quote(found)}; it must be a list or a table of tokens.")
    return found


def _number(value: Any, path: Path) -> int:
    if not str(value).isascii() or not str(value).isdecimal():
        raise DataError(f"{path} has {quote(value)} for the id of an added token; it must be a whole number.")
    return int(value)


def _object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file; empty if there is no file. Raises DataError for other content."""
    return json_object(path) if path.exists() else {}


def read_pieces(path: Path) -> list[str]:
    """Returns the pieces of a vocab.txt. White space at the end of a line is no part of its piece, as in transformers,
    unless there is nothing else, or another line has the rest. Raises DataError for a piece that occurs twice."""
    try:
        text = read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line} is not UTF-8 text (byte 0x{error.object[error.start]:02x}).") from error
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()
    whole = set(lines)
    pieces = [line if (piece := line.rstrip(_SPACES)) in whole else piece or line for line in lines]
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if piece in seen:
            raise DataError(
                f"{path}:{number} repeats the piece {piece!r} of line {seen[piece]}: ids would shift. Correct it."
            )
        seen[piece] = number
    return pieces
