"""Reads the model to export, in float32, and the other files of its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.families import reads_segments
from lambert.model.heads import Model
from lambert.model.pooling import name_head, pooled_width
from lambert.model.vector_layers import VectorLayers
from lambert.tasks.config import TaskConfig
from lambert.tasks.model_folder import read_extras, task_of
from lambert.tasks.task import own_class
from lambert.tasks.vectors import sentence_transformers
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.wings.convert.settings import ExportConfig


@dataclass(frozen=True, slots=True)
class Original:
    """A model folder that was read."""

    folder: Path
    model: Model
    tokenizer: Any
    extra: Mapping[str, Any]
    """Keys of config.json that are copied."""
    files: Mapping[str, str | bytes]
    """Files of sentence-transformers, by name."""
    task: TaskConfig
    finish: VectorLayers
    """Module that maps pooled states to vectors."""
    limit: int
    """Number of tokens to which the folder cuts a text; 0: the model's positions."""

    @property
    def vectors(self) -> TaskConfig | None:
        """The task of a model of vectors; None for other models."""
        return self.task if own_class(self.task.name).computes_vectors else None

    @property
    def segments(self) -> bool:
        """Whether the model reads segment types."""
        return reads_segments(self.model.config)

    @property
    def longest(self) -> int:
        """Number of tokens to which other libraries truncate a text."""
        positions = self.model.config.positions
        return min((self.vectors.max_length if self.vectors else self.limit) or positions, positions)

    def write_tokenizer(self, folder: Path) -> None:
        """Writes the files of the tokenizer."""
        tokenizers.save(self.tokenizer, folder, longest=self.longest, segments=self.segments)


def read(config: ExportConfig) -> Original:
    """Reads the model folder. Raises DataError if it cannot be read."""
    folder = layout.model_folder(config.model)
    settings = layout.read_config(folder)
    layout.check_family(settings, folder)
    task = task_of(folder, settings)
    vectors = task.resolve_length() if own_class(task.name).computes_vectors else None
    task = vectors or task
    heads = None if vectors is None else {name_head(vectors.embed.pooling): 0}
    tokenizer = tokenizers.load(folder)
    model, report = weights.load(folder, heads, roles.size(tokenizer), code=config.code)
    if report.missing:
        raise DataError(f"{folder} lacks {report.missing[0]}: fine-tune the model, or import the whole folder.")
    extra, files = read_extras(folder, model.config)
    embed = (vectors or TaskConfig()).embed
    pooled = pooled_width(model.config.hidden, embed.pooling)
    layers = sentence_transformers.layers(folder, pooled) if vectors else []
    finish = VectorLayers(layers, vectors is not None and embed.unit(), embed.truncate_dim)
    limit = sentence_transformers.length(folder)
    return Original(folder, model.float().eval(), tokenizer, extra, files, task, finish, limit)


def check_traceable(model: Model, format: str) -> None:
    """Raises UsageError for blocks from outside Lambert, which only Lambert's batches can run."""
    if model.config.custom_block:
        raise UsageError(f"--format {format} cannot contain the block {model.config.block}: use --format hf.")


def check_pooled(original: Original, format: str) -> None:
    """Raises UsageError for vectors that depend on the number of tokens of a prompt."""
    embed = (original.vectors or TaskConfig()).embed
    if not embed.include_prompt and any(embed.named_prompts().values()):
        raise UsageError(
            f"--format {format} cannot leave the tokens of prompts out of the pooling (include_prompt = false): use "
            "--format sentence-transformers."
        )
