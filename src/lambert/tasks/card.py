"""The model card, README.md of a model folder: its origin, its shape, and how to load it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lambert.core.files import open_regular
from lambert.core.version import __version__
from lambert.model.families import DEFAULT, family_of
from lambert.model.folder import architecture, unknown_to_transformers
from lambert.model.heads import Model
from lambert.tasks.config import TaskConfig
from lambert.tasks.reading.templates import is_template
from lambert.tasks.task import own_class

_HEADS = {
    "label": "a classification head", "multilabel": "a classification head", "value": "a regression head",
    "choice": "a multiple-choice head", "tag": "a tagging head", "span": "a question-answering head",
    "mlm": "a masked-LM head",
}  # fmt: skip
"""What the head of a model with one is called."""
_LICENSE = re.compile(r"^license: *[\"']?([A-Za-z0-9][\w.+-]{0,60})[\"']? *$", re.MULTILINE)
_SNAPSHOT = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
"""The folder of a model in the cache of huggingface_hub."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The model that a run began with."""

    name: str
    """Its name on the Hugging Face Hub if its path says it, else that of its folder."""
    license: str
    """Empty if its card does not say it."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Returns the origin that a run folder, a model folder or one of the Hub's cache is."""
        path = path.absolute()
        own = path.parent if path.name == "model" else path
        found = next(filter(None, (_SNAPSHOT.fullmatch(part) for part in own.parts)), None)
        card = (path / "model" if (path / "model").is_dir() else path) / "README.md"
        front = ""
        if card.is_file():
            with open_regular(card) as file:
                front = file.read(1 << 16).decode("utf-8", "replace").replace("\r\n", "\n")
            front = front[4:].partition("\n---")[0] if front.startswith("---\n") else ""
        license_ = _LICENSE.search(front)
        return cls("/".join(found.groups()) if found else own.name, license_[1] if license_ else "")


def card_of_converted(model: Model, out: Path, source: Path, task: TaskConfig) -> str:
    """Returns the model card of a folder that was converted from another: its shape, its origin, and how to load it."""
    known = task if own_class(task.name).fine_tuned else None
    return f"{format_heading(model, out.name, Origin.of(source), known)}## Use\n\n{use(model, known)}".rstrip() + "\n"


def format_heading(model: Model, name: str, base: Origin | None, task: TaskConfig | None) -> str:
    """Returns the metadata, the title and the shape of a model with this name."""
    shape = model.config
    size = sum(parameter.numel() for parameter in model.parameters())
    names = plain(", ".join(model.objectives))
    heads = f"with {_HEADS[names]} ({names})" if names in _HEADS else f"with the heads {names}"
    heads = heads if names else "without a head"
    return (
        f"{_front(model, base, task)}# {plain(name)}\n\n"
        f"A {family_of(shape).title} encoder of {shape.layers} layers, width {shape.hidden}, {shape.heads} heads, "
        f"{shape.vocabulary:,} pieces and {size:,} parameters, {heads}. "
        f"Made by Lambert {__version__}"
        + (f" from {plain(base.name)}, whose licence is {plain(base.license) or 'not known'}.\n\n" if base else ".\n\n")
    )


def _has_vectors(model: Model, task: TaskConfig | None) -> bool:
    """Returns whether sentence-transformers reads the folder."""
    vectors = model.joint or (task is not None and own_class(task.name).computes_vectors)
    return vectors and not model.config.custom_block


def _front(model: Model, base: Origin | None, task: TaskConfig | None) -> str:
    """Returns the metadata of the card, as the Hugging Face Hub reads it."""
    library = "sentence-transformers" if _has_vectors(model, task) else "transformers"
    name = task.name if task else "mask" if "mlm" in model.objectives else ""
    lines = {
        "library_name": library,
        "license": _format_scalar(base.license) if base else "",
        "base_model": _quote(base.name) if base else "",
        "pipeline_tag": own_class(name).pipeline,
        "tags": f"[{DEFAULT if model.config.custom_block else model.config.block}, lambert]",
    }
    return "".join(["---\n", *(f"{key}: {value}\n" for key, value in lines.items() if value), "---\n\n"])


