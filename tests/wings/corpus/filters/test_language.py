from pathlib import Path

import pytest

from lambert.core.errors import UsageError
from lambert.wings.corpus.batch import TextBatch
from lambert.wings.corpus.filters.language import SEEN, Identifier, LanguageFilter, langid, middle
from lambert.wings.corpus.reading.readers import Layout, read

pytest.importorskip("py3langid")

GOLDEN = Path(__file__).parents[3] / "golden"
TEXTS = [
    "The river runs under an old stone bridge near the quiet road to town.",
    "Der Fluss fließt unter einer alten Steinbrücke neben der stillen Straße zur Stadt.",
    "河流在通往城镇的安静道路附近的一座古老石桥下流过。",
    "Реката тече под стар каменен мост близо до тихия път към града.",
    "THE RIVER RUNS UNDER AN OLD STONE BRIDGE NEAR THE ROAD TO TOWN",
]
CODES = ["en", "de", "zh", "bg", "en"]


@pytest.fixture(scope="module")
def identifier() -> Identifier:
    return Identifier()


def test_languages_are_those_of_the_package(identifier: Identifier) -> None:
    module = langid()
    package = module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
    real = [part for name in ("enwiki.xml", "ltgwiki.xml") for piece in read(GOLDEN / name, Layout())
            for part in (piece.text, *piece.text.split("\n\n")) if part]  # fmt: skip
    texts = [*TEXTS, "e\u0301te\u0301", "x y", *real]
    found = identifier(texts)
    assert [language for language, _ in found[:5]] == CODES
    for text, (language, score) in zip(texts, found, strict=True):
        if language != "unknown":
            expected, expected_score = package.classify(text)
            assert language == expected
            assert score == pytest.approx(expected_score, abs=1e-4)
    assert sum(language == "unknown" for language, _ in found) < 5
    assert identifier(["", "a", "\x01"]) == [("unknown", 0.0)] * 3  # without features
    assert identifier([]) == []


def test_documents_in_other_languages_are_dropped() -> None:
    texts = [*TEXTS, "", "ok"]
    batch = TextBatch(texts)
    batch.dropped.add(2)
    outcome = LanguageFilter("en", 0.2)(batch)
    assert {1: "de", 3: "bg", 5: "unknown"}.items() <= outcome.dropped.items()
    assert not {0, 2, 4} & outcome.dropped.keys()
    assert outcome.found[1] == {"de": 1}
    assert set(LanguageFilter("en-GB", 1.0)(TextBatch(TEXTS[:1])).dropped.values()) == {"uncertain"}


def test_a_language_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="'tlh' is not among the 140 languages"):
        LanguageFilter("tlh", 0.65)(TextBatch(TEXTS))


@pytest.mark.parametrize("text", ["", "short", "word " * 999, "都" * 5000, "🙂 é" * 4000])
def test_the_middle_of_a_text_is_read(text: str) -> None:
    found = middle(text.encode())
    assert found in " ".join(text.split())
    assert len(found) >= min(len(text.strip()), SEEN - 2)
