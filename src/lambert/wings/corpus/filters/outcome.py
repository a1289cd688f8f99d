"""The result of a filter for the documents of a batch."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from lambert.wings.corpus.batch import Batch, Booleans


class Outcome:
    """The documents that are dropped, the new texts of documents that change, and what was found."""

    def __init__(self) -> None:
        self.dropped: dict[int, str] = {}
        """The reason for each document that is dropped, empty if the filter has only one."""
        self.texts: dict[int, bytes] = {}
        """The new text, in UTF-8, of each document that changes."""
        self.found: dict[int, Counter[str]] = {}
        """Counts of what was found in documents, such as masked addresses."""

    def drop(self, which_D: Booleans, reason: str) -> None:
        """Drops these documents, unless they were dropped for an earlier reason."""
        for document in np.flatnonzero(which_D).tolist():
            self.dropped.setdefault(document, reason)


Filter = Callable[[Batch], Outcome]
