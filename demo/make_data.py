"""Builds the demo's data from plain-text novels: `python demo/make_data.py FOLDER`. Its result is in
src/lambert/verbs/demo/data.

FOLDER holds files Author_Title_Year.txt.bz2 as in the collection "100 English novels" (see the README.md there). Two
novels of each author become excerpts of about 10,000 characters for pre-training. Passages of about 300 characters of a
third novel, which is not used for pre-training, become the labelled task: to find the names in lower-case text.
"""

import bz2
import hashlib
import json
import lzma
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

EXCERPT, PASSAGE = 10_000, 90  # characters
NOVELS = {  # author: two novels for pre-training, one for the task
    "Braddon": ("Phantom_1883", "Quest_1871", "Audley_1862"),
    "Doyle": ("Micah_1889", "Hound_1902", "Lost_1912"),
    "Eliot": ("Daniel_1876", "Adam_1859", "Felix_1866"),
    "Haggard": ("Mines_1885", "Sheallan_1921", "She_1887"),
    "Hardy": ("Madding_1874", "Jude_1895", "Tess_1891"),
    "James": ("Ambassadors_1903", "Tragic_1890", "Roderick_1875"),
    "Gissing": ("Unclassed_1884", "Warburton_1903", "Women_1893"),
    "Stevenson": ("Arrow_1888", "Catriona_1893", "Treasure_1883"),
}
EXCERPTS = 45  # per novel, to keep the repository small
TAUGHT = ("Braddon", "Eliot", "Hardy", "Stevenson")  # authors of the training passages; the others are for testing
TRAIN, TEST = 100, 400  # passages of each
TITLES = {  # words that stand before a name, or in its place, and are none
    "mr", "mrs", "ms", "miss", "master", "mister", "sir", "lady", "lord", "dr", "doctor", "captain", "colonel",
    "squire", "madam", "madame", "monsieur", "mademoiselle", "professor", "uncle", "aunt", "father", "mother", "mamma",
    "papa",
}  # fmt: skip
WORD = re.compile(r"[^\W_]+|\S")  # as BERT divides texts
ENDS = set(".!?:;\"“”'‘’-—()")  # after these a capital letter does not indicate a name


def paragraphs(path: Path) -> list[str]:
    """Returns the paragraphs of a novel, one line each, without headings and other short lines."""
    text = bz2.decompress(path.read_bytes()).decode("utf-8-sig").replace("\r\n", "\n")
    if text.count("\n\n") < 50:  # hard-wrapped without blank lines: a paragraph ends where a short line ends a sentence
        text = re.sub(r"(?m)(^.{1,55}[.!?][\"']?)$", r"\1\n", text)
    blocks = re.split(r"\n\s*\n", text)
    lines = (" ".join(block.split()) for block in blocks)
    return [line for line in lines if len(line) > 60]


def grouped(lines: list[str], size: int) -> list[str]:
    """Joins consecutive paragraphs until they have `size` characters."""
    out, group, length = [], [], 0
    for line in lines:
        group.append(line)
        length += len(line)
        if length >= size:
            out.append("\n\n".join(group))
            group, length = [], 0
    return out


def passages(lines: list[str]) -> list[str]:
    """Returns sequences of whole sentences with at least PASSAGE characters."""
    found = []
    for line in lines:
        sentences = re.findall(r"[^.!?]+[.!?]+[\"']?\s*", line)
        text = ""
        for sentence in sentences:
            text += sentence
            if len(text) >= PASSAGE:
                if len(text) < 2 * PASSAGE:
                    found.append(" ".join(text.split()).replace("\t", " "))
                text = ""
    return sorted(found, key=lambda text: hashlib.sha256(text.encode()).digest())


def names(lines: list[str]) -> set[str]:
    """Returns the words, in lower case, that within sentences are written with a capital more often than without,
    except titles."""
    capital: Counter[str] = Counter()
    small: Counter[str] = Counter()
    for line in lines:
        words = WORD.findall(line)
        for before, word in pairwise(words):
            if word[0].isupper() and before not in ENDS:
                capital[word.lower()] += 1
            elif word[0].islower():
                small[word.lower()] += 1
    return {word for word, count in capital.items() if count > small[word]} - {"i"} - TITLES


def tagged(text: str, known: set[str]) -> str:
    """Returns a passage in lower case, with a tag for each word, as a line of JSON."""
    words = WORD.findall(text)
    tags = ["NAME" if word[0].isupper() and word.lower() in known else "O" for word in words]
    return json.dumps({"tokens": [word.lower() for word in words], "tags": tags}, ensure_ascii=False)


def main(folder: Path) -> None:
    data = Path(__file__).parents[1] / "src" / "lambert" / "verbs" / "demo" / "data"
    excerpts, train, test = [], [], []
    for author, (*read, task) in NOVELS.items():
        for novel in read:
            text = paragraphs(folder / f"{author}_{novel}.txt.bz2")
            for part in grouped(text, EXCERPT)[:EXCERPTS]:
                excerpts.append(json.dumps({"author": author, "novel": novel, "text": part}, ensure_ascii=False))
        text = paragraphs(folder / f"{author}_{task}.txt.bz2")
        known = names(text)
        rows = [tagged(passage, known) for passage in passages(text)]
        train += rows[:TRAIN] if author in TAUGHT else []
        test += rows[:TEST] if author not in TAUGHT else []
    (data / "novels.jsonl.xz").write_bytes(lzma.compress("\n".join(excerpts).encode(), preset=9))
    for name, rows in (("names-train.jsonl", train), ("names-test.jsonl", test)):
        (data / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{len(excerpts)} excerpts, {len(train)} train and {len(test)} test passages")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
