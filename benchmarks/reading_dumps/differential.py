"""The text of MediaWiki dumps beside WikiExtractor's, article by article: what each has that the other lacks.

    wikiextractor --no-templates -q -o FOLDER DUMP.xml.bz2
    python -m benchmarks.reading_dumps.differential DUMP.xml.bz2 FOLDER [--samples 20]

Words are compared as multisets within an article, and runs of eight words for the samples. Counts of leftovers are
lines of text that contain them. Holes are templates that show text and were removed from a sentence: those that Lambert
has no row for, and with `--no-templates` all of them.
"""

import argparse
import html
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lambert.wings.corpus.reading import wikitext
from lambert.wings.corpus.reading.readers import Layout, read
from lambert.wings.corpus.reading.wikilines import HOLE
from lambert.wings.corpus.reading.wikitemplates import Templates, load_templates

WORD = re.compile(r"\w+")
PLACEHOLDER = re.compile(r"(?:formula|codice)_\d+")
START = re.compile(r'\s*<doc [^\n]*title="(.*?)">\n')
LEFTOVERS = {
    "markup: brackets, braces, apostrophes, tags": re.compile(r"\[\[|\]\]|\{\{|\}\}|'''|</?[a-z]+[ >/]|&lt;/?[a-z]+"),
    "entities": re.compile(r"&(?:amp|lt|gt|quot|nbsp|#\d+);"),
    "placeholders of formulas and code": PLACEHOLDER,
    "brackets that are empty or begin with a separator": re.compile(r"\([\s,;:]*\)|\(\s*[,;]"),
    "spaces before a comma or full stop": re.compile(r"\w [,.](?:\s|$)"),
    "two spaces where a word was removed": re.compile(r"\w  \w"),
}
RUN = 8


class Removed(Templates):
    """Removes all templates. Those that show text leave a hole."""

    def expand(self, segments: Sequence[str]) -> tuple[str, str]:
        text, lost = super().expand(segments)
        return HOLE, lost or segments[0] if text.strip(f" {HOLE}") else lost


def holes(dump: Path, templates: type[Templates]) -> dict[str, float]:
    """Returns the holes in the sentences of a dump, and in 1,000 of them, if templates are treated like this."""
    setattr(wikitext, "load_templates", templates)  # noqa: B010
    found: Counter[str] = Counter()
    for piece in read(dump, Layout()):
        found.update(piece.found)
    setattr(wikitext, "load_templates", load_templates)  # noqa: B010
    share = round(1000 * found["holes"] / max(found["sentences"], 1), 1)
    return {"holes": found["holes"], "sentences": found["sentences"], "in_1000": share}


def ours(dump: Path) -> dict[str, str]:
    articles = {}
    for piece in read(dump, Layout()):
        title, _, text = piece.text.partition("\n\n")
        if text:
            articles[title] = text
    return articles


def theirs(folder: Path, titles: set[str]) -> dict[str, str]:
    articles = {}
    for file in sorted(folder.rglob("wiki_*")):
        for article in file.read_text(encoding="utf-8").split("</doc>\n"):
            if (start := START.match(article)) and (title := html.unescape(start[1])) in titles:
                articles[title] = article[start.end() :].partition("\n")[2]
    return articles


def words(text: str) -> list[str]:
    return WORD.findall(PLACEHOLDER.sub("", html.unescape(text)))


def runs(text: str, other: str) -> list[str]:
    """Returns the runs of eight words of a line that the other text lacks."""
    whole, found = " ".join(words(other)), []
    for line in text.split("\n"):
        own = words(line)
        found += [
            run
            for at in range(0, max(1, len(own) - RUN + 1), RUN)
            if (run := " ".join(own[at : at + RUN])) not in whole
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=0)
    arguments = parser.parse_args()
    mine = ours(arguments.dump)
    peer = theirs(arguments.folder, set(mine))
    both = sorted(set(mine) & set(peer))
    only: dict[str, Counter[str]] = {"lambert": Counter(), "wikiextractor": Counter()}
    samples: dict[str, list[str]] = {"lambert": [], "wikiextractor": []}
    totals = {"lambert": 0, "wikiextractor": 0}
    left = {side: dict.fromkeys(LEFTOVERS, 0) for side in only}
    for title in both:
        texts = {"lambert": mine[title], "wikiextractor": peer[title]}
        for side, other in (("lambert", "wikiextractor"), ("wikiextractor", "lambert")):
            own = Counter(words(texts[side]))
            totals[side] += own.total()
            only[side] += own - Counter(words(texts[other]))
            if arguments.samples:
                samples[side] += [f"{title}: {run}" for run in runs(texts[side], texts[other])]
            for name, pattern in LEFTOVERS.items():
                left[side][name] += sum(bool(pattern.search(line)) for line in texts[side].split("\n"))
    result = {"dump": arguments.dump.name, "articles": len(both), "words": totals}
    result |= {"words_only_here": {side: count.total() for side, count in only.items()}, "leftovers": left}
    result["holes"] = {"lambert": holes(arguments.dump, Templates), "no templates": holes(arguments.dump, Removed)}
    print(json.dumps(result, indent=1, ensure_ascii=False))
    for side, found in samples.items():
        print(f"--- only in {side}: {len(found)} runs of {RUN} words")
        for run in random.Random(0).sample(found, min(arguments.samples, len(found))):
            print(f"  {run}")


if __name__ == "__main__":
    main()
