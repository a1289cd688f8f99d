import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

GOLDEN = Path(__file__).parents[1] / "golden" / "squad.json.gz"


def built(pieces: list[str]) -> Tokenizer:
    """An uncased BERT tokenizer over these pieces."""
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.add_special_tokens([piece for piece in pieces if piece.startswith("[") and len(piece) > 1])
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    with gzip.open(GOLDEN) as file:
        found: dict[str, Any] = json.load(file)
    return found


@pytest.fixture(scope="session")
def wordpiece() -> Callable[[list[str]], Tokenizer]:
    return built


@pytest.fixture(scope="session")
def tokenizer(golden: dict[str, Any]) -> Tokenizer:
    return built(golden["vocabulary"])
