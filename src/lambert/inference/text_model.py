"""A model for texts, for the library, `lambert predict` and `lambert evaluate`."""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from lambert.core.batch import Batch, Source
from lambert.core.errors import DataError, LambertError, UsageError
from lambert.core.files import json_text
from lambert.core.registry import choose
from lambert.core.world import World
from lambert.corpus.tokens import tokenizer as tokenizers
from lambert.distributed.launch_environment import process_info
from lambert.engine.device import device_named, keep_current_gpu
from lambert.engine.precision import Precision
from lambert.inference.config import InferenceConfig, Precisions
from lambert.inference.outputs import load_task, outputs, ready
from lambert.inference.scheduler import Work
from lambert.model.encoder import Encoder
from lambert.model.families import reads_segments
from lambert.model.folder import model_folder, read_config
from lambert.model.heads import Model
from lambert.model.pooling import modes_of, pooled, pooling_of
from lambert.model.publish import publish
from lambert.tasks import (
    Outputs,
    Row,
    Task,
    TaskConfig,
    asked,
    model_files,
    scored,
    sentence_transformers,
    with_top,
)
from lambert.tasks.bad_rows import readable
from lambert.tasks.config import SHORTEST, Columns, EmbedConfig, OtherColumns
from lambert.tasks.embed import Embed
from lambert.tasks.mismatch import using_a_model
from lambert.tasks.templates import columns_of, is_template

R = TypeVar("R")
Text = str | Mapping[str, Any]
"""A text, or a row with the keys of an input line of `lambert predict`."""


def load(
    folder: str | Path, *, task: str = "", precision: Precisions = "float32", device: str = "auto",
    micro_tokens: int = 8192, code: Sequence[str] = (),
) -> "TextModel":  # fmt: skip
    """Loads a model for inference.

    Args:
        folder: Run folder, model folder or Hugging Face folder.
        task: The expected task, or the task of a Hugging Face folder that `finetune` did not write.
        precision: As in `lambert predict --inference.precision`.
        device: auto, cpu, cuda, cuda:N or mps.
        micro_tokens: Maximum tokens of a batch.
        code: Names of code from outside that the folder may import (docs/security.md).

    Raises:
        DataError: The folder cannot be read.
        UsageError: A setting is wrong.
    """
    with keep_current_gpu():
        world = World(device=device_named(device, process_info().local_rank))
        model = TextModel(Path(folder), task, tuple(code), InferenceConfig(precision, micro_tokens, device), world)
    if model.note:
        warnings.warn(model.note, stacklevel=2)
    return model


@dataclass(frozen=True, slots=True)
class Request(Generic[R]):
    """Sequences to compute, and what becomes of their outputs."""

    work: Work
    source: Source
    finish: Callable[[Outputs], R]
    """Returns the result from the outputs for all sequences, in order."""


