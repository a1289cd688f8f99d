"""Text of the demo's novels."""

import json
import lzma

from lambert.verbs import demo

NOVELS = demo.PACKAGE / demo.DATA / "novels.jsonl.xz"


def paragraphs(number: int, count: int) -> list[str]:
    """Paragraphs of a novel, in ASCII."""
    novels: dict[str, list[str]] = {}
    with lzma.open(NOVELS, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            novels.setdefault(row["novel"], []).extend(row["text"].split("\n"))
    found = [part.encode("ascii", "ignore").decode() for part in [*novels.values()][number] if len(part) > 200]
    return found[:count]
