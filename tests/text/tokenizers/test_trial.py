"""Rules of foreign tokenizers that panic, never end or take all memory."""

import base64
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lambert.core.errors import DataError
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.text.tokenizers import trial
from lambert.text.tokenizers.trial import library_errors

ROLES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MODEL: dict[str, Any] = {
    "type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None, "end_of_word_suffix": None,
    "fuse_unk": False, "byte_fallback": False, "vocab": {name: number for number, name in enumerate((*ROLES, *"ab"))},
    "merges": [],
}  # fmt: skip
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
ADDED = [{"id": number, "content": name, **FLAGS} for number, name in enumerate(ROLES)]


def written(folder: Path, **parts: Any) -> Path:
    values = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": ADDED, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": MODEL,
    }  # fmt: skip
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(values | parts))
    return path


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def sequence(part: dict[str, Any], times: int) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": [part] * times}}


def split(pattern: str) -> dict[str, Any]:
    rule = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": rule}


def precompiled(table: bytes) -> dict[str, Any]:
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}}


PAIR = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
SINGLE = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
MANY = {"[CLS]": {"id": "[CLS]", "ids": [2] * 3000, "tokens": ["[CLS]"] * 3000}}
LONG = {"type": "TemplateProcessing", "special_tokens": MANY, "single": SINGLE, "pair": PAIR}
HOSTILE = {
    "a long template": ({"post_processor": LONG}, "make"),
    "decoders of a normalizer": (
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 40, "decoders": []}},
        "make",
    ),
    "rules beside rules": (sequence(DOUBLE | {"normalizers": []}, 40), "make"),
    "a decoder": ({"decoder": {"type": "Sequence", "decoders": [DOUBLE] * 40}}, "make"),
    "without a type": ({"normalizer": {"normalizers": [{"pattern": {"String": "a"}, "content": "aa"}] * 40}}, "make"),
    "doubled": (sequence(DOUBLE, 40), "make"),
    "bytes of bytes": (sequence({"type": "ByteLevel"}, 40), "make"),
    "prepended": (sequence({"type": "Prepend", "prepend": "x" * 1000}, 50), "make"),
    "length 0": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "fail"),
    "backtracking": (split("(x+x+)+y"), "fail"),
    "truncated table": (precompiled(b"\x04\0\0\0\1\2\3\4"), "fail"),
    "cut table": (precompiled(b"\x10\0\0\0abc"), "fail"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_rules_are_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    parts, said = HOSTILE[kind]
    path = written(tmp_path, **parts)
    with pytest.raises(DataError) as refused:
        tokenizers.load(tmp_path)
    assert str(refused.value).startswith(f"{path} has rules that {said}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGXCPU, "take more than 3 s"), (signal.SIGABRT, "take more than 1 GiB")]
)
def test_a_process_that_a_limit_ends_is_a_refusal(
    number: signal.Signals, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=-number, stdout=b""))
    written(tmp_path, **split(f"c{number}"))
    with pytest.raises(DataError, match=f"has rules that {said} for short texts"):
        tokenizers.load(tmp_path)


def test_usual_rules_are_read(tmp_path: Path) -> None:
    rule = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    written(tmp_path, normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, rule]})
    assert tokenizers.load(tmp_path).encode("a  b").tokens == ["[CLS]", "a", "b", "[SEP]"]


def test_rules_that_are_harmless_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_try_parts", pytest.fail)
    written(tmp_path, normalizer={"type": "NFC"}, pre_tokenizer={"type": "WhitespaceSplit"})
    tokenizers.load(tmp_path)


def test_rules_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, **split("c"))
    tokenizers.load(tmp_path)
    monkeypatch.setattr(trial.subprocess, "run", lambda *_, **__: pytest.fail("tried again"))
    tokenizers.load(tmp_path)


def test_a_long_name_of_unknown_words_is_refused(tmp_path: Path) -> None:
    name = "u" * 10_000
    written(tmp_path, model=MODEL | {"unk_token": name, "vocab": MODEL["vocab"] | {name: 7}})
    with pytest.raises(DataError, match="the token for unknown words has 10,000 characters"):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize("dropout", [0.3, 1.0])
def test_dropout_is_refused(dropout: float, tmp_path: Path) -> None:
    written(tmp_path, model=MODEL | {"dropout": dropout})
    with pytest.raises(DataError, match=rf"tokenizer.json has BPE dropout = {dropout:g}.*set model.dropout to null"):
        tokenizers.load(tmp_path)
    written(tmp_path, model=MODEL | {"dropout": 0.0})
    tokenizers.load(tmp_path)


def test_a_panic_is_an_error_in_one_line() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(DataError, match=r"^The tokenizer cannot encode a text: out of bounds\.$"), library_errors():
        raise panic("out of\nbounds")
    with pytest.raises(KeyboardInterrupt), library_errors():
        raise KeyboardInterrupt
