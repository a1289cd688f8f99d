"""A family is one object: the library pre-trains, saves, loads and fine-tunes one that is made here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flat import make_batch
from safetensors.torch import load_file
from torch import Tensor, nn

import lambert
from lambert.core.batch import Batch
from lambert.core.errors import DataError, UsageError
from lambert.inference import cpu
from lambert.model import weights
from lambert.model.attention import attention
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import ConfigKeys
from lambert.model.costs import Costs
from lambert.model.encoder import Encoder
from lambert.model.families import FAMILIES, build_encoder, family_of, takes_pairs
from lambert.model.family import Family
from lambert.model.objectives import Label
from lambert.model.tensor_names import TensorNames
from lambert.planning.memory import weight_count
from lambert.planning.operations import encoder_forward
from lambert.wings.convert.settings import ExportConfig
from lambert.wings.convert.verb import run_export

CONFIG = EncoderConfig(vocabulary=90, hidden=32, intermediate=48, positions=40, block="toy")


class ToyBlock(nn.Module):
    """A norm, attention and a residual sum. The first block has no norm."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = nn.RMSNorm(config.hidden) if number else nn.Identity()
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:
        qkv_T3HE = self.qkv(self.norm(states_TD)).view(len(states_TD), 3, self.heads, -1)
        return states_TD + attention(qkv_T3HE, batch.bounds_S1, longest=batch.longest, dropout=0.0).flatten(1)


