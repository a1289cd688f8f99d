"""A model for texts, for the library, `lambert predict` and `lambert evaluate`."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lambert.core.batch import Batch, Source
from lambert.core.errors import DataError, LambertError, UsageError, quote
from lambert.core.files import as_path
from lambert.core.registry import choose
from lambert.core.settings import as_names, check_type
from lambert.core.world import World
from lambert.distributed.launch_environment import process_info
from lambert.engine.device import device_named, keep_current_gpu
from lambert.engine.progress import in_notebook, progress
from lambert.inference.config import InferenceConfig, Precisions
from lambert.inference.outputs import load_task, outputs, ready
from lambert.inference.scheduler import ReadyModel
from lambert.model.encoder import Encoder
from lambert.model.families import family_of, reads_segments
from lambert.model.folder import model_folder, read_config
from lambert.model.heads import Model
from lambert.model.pooling import find_pooling, pool, split_modes
from lambert.model.publish import publish
from lambert.tasks import Outputs, Row, Task, TaskConfig, make_request, score_predictions
from lambert.tasks.card import card_of_converted
from lambert.tasks.config import SHORTEST, Columns, EmbedConfig, OtherColumns
from lambert.tasks.reading.mismatch import advise_model_user
from lambert.tasks.reading.templates import columns_of, is_template
from lambert.tasks.reading.unknown import unknown_notes
from lambert.tasks.task import make_readable_request, whole_text
from lambert.tasks.vectors import sentence_transformers
from lambert.tasks.vectors.embed import Embed
from lambert.tasks.vectors.similarity import similarity
from lambert.text.memory import data_path, is_path, is_table, list_items, plain_row, read_rows
from lambert.text.tokenizers import tokenizer as tokenizers

R = TypeVar("R")
Text = str | Mapping[str, Any]
"""A text, or a row with the keys of an input line of `lambert predict`."""


def load(
    folder: str | os.PathLike[str], *, task: str | None = None, precision: Precisions | None = None,
    device: str | None = None, micro_tokens: int | None = None, code: Sequence[str] | None = None,
) -> "TextModel":  # fmt: skip
    """Loads a model for inference.

    Args:
        folder: Run folder, model folder or Hugging Face folder.
        task: The expected task, or the task of a Hugging Face folder that `finetune` did not write.
        precision: As in `lambert predict --inference.precision`; float32 by default.
        device: auto (the default), cpu, cuda, cuda:N or mps.
        micro_tokens: Maximum tokens of a batch; 8192 by default.
        code: Names of code from outside that the folder may import (docs/security.md).

    Raises:
        DataError: The folder cannot be read.
        UsageError: A setting is wrong.
    """
    path, names = as_path(folder, "folder"), as_names(code, "code")
    given: dict[str, Any] = {
        "precision": precision,
        "micro_tokens": micro_tokens,
        "device": str(device) if isinstance(device, torch.device) else device,
    }
    for name, value in {"task": task, **given}.items():
        check_type(name, value, int | None if name == "micro_tokens" else str | None)
    config = InferenceConfig(**{name: value for name, value in given.items() if value is not None})
    with keep_current_gpu():
        world = World(device=device_named(config.device, process_info().local_rank))
        model = TextModel(path, task or "", names, config, world)
    for note in model.folder_notes:
        warnings.warn(note, stacklevel=2)
    return model


@dataclass(frozen=True, slots=True)
class Request(Generic[R]):
    """Sequences to compute, and a function of their outputs."""

    ready: ReadyModel
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
        """Loads the model. `columns` are those of the data; OtherColumns that are not set are the model's. `squad`
        replaces settings of question answering. With several ranks (`world`), each computes a share, and all must call
        every method."""
        self.path, self.folder = path, model_folder(path)
        """The given path, and the model folder that it names or contains."""
        loaded = load_task(self.folder, task, code, columns, squad)
        self.tokenizer = loaded.tokenizer
        """The `tokenizers.Tokenizer` of the model."""
        self.folder_notes = loaded.notes
        """Notes about pieces that the tokenizer may have lost, and about layers that are not used."""
        self._task, self._missing = loaded.task, loaded.missing
        self._model, self._precision = ready(loaded.model, inference.precision, world.device)
        limit = 0 if read_config(self.folder).get("lambert") else sentence_transformers.length(self.folder)
        positions = loaded.model.config.positions
        self._longest = min(max(limit, SHORTEST) if limit else positions, positions)
        self._inference, self._world = inference, world
        self._ready = ReadyModel(self._model, self._precision)
        self._vectors: dict[str, ReadyModel] = {}
        self._embedder: tuple[str, int, Embed] | None = None

    def __repr__(self) -> str:
        shape, config = self._model.config, self._task.config
        size = sum(parameter.numel() for parameter in self._model.parameters())
        family = family_of(shape).title
        listed = ", ".join(config.labels[:8]) + ", ..." * (len(config.labels) > 8)
        parts = [
            f"{family} of {shape.layers} layer{'s' * (shape.layers != 1)}, width {shape.hidden}, {size:,} parameters",
            f"task {config.name}" + (" without a head" if self._missing else ""),
            *([f"labels {listed}"] if listed else []), f"up to {self.max_length} tokens",
            f"{self.precision} on {self._world.device}",
        ]  # fmt: skip
        return f"TextModel({str(self.path)!r}: {'; '.join(parts)})"

    @property
    def task(self) -> Task[Any, Any]:
        """The task of the model, `mask` for a pre-trained one. Raises DataError if the folder has no head for it."""
        if self._missing:
            raise DataError(self._missing)
        return self._task

    @property
    def task_config(self) -> TaskConfig:
        """The settings of the task, also if the folder has no head for it."""
        return self._task.config

    @property
    def has_head(self) -> bool:
        """Whether the folder has a head for the task."""
        return not self._missing

    @property
    def precision(self) -> str:
        """The precision of the matrix products: float32, bfloat16 or int8."""
        return self._inference.precision

    @property
    def embed(self) -> EmbedConfig:
        """How its vectors are computed: the settings of a model of vectors, otherwise the defaults."""
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

        A text is a string or a row, a dict with the keys of the training data. Several are a list, a table of pandas,
        polars, pyarrow or datasets, a column of one, an array, or a dict of columns. Text pairs and questions are rows.
        For a tagging model a string is divided into words; for a pre-trained model it must contain [MASK].

        Args:
            texts: A text or several texts.
            top: Number of labels, candidate answers or pieces to list, as `lambert predict --top`.
        """
        if isinstance(texts, Mapping) and self._has_columns(texts):
            texts = read_rows(texts, "texts")
        if isinstance(texts, str | Mapping):
            return self([texts], top=top)[0]
        if not isinstance(texts, Iterable):
            raise UsageError(f"A model takes a text or several, not a {type(texts).__name__}.")
        return self._compute(self.request(read_rows(texts, "texts") if is_table(texts) else list_items(texts), top=top))

    def request(self, texts: Sequence[Text], places: Sequence[str] = (), top: int = 0) -> "Request[list[Row]]":
        """Returns the request for predictions of the texts: sequences to compute, and a function of their outputs.
        `places` names each text in error messages, by default by its number; `top` is as in a call.

        Raises DataError or UsageError for a text that the task cannot read.
        """
        places = places or [f"text {number}" for number in range(1, len(texts) + 1)]
        rows = [self._row(text, place) for text, place in zip(texts, places, strict=True)]
        data, finish = make_request(self.task.with_top(top), rows, places)
        return Request(self._ready, data, finish)

    def readable(
        self, texts: Sequence[Text], places: Sequence[str], top: int = 0
    ) -> tuple[list[int], "Request[list[Row]] | None", dict[int, LambertError]]:
        """Returns the numbers of the texts that can be read, the request for them (None if there are none), and the
        errors of the other texts by number."""
        errors: dict[int, LambertError] = {}
        rows: dict[int, Row] = {}
        for number, (text, place) in enumerate(zip(texts, places, strict=True)):
            try:
                rows[number] = self._row(text, place)
            except UsageError as error:
                errors[number] = error
        kept = [*rows]
        found = make_readable_request(self.task.with_top(top), [*rows.values()], [places[number] for number in kept])
        errors |= {kept[at]: error for at, error in found[2].items()}
        request = Request(self._ready, *found[1]) if found[1] is not None else None
        return [kept[at] for at in found[0]], request, errors

    def _compute(
        self, request: "Request[R]", tokens: int = 0, advance: Callable[[int], None] = lambda sequences: None
    ) -> R:
        ready, tokens = request.ready, tokens or self._inference.micro_tokens
        found = outputs(ready.model, request.source, ready.precision, self._world, tokens, advance, constant=True)
        return request.finish(found)

    def encode(
        self,
        texts: Any,
        pooling: str = "",
        max_length: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        *,
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        show_progress_bar: bool | None = None,
        truncate_dim: int | None = None,
    ) -> Any:
        """Returns a vector for each text, an array float32 [texts, D], or [D] for a single string. The arguments from
        `batch_size` on are those of sentence-transformers.

        Args:
            texts: A text, or several: a list, an array, or a column of a table.
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
            batch_size: Maximum texts of a batch, as long as the longest may be; bounds the memory and does not change
                the vectors. Default: `micro_tokens` alone bounds it.
            normalize_embeddings: Divide the vectors by their length.
            convert_to_tensor: Return a tensor on the model's device.
            convert_to_numpy: False: return a list of tensors.
            show_progress_bar: Show the progress on stderr. Default: in a notebook.
            truncate_dim: Keep only the first components.
        """
        for name, value in ("batch_size", batch_size), ("truncate_dim", truncate_dim):
            check_type(name, value, int | None)
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size = {batch_size} must be 1 or more.")
        if truncate_dim is not None and truncate_dim < 1:
            raise UsageError(f"truncate_dim = {truncate_dim} must be 1 or more.")
        single = isinstance(texts, str)
        request = self.vectors([texts] if single else texts, pooling, max_length, prompt, prompt_name)
        tokens = self._inference.micro_tokens
        if batch_size is not None:
            tokens = min(tokens, int(batch_size) * (max_length or self.max_length))
        quiet = not (in_notebook() if show_progress_bar is None else show_progress_bar)
        with progress(request.source.size(0), "encode", unit="texts", quiet=quiet) as bar:
            found_ND = self._compute(request, tokens, bar.advance)[:, :truncate_dim]
        if not normalize_embeddings and convert_to_numpy and not convert_to_tensor:
            return found_ND[0] if single else found_ND
        tensor_ND = torch.from_numpy(found_ND)
        if normalize_embeddings:
            tensor_ND = nn.functional.normalize(tensor_ND)
        if convert_to_tensor:
            found: Any = tensor_ND.to(self._world.device)
        else:
            found = tensor_ND.numpy() if convert_to_numpy else list(tensor_ND.to(self._world.device))
        return found[0] if single else found

    def similarity(self, a: Any, b: Any) -> Tensor:
        """Returns the similarities [N, M] of N and M vectors, as sentence-transformers does, by the function that the
        model folder names: cosine, dot, euclidean or manhattan (distances are negative). Raises UsageError for another
        function, and for arguments that are not vectors."""
        return similarity(a, b, self.similarity_fn_name)

    @property
    def similarity_fn_name(self) -> str:
        """Name of the similarity of its vectors."""
        return sentence_transformers.similarity_name(self.folder)

    @property
    def max_length(self) -> int:
        """Maximum tokens of a text."""
        return self._task.config.max_length or self._longest

    def vectors(
        self,
        texts: Any,
        pooling: str = "",
        max_length: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> "Request[npt.NDArray[np.float32]]":
        """Returns the request for vectors of the texts, as `request` does for predictions. The arguments are those of
        `encode`."""
        for name, value in ("prompt", prompt), ("prompt_name", prompt_name):
            check_type(name, value, str | None)
        check_type("pooling", pooling, str)
        positions, config = self._model.config.positions, self._task.config
        own = isinstance(self._task, Embed) and not pooling
        length = (config.max_length if own else self._longest) if max_length is None else max_length
        if not isinstance(length, Integral) or not SHORTEST <= length <= positions:
            raise UsageError(f"max_length = {length!r} must be from {SHORTEST} to {positions}, the model's positions.")
        kind = type(texts).__name__
        if is_table(texts):
            raise UsageError(f"encode takes texts, not a {kind}: give a column of it, such as data['text'].")
        if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
            raise UsageError(f"encode takes a text or several, not a {kind}.")
        several = list_items(texts)
        for number, text in enumerate(several, 1):
            if not isinstance(text, str):
                raise UsageError(f"encode takes texts, not {type(text).__name__}: text {number} is {quote(text)}.")
            whole_text(text, "text", f"text {number}")
        if prompt is not None and prompt_name:
            raise UsageError("encode takes prompt or prompt_name, not both.")
        if prompt_name:
            prompt = choose(self.embed.named_prompts(), prompt_name, "prompt_name")
        whole_text(prompt or "", "prompt", "encode")
        task = self._find_embedder(pooling, length)
        embed = task.config.embed
        before = embed.own_prompt() if prompt is None else prompt
        source = task.texts((before, text) for text in several)

        def finish(found: Outputs) -> npt.NDArray[np.float32]:
            rows = [vector_1D[0] for vector_1D in task.predictions(source, found)]
            return np.stack(rows) if rows else np.zeros((0, task.width(self._model.config.hidden)), dtype=np.float32)

        return Request(self._ready_of(task.head), source, finish)

    def _find_embedder(self, pooling: str, length: int) -> Embed:
        """Returns the task of vectors of texts of at most `length` tokens; pooling "": that of a model of vectors, with
        its layers and prompts. The last one is kept, since making it takes longer than to encode a short text."""
        if (last := self._embedder) is not None and last[:2] == (pooling, length):
            return last[2]
        own = self._task if isinstance(self._task, Embed) and not pooling else None
        embed = EmbedConfig(pooling=pooling, normalize=False) if own is None else own.config.embed
        task = Embed(TaskConfig(name="embed", max_length=length, embed=embed), self.tokenizer)
        task.layers = () if own is None else own.layers
        self._embedder = pooling, length, task
        return task

    def _ready_of(self, head: str) -> ReadyModel:
        """Returns the model for vectors of a head, always the same, so that callers are computed together."""
        if head not in self._vectors:
            self._vectors[head] = ReadyModel(_Vectors(self._model, head), self._precision)
        return self._vectors[head]

    @cached_property
    def dimensions(self) -> int:
        """Number of components of its vectors."""
        return self._task.width(self._model.config.hidden)

    def evaluate(self, data: Any) -> "Scores":
        """Returns the scores on a labelled file or on labelled rows: a table of pandas, polars, pyarrow or datasets, a
        list of dicts with the keys of a line of JSON, or a dict of columns; with the notes of `lambert evaluate`. Warns
        (UserWarning) about the data, such as labels that are read as numbers."""
        with data_path(data) as path:
            read = self.read(path)

        def replace_path(lines: Iterable[str]) -> tuple[str, ...]:
            return tuple(line if is_path(data) else line.replace(str(path), "data") for line in lines)

        for line in replace_path(line for line in read.notes if line.startswith("note: ")):
            warnings.warn(line, stacklevel=2)
        scores = score_predictions(self.task, read, self.task.predictions(read, self.outputs(read)))
        return Scores(scores, replace_path(self.notes(path, read)))

    def notes(self, path: Path, data: Any) -> tuple[str, ...]:
        """Returns notes about the model, and about the labelled file `path`, which was read as `data`."""
        return (*self.folder_notes, *data.notes, *unknown_notes([(path, data)]))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the model with its current weights to a new model folder, which is complete or absent. Before it
        appears, it is read back and its outputs are compared with the model's. Its README.md is a model card, which
        names the loaded folder as the origin.

        Raises:
            DataError: The outputs differ or are not finite.
            UsageError: The folder exists, or the model was loaded in bfloat16 or int8.
        """
        folder = as_path(folder, "folder")
        if self._inference.precision != "float32":
            raise UsageError(f"A model loaded in {self._inference.precision} cannot be saved: load it in float32.")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} exists: name another folder.")
        extra = self._task.model_config() if self._task.fine_tuned else {}
        files = self._task.model_files(self._model.config.hidden)
        write = partial(
            tokenizers.save, self.tokenizer, longest=self._model.config.positions,
            segments=reads_segments(self._model.config),
        )  # fmt: skip
        card = card_of_converted(self._model, folder, self.folder, self._task.config)
        publish(self._model, folder, write, extra, card=card, files=files)
        return folder

    def read(self, path: Path) -> Any:
        """Reads a labelled file as a Source. Raises UsageError for a model that was not fine-tuned."""
        if not self.task.fine_tuned:
            raise UsageError(f"{self.path} is not fine-tuned, so it has no task to score: use `lambert finetune`.")
        with advise_model_user():
            return self.task.read(path)

    def outputs(self, source: Source, advance: Callable[[int], None] = lambda sequences: None) -> Outputs:
        """Yields the logits of the model's heads for every sequence of a Source, batch by batch (see `outputs`)."""
        return outputs(
            self._model, source, self._precision, self._world, self._inference.micro_tokens, advance, constant=True
        )

    def _row(self, text: Text, place: str) -> Row:
        if isinstance(text, Mapping):
            return plain_row(text, place, others=True)
        if not isinstance(text, str):
            raise UsageError(f"{place} is neither a text nor a row (a dict), but {type(text).__name__}.")
        column = self.task.config.columns.text
        if is_template(column):
            names = ", ".join(columns_of(column))
            raise UsageError(f"{place} is a text, and the model reads the columns {names}: give a row (a dict).")
        return {self._text_key: text}

    @property
    def _text_key(self) -> str:
        return self._task.config.columns.row_keys()[0]

    def _has_columns(self, row: Mapping[str, Any]) -> bool:
        """Returns whether a dict has columns, so that its text is a list, and is not a row to tag with its words."""
        text = row.get(self._text_key, "")
        return not self._task.reads_words and isinstance(text, Iterable) and not isinstance(text, str | Mapping)


class Scores(dict[str, float]):
    """Scores by name, with their standard errors, as NAME_se."""

    def __init__(self, scores: Mapping[str, float], notes: tuple[str, ...] = ()) -> None:
        super().__init__(scores)
        self.notes = notes
        """Notes about the model and the data, such as how labels were read, and which rows were left out."""


class _Vectors(nn.Module):
    """Computes the pooled states of each sequence of a batch."""

    def __init__(self, model: Model, head: str) -> None:
        super().__init__()
        self.encoder, self.head, self.modes = model.encoder, head, split_modes(find_pooling(head) or "")

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """The rows [S, P] by the name of the head."""
        return {self.head: pool(self.encoder(batch), batch, self.modes)}
