"""The official files of MultiRC: a paragraph in each line, with its questions and their answers.

Source: Khashabi et al. 2018, and the JSON lines of SuperGLUE (Wang et al. 2019).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from lambert.core.errors import DataError
from lambert.tasks.task import Row


def answer_rows(row: Row, place: str) -> Iterator[Row]:
    """Yields a row for each answer of a paragraph of MultiRC, with the columns of the Hugging Face Hub: paragraph,
    question, answer, label if there is one, and idx with the numbers of all three. A paragraph without its text is one
    of a file of predictions, whose rows have only idx and label. Other rows are yielded as they are. Raises DataError
    if a part of the paragraph is missing."""
    passage = row.get("passage")
    if not isinstance(passage, Mapping) or "questions" not in passage:
        yield row
        return
    try:
        for question in passage["questions"]:
            for answer in question["answers"]:
                numbers = {"paragraph": row["idx"], "question": question["idx"], "answer": answer["idx"]}
                yield {**_texts(passage, question, answer), "idx": numbers, **_label(answer)}
    except (KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{place} is not a paragraph of MultiRC as in SuperGLUE: {what}.") from error


def _texts(passage: Mapping[str, Any], question: Mapping[str, Any], answer: Mapping[str, Any]) -> Row:
    if "text" not in passage:
        return {}
    return {"paragraph": passage["text"], "question": question["question"], "answer": answer["text"]}


def _label(answer: Mapping[str, Any]) -> Row:
    return {"label": answer["label"]} if "label" in answer else {}
