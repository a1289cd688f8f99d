"""Every extension point named "package.module:name": a module of the user's own, from raw text to predictions."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Lambert = Callable[..., Any]

MODULE = '''
import torch
from torch import nn

from lambert.wings.corpus.reading.readers import Piece
from lambert.model.attention import attention
from lambert.model.heads import Head as Plain
from lambert.wings.convert.verb import run_import
from lambert.wings.convert.settings import ImportConfig
from lambert.tasks.sentences.classify import Classify


def read(stream, layout):
    """A document a line, after a bar."""
    number = 0
    while line := stream.readline(10_000):
        number += 1
        yield Piece(line.decode().partition("|")[2], f"line {number}")


class Block(nn.Module):
    """Norms before, with a buffer, and parameters that BERT has not."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.before = nn.RMSNorm(config.hidden)
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.norm = nn.LayerNorm(config.hidden)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, states_TD, batch):
        qkv = self.qkv(self.before(states_TD)).view(len(states_TD), 3, self.heads, -1)
        mixed = attention(qkv, batch.bounds_S1, longest=batch.longest, dropout=0.0).flatten(1)
        return self.norm(states_TD + self.scale * mixed)


def build(groups, config):
    return torch.optim.SGD(groups, lr=config.lr)


def shape(progress, config):
    return 1 - progress**2


class Head(Plain):
    """A class of a sentence, from a state pooled as BERT's."""

    reads = "pooled"


class Opinion(Classify):
    head = "mine_of_tests:Head"


def write(config):
    run_import(ImportConfig(source=config.model, out=config.out, code=config.code), print)
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the module, which can be imported."""
    (tmp_path / "mine_of_tests.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "mine_of_tests"


def done(called: Any) -> Any:
    assert called.code == 0, called.err
    return called


def test_from_raw_text_to_predictions(
    mine: str,
    texts: Path,
    tmp_path: Path,
    small: dict[str, object],
    labelled: Callable[[str, str], Path],
    lambert: Lambert,
) -> None:
    barred, corpus, run = tmp_path / "barred.txt", tmp_path / "corpus", tmp_path / "run"
    barred.write_text("".join(f"7|{line}\n" for line in texts.read_text(encoding="utf-8").splitlines()))
    done(lambert("prepare", input=barred, out=corpus, format=f"{mine}:read", vocabulary=160, heldout=0.2, workers=1))
    assert json.loads((corpus / "manifest.json").read_text())["documents"]["kept"] == 40
    own = {"model__block": f"{mine}:Block", "optim__name": f"{mine}:build", "optim__schedule": f"{mine}:shape"}
    settings = {"corpus": corpus, "out": run, **small, **own, "train__steps": 4, "train__save_every": 2}
    done(lambert("pretrain", **settings))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["lr"] for row in rows if "lr" in row] == pytest.approx([1e-3 * (1 - (n / 4) ** 2) for n in (1, 3)])
    kept = json.loads((run / "model" / "config.json").read_text())
    assert (kept["model_type"], kept["lambert_block"]) == ("lambert", f"{mine}:Block")
    assert f"{mine}:Block" in (run / "model" / "README.md").read_text()
    filled = done(lambert("predict", model=run, code=f"{mine}:Block", stdin='{"text": "the old [MASK]"}\n')).out
    assert len(json.loads(filled)["masks"]) == 1
    said = done(
        lambert("export", model=run / "model", out=tmp_path / "out", format=f"{mine}:write", code=f"{mine}:Block")
    ).out
    assert "verified: reads back bit for bit\n" in said

    data, tuned = labelled("classify", "dev"), tmp_path / "tuned"
    flags = {
        "data": data,
        "dev": data,
        "init": run,
        "out": tuned,
        "task__name": f"{mine}:Opinion",
        "code": f"{mine}:Block",
    }
    done(lambert("finetune", **flags, task__max_length=64, train__steps=3, train__batch_size=8, log__every=1))
    trusted = ("--code", f"{mine}:Block", f"{mine}:Opinion")
    own_format = tmp_path / "own.txt"
    own_format.write_text("predictions in a format of its own\n")
    chosen = {"model": tuned, "data": data, "predictions": own_format}
    scores = json.loads(done(lambert("evaluate", "--json", *trusted, **chosen)).out)
    assert scores["accuracy"] == json.loads((tuned / "scores.json").read_text())["accuracy"]
    answer = json.loads(done(lambert("predict", *trusted, model=tuned, stdin='{"text": "the bird"}\n')).out)
    assert answer["label"] in ("land", "water")


def test_transformers_does_not_take_such_a_folder_for_bert(
    mine: str, corpus: Path, tmp_path: Path, small: dict[str, object], lambert: Lambert
) -> None:
    from transformers import AutoModel

    done(
        lambert("pretrain", corpus=corpus, out=tmp_path / "run", **small, model__block=f"{mine}:Block", train__steps=1)
    )
    with pytest.raises(ValueError, match="lambert"):
        AutoModel.from_pretrained(tmp_path / "run" / "model")


def naming(source: Path, folder: Path, **keys: object) -> Path:
    """A copy of a model folder with other keys in its config.json."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
    return folder


