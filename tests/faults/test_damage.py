"""Every file of a corpus, a run folder and a model folder, damaged in eight ways: each verb that reads it says so in
one line with exit code 2, 3 or 4, or its result is the same to the byte. Never a crash, never silently another result.

Harmless, besides RECORDS: README.md of a model, and vocab.txt and tokenizer_config.json of a corpus, which are for
other readers; lock.json, which only names a process; SHA256SUMS alone, since without it a model is read as one of
another program; data.json where it is deleted, since an older version's run has none.

By default a sample runs, without the slow verbs mostly; LAMBERT_DAMAGE=all runs everything.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from lambert.core.contents import write_sums

Lambert = Callable[..., Any]

RECORDS = ("metrics.jsonl", "log.txt", "environment.json", "scores.json", "incidents.jsonl", "config.toml")
"""Files that a run writes down for people: no weights depend on them, and `report` shows whatever they say."""

CORPUS = ("manifest.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
CORPUS += tuple(f"{split}/{name}" for split in ("train", "heldout") for name in ("00000.bin", "index.npy"))
RUN = (*RECORDS, "data.json", "lock.json")
CHECKPOINT = ("model.safetensors", "optimizer.safetensors", "exchange.safetensors", "state.json", "manifest.json")
RUN += tuple(f"checkpoints/step-000006/{name}" for name in CHECKPOINT)
MODEL = ("config.json", "model.safetensors", "README.md", "SHA256SUMS", "tokenizer.json", "tokenizer_config.json")
MODEL += ("vocab.txt",)
READERS = {
    "corpus": (CORPUS, ("start", "continue")),
    "run": (RUN, ("continue", "report")),
    "tuned/model": (MODEL, ("evaluate", "predict", "export", "init")),
}


def _flip(share: float) -> Callable[[Path, Path], None]:
    def flip(path: Path, other: Path) -> None:
        data = bytearray(path.read_bytes())
        if data:
            data[int(share * (len(data) - 1))] ^= 1
            path.write_bytes(data)

    return flip


def _cut(path: Path, keep: Callable[[int], int]) -> None:
    os.truncate(path, max(0, keep(path.stat().st_size)))


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "first byte flipped": _flip(0.02),
    "middle byte flipped": _flip(0.5),
    "last byte flipped": _flip(0.99),
    "cut in half": lambda path, other: _cut(path, lambda size: size // 2),
    "cut by a byte": lambda path, other: _cut(path, lambda size: size - 1),
    "emptied": lambda path, other: _cut(path, lambda size: 0),
    "deleted": lambda path, other: path.unlink(),
    "exchanged": lambda path, other: shutil.copyfile(other, path),
}
EVERY = {"report": 16, "export": 32}
"""So many cases of these verbs are passed over for one that is in the sample; others have one for each file."""
CASES = [
    (verb, f"{folder}/{name}", damage)
    for folder, (names, verbs) in READERS.items()
    for f, name in enumerate(names)
    for v, verb in enumerate(verbs)
    for d, damage in enumerate(DAMAGES)
    if os.environ.get("LAMBERT_DAMAGE") == "all" or (f + 3 * v + d) % EVERY.get(verb, len(DAMAGES)) == 0
]


class Arena:
    """A corpus, a run killed after update 6 of 8, and a fine-tuned model, at paths that stay; the same of another seed
    and other texts to exchange files with; and what each verb makes of them."""

    def __init__(self, folder: Path, lambert: Lambert, texts: Path, small: dict[str, object]) -> None:
        self.lambert, self.small, self.here, self.kept = lambert, small, folder / "arena", folder / "kept"
        self.rows = folder / "rows.tsv"
        self.rows.write_text("text\tlabel\n" + "the old king\ta\na river stone\tb\nthe bird\ta\na boat\tb\n" * 4)
        lines = texts.read_text().splitlines()
        for number, name in enumerate(("other", "arena")):
            place = folder / name
            place.mkdir()
            (place / "texts.txt").write_text("\n".join(lines[:30] if number else lines[5:]) + "\n")
            made = {"documents": "line", "vocabulary": 160, "heldout": 0.2, "workers": 1}
            self.ok("prepare", input=place / "texts.txt", out=place / "corpus", **made)
            self.pretrain(place, "run", steps=8, seed=number)
            shutil.copytree(place / "run" / "model", place / "encoder")
            self.finetune(place / "encoder", place / "tuned", seed=number)
            shutil.rmtree(place / "run" / "model")
            shutil.rmtree(place / "run" / "checkpoints" / "step-000008")
            incident = {"step": 3 + number, "time": 1.5e9, "what": "loss", "ranks": []}
            (place / "run" / "incidents.jsonl").write_text(json.dumps(incident) + "\n")
        self.other = folder / "other"
        shutil.copytree(self.here, self.kept)
        self.sound: dict[str, Any] = {}

    def ok(self, *verb: object, **settings: object) -> Any:
        called = self.lambert(*verb, **settings)
        assert called.code == 0, called.err
        return called

    def restore(self) -> None:
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.kept, self.here)

    def pretrain(self, place: Path, name: str, steps: int, seed: int = 1) -> Any:
        flags = {"corpus": place / "corpus", "out": place / name, "seed": seed, "train__device": "cpu"}
        return self.lambert("pretrain", **flags, **self.small, train__steps=steps, train__save_every=2)

    def finetune(self, init: Path, out: Path, seed: int = 1) -> Any:
        flags = {"data": self.rows, "init": init, "out": out, "seed": seed, "train__steps": 3, "train__device": "cpu"}
        return self.lambert("finetune", **flags, train__batch_size=4, task__max_length=32, optim__lr=3e-3, log__every=1)

    def done(self, verb: str) -> tuple[Any, Any]:
        """What the command left, and its result."""
        model = self.here / "tuned"
        if verb == "start":
            called = self.pretrain(self.here, "new", steps=2)
            return called, _bytes(self.here / "new/model/model.safetensors")
        if verb == "continue":
            called = self.pretrain(self.here, "run", steps=8)
            return called, _bytes(self.here / "run/model/model.safetensors", self.here / "run/scores.json")
        if verb == "init":
            called = self.finetune(model, self.here / "again")
            return called, _bytes(*sorted((self.here / "again/model").glob("*.[jst]*")))
        if verb == "export":
            called = self.lambert("export", model=model / "model", out=self.here / "out")
            return called, _bytes(*sorted((self.here / "out").glob("*")))
        if verb == "report":
            called = self.lambert("report", self.here / "run")
            page = self.here / "run" / "report.html"
            return called, re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "", page.read_text()) if page.exists() else ""
        if verb == "predict":
            called = self.lambert("predict", model=model, stdin='{"text": "the old king found a river"}\n')
        else:
            called = self.lambert("evaluate", model=model, data=self.rows, json=True)
        return called, called.out

    def expected(self, verb: str) -> Any:
        """The result without damage."""
        if verb not in self.sound:
            self.restore()
            called, self.sound[verb] = self.done(verb)
            assert called.code == 0, called.err
        return self.sound[verb]


def _bytes(*paths: Path) -> list[bytes]:
    return [path.read_bytes() for path in paths if path.exists()]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory, lambert: Lambert, texts: Path) -> Arena:
    small = {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 64, "positions": 64}
    settings: dict[str, object] = {f"model__{name}": value for name, value in small.items()}
    settings |= {"packing__sequence_length": 48, "train__batch_size": 4, "log__every": 2}
    return Arena(tmp_path_factory.mktemp("damage"), lambert, texts, settings)


@pytest.mark.filterwarnings("ignore")  # of torch, about odd files: what counts is how the command ends
@pytest.mark.parametrize(("verb", "name", "damage"), CASES, ids=[f"{v}-{n}-{d}" for v, n, d in CASES])
def test_damage_is_noticed_or_harmless(verb: str, name: str, damage: str, arena: Arena) -> None:
    expected = arena.expected(verb)
    arena.restore()
    path = arena.here / name
    DAMAGES[damage](path, arena.other / name)
    called, result = arena.done(verb)
    if called.code == 0:
        assert result == expected or (verb == "report" and path.name in RECORDS), called.err
    else:
        *_, line = called.err.splitlines()
        assert called.code in (2, 3, 4), called.err
        assert line.startswith("lambert: ")
        assert path.name in called.err or path.parent.name in called.err


def test_another_corpus_under_the_same_path(arena: Arena) -> None:
    arena.restore()
    shutil.rmtree(arena.here / "corpus")
    shutil.copytree(arena.other / "corpus", arena.here / "corpus")
    called = arena.pretrain(arena.here, "run", steps=8)
    assert called.code == 2
    assert f"{arena.here / 'run'} holds a run on other data: the corpus (" in called.err
    assert "data.json records what the run began with. Restore that data, or choose another --out." in called.err


def test_the_same_corpus_prepared_again_elsewhere_goes_on(arena: Arena) -> None:
    arena.restore()
    shutil.rmtree(arena.here / "corpus")
    made = {"documents": "line", "vocabulary": 160, "heldout": 0.2, "workers": 1}
    shutil.copyfile(arena.here / "texts.txt", arena.here / "copy.txt")
    arena.ok("prepare", input=arena.here / "copy.txt", out=arena.here / "corpus", **made)
    assert arena.pretrain(arena.here, "run", steps=8).code == 0


def test_a_run_that_an_older_version_began_goes_on(arena: Arena) -> None:
    arena.restore()
    (arena.here / "run" / "data.json").unlink()
    assert arena.pretrain(arena.here, "run", steps=8).code == 0
    assert "the corpus" in json.loads((arena.here / "run" / "data.json").read_text())


def test_other_labelled_rows_under_the_same_path(arena: Arena) -> None:
    arena.restore()
    rows = arena.rows.read_text()
    try:
        arena.rows.write_text(rows.replace("king", "bird"))
        called = arena.finetune(arena.here / "encoder", arena.here / "tuned")
    finally:
        arena.rows.write_text(rows)
    assert called.code == 2
    assert "a run on other data: the labelled data (" in called.err


def test_another_init_before_the_first_checkpoint(arena: Arena) -> None:
    arena.restore()
    for name in ("checkpoints", "model"):
        shutil.rmtree(arena.here / "tuned" / name)
    path = arena.here / "encoder/model.safetensors"
    weights = load_file(path)
    weights["bert.embeddings.LayerNorm.weight"] += 0.5
    save_file(weights, path, metadata={"format": "pt"})
    write_sums(path.parent)
    called = arena.finetune(arena.here / "encoder", arena.here / "tuned")
    assert called.code == 2, called.err
    assert "a run on other data: the initial weights (" in called.err


def test_prepare_again_finds_damage(arena: Arena) -> None:
    arena.restore()
    path = arena.here / "corpus/train/00000.bin"
    _flip(0.5)(path, path)
    made = {"documents": "line", "vocabulary": 160, "heldout": 0.2, "workers": 1}
    called = arena.lambert("prepare", input=arena.here / "texts.txt", out=arena.here / "corpus", **made)
    assert called.code == 3
    assert f"{path} was changed since `lambert prepare` wrote it" in called.err
