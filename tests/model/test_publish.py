"""A model folder appears whole and verified, or not at all."""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lambert
from lambert.core.errors import DataError
from lambert.model import publish as module
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.folder import read_config
from lambert.model.heads import Model, build_model
from lambert.model.publish import publish
from lambert.runs.publish import card
from lambert.tasks.card import Origin, card_of_converted
from lambert.tasks.config import TaskConfig
from lambert.tasks.task import own_class
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.verbs.settings.finetune import FinetuneConfig


@pytest.fixture
def model(pretrained: Path) -> Model:
    return weights.load(pretrained / "model")[0]


@pytest.fixture
def write(pretrained: Path) -> Callable[[Path], None]:
    return partial(tokenizers.save, tokenizers.load(pretrained / "model"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_it_replaces_what_was_there(model: Model, write: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").touch()
    said = publish(model, folder, write, {"lambert": {"note": 1}}, card="# card\n", replace=True)
    assert "bit for bit" in said
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    assert not (folder / "old").exists()
    assert (folder / "README.md").read_text() == "# card\n"
    assert '"note": 1' in (folder / "config.json").read_text()


@pytest.mark.parametrize(
    ("heads", "problem"),
    [({"multilabel": 3}, "multi_label_classification"), ({"choice": 0}, None), ({"value": 0}, "regression")],
)
def test_transformers_computes_the_same_from_each_head(
    heads: dict[str, int], problem: str | None, model: Model, write: Callable[[Path], None], tmp_path: Path
) -> None:
    said = publish(weights.draw(model.config, heads, seed=1), tmp_path / "model", write, {}, compare=True)
    assert "largest difference from transformers" in said
    assert weights.load(tmp_path / "model")[0].labels == heads
    assert read_config(tmp_path / "model").get("problem_type") == problem


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        ({"label": 3}, "AutoModelForSequenceClassification"),
        ({"multilabel": 3}, "AutoModelForSequenceClassification"),
        ({"value": 0}, "AutoModelForSequenceClassification"),
        ({"tag": 3}, "AutoModelForTokenClassification"),
        ({"span": 0}, "AutoModelForQuestionAnswering"),
        ({"choice": 0}, "AutoModelForMultipleChoice"),
        ({"mlm": 0}, "AutoModelForMaskedLM"),
        ({"mlm": 0, "nsp": 0}, "AutoModelForPreTraining"),
        ({"vector": 0}, "SentenceTransformer"),
    ],
)
def test_a_card_loads_the_model_with_its_heads(heads: dict[str, int], name: str, pretrained: Path) -> None:
    shape = weights.load(pretrained / "model")[0].config
    text = card(Model(shape, heads), FinetuneConfig(data=Path("d"), out=Path("o"), init=Path("i")), {})
    assert "label" not in heads or "with a classification head (label)" in text
    own, code = (block.split("```")[0] for block in text.split("```python\n")[1:])
    compile(own, "card", "exec")
    compile(code, "card", "exec")
    assert f" {name}" in code
    if name.startswith("Auto"):
        assert hasattr(pytest.importorskip("transformers"), name)
        assert f"{name}.from_pretrained" in code
    assert f"library_name: {'transformers' if name.startswith('Auto') else 'sentence-transformers'}\n" in text


@pytest.mark.parametrize("kind", ["classify", "squad", "embed"])
def test_the_snippets_of_a_card_run(
    kind: str, tuned: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tuned(kind) / "model"
    front, *code = (folder / "README.md").read_text().split("```python\n")
    assert f"pipeline_tag: {own_class(kind).pipeline}\n" in front
    assert 'base_model: "pretrained"\n' in front
    monkeypatch.chdir(folder)
    assert len(code) == 2
    for block in code:
        names: dict[str, Any] = {}
        exec(block.split("```")[0], names)
        assert "outputs" in names or "vectors" in names or type(names["model"]) is lambert.TextModel
    assert capsys.readouterr().out


def test_a_card_knows_the_origin_of_its_model(tmp_path: Path) -> None:
    cached = tmp_path / "models--google--bert_uncased-L2" / "snapshots" / "0123"
    cached.mkdir(parents=True)
    assert Origin.of(cached) == Origin("google/bert_uncased-L2", "")
    (cached / "README.md").write_text("---\r\nlanguage: en\r\nlicense: apache-2.0\r\n---\r\n\nlicense: mine\n")
    assert Origin.of(cached) == Origin("google/bert_uncased-L2", "apache-2.0")
    run = tmp_path / "mine" / "model"
    run.mkdir(parents=True)
    (run / "README.md").write_text("---\nlicense: [a, b]\n---\n")
    assert Origin.of(run) == Origin.of(run.parent) == Origin("mine", "")
    (run / "README.md").write_text("license: mit\n")
    assert Origin.of(run).license == ""


def test_the_card_of_a_converted_folder_names_its_origin(model: Model, tmp_path: Path) -> None:
    source = tmp_path / "minilm"
    source.mkdir()
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    text = card_of_converted(model, tmp_path / "mine", source, TaskConfig(name="mask"))
    assert text.startswith(
        '---\nlibrary_name: transformers\nlicense: apache-2.0\nbase_model: "minilm"\npipeline_tag: fill-mask\n'
    )
    assert "from minilm, whose licence is apache-2.0." in text
    assert 'model("A text with a [MASK].")' in text
    pair = TaskConfig(name="embed")
    assert "SentenceTransformer" in card_of_converted(model, tmp_path / "mine", source, pair)


def test_a_card_says_which_head_transformers_cannot_read() -> None:
    config = FinetuneConfig(data=Path("d"), out=Path("o"), init=Path("i"))
    shape = EncoderConfig(vocabulary=40, hidden=32, layers=1, heads=2, intermediate=48, block="eurobert")
    text = card(build_model(shape, {"span": 0}), config, {})
    assert "transformers has no EuroBertForQuestionAnswering" in text
    assert text.count("```python") == 1
    assert "AutoModelForTokenClassification" in card(build_model(shape, {"tag": 3}), config, {})


def test_the_card_of_a_fine_tuned_model_states_its_facts(
    tuned: Callable[[str], Path], labelled: Callable[[str, str], Path]
) -> None:
    text = (tuned("classify") / "model" / "README.md").read_text()
    assert "the task classify with the 2 labels land, water, up to 64 tokens" in text
    for use, split, count in (("training", "train", 48), ("scores", "dev", 16)):
        path = labelled("classify", split)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert f"| {use} | {path.name} | {count} examples | {digest} |" in text
    scores = json.loads((tuned("classify") / "scores.json").read_text())
    assert f"| loss | {scores['loss']:.4f} ± {scores['loss_se']:.4f} |" in text
    assert "loss_se" not in text
    assert "one training run, with the seed 42" in text


def bent(function: Callable[..., Any]) -> Callable[..., Any]:
    """What reads the folder back, with one weight changed on the way."""

    def load(*arguments: Any, **settings: Any) -> Any:
        found = function(*arguments, **settings)
        model = found[0] if isinstance(found, tuple) else found
        with torch.no_grad():
            model.encoder.words.weight[7] += 1e-6
        return found

    return load


def test_a_changed_weight_is_noticed(
    model: Model, write: Callable[[Path], None], pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(pretrained / "model", tmp_path / "model")
    before = contents(tmp_path / "model")
    monkeypatch.setattr(module.weights, "load", bent(weights.load))
    with pytest.raises(DataError, match="nothing was written"):
        publish(model, tmp_path / "model", write, {}, replace=True)
    assert contents(tmp_path / "model") == before
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_an_encoder_without_heads_is_verified_by_its_states(
    write: Callable[[Path], None], pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = weights.load(pretrained / "model", {})[0]
    assert "largest difference from transformers" in publish(bare, tmp_path / "one", write, {}, compare=True)
    original = weights.load

    def turned(*arguments: Any, **settings: Any) -> tuple[Model, weights.Report]:
        found = original(pretrained / "model", {})
        with torch.no_grad():
            found[0].encoder.norm.bias[0] += 1e-3
        return found

    monkeypatch.setattr(module.weights, "load", turned)
    with pytest.raises(DataError, match="'states' of the model that was read back differs"):
        publish(bare, tmp_path / "two", write, {})
    assert {path.name for path in tmp_path.iterdir()} == {"one"}


def test_another_result_of_transformers_is_noticed(
    model: Model, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertForPreTraining

    original = BertForPreTraining.from_pretrained
    wrong = bent(lambda *arguments, **settings: _with_encoder(original(*arguments, **settings)))
    monkeypatch.setattr(BertForPreTraining, "from_pretrained", wrong)
    publish(model, tmp_path / "close", write, {}, compare=True)  # a millionth is rounding
    monkeypatch.setattr(BertForPreTraining, "from_pretrained", bent_by(1e-3, original))
    with pytest.raises(DataError, match="transformers computes other outputs"):
        publish(model, tmp_path / "model", write, {}, compare=True)
    assert {path.name for path in tmp_path.iterdir()} == {"close"}


def test_a_folder_that_transformers_refuses_is_not_written(
    model: Model, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertForPreTraining

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("Padding_idx must be\nwithin num_embeddings.")

    monkeypatch.setattr(BertForPreTraining, "from_pretrained", refuse)
    message = r"transformers cannot read the folder \(AssertionError: Padding_idx must be within num_embeddings\);"
    with pytest.raises(DataError, match=message):
        publish(model, tmp_path / "model", write, {}, compare=True)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("head", ["label", "tag"])
def test_large_outputs_may_differ_by_their_rounding(
    head: str, model: Model, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right logits of several thousands are written; an error of a ten-thousandth of them is not."""
    from transformers import BertForSequenceClassification, BertForTokenClassification

    net = weights.draw(model.config, {head: 3}, seed=1)
    with torch.no_grad():
        next(value for name, value in net.heads.named_parameters() if name.endswith("weight")).mul_(1e5)
    said = publish(net, tmp_path / "right", write, {}, compare=True)
    assert float(said.rpartition(" ")[2]) > module.TOLERANCE
    kind = BertForTokenClassification if head == "tag" else BertForSequenceClassification
    monkeypatch.setattr(kind, "from_pretrained", bent_by(2e-3, kind.from_pretrained))
    with pytest.raises(DataError, match="transformers computes other outputs"):
        publish(net, tmp_path / "wrong", write, {}, compare=True)


def test_a_model_that_amplifies_rounding_may_differ_as_transformers_from_float64(
    model: Model, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a matrix have the same large part: the norm after the product subtracts what it adds."""
    from transformers import BertModel

    net = weights.draw(model.config, {}, seed=1)
    with torch.no_grad():
        net.get_parameter("encoder.blocks.0.attention_out.weight").add_(10_000)
    said = publish(net, tmp_path / "right", write, {}, compare=True)
    assert float(said.rpartition(" ")[2]) > 10 * module.TOLERANCE
    monkeypatch.setattr(BertModel, "from_pretrained", bent_by(0.05, BertModel.from_pretrained))
    with pytest.raises(DataError, match=r"transformers computes other outputs \(states\)"):
        publish(net, tmp_path / "wrong", write, {}, compare=True)


def bent_by(size: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """`from_pretrained` of transformers with a bias changed by `size`, in every type of numbers."""

    def load(*arguments: Any, **settings: Any) -> Any:
        net = function(*arguments, **settings)
        with torch.no_grad():
            biases = (value for name, value in net.named_parameters() if "attention.output.LayerNorm.bias" in name)
            next(biases)[0] += size
        return net

    return load


def _with_encoder(net: Any) -> Any:
    net.encoder = type("Names", (), {"words": net.bert.embeddings.word_embeddings})
    return net


def test_transformers_shows_as_much_as_before() -> None:
    logging = pytest.importorskip("transformers").logging
    before, enabled = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        with module.quiet_transformers():
            assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.ERROR, False)
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.INFO, True)
    finally:
        logging.set_verbosity(before)
        if not enabled:
            logging.disable_progress_bar()
