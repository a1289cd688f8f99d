"""BERT's variables in checkpoints of TensorFlow 1, as google-research/bert writes them."""

import re
from collections.abc import Collection
from pathlib import Path

from torch import Tensor

from lambert.core.errors import DataError
from lambert.wings.convert.tensorflow.checkpoint import OBJECTS, Checkpoint

_WORDS = "bert/embeddings/word_embeddings"
CLASSIFIER = "classifier.weight"
_HEADS = {
    "output_weights": CLASSIFIER,
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
}
"""Variables of run_classifier.py and run_squad.py."""
_CHANGES = (
    (r"/layer_(\d+)/", r"/layer.\1/"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"/(kernel|gamma|output_weights)$", "/weight"),
    (r"/(beta|output_bias)$", "/bias"),
    ("/", "."),
)
_FOREIGN = {
    r"bert/encoder/(transformer/|embedding_hidden_mapping_in/)": "of ALBERT",
    r"(electra|generator|discriminator_predictions)/": "of ELECTRA",
    r"bert/.*(bottleneck|embedding_transformation)": "of MobileBERT",
    r"model/transformer/": "of XLNet",
    re.escape(OBJECTS): "of the objects of TensorFlow 2",
}
"""Variables of other models, and the models."""
_STATE = ("global_step", "beta1_power", "beta2_power")
"""Variables of optimizers that belong to no other variable."""


def open_checkpoint(prefix: Path) -> Checkpoint:
    """Returns the checkpoint with a prefix. Raises DataError if it is damaged, incomplete or of another model."""
    checkpoint = Checkpoint(prefix)
    names = checkpoint.entries
    whose = next((whose for mark, whose in _FOREIGN.items() if any(re.match(mark, name) for name in names)), "")
    if whose or _WORDS not in names:
        found = whose or f"without {_WORDS} (its variables are {', '.join([*names][:3]) or 'none'})"
        raise DataError(
            f"{checkpoint.path} is a checkpoint {found}; only BERT's of TensorFlow 1 are supported. Use the same model "
            "in the layout of Hugging Face."
        )
    checkpoint.check_data()
    return checkpoint


def tensors(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], list[str]]:
    """Returns BERT's tensors by their names in a model folder, and the names of variables that are not BERT's.

    A kernel is transposed, because TensorFlow stores [inputs, outputs]. The optimizer's variables are omitted: the
    step, and variables named after another one, such as `NAME/adam_m`.
    """
    names = {name: _current(name) for name in checkpoint.entries if not _of_optimizer(name, checkpoint.entries)}
    read = {
        current: checkpoint.tensor(name, transposed=name.endswith("/kernel"))
        for name, current in names.items()
        if current
    }
    return read, [name for name, current in names.items() if not current]


def _of_optimizer(name: str, names: Collection[str]) -> bool:
    parts = name.split("/")
    return name in _STATE or any("/".join(parts[:count]) in names for count in range(1, len(parts)))


def _current(name: str) -> str:
    """Returns the name of a variable in a model folder, or "" if it is not BERT's."""
    if name in _HEADS or not name.startswith(("bert/", "cls/")):
        return _HEADS.get(name, "")
    for old, new in _CHANGES:
        name = re.sub(old, new, name)
    return name
