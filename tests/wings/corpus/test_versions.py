from collections.abc import Iterator

import pytest

from lambert.wings.corpus import versions
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.filtering import list_causes
from lambert.wings.corpus.reading.slices import WHOLE
from lambert.wings.corpus.units import make_units


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    versions.list_reader_versions.cache_clear()


def key(file: str, kind: str = "auto") -> str:
    versions.list_reader_versions.cache_clear()
    (unit,) = make_units([{"file": file, "bytes": 9, "sha256": "a"}], [None], [[WHOLE]], [1.0], kind)
    return unit.key


def test_parts_of_pages_are_made_again_with_another_version_of_their_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [("a.html", "auto"), ("a.warc.gz", "auto"), ("a", "html"), ("a.txt", "auto"), ("a.html", "text")]
    before = [key(*file) for file in files]
    monkeypatch.setattr("importlib.metadata.version", lambda package: f"{package} 1")
    assert [key(*file) == old for file, old in zip(files, before, strict=True)] == [False, False, False, True, True]


def test_parts_are_cleaned_again_with_another_version_of_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PrepareConfig(("in",), "out", steps=("extract,clean",), clean=("language", "c4"))
    before = list_causes(config.cleaners, config)
    monkeypatch.setattr("importlib.metadata.version", lambda package: f"{package} 1")
    language, c4 = list_causes(config.cleaners, config)
    assert language != before[0]
    assert c4 == before[1]
    monkeypatch.setattr("unicodedata.unidata_version", "3.2.0")
    assert list_causes(config.cleaners, config)[1] != c4
