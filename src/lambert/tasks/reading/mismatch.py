"""Errors about labelled data that do not fit the task. The advice differs between training and using a model."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lambert.core.errors import DataError


class Mismatch(DataError):
    """Data that do not fit the task. The message names the settings of training."""

    def for_model(self) -> str:
        """Returns the message for the user of a trained model, who has flags for columns and another model to take."""
        message = re.sub(
            r"(?:--)?task\.columns\.(\w+)", lambda setting: f"--columns.{setting[1].replace('_', '-')}", str(self)
        )
        message = re.sub(r"set --task\.name (\w+)", r"use a model that was fine-tuned for the task \1", message)
        return message.replace("fine-tune with task.labels that list", "use a model that was fine-tuned with")


@contextmanager
def advise_model_user() -> Iterator[None]:
    """A context in which messages give the advice for a model that is already trained."""
    try:
        yield
    except Mismatch as error:
        raise DataError(error.for_model()) from error
