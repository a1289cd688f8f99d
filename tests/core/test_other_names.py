"""Names of other libraries lead to settings and tasks that exist."""

import pytest

from lambert.core.other_names import SETTINGS, TASKS, our_setting, our_task
from lambert.core.settings import list_dotted_names
from lambert.tasks import TASKS as OURS
from lambert.verb import all_verbs, settings_of

VERBS = ("prepare", "pretrain", "finetune", "evaluate")
KNOWN = {verb: {*list_dotted_names(settings_of(all_verbs()[verb]))} for verb in VERBS}


def test_every_name_leads_to_one_that_exists() -> None:
    known = set.union(*KNOWN.values()) | {"columns.text", "columns.label"}
    assert {name for names in SETTINGS.values() for name in names} <= known
    assert {*TASKS.values()} <= {*OURS}
    assert not {*TASKS} & {*OURS}


@pytest.mark.parametrize(
    ("verb", "name", "ours"),
    [
        ("finetune", "lr", "optim.lr"),
        ("finetune", "train.lr", "optim.lr"),
        ("finetune", "Learning-Rate", "optim.lr"),
        ("finetune", "max_length", "task.max_length"),
        ("pretrain", "max_length", "packing.sequence_length"),
        ("finetune", "train_file", "data"),
        ("pretrain", "train_file", "corpus"),
        ("finetune", "batch_size", "train.batch_size"),
        ("finetune", "columns.label", "task.columns.label"),
        ("evaluate", "out", "predictions"),
        ("finetune", "optm.lr", ""),
        ("finetune", "nonsense", ""),
        ("finetune", "name", ""),  # of two tables
    ],
)
def test_a_name_is_that_of_the_verb(verb: str, name: str, ours: str) -> None:
    assert our_setting(name, KNOWN[verb]) == ours


def test_names_of_tasks_ignore_case_and_separators() -> None:
    assert [our_task(name) for name in ("NER", "Text_Classification", "squad_v2", "classify", "x")] == [
        "tag", "classify", "squad", "", "",
    ]  # fmt: skip
