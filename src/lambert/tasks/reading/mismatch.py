"""Errors about labelled data that do not fit the task. The advice differs between training and using a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lambert.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Advice:
    """The parts of an error message that name settings."""

    columns: str
    """Prefix of the name of a setting of the columns."""
    other_task: str
    labels: str
    """What to do about unknown labels; "it" or "them" follows."""

    def column(self, setting: str) -> str:
        """Returns the name of a setting of the columns."""
        return self.columns + (setting.replace("_", "-") if self.columns.startswith("--") else setting)

    def task(self, name: str) -> str:
        """Returns what to do with data for another task, as the end of a sentence."""
        return self.other_task.format(name)


TRAINING = Advice("task.columns.", "set --task.name {}", "fine-tune with task.labels that list")
USING = Advice("--columns.", "use a model that was fine-tuned for the task {}", "use a model that was fine-tuned with")


class Mismatch(DataError):
    """Data that do not fit the task. The message is for a user who trains; `for_model` is for one who uses a model."""

    def __init__(self, message: Callable[[Advice], str]) -> None:
        super().__init__(message(TRAINING))
        self.for_model = message(USING)


@contextmanager
def using_a_model() -> Iterator[None]:
    """A context in which messages give the advice for a model that is already trained."""
    try:
        yield
    except Mismatch as error:
        raise DataError(error.for_model) from error
