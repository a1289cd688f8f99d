"""Every family and head gives the logits and gradients of transformers, and folders are read and written both ways."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from flat import make_batch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from lambert.core.batch import Batch, Target
from lambert.core.errors import DataError
from lambert.model import folder as layout
from lambert.model import weights
from lambert.model.families import FAMILIES, family_of
from lambert.model.heads import Model

V, LABELS = 160, 3
SHAPE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 96}
ROBERTA = {**SHAPE, "vocab_size": V, "max_position_embeddings": 322, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
DISTIL = {"dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 96, "vocab_size": V, "max_position_embeddings": 320}
MODERN = {**SHAPE, "vocab_size": V, "max_position_embeddings": 512, "pad_token_id": 0, "local_attention": 32}
IDS = {"bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None}
EURO = {**SHAPE, **IDS, "vocab_size": V, "max_position_embeddings": 320, "pad_token_id": 0, "mask_token_id": 4}
BIASED = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
ROTARY = {
    "full_attention": {"rope_type": "default", "rope_theta": 3000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
}
PLAIN_ROTARY = {"rope_type": "default", "rope_theta": 700.0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {**SHAPE, "vocab_size": V, "max_position_embeddings": 320}),
    "roberta": ("roberta", ROBERTA),
    "xlm-roberta": ("xlm-roberta", ROBERTA),
    "camembert": ("camembert", ROBERTA),
    "distilbert": ("distilbert", DISTIL),
    "electra-small": ("electra", {**SHAPE, "embedding_size": 32, "vocab_size": V, "max_position_embeddings": 320}),
    "electra-base": ("electra", {**SHAPE, "embedding_size": 64, "vocab_size": V, "max_position_embeddings": 320}),
    "mpnet": ("mpnet", {**SHAPE, "vocab_size": V, "max_position_embeddings": 322}),
    "nomic_bert": ("nomic_bert", {**SHAPE, "vocab_size": V, "max_position_embeddings": 320}),
    "gte": ("gte", {**SHAPE, "vocab_size": V, "max_position_embeddings": 320}),
    "gte-untyped": ("gte", {**SHAPE, "vocab_size": V, "type_vocab_size": 0, "rope_parameters": PLAIN_ROTARY}),
    "eurobert": ("eurobert", {**EURO, "num_key_value_heads": 2}),
    "eurobert-mean": ("eurobert", {**EURO, "classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True}),
    "eurobert-bos": ("eurobert", {**EURO, "num_key_value_heads": 1, "classifier_pooling": "bos"}),
    "modernbert": ("modernbert", {**MODERN, **IDS, "classifier_pooling": "mean"}),
    "modernbert-cls": ("modernbert", {**MODERN, **IDS, "classifier_pooling": "cls", "rope_parameters": ROTARY}),
    "modernbert-biased": ("modernbert", {**MODERN, **IDS, **BIASED, "decoder_bias": False}),
}
HEADS = {"": 0, "mlm": 0, "label": LABELS, "tag": LABELS, "span": 0, "choice": 0}
LENGTHS = [40, 1, 17, 129, 16, 18, 300, 33, 17]


def names(kind: str, head: str) -> str:
    """The architecture of transformers with this head."""
    found = FAMILIES[CONFIGS[kind][0]].architectures
    return next(name for name, heads in found.items() if heads == ((head,) if head else ()))


def peer(kind: str, head: str) -> Any:
    """Hugging Face's model, with weights, biases and norms that are not at their initial values."""
    torch.manual_seed(3)
    model_type, settings = CONFIGS[kind]
    config = transformers.AutoConfig.for_model(model_type, **settings, num_labels=2 if head == "span" else LABELS)
    config._attn_implementation = "eager"
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    model = getattr(transformers, names(kind, head))(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


def batch_of(lengths: list[int]) -> Batch:
    batch = make_batch(lengths, V)
    batch.ids_T.clamp_(min=5)  # no padding tokens, whose rows of the table have no gradient in transformers
    everywhere = torch.arange(sum(lengths))
    batch.targets["mlm"] = Target(everywhere, batch.ids_T)  # type: ignore[index]
    return batch


def theirs_by_sequence(model: Any, batch: Batch, head: str, *, segments: bool) -> Tensor:
    """Its logits, one unpadded sequence at a time."""
    rows = []
    for start, end in pairwise(batch.bounds_S1.tolist()):
        shape = (1, 1, -1) if head == "choice" else (1, -1)
        inputs = {"input_ids": batch.ids_T[start:end].view(shape)}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if segments:
            inputs["token_type_ids"] = batch.types_T[start:end].view(shape)
        out = model(**inputs)
        if head == "span":
            rows.append(torch.stack([out.start_logits[0], out.end_logits[0]], -1))
        else:
            found = out.last_hidden_state if head == "" else out.logits
            rows.append(found[0] if found.ndim == 3 else found)
    return torch.cat(rows)


def ours_of(model: Model, batch: Batch, head: str) -> Tensor:
    found: Tensor = model.outputs(batch)[head] if head else model.encoder(batch)
    return found


def stored_gradients(model: Any) -> dict[str, Tensor]:
    """Its gradients by the names that transformers gives tensors in files, which it joins for some families."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return dict(revert_weight_conversion(model, found))


def own(kind: str) -> frozenset[str]:
    """The heads of a family that transformers does not have."""
    return FAMILIES[CONFIGS[kind][0]].own_heads


CASES = [(kind, head) for kind in CONFIGS for head in HEADS if head not in own(kind)]
"""The heads that transformers has in each family."""


def test_families_say_which_heads_transformers_lacks() -> None:
    lacking = {(kind, head) for kind in CONFIGS for head in HEADS if not hasattr(transformers, names(kind, head))}
    assert lacking == {(kind, head) for kind in CONFIGS for head in own(kind)}
    assert {CONFIGS[kind][0] for kind, _ in lacking} == {"nomic_bert", "gte", "eurobert"}
    assert {head for _, head in lacking} == {"span", "choice"}


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_parity_and_round_trip(kind: str, head: str, tmp_path: Path) -> None:
    theirs = peer(kind, head)
    theirs.save_pretrained(tmp_path / "theirs")
    heads = {head: HEADS[head]} if head else {}
    ours, report = weights.load(tmp_path / "theirs", heads)
    assert report.missing == ()
    assert ours.config.block == CONFIGS[kind][0]
    assert layout.heads_of(layout.read_config(tmp_path / "theirs"), {}, tmp_path / "theirs").keys() == heads.keys()
    ours = ours.float().eval()
    family = family_of(ours.config)

    batch = batch_of(LENGTHS)
    segments = family.segments and ours.config.segment_types > 1
    expected = theirs_by_sequence(theirs, batch, head, segments=segments)
    found = ours_of(ours, batch, head)
    assert found.shape == expected.shape
    assert float((found - expected).detach().abs().max()) <= 2e-5

    weights_of_sum = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected * weights_of_sum).sum().backward()
    (found * weights_of_sum).sum().backward()
    wanted = {family.names.current(name): grad for name, grad in stored_gradients(theirs).items()}
    compared = 0
    for name, parameter in ours.named_parameters():
        grad = wanted.get(family.names.to_folder(name))
        if grad is None:
            continue
        compared += 1
        scale = max(1.0, float(grad.abs().max()))
        assert parameter.grad is not None, name
        assert float((parameter.grad - grad).abs().max()) <= 1e-4 * scale, name
    assert compared == len(wanted.keys() - family.names.tied.keys())

    weights.save(ours, tmp_path / "ours")
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    before = {family.names.current(name): tensor for name, tensor in before.items()}
    before = {name: tensor for name, tensor in before.items() if name and name not in family.names.tied}
    if not head:
        before = {name: tensor for name, tensor in before.items() if "pooler" not in name}
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())

    again = getattr(transformers, names(kind, head)).from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    ).eval()  # fmt: skip
    difference = (theirs_by_sequence(again, batch, head, segments=segments) - expected).detach().abs().max()
    assert float(difference) <= 1e-6  # mapped weights have other addresses, for which products may round differently
    once_more, _ = weights.load(tmp_path / "ours", heads)
    weights.save(once_more, tmp_path / "once-more")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "once-more" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()


def test_both_generations_of_configurations(tmp_path: Path) -> None:
    peer("modernbert-cls", "mlm").save_pretrained(tmp_path)
    newer = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in newer
    config = layout.encoder_config(newer, tmp_path)
    assert (config.modern.theta, config.modern.local_theta) == (3000.0, 700.0)
    older = {key: value for key, value in newer.items() if key not in ("rope_parameters", "layer_types")}
    older |= {"global_rope_theta": 3000.0, "local_rope_theta": 700.0, "global_attn_every_n_layers": 3}
    assert layout.encoder_config(older, tmp_path) == config
    both = older | {"rope_parameters": newer["rope_parameters"]}
    assert layout.encoder_config(both, tmp_path) == config
    with pytest.raises(DataError, match=r"global_rope_theta = 5\.0 and rope_theta = 3000\.0"):
        layout.encoder_config(both | {"global_rope_theta": 5.0}, tmp_path)
    written = family_of(config).keys.to_json(config)
    assert written["global_rope_theta"] == written["rope_parameters"]["full_attention"]["rope_theta"] == 3000.0
    assert written["layer_types"].count("full_attention") == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["full_attention", "full_attention", "sliding_attention", "full_attention"]),
        ("layer_types", ["sliding_attention"] * 4),
        ("rope_parameters", {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}),
        ("classifier_pooling", "max"),
        ("attention_bias", 1),
        ("local_attention", 0),
        ("hidden_activation", "silu"),
        ("pad_token_id", -1),
    ],
)
def test_what_is_not_supported_is_named(key: str, value: object, tmp_path: Path) -> None:
    peer("modernbert", "").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text()) | {key: value}
    with pytest.raises(DataError, match=key if key != "rope_parameters" else "rope_type"):
        layout.encoder_config(settings, tmp_path)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("mpnet", "relative_attention_num_buckets", 16), ("mpnet", "pad_token_id", 0), ("mpnet", "hidden_act", "relu"),
        ("mpnet", "max_position_embeddings", 2), ("nomic_bert", "hidden_act", "gelu"), ("nomic_bert", "head_dim", 8),
        ("nomic_bert", "rotary_scaling_factor", 2.0), ("nomic_bert", "type_vocab_size", 0), ("gte", "rope_theta", 5.0),
        ("gte", "rope_parameters", {"rope_type": "yarn"}), ("gte", "type_vocab_size", 2),
        ("gte", "rope_scaling", {"type": "ntk", "factor": 8.0}), ("eurobert", "num_key_value_heads", 3),
        ("eurobert", "tie_word_embeddings", True), ("eurobert", "classifier_pooling", "max"),
        ("eurobert", "mlp_bias", 1), ("eurobert", "hidden_act", "gelu"),
    ],
)  # fmt: skip
def test_what_other_families_do_not_support_is_named(kind: str, key: str, value: object, tmp_path: Path) -> None:
    peer(kind, "").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    layout.encoder_config(settings, tmp_path)
    with pytest.raises(DataError, match=key if key != "rope_parameters" else "rope_type"):
        layout.encoder_config(settings | {key: value}, tmp_path)


def test_other_names_of_keys(tmp_path: Path) -> None:
    """transformers gives these keys two names: DistilBERT's sizes, and ModernBERT's window, whose half has its own."""
    for kind, names in (
        ("distilbert", {"n_layers": "num_hidden_layers", "dim": "hidden_size", "n_heads": "num_attention_heads"}),
        ("modernbert", {"local_attention": "sliding_window"}),
    ):
        folder = tmp_path / kind
        peer(kind, "").save_pretrained(folder)
        settings = json.loads((folder / "config.json").read_text())
        config = layout.encoder_config(settings, folder)
        others = {names.get(key, key): value for key, value in settings.items()}
        if kind == "modernbert":
            others["sliding_window"] //= 2
        assert layout.encoder_config(others, folder) == layout.encoder_config(settings | others, folder) == config
        theirs = transformers.AutoConfig.for_model(**{key: others[key] for key in ("model_type", *names.values())})
        assert all(getattr(theirs, key) == settings[key] for key in names)
        for key, other in names.items():
            with pytest.raises(DataError, match=f"{other} = 2 and {key} = .*, which contradict each other"):
                layout.encoder_config(settings | {other: 2}, folder)
    with pytest.raises(DataError, match=r"sliding_window = 2\.5; it must be a whole"):
        layout.encoder_config(settings | {"sliding_window": 2.5}, folder)


def test_keys_of_first_releases(tmp_path: Path) -> None:
    """NomicBERT's and EuroBERT's first config.json had other keys, and gte's tensors another prefix."""
    peer("nomic_bert", "").save_pretrained(tmp_path)
    newer = json.loads((tmp_path / "config.json").read_text())
    older = {
        "model_type": "nomic_bert", "n_layer": 4, "n_embd": 64, "n_head": 4, "n_inner": 96, "n_positions": 320,
        "resid_pdrop": 0.0, "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "vocab_size": V,
        "activation_function": "swiglu", "qkv_proj_bias": False, "prenorm": False, "type_vocab_size": 2,
    }  # fmt: skip
    assert layout.encoder_config(older, tmp_path) == layout.encoder_config(newer, tmp_path)
    peer("eurobert-bos", "").save_pretrained(tmp_path / "euro")
    newer = json.loads((tmp_path / "euro/config.json").read_text())
    older = {key: value for key, value in newer.items() if key not in ("rope_parameters", "classifier_pooling")}
    older |= {"rope_theta": newer["rope_parameters"]["rope_theta"], "rope_scaling": None, "clf_pooling": "bos"}
    assert layout.encoder_config(older, tmp_path / "euro") == layout.encoder_config(newer, tmp_path / "euro")
    peer("gte", "mlm").save_pretrained(tmp_path / "gte")
    tensors = load_file(tmp_path / "gte/model.safetensors")
    expected, _ = weights.load(tmp_path / "gte")
    save_file({name.replace("gte.", "new."): t for name, t in tensors.items()}, tmp_path / "gte/model.safetensors")
    found, report = weights.load(tmp_path / "gte")
    assert report.missing == report.unexpected == ()
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("kind", "read", "aside"),
    [
        ("bert", ("hidden_dropout_prob", "attention_probs_dropout_prob"), ("classifier_dropout",)),
        ("distilbert", ("dropout", "attention_dropout"), ("seq_classif_dropout", "qa_dropout")),
        ("modernbert", ("mlp_dropout", "attention_dropout"), ("embedding_dropout", "classifier_dropout")),
    ],
)
def test_dropouts(kind: str, read: tuple[str, str], aside: tuple[str, ...], tmp_path: Path) -> None:
    peer(kind, "").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    plain = layout.encoder_config(settings, tmp_path)
    config = layout.encoder_config(settings | dict(zip(read, (0.3, 0.4), strict=True)), tmp_path)
    assert config == dataclasses.replace(plain, dropout=0.3, attention_dropout=0.4)
    assert layout.encoder_config(settings | dict.fromkeys(aside, 0.7), tmp_path) == plain
    assert weights.load(tmp_path)[1].warnings() == []
    named = [key for key in aside if key in ("embedding_dropout", "classifier_dropout")]
    (tmp_path / "config.json").write_text(json.dumps(settings | dict.fromkeys(aside, 0.7)))
    lines = weights.load(tmp_path)[1].warnings()
    assert [next(key for key in named if f"{key} = 0.7, which is ignored" in line) for line in lines] == named[::-1]


def test_the_discriminator_is_a_body(tmp_path: Path) -> None:
    model_type, settings = CONFIGS["electra-small"]
    config = transformers.AutoConfig.for_model(model_type, **settings)
    transformers.ElectraForPreTraining(config).save_pretrained(tmp_path)
    assert layout.heads_of(layout.read_config(tmp_path), {}, tmp_path) == {}
    model, report = weights.load(tmp_path, {"label": 2})
    assert all(name.startswith("classifier.") for name in report.missing)
    assert all(name.startswith("discriminator_predictions.") for name in report.unexpected)
    assert model.config.embedding == 32