def use(model: Model, task: TaskConfig | None) -> str:
    """Returns the section of the card on how to load the model. Its snippets run in the model folder."""
    shape = model.config
    code = f", code=[{json.dumps(shape.block)}]" if shape.custom_block else ""
    own = f'import lambert\n\nmodel = lambert.load("."{code})\nprint({_call(model, task)})\n'
    said = fence(own, "python") + "\n"
    if shape.custom_block:
        return (
            f"{said}Its layers are of the class {plain(shape.block)}, which must be importable and named by `--code`. "
            "Lambert reads this folder, transformers does not.\n\n"
        )
    if name := unknown_to_transformers(shape, model.labels):
        return (
            f"{said}Lambert reads this folder. transformers has no {name}: its `AutoModel` reads the encoder without "
            "the head.\n\n"
        )
    if _has_vectors(model, task):
        theirs = "from sentence_transformers import SentenceTransformer\n\n"
        theirs += 'model = SentenceTransformer(".")\nvectors = model.encode(["A text.", "Another text."])\n'
    else:
        _, has, head = architecture(shape, model.labels)[0].partition("For")
        theirs = f"from transformers import AutoModel{has}{head}, AutoTokenizer\n\n"
        theirs += f'tokenizer = AutoTokenizer.from_pretrained(".")\nmodel = AutoModel{has}{head}.from_pretrained(".")\n'
        theirs += _inputs(model, task) + "outputs = model(**inputs)\n"
    return f"{said}{fence(theirs, 'python')}\n"


def _call(model: Model, task: TaskConfig | None) -> str:
    """Returns an expression of Python that calls a loaded model."""
    if task is None:
        return 'model("A text with a [MASK].")' if "mlm" in model.objectives else 'model.encode("A text.")'
    kind = own_class(task.name)
    if kind.computes_vectors:
        return 'model.encode(["A text.", "Another text."])'
    row = kind.example_row(task)
    alone = kind.reads_words or (len(row) == 1 and not is_template(task.columns.text))
    return f"model({json.dumps('A text.' if alone else row)})"


def _inputs(model: Model, task: TaskConfig | None) -> str:
    """Returns the lines of Python that make the inputs of the model of transformers."""
    if "choice" in model.labels:
        texts = '["A text."] * 2, ["One.", "Another."]'
        return (
            f'inputs = tokenizer({texts}, return_tensors="pt", padding=True)\n'
            "inputs = {name: tensor[None] for name, tensor in inputs.items()}\n"
        )
    pair = task is not None and (own_class(task.name).pairs or bool(task.columns.text_b))
    texts = '"A text.", "Another text."' if pair else '"A text."'
    return f'inputs = tokenizer({texts}, return_tensors="pt", truncation=True)\n'


_MARKUP = re.compile(r"[\\`*\[\]<>|&~$#@]|:(?=//)|(?<=www)\.|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", re.IGNORECASE)
"""Characters that may begin markup, HTML, a table cell or a link within a line of Markdown."""


def plain(text: str) -> str:
    """Returns a line of Markdown that shows the text unchanged."""
    return _MARKUP.sub(r"\\\g<0>", _blank_unprintable(text))


def _blank_unprintable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


_WORD = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][A-Za-z0-9.+-]*", re.IGNORECASE)
"""A text that YAML reads as a text without quotation marks."""


def _format_scalar(text: str) -> str:
    """Returns a text as YAML has it."""
    return text if not text or _WORD.fullmatch(text) else _quote(text)


def _quote(text: str) -> str:
    """Returns a text as YAML and JSON have it, in quotation marks."""
    return json.dumps(_blank_unprintable(text), ensure_ascii=False)


def fence(text: str, language: str) -> str:
    """Returns a code block whose fence is longer than any in the text (CommonMark, section 4.5)."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}{fence}\n"
