"""The steps of benchmarks/prepare_steps as a datatrove pipeline in two tasks: JSON lines, the filters of Gopher, C4 and
FineWeb, masked personal data, token files.

    python datatrove_corpus.py --out FOLDER --tokenizer vocab.txt FILE...

As an expert would write it: two local workers with one file or part each, the tokenizers library with batches of 1000
documents, words by white space and sentences by a regular expression instead of spaCy, with which
the filters take ten times as long.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    c4_filters,
    fineweb_quality_filter,
    gopher_quality_filter,
    gopher_repetition_filter,
)
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from tokenizers import BertWordPieceTokenizer


def replace_splitters(sentences: Callable[[str, str], list[str]]) -> None:
    """Lets the filters divide texts into words by white space, and into sentences by this function."""
    c4_filters.split_into_sentences = sentences
    for module in (gopher_quality_filter, gopher_repetition_filter, fineweb_quality_filter):
        module.split_into_words = lambda text, language="": text.split()


def sentences(text: str, language: str = "") -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text)


def halves(files: list[Path], folder: Path) -> None:
    """Writes the input as two files of JSON lines, one for each task."""
    folder.mkdir(parents=True)
    rows = [line for file in files for line in file.open(encoding="utf-8")]
    for number in range(2):
        (folder / f"{number}.jsonl").write_text("".join(rows[number::2]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tokenizer", required=True, type=Path)
    arguments = parser.parse_args()
    replace_splitters(sentences)
    halves(arguments.files, arguments.out / "input")
    saved = arguments.out / "tokenizer.json"
    BertWordPieceTokenizer(str(arguments.tokenizer), lowercase=True).save(str(saved))
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(arguments.out / "input"), glob_pattern="*.jsonl"),
            GopherQualityFilter(),
            GopherRepetitionFilter(),
            C4QualityFilter(split_paragraph=True),
            FineWebQualityFilter(),
            PIIFormatter(),
            DocumentTokenizer(
                str(arguments.out / "tokens"), tokenizer_name_or_path=str(saved), eos_token=None, batch_size=1000
            ),
        ],
        tasks=2,
        workers=2,
        start_method="fork",  # keeps the functions that were replaced
        logging_dir=str(arguments.out / "logs"),
    ).run()
    print(json.dumps({"bytes": sum(path.stat().st_size for path in (arguments.out / "tokens").iterdir())}))


if __name__ == "__main__":
    main()
