"""Model cards with a name in each field that comes from outside, and what they consist of."""

import re
from pathlib import Path

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.runs.publish import LabelledFile, Trained, card
from lambert.tasks.card import card_of_converted
from lambert.tasks.config import Columns, TaskConfig
from lambert.verbs.settings.finetune import FinetuneConfig

SHAPE = EncoderConfig(vocabulary=40, hidden=32, layers=1, heads=2, intermediate=48)


def parts(text: str) -> tuple[dict[str, object], list[Token]]:
    """The metadata of a card, and the tokens of its Markdown."""
    text = text.encode().decode()
    assert text.startswith("---\n")
    front, _, rest = text[4:].partition("\n---\n\n")
    return yaml.safe_load(front), MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(rest)


def structure(tokens: list[Token]) -> list[tuple[str, str, str]]:
    """The blocks, and the markup in them but for escaped characters."""
    inner = {"text", "text_special"}
    return [
        (part.type, part.tag, part.info)
        for token in tokens
        for part in (token, *(token.children or ()))
        if part.type not in inner
    ]


def written(name: str, kind: str) -> str:
    """A card that has a name in each field that comes from outside."""
    task = TaskConfig(name="classify", labels=(name, "other"), columns=Columns(text=re.sub("[{}]", "", name) or "text"))
    path = Path("folder", name)
    if kind == "converted":
        return card_of_converted(Model(SHAPE, {"label": 2}), path, path, task)
    trained = Trained(task, LabelledFile(path, "0" * 64, {"examples": 3, name: 1}), None)
    config = FinetuneConfig(data=Path("data", name), out=path, init=Path("init", name), task=task)
    return card(Model(SHAPE, {"label": 2}), config, {name: 0.5}, trained)
