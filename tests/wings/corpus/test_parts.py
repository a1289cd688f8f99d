import dataclasses
import json
from hashlib import blake2b
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
from small_corpora import WORDS

from lambert.core.errors import DataError
from lambert.wings.corpus import parts
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading.readers import PIECE, Piece

pytest.importorskip("pyarrow")


def test_a_part_reads_back_as_it_was_written(tmp_path: Path) -> None:
    pieces = [Piece("a" * parts.GROUP_CHARACTERS, "line 1", last=False), Piece("b", "line 9"), Piece("", "row 3")]
    pieces += [Piece("", "line 12", error="is not UTF-8 text")]
    counts = parts.write_part(tmp_path / "part", ["in.txt"], pieces)
    found = list(parts.read_part(tmp_path / "part"))
    assert {piece.source for piece in found} == {"in.txt"}
    assert [dataclasses.replace(piece, id="", source="") for piece in found] == pieces
    assert found[0].id == found[1].id != found[2].id
    own = {"documents": 3, "unreadable": 1}
    assert counts == {**own, "characters": parts.GROUP_CHARACTERS + 1, "files": [{"source": "in.txt", **own}]}


def test_a_part_of_no_documents_can_be_read(tmp_path: Path) -> None:
    assert parts.write_part(tmp_path / "part", ["in.txt"], [])["documents"] == 0
    assert list(parts.read_part(tmp_path / "part")) == []
    (tmp_path / "other").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match="run its step again"):
        list(parts.read_part(tmp_path / "other"))


def test_documents_keep_an_id_and_what_their_input_says_about_them(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    ipc = pytest.importorskip("pyarrow.ipc")
    folder = tmp_path / "in"
    folder.mkdir()
    texts = [f"{WORDS} {number}." for number in range(3)]
    rows = [{"text": text, "url": f"http://a/{n}", "score": n, "extra": [n]} for n, text in enumerate(texts)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = arrow.table({name: [row[name] for row in rows] for name in ("url", "text", "score", "extra")})
    parquet.write_table(table, folder / "b.parquet")
    cells = [("url", "text"), *((f"http://c/{number}", text) for number, text in enumerate(texts))]
    (folder / "c.csv").write_text("".join(f"{url},{text}\n" for url, text in cells))
    with ipc.new_stream(str(folder / "d.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "e.txt").write_text('<doc id="7" url="http://e/7" title="Town">\nTown\n\nThe town is small.\n</doc>\n')
    copyfile(Path(__file__).parents[2] / "golden" / "ltgwiki.xml", folder / "f.xml")
    (folder / "g.txt").write_text(f"{WORDS}.\n\n" * (2 * PIECE // len(WORDS)))
    chosen = PrepareConfig(
        tuple(sorted(folder.iterdir())), tmp_path / "out", steps=("extract", "clean"), clean=("normalise",),
        metadata=("url", "score", "none"), workers=1, max_bad=0.5,
    )  # fmt: skip
    prepare(chosen)
    found: dict[str, list[dict[str, Any]]] = {}
    ids = {}
    for step in ("extract", "clean"):
        parts_of_step = [parquet.read_table(path) for path in sorted((chosen.work_folder / step).glob("*.parquet"))]
        rows_of_step = [row for part in parts_of_step for row in part.to_pylist()]
        ids[step] = sorted(row["id"] for row in rows_of_step)
        for row in rows_of_step:
            found.setdefault(Path(row["source"]).name + step, []).append(row)
    assert ids["extract"] == ids["clean"]
    for step in ("extract", "clean"):
        for name in ("a.jsonl", "b.parquet", "d.arrow"):
            kept = [json.loads(row["metadata"]) for row in found[name + step]]
            assert kept == [{"url": f"http://a/{n}", "score": n} for n in range(3)]
        assert json.loads(found["c.csv" + step][1]["metadata"]) == {"url": "http://c/1"}
        assert json.loads(found["e.txt" + step][0]["metadata"]) == {"id": "7", "url": "http://e/7", "title": "Town"}
        for row in found["f.xml" + step]:
            assert row["text"].startswith(json.loads(row["metadata"])["title"])
        assert len({row["id"] for row in found["g.txt" + step]}) == 1 < len(found["g.txt" + step])
    assert [row["id"] for row in found["a.jsonlextract"]] == [row["id"] for row in found["b.parquetextract"]]
    assert found["a.jsonlextract"][0]["id"] == blake2b(texts[0].encode(), digest_size=8).hexdigest()
