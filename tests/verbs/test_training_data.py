"""What the user is told about labelled data. What is refused is in test_finetune.py and tests/tasks/test_embed.py."""

from pathlib import Path
from types import SimpleNamespace

from lambert.tasks import TaskConfig
from lambert.tasks.reading.unknown import Unknown
from lambert.verbs.training_data import describe_counts


def test_the_number_of_cut_examples_is_explained() -> None:
    data = SimpleNamespace(counts={"examples": 600, "empty": 0, "cut": 597}, unknown=Unknown())
    task = TaskConfig(max_length=64)
    assert describe_counts(Path("a.tsv"), data, task) == "a.tsv  600 examples, 597 longer than 64 tokens were cut"
