"""The ids of `lambert prepare` against those of `tokenizers.encode_batch_fast`, document by document.

    python -m benchmarks.token_ids.run --tokenizer vocab.txt [--noise 16] [--json] FILE...

The library gets the document as it is, as tasks give it: it knows nothing of our sentences, words and tables. Where the
ids differ, the document counts as `cut` if they are those of the library for the sentences with a space between them,
and as `different` otherwise.

Files are whatever `lambert prepare` reads. `--noise` MB are made here from a seed: random bytes read as UTF-8 and as
Latin-1, random code points of every plane, and words of every length broken up by punctuation, accents, controls,
ideographs and spaces. Ends with 1 where a document is `different`.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lambert.text import sentences
from lambert.text.tokenizers import tokenizer
from lambert.text.tokenizers.encoding import Encoder
from lambert.wings.corpus.reading.readers import Layout, read

BATCH = 256  # documents
DOCUMENT = 4000  # characters of noise, about
POINTS = (*range(1, 0x180), *range(0x300, 0x370), *range(0x1E00, 0x2070), 0x3000, 0x3002, 0x4E2D, 0xAC00)
HARD = [chr(point) for point in POINTS]


def noise(kind: str, draw: random.Random) -> str:
    """A document of one kind of noise."""
    if kind == "bytes":
        return draw.randbytes(DOCUMENT).decode("utf-8", errors="ignore")
    if kind == "latin-1":
        return draw.randbytes(DOCUMENT).decode("latin-1")
    if kind == "unicode":
        points = (draw.randrange(0x110000) for _ in range(DOCUMENT))
        return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)
    letters = draw.choice(("abcdefgh", "ABCdef019", "éÀßñ", "жЖя", "αΣς", "한글", "日本語"))
    words = ["".join(draw.choices(letters, k=draw.choice((1, 3, 7, 8, 9, 15, 16, 17, 33, 101)))) for _ in range(300)]
    return "".join(word + draw.choice((" ", " ", "\n", draw.choice(HARD), draw.choice(HARD) + " ")) for word in words)


def documents(files: list[Path], layout: Layout, megabytes: float) -> Iterator[tuple[str, str]]:
    """(where from, text) of every document, or piece of a long one."""
    for file in files:
        for piece in read(file, layout):
            if not piece.error:
                yield file.name, piece.text
    for kind in ("bytes", "latin-1", "unicode", "words"):
        draw = random.Random(kind)
        made = 0
        while made < megabytes * 1e6 / 4:
            text = noise(kind, draw)
            made += len(text.encode())
            yield f"noise: {kind}", text


def compare(library: Any, encoder: Encoder, texts: list[str]) -> tuple[int, int, list[str]]:
    """(tokens, documents cut within a word, documents that differ)."""
    encodings = library.encode_batch_fast(texts, add_special_tokens=False)
    found = encoder(texts)
    numbers_n = np.repeat(np.arange(len(texts)), found.sentences_D)
    ends_D = np.cumsum(np.bincount(numbers_n, weights=found.lengths_n, minlength=len(texts))).astype(np.int64)
    cut, different = 0, []
    for text, ids, encoding in zip(texts, np.split(found.ids_T, ends_D[:-1]), encodings, strict=True):
        if ids.tolist() != encoding.ids:
            whole = " ".join(sentences.split(sentences.clean(text)[0], encoder.language, encoder.lines))
            if ids.tolist() == library.encode(whole, add_special_tokens=False).ids:
                cut += 1
            else:
                different.append(whole)
    return len(found.ids_T), cut, different


def _round(row: dict[str, float]) -> dict[str, float]:
    return {field: round(value, 2) if field == "MB" else int(value) for field, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--tokenizer", required=True, type=Path, help="vocab.txt or tokenizer.json")
    parser.add_argument("--noise", type=float, default=16, help="MB of noise to make")
    parser.add_argument("--documents", default="file", help="as in `lambert prepare`")
    parser.add_argument("--text-field", default="text", help="as in `lambert prepare`")
    parser.add_argument("--memory", type=float, default=192, help="MB of words to remember; few make it forget often")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    library = tokenizer.load(arguments.tokenizer)
    encoder = Encoder(library.to_str(), "en", "auto", int(arguments.memory * 1e6))
    fields = ("documents", "MB", "tokens", "cut", "different")
    counts: dict[str, dict[str, float]] = {}
    first = ""
    started = time.perf_counter()
    held: list[tuple[str, str]] = []

    def flush() -> None:
        nonlocal first
        texts = [text for _, text in held]
        row = counts.setdefault(held[0][0], dict.fromkeys(fields, 0.0))
        tokens, cut, different = compare(library, encoder, texts)
        row["documents"] += len(texts)
        row["MB"] += sum(len(text.encode()) for text in texts) / 1e6
        row["tokens"] += tokens
        row["cut"] += cut
        row["different"] += len(different)
        first = first or (different[0] if different else "")
        held.clear()

    for name, text in documents(arguments.files, Layout(arguments.documents, arguments.text_field), arguments.noise):
        if held and (held[0][0] != name or len(held) >= BATCH):
            flush()
        held.append((name, text))
    if held:
        flush()
    total = {field: sum(row[field] for row in counts.values()) for field in fields}
    result = {
        "tokenizer": arguments.tokenizer.name,
        "by_words": encoder.by_words,
        "seconds": round(time.perf_counter() - started),
        **{name: _round(row) for name, row in counts.items()},
        "total": _round(total),
    }
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:<40}{value}" for name, value in result.items()))
    if first:
        print(f"The first document that differs: {first[:2000]!r}")
        sys.exit(1)


if __name__ == "__main__":
    main()