def test_a_folder_whose_block_is_gone_says_so(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    block = "gone_of_tests:Block"
    model = naming(pretrained / "model", tmp_path / "model", model_type="lambert", lambert_block=block)
    refused = lambert("predict", model=model, code=block, stdin='{"text": "[MASK]"}\n')
    assert refused.code == 2
    assert "model.block = 'gone_of_tests:Block' cannot be imported" in refused.err


@pytest.mark.parametrize("name", ["evil_of_tests:x", "os:system"])
@pytest.mark.parametrize("key", ["lambert_block", "lambert"])
def test_no_verb_imports_what_only_a_folder_names(
    key: str,
    name: str,
    corpus: Path,
    pretrained: Path,
    tmp_path: Path,
    labelled: Callable[[str, str], Path],
    lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "evil_of_tests.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    keys = {key: {"task": {"name": name}} if key == "lambert" else name}
    keys |= {"model_type": "lambert"} if key == "lambert_block" else {}
    model, data, out = naming(pretrained / "model", tmp_path / "model", **keys), labelled("classify", "dev"), "out"
    called = {
        "predict": lambert("predict", model=model, stdin='{"text": "[MASK]"}\n'),
        "evaluate": lambert("evaluate", model=model, data=data),
    }
    if key == "lambert_block":  # the others read no task
        called |= {
            "import": lambert("import", "--from", model, out=out),
            "export": lambert("export", model=model, out=out),
            "finetune": lambert("finetune", init=model, data=data, out=out, train__steps=1),
            "pretrain": lambert("pretrain", init=model, corpus=corpus, out=out, train__steps=1),
        }
    for verb, refused in called.items():
        assert refused.code == 2, (verb, refused.err)
        assert f"--code {name}" in refused.err, verb
        assert str(model / "config.json") in refused.err, verb
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("verb", "setting"),
    [
        ("predict", "lambert_block"),
        ("pretrain", "optim__schedule"),
        ("pretrain", "optim__name"),
        ("pretrain", "model__block"),
        ("finetune", "task__name"),
        ("prepare", "format"),
        ("export", "format"),
        ("bench", "work"),
        ("bench", "peer"),
    ],
)
def test_a_name_of_something_else_is_refused_before_it_is_called(
    verb: str,
    setting: str,
    corpus: Path,
    texts: Path,
    pretrained: Path,
    tmp_path: Path,
    small: dict[str, object],
    labelled: Callable[[str, str], Path],
    lambert: Lambert,
    capfd: pytest.CaptureFixture[str],
) -> None:
    model, out, name = pretrained / "model", tmp_path / "out", "os:system"
    if setting == "lambert_block":
        model = naming(model, tmp_path / "model", model_type="lambert", lambert_block=name)
    settings: dict[str, dict[str, object]] = {
        "predict": {"model": model, "code": name},
        "pretrain": {"corpus": corpus, "out": out, **small, "train__steps": 1},
        "finetune": {"init": model, "data": labelled("classify", "dev"), "out": out, "train__steps": 1},
        "prepare": {"input": texts, "out": out, "vocabulary": 160, "workers": 1},
        "export": {"model": model, "out": out},
        "bench": {"size": "tiny", "sequences": 1, "rounds": 1},
    }
    given = settings[verb] | ({} if setting == "lambert_block" else {setting: name})
    refused = lambert(verb, **given, stdin='{"text": "[MASK]"}\n')
    assert refused.code == 2, refused.err
    assert "is in Python's standard library; it must be" in refused.err
    assert "sh:" not in capfd.readouterr().err