class TextModel:
    """A model for texts: predictions of its task, vectors, and scores.

    Texts are computed in flat batches without padding. A result does not depend on the other texts of a batch.
    """

    def __init__(
        self,
        path: Path,
        task: str,
        code: Sequence[str],
        inference: InferenceConfig,
        world: World,
        columns: Columns | OtherColumns | None = None,
        squad: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Loads the model. `columns` are those of the data; of OtherColumns, those that are not set are the model's.
        `squad` replaces settings of question answering. With several ranks (`world`), each computes a share, and all
        ranks must call every method."""
        self.path, self.folder = path, model_folder(path)
        """The given path, and the model folder that it names or contains."""
        self.tokenizer: Any
        """The `tokenizers.Tokenizer` of the model."""
        self._model: Model
        self._precision: Precision
        self.note: str
        """A line about pieces that the tokenizer may have lost; else empty."""
        model, self.tokenizer, self._task, self._missing, self.note = load_task(self.folder, task, code, columns, squad)
        self._model, self._precision = ready(model, inference.precision, world.device)
        limit = 0 if read_config(self.folder).get("lambert") else sentence_transformers.length(self.folder)
        self._longest = min(limit or model.config.positions, model.config.positions)
        self._inference, self._world = inference, world
        self._work = Work(self._model, self._precision)
        self._vectors: dict[str, Work] = {}

    @property
    def task(self) -> Task[Any, Any]:
        """The task of the model, `mask` for a pre-trained one. Raises DataError if the folder has no head for it."""
        if self._missing:
            raise DataError(self._missing)
        return self._task

    @property
    def precision(self) -> str:
        """The precision of the matrix products: float32, bfloat16 or int8."""
        return self._inference.precision

    @property
    def embed(self) -> EmbedConfig:
        """How its vectors are computed: the prompts of a model of vectors, else the defaults."""
        return self._task.config.embed

    @property
    def encoder(self) -> Encoder:
        """The encoder, a torch module that maps a `Batch` to the states of its tokens [T, D]."""
        return self._model.encoder

    @property
    def model(self) -> Model:
        """The encoder with its heads."""
        return self._model

    @overload
    def __call__(self, texts: Text, *, top: int = 0) -> Row: ...  # type: ignore[overload-overlap]  # a str is a Sequence[str]
    @overload
    def __call__(self, texts: Sequence[Text], *, top: int = 0) -> list[Row]: ...
    def __call__(self, texts: Text | Sequence[Text], *, top: int = 0) -> Row | list[Row]:
        """Returns the prediction for a text, or a list of predictions, as written by `lambert predict`
        (docs/predict.md).

        A text is a string or a row, a dict with the keys of the training data. Text pairs and questions are rows. For a
        tagging model a string is divided into words; for a pre-trained model it must contain [MASK].

        Args:
            texts: A text or several texts.
            top: Number of labels, candidate answers or pieces to list, as `lambert predict --top`.
        """
        if isinstance(texts, str | Mapping):
            return self([texts], top=top)[0]
        return self._computed(self.request(texts, top=top))

    def request(self, texts: Sequence[Text], places: Sequence[str] = (), top: int = 0) -> "Request[list[Row]]":
        """Returns what the predictions for the texts need: sequences to compute, and a function of their outputs.
        `places` names each text in error messages, by default by its number; `top` is as in a call.

        Raises DataError or UsageError for a text that the task cannot read.
        """
        places = places or [f"text {number}" for number in range(1, len(texts) + 1)]
        rows = [self._row(text, place) for text, place in zip(texts, places, strict=True)]
        data, finish = asked(with_top(self.task, top), rows, places)
        return Request(self._work, data, finish)

    def readable(
        self, texts: Sequence[Text], places: Sequence[str], top: int = 0
    ) -> tuple[list[int], "Request[list[Row]] | None", dict[int, LambertError]]:
        """Returns what `request` does for the texts that can be read, their numbers (None without such a text), and the
        error of each other text by its number."""
        errors: dict[int, LambertError] = {}
        rows: dict[int, Row] = {}
        for number, (text, place) in enumerate(zip(texts, places, strict=True)):
            try:
                rows[number] = self._row(text, place)
            except UsageError as error:
                errors[number] = error
        kept = [*rows]
        found = readable(with_top(self.task, top), [*rows.values()], [places[number] for number in kept])
        errors |= {kept[at]: error for at, error in found[2].items()}
        request = Request(self._work, *found[1]) if found[1] is not None else None
        return [kept[at] for at in found[0]], request, errors

    def _computed(self, request: "Request[R]") -> R:
        work = request.work
        found = outputs(work.model, request.source, work.precision, self._world, self._inference.micro_tokens)
        return request.finish(found)

    def encode(
        self,
        texts: str | Sequence[str],
        pooling: str = "",
        max_length: int | None = None,
        prompt: str | None = None,
        prompt_name: str = "",
    ) -> npt.NDArray[np.float32]:
        """Returns a vector for each text, float32 [texts, D], or [D] for a single string.

        Args:
            texts: A text or several texts.
            pooling: "mean" is the mean of the last states of all tokens, special ones included, as in
                sentence-transformers; "cls" is the last state of the first token; others are those of
                `EmbedConfig.pooling`. Default: the vectors of a model that was trained for them, of length 1 if its
                task says so; else "mean".
            max_length: Longer texts are cut to this number of tokens, at least 8. Default: that of a model of vectors,
                else that of the tokenizer of a folder that Lambert did not write, else the number of the model's
                positions.
            prompt: What precedes each text. Default: the default prompt of a model of vectors, which is that of queries
                if it names no other.
            prompt_name: Name of a prompt of a model of vectors, such as "document"; `embed.named_prompts()` has all.
        """
        several = [texts] if isinstance(texts, str) else texts
        vectors_ND = self._computed(self.vectors(several, pooling, max_length, prompt, prompt_name))
        return vectors_ND[0] if isinstance(texts, str) else vectors_ND

    def vectors(
        self,
        texts: Sequence[str],
        pooling: str = "",
        max_length: int | None = None,
        prompt: str | None = None,
        prompt_name: str = "",
    ) -> "Request[npt.NDArray[np.float32]]":
        """Returns what the vectors of the texts need, as `request` does. The arguments are those of `encode`."""
        positions, config = self._model.config.positions, self._task.config
        own = isinstance(self._task, Embed) and not pooling
        length = (config.max_length if own else self._longest) if max_length is None else max_length
        if not SHORTEST <= length <= positions:
            raise UsageError(f"max_length = {length} must be from {SHORTEST} to {positions}, the model's positions.")
        if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
            raise UsageError(f"encode takes a text or several, not a {type(texts).__name__}.")
        several = list(texts)
        if wrong := [text for text in several if not isinstance(text, str)]:
            raise UsageError(f"encode takes texts, not {type(wrong[0]).__name__}.")
        if prompt is not None and prompt_name:
            raise UsageError("encode takes prompt or prompt_name, not both.")
        if prompt_name:
            prompt = choose(self.embed.named_prompts(), prompt_name, "prompt_name")
        embed = config.embed if own else EmbedConfig(pooling=pooling, normalize=False)
        task = Embed(TaskConfig(name="embed", max_length=length, embed=embed), self.tokenizer)
        task.layers = self._task.layers if own and isinstance(self._task, Embed) else ()
        before = embed.own_prompt() if prompt is None else prompt
        source, width = task.texts((before, text) for text in several), task.width(self._model.config.hidden)

        def finish(found: Outputs) -> npt.NDArray[np.float32]:
            rows = [vector_1D[0] for vector_1D in task.predictions(source, found)]
            return np.stack(rows) if rows else np.zeros((0, width), dtype=np.float32)

        return Request(self._work_of(task.head), source, finish)

    def _work_of(self, head: str) -> Work:
        """Returns the one work that computes the vectors of a head, so that those of several callers are computed
        together."""
        if head not in self._vectors:
            self._vectors[head] = Work(_Vectors(self._model, head), self._precision)
        return self._vectors[head]

    @property
    def dimensions(self) -> int:
        """Number of components of its vectors."""
        hidden = self._model.config.hidden
        return self._task.width(hidden) if isinstance(self._task, Embed) else hidden

    def evaluate(self, data: str | Path | Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Returns the scores on a labelled file or on labelled rows, dicts with the keys of a line of JSON. Warns
        (UserWarning) if labels are read in another way than by their names, such as numbers."""
        if isinstance(data, str | Path):
            read = self.read(Path(data))
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "rows.jsonl")
                path.write_text("".join(json_text(dict(row)) + "\n" for row in data), encoding="utf-8")
                read = self.read(path)
        for line in read.label_notes:
            warnings.warn(line, stacklevel=2)
        return scored(self.task, read, self.task.predictions(read, self.outputs(read)))

    def save(self, folder: str | Path) -> Path:
        """Writes the model with its current weights to a new model folder, which is complete or absent. The folder is
        read back and its outputs are compared with the model's before it appears.

        Raises:
            DataError: The outputs differ or are not finite.
            UsageError: The folder exists, or the model was loaded in bfloat16 or int8.
        """
        if self._inference.precision != "float32":
            raise UsageError(f"A model loaded in {self._inference.precision} cannot be saved: load it in float32.")
        if Path(folder).exists() and (not Path(folder).is_dir() or any(Path(folder).iterdir())):
            raise UsageError(f"{folder} exists: name another folder.")
        extra = {} if self._task.config.name == "mask" else self._task.model_config()
        files = {} if self._task.config.name == "mask" else model_files(self._task, self._model.config.hidden)
        write = partial(
            tokenizers.save, self.tokenizer, longest=self._model.config.positions,
            segments=reads_segments(self._model.config),
        )  # fmt: skip
        publish(self._model, Path(folder), write, extra, files=files)
        return Path(folder)

    def read(self, path: Path) -> Any:
        """Reads a labelled file as a Source. Raises UsageError for a model that was not fine-tuned."""
        if self.task.config.name == "mask":
            raise UsageError(f"{self.path} is not fine-tuned, so it has no task to score: use `lambert finetune`.")
        with using_a_model():
            return self.task.read(path)

    def outputs(self, source: Source, advance: Callable[[int], None] = lambda sequences: None) -> Outputs:
        """Yields the logits of the model's heads for every sequence of a Source, batch by batch (see `outputs`)."""
        return outputs(self._model, source, self._precision, self._world, self._inference.micro_tokens, advance)

    def _row(self, text: Text, place: str) -> Row:
        if isinstance(text, Mapping):
            return dict(text)
        if not isinstance(text, str):
            raise UsageError(f"{place} is neither a text nor a row (a dict), but {type(text).__name__}.")
        column = self.task.config.columns.text
        if is_template(column):
            names = ", ".join(columns_of(column))
            raise UsageError(f"{place} is a text, and the model reads the columns {names}: give a row (a dict).")
        return {"text" if not column or column.isdecimal() else column: text}


class _Vectors(nn.Module):
    """Computes the pooled states of each sequence of a batch."""

    def __init__(self, model: Model, head: str) -> None:
        super().__init__()
        self.encoder, self.head, self.modes = model.encoder, head, modes_of(pooling_of(head) or "")

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """The rows [S, P] by the name of the head."""
        return {self.head: pooled(self.encoder(batch), batch, self.modes)}