class ToyEncoder(Encoder):
    """Words and no positions or segment types before the blocks, a norm after them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(ToyBlock(config, number) for number in range(config.layers))
        self.last = nn.RMSNorm(config.hidden)

    def embed(self, batch: Batch) -> Tensor:
        embedded_TD: Tensor = self.words(batch.ids_T)
        return embedded_TD

    def forward(self, batch: Batch) -> Tensor:
        states_TD: Tensor = self.last(super().forward(batch))
        return states_TD


class MeanPooler(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden))

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:
        parts = states_TD.float().tensor_split(batch.bounds_S1[1:-1].long().cpu())
        return self.weight * torch.stack([part.mean(0) for part in parts])


class ToyLabel(Label):
    """Without dropout."""

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.dropout = 0.0


NAMES = TensorNames(
    former="toy.",
    encoder={"words": "embed", "last": "after"},
    layers="layers.",
    block={"qkv": "attend", "norm": "before"},
    heads={"label.classifier": "score", "tag.classifier": "score"},
    decoder="decode",
)
KEYS = ConfigKeys(
    fields={
        "layers": "depth", "hidden": "width", "heads": "num_heads", "intermediate": "inner", "vocabulary": "vocab_size",
        "positions": "longest",
    },
    fixed={"direction": "both"},
    written={"direction": "both"},
)  # fmt: skip


class ToyCosts(Costs):
    def matrices(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        return ((config.hidden, 3 * config.hidden),)

    def weight_count(self, config: EncoderConfig) -> int:
        return config.hidden * (config.vocabulary + config.layers * (3 * config.hidden + 1))

    def saved_values(self, config: EncoderConfig) -> int:
        return 5 * config.hidden


TOY = Family(
    title="Toy",
    encoder=ToyEncoder,
    heads={"label": ToyLabel},
    pooler=MeanPooler,
    segments=False,
    names=NAMES,
    keys=KEYS,
    architectures={"ToyForMaskedLM": ("mlm",), "ToyForSequenceClassification": ("label",), "ToyModel": ()},
    costs=ToyCosts(),
    kernels_lack=lambda config: "",
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def test_from_pretraining_to_predictions(
    corpus: Path,
    tmp_path: Path,
    small: dict[str, Any],
    labelled: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = small | {"corpus": corpus, "out": tmp_path / "run", "model__block": "toy", "model__layers": 2}
    run["packing__mode"] = "full"
    del run["model__positions"]
    for step in lambert.updates(**run, train__steps=4, train__save_every=2):
        if step.index == 2:
            break
    assert [step.index for step in lambert.updates(**run, train__steps=4, train__save_every=2)] == [3, 4]
    folder = tmp_path / "run" / "model"
    settings = json.loads((folder / "config.json").read_text())
    assert (settings["model_type"], settings["architectures"]) == ("toy", ["ToyForMaskedLM"])
    assert (settings["depth"], settings["width"]) == (2, 32)
    assert "type_vocab_size" not in settings
    names = {"embed.weight", "layers.0.attend.weight", "layers.1.attend.weight", "layers.1.before.weight"}
    assert names | {"after.weight"} < set(load_file(folder / "model.safetensors"))
    assert "A Toy encoder of 2 layers" in (folder / "README.md").read_text()

    masked = lambert.load(folder)
    assert isinstance(masked.encoder, ToyEncoder)
    assert len(masked("the old [MASK]")["masks"]) == 1
    rows = {"data": labelled("pair", "train"), "dev": labelled("pair", "dev")}
    tuned = lambert.finetune(
        init=folder, out=tmp_path / "tuned", **rows, task__max_length=32, train__steps=2, train__batch_size=8,
        task__columns__text="one", task__columns__text_b="two",
    )  # fmt: skip
    model = lambert.load(tuned.folder)
    assert isinstance(model.model.pooler, MeanPooler)
    assert model.encode(["one text", "another"]).shape == (2, 32)
    model.save(tmp_path / "saved")
    said: list[str] = []
    run_export(ExportConfig(model=tmp_path / "saved", out=tmp_path / "exported"), said.append)
    assert "verified: reads back bit for bit (transformers has no ToyForSequenceClassification)" in said
    assert weights.load(tmp_path / "exported")[0].labels == model.model.labels
    monkeypatch.setattr(cpu, "check", lambda kind: None)
    with pytest.raises(UsageError, match=r"needs blocks derived from .*Block, not ToyBlock"):
        cpu.for_cpu(weights.load(tmp_path / "exported")[0], "bfloat16")


@pytest.mark.parametrize("kind", [{"mlm": 0}, {"label": 3}, {}])
def test_a_folder_reads_back_equal(kind: dict[str, int], tmp_path: Path) -> None:
    model = weights.draw(CONFIG, kind, seed=1)
    weights.save(model, tmp_path)
    back, report = weights.load(tmp_path)
    assert report == weights.Report((), ())
    assert (back.config, back.labels) == (CONFIG, kind)
    batch = make_batch([5, 12, 2], 90)
    with torch.no_grad():
        assert torch.equal(back.eval().encoder(batch), model.eval().encoder(batch))
    if "label" in kind:
        assert isinstance(back.heads["label"], ToyLabel)


def test_older_names_and_copies_are_those_of_the_family() -> None:
    model = weights.draw(CONFIG, {"mlm": 0}, seed=1)
    stored = weights.state(model)
    old = {f"toy.{name}": tensor for name, tensor in stored.items()} | {"decode.weight": stored["embed.weight"]}
    assert weights.assign(weights.draw(CONFIG, {"mlm": 0}, seed=2), old) == weights.Report((), ())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("direction", "left", "direction = 'left'; only 'both' is supported"),
        ("width", "32", "width = '32'"),
        ("depth", 3, r"lacks layers\.2"),
        ("architectures", ["BertModel"], "BertModel'; supported: ToyForMaskedLM"),
        ("model_type", "bert", "type_vocab_size|hidden_size|num_hidden_layers"),
        (
            "model_type",
            "deberta-v2",
            "model_type = 'deberta-v2', a family that .* of these families: bert, modernbert, .*toy",
        ),
    ],
)
def test_other_models_are_refused(tmp_path: Path, key: str, value: object, message: str) -> None:
    weights.save(weights.draw(CONFIG, {"mlm": 0}), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {key: value}))
    with pytest.raises(DataError, match=message):
        weights.load(tmp_path)


def test_costs_are_those_of_the_family() -> None:
    encoder = build_encoder(CONFIG)
    assert weight_count(CONFIG) == sum(parameter.numel() for parameter in encoder.parameters())
    linear, scores = 3 * CONFIG.hidden**2 * (3 + 4), 2 * CONFIG.hidden * (9 + 16)
    assert encoder_forward(CONFIG, [3, 4]) == 2 * CONFIG.layers * (linear + scores)


def test_an_encoder_is_built_by_its_family() -> None:
    assert type(build_encoder(CONFIG)) is ToyEncoder
    assert type(lambert.build_encoder(EncoderConfig(vocabulary=9))) is FAMILIES["bert"].encoder
    with pytest.raises(UsageError, match=r"model\.block = 'brt' is unknown. Did you mean 'bert'"):
        build_encoder(EncoderConfig(vocabulary=9, block="brt"))
    with pytest.raises(TypeError, match=r"call lambert\.build_encoder\(config\)"):
        lambert.Encoder(EncoderConfig(vocabulary=9))


def test_pairs_need_segment_types_only_where_the_family_reads_them() -> None:
    one = {"vocabulary": 9, "segment_types": 1}
    assert takes_pairs(EncoderConfig(block="toy", **one))
    assert not takes_pairs(EncoderConfig(**one))
    assert takes_pairs(EncoderConfig(vocabulary=9))


def test_a_block_from_outside_is_in_the_default_family() -> None:
    assert family_of(EncoderConfig(vocabulary=9, block="mine:Block")) is FAMILIES["bert"]
