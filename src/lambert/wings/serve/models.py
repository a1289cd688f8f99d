"""The models of a service by name: loads and describes them, and replaces them while requests are computed."""

import hashlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.contents import model_files
from lambert.core.errors import DataError, LambertError, UsageError
from lambert.core.files import open_regular
from lambert.core.world import World
from lambert.inference.config import InferenceConfig
from lambert.inference.text_model import TextModel
from lambert.model.folder import model_folder

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is being served. A request keeps its model until it is answered, even if the model is replaced."""

    name: str
    path: Path
    model: TextModel
    version: str
    """The first hexadecimal digits of the SHA-256 of its files."""
    since: int
    """When it was loaded, in seconds since 1970."""

    @property
    def task(self) -> str:
        """The name of its task; "" if it has no head for one."""
        try:
            return self.model.task.config.name
        except DataError:
            return ""

    @property
    def pair_columns(self) -> tuple[str, str] | None:
        """The keys of the two texts of a model that scores pairs by one number or by two classes. A model that reads
        single texts as well as pairs counts as a reranker if it has one number."""
        if not self.task or not self.model.task.reranks:
            return None
        required, optional = self.model.task.inputs()
        names = [*required, *optional]
        return (names[0], names[1]) if len(names) == 2 else None

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts that may precede texts before their vectors are computed, by name."""
        return self.model.embed.named_prompts()

    def card(self) -> dict[str, Any]:
        """Returns the public description of the model, as plain values."""
        config, task = self.model.model.config, self.task
        found: dict[str, Any] = {
            "name": self.name, "version": self.version, "task": task, "family": config.block,
            "dimensions": self.model.dimensions, "precision": self.model.precision,
            "prompts": self.prompts,
        }  # fmt: skip
        if task:
            settings = self.model.task.config
            found["max_length"] = settings.max_length
            found["labels"] = list(settings.labels)
            found["inputs"], found["optional_inputs"] = self.model.task.inputs()
            found["example"] = self.model.task.example_input()
        return found


class Models:
    """The models of a service.

    Args:
        named: Names and folders.
        warm: Computes a batch with a model before it is served, so that no request waits for one-time work.

    Raises DataError or UsageError if one cannot be loaded.
    """

    def __init__(
        self, named: Collection[tuple[str, Path]], inference: InferenceConfig, code: tuple[str, ...], world: World,
        warm: Callable[[TextModel], None],
    ) -> None:  # fmt: skip
        self._inference, self._code, self._world, self._warm = inference, code, world, warm
        self._served = {name: self._load(name, path) for name, path in named}

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def get(self, name: str | None) -> Served:
        """Returns a model by name; the first one for None. Raises UsageError with the names of the models if there is
        none."""
        if name is None:
            return next(iter(self._served.values()))
        found = self._served.get(name)
        if found is None:
            raise UsageError(f"There is no model of this name; there are: {', '.join(self._served)}.")
        return found

    def reload(self) -> tuple[list[str], list[str]]:
        """Loads each model again whose files have changed. Requests that have begun keep the old one. If a model cannot
        be loaded, whatever the loader raises, the old one stays in place.

        Returns:
            The names of the models that were loaded, and a message for each that could not be.
        """
        changed, failed = [], []
        for name, served in list(self._served.items()):
            try:
                if compute_version(served.path) != served.version:
                    self._served[name] = self._load(name, served.path)
                    changed.append(name)
            except BaseException as error:  # a panic in Rust is not an Exception
                kind = "" if isinstance(error, LambertError) else f"{type(error).__name__}: "
                failed.append(f"{name} was not reloaded: {kind}{error}")
        return changed, failed

    def _load(self, name: str, path: Path) -> Served:
        """Loads a model and checks that all its files are of one version, because a folder may be replaced at any
        time."""
        for _ in range(_TRIES):
            version = compute_version(path)
            try:
                model = TextModel(path, "", self._code, self._inference, self._world)
                _copy_weights(model)
            except Exception:  # half a folder may raise anything
                if compute_version(path) == version:
                    raise
                continue
            if compute_version(path) == version:
                self._warm(model)
                return Served(name, path, model, version, int(time.time()))
        raise DataError(f"{path} changes while it is read: replace it by renaming a complete folder.")


def _copy_weights(model: TextModel) -> None:
    """Copies the weights from the mapped file, which may be overwritten while they are served."""
    for tensor in (*model.model.parameters(), *model.model.buffers()):
        tensor.data = tensor.data.clone()


def compute_version(path: Path) -> str:
    """Returns the version of a model folder (`Served.version`)."""
    found = hashlib.sha256()
    for file in model_files(model_folder(path)):
        with open_regular(file) as opened:
            found.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()[:12]
