"""What the user is told about labelled data. What is refused is in test_finetune.py and tests/tasks/test_embed.py."""

from pathlib import Path
from types import SimpleNamespace

from lambert.tasks import TaskConfig
from lambert.tasks.reading.unknown import Unknown
from lambert.verbs.training_data import describe_counts, drop_repeated


def test_the_number_of_cut_examples_is_explained() -> None:
    data = SimpleNamespace(counts={"examples": 600, "empty": 0, "cut": 597}, unknown=Unknown())
    task = TaskConfig(max_length=64)
    one = SimpleNamespace(counts={"examples": 1, "questions_cut": 1}, unknown=Unknown())
    assert describe_counts(Path("a"), one, task).startswith("a  1 example, 1 question longer than 64 tokens was cut")
    assert describe_counts(Path("a.tsv"), data, task) == "a.tsv  600 examples, 597 longer than 64 tokens were cut"


def test_what_is_said_of_a_file_is_not_said_again_of_its_parts() -> None:
    whole = ["note: 3 rows of a.tsv have an empty text."]
    notes = ["note: 1 row of p/train.jsonl has an empty text.", "note: no row of p/train.jsonl has the label 'x'."]
    assert drop_repeated(notes, Path("p/train.jsonl"), whole, Path("a.tsv")) == notes[1:]
