"""Labelled files of every task, and a model fine-tuned on each, made when they are first asked for."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

KINDS = {"river": "water", "boat": "water", "stone": "land", "garden": "land"}
NAMES = ("king", "bird", "window", "house")
SEEDS = {"train": 1, "dev": 2}


def sentence(draw: random.Random) -> tuple[str, str]:
    """A sentence about water or land, and which."""
    thing, name = draw.choice(sorted(KINDS)), draw.choice(NAMES)
    return f"the {name} found a {thing} near the {draw.choice(('old', 'green', 'bright'))} road", KINDS[thing]


def table(path: Path, names: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> Path:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in (names, *rows)), encoding="utf-8")
    return path


def classify(path: Path, draw: random.Random, count: int) -> Path:
    return table(path, ("text", "label"), [sentence(draw) for _ in range(count)])


def pair(path: Path, draw: random.Random, count: int) -> Path:
    rows = [(f"the {draw.choice(NAMES)} walked slowly", *sentence(draw)) for _ in range(count)]
    return table(path, ("one", "two", "label"), rows)


def regress(path: Path, draw: random.Random, count: int) -> Path:
    found = [sentence(draw) for _ in range(count)]
    return table(path, ("text", "label"), [(text, 2.5 if kind == "water" else -0.5) for text, kind in found])


def squad(path: Path, draw: random.Random, count: int) -> Path:
    paragraphs = []
    for number in range(count):
        context = f"{sentence(draw)[0]} . {sentence(draw)[0]}"
        answer = context.split()[4]
        entry = {"text": answer, "answer_start": context.index(answer)}
        questions = [f"the {context.split()[1]} found", "found near the road"]
        paragraphs.append(
            {
                "context": context,
                "qas": [{"id": f"{number}-{q}", "question": x, "answers": [entry]} for q, x in enumerate(questions)],
            }
        )
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


def tag(path: Path, draw: random.Random, count: int) -> Path:
    rows = []
    for _ in range(count):
        words = sentence(draw)[0].split()
        tags = ["thing" if word in KINDS else "name" if word in NAMES else "O" for word in words]
        rows.append(json.dumps({"tokens": words, "tags": tags}) + "\n")
    path.write_text("".join(rows), encoding="utf-8")
    return path


def multilabel(path: Path, draw: random.Random, count: int) -> Path:
    found = [sentence(draw) for _ in range(count)]
    return table(path, ("text", "label"), [(text, kind + ",road" * ("old" in text)) for text, kind in found])


def choice(path: Path, draw: random.Random, count: int) -> Path:
    rows = []
    for _ in range(count):
        text, kind = sentence(draw)
        things = sorted(draw.sample([("a boat", "water"), ("a garden", "land")], 2))
        right = next(number for number, (_, other) in enumerate(things) if other == kind)
        rows.append(json.dumps({"text": text, "choices": [thing for thing, _ in things], "label": right}) + "\n")
    path.write_text("".join(rows), encoding="utf-8")
    return path


def embed(path: Path, draw: random.Random, count: int) -> Path:
    return table(path, ("text", "text_b"), [(sentence(draw)[0], sentence(draw)[0]) for _ in range(count)])


MAKERS = {"classify": classify, "pair": pair, "regress": regress, "squad": squad, "tag": tag}
MAKERS |= {"multilabel": multilabel, "choice": choice, "embed": embed}
ENDINGS = {"squad": ".json", "tag": ".jsonl", "choice": ".jsonl"}
SETTINGS: dict[str, dict[str, object]] = {
    "classify": {},
    "pair": {"task__columns__text": "one", "task__columns__text_b": "two"},
    "regress": {"task__name": "regress"},
    "squad": {"task__name": "squad", "task__squad__max_query": 16, "task__squad__stride": 16},
    "tag": {"task__name": "tag"},
    "multilabel": {"task__name": "multilabel"},
    "choice": {"task__name": "choice"},
    "embed": {"task__name": "embed", "task__columns__text_b": "text_b"},
}


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """`labelled(task, "train" or "dev")`: 48 or 16 rows of a task."""
    folder = tmp_path_factory.mktemp("labelled")

    def made(task: str, split: str) -> Path:
        path = folder / f"{task}-{split}{ENDINGS.get(task, '.tsv')}"
        count = 48 if split == "train" else 16
        return path if path.exists() else MAKERS[task](path, random.Random(SEEDS[split]), count)

    return made


@pytest.fixture(scope="session")
def tuned(pretrained: Path, labelled: Callable[[str, str], Path], lambert: Callable[..., Any]) -> Callable[[str], Path]:
    """`tuned(task)`: the run folder of the tiny encoder fine-tuned on it."""
    folder = pretrained.parent

    def run(task: str) -> Path:
        out = folder / f"tuned-{task}"
        if not out.exists():
            flags = {"data": labelled(task, "train"), "dev": labelled(task, "dev"), "init": pretrained, "out": out}
            more = {"optim__name": "adamw", "optim__lr": 3e-3, "train__batch_size": 8, "train__epochs": 16}
            more |= {
                "log__every": 4,
                "train__threads": 1,
                "train__save_every": 50,
                "task__max_length": 64,
                **SETTINGS[task],
            }
            done = lambert("finetune", **flags, **more)
            assert done.code == 0, done.err
        return out

    return run
