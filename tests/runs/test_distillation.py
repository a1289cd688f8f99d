"""Students made of a teacher's layers, and runs that learn relations: same results however a batch is divided."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from commands import one_line
from flat import make_batch
from safetensors.torch import load_file

from lambert.core.batch import Target
from lambert.core.errors import UsageError
from lambert.engine.gradients import Gradients
from lambert.engine.precision import Precision
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.post_norm import PostNormBlock
from lambert.model.relations import RelationStudent, RelationTeacher, check_blocks
from lambert.runs.distillation import keep_layers, space_evenly

Lambert = Callable[..., Any]


@pytest.fixture(scope="session")
def deep(corpus: Path, lambert: Lambert) -> Path:
    """The run folder of a teacher of four layers, width 64."""
    out = corpus.parent / "deep"
    shape = {"layers": 4, "hidden": 64, "heads": 4, "intermediate": 128, "positions": 64}
    flags = {f"model__{name}": value for name, value in shape.items()}
    done = lambert(
        "pretrain", corpus=corpus, out=out, **flags, packing__sequence_length=48, train__batch_size=8, train__steps=4
    )
    assert done.code == 0, done.err
    return out


def losses(run: Path, name: str) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row[f"loss/{name}"] for row in rows if f"loss/{name}" in row]


def test_layers_are_those_of_distilbert() -> None:
    assert space_evenly(6, 12) == [0, 2, 4, 7, 9, 11]  # huggingface/transformers, distillation/scripts/extract.py
    assert space_evenly(3, 6) == [0, 2, 5]
    assert space_evenly(1, 6) == [0]
    assert space_evenly(24, 24) == [*range(24)]


def test_too_many_layers_are_refused() -> None:
    model = weights.draw(EncoderConfig(vocabulary=10), {})
    assert keep_layers(model, 0) == keep_layers(model, 2) == ""
    with pytest.raises(UsageError, match=r"distil.student_layers = 3, but init has 2 blocks"):
        keep_layers(model, 3)


def test_a_student_of_the_teachers_layers_is_an_ordinary_folder(
    deep: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    flags = {"data": labelled("classify", "train"), "init": deep, "train__steps": 1, "optim__lr": 1e-30}
    done = lambert("finetune", out=tmp_path / "run", **flags, distil__student_layers=2)
    assert done.code == 0, done.err
    assert "the student has the blocks 1, 4 of the 4 blocks of init" in done.out
    before, after = (load_file(run / "model" / "model.safetensors") for run in (deep, tmp_path / "run"))
    for name, kept in ((0, 0), (1, 3)):
        part = "attention.self.query.weight"
        assert after[f"bert.encoder.layer.{name}.{part}"].equal(before[f"bert.encoder.layer.{kept}.{part}"])
    assert transformers.AutoModel.from_pretrained(tmp_path / "run" / "model").config.num_hidden_layers == 2
    assert "already" in lambert("finetune", out=tmp_path / "run", **flags, distil__student_layers=2).out
    assert lambert("evaluate", model=tmp_path / "run", data=labelled("classify", "dev")).code == 0


def test_relations_do_not_depend_on_micro_batches_and_continue(
    deep: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """Without dropout. The student has another width than the teacher, made by pre-training on the same corpus."""
    folder = tmp_path / "plain"
    model, _ = weights.load(deep / "model", {})
    shape = dataclasses.replace(model.config, hidden=32, heads=2, layers=2, dropout=0.0, attention_dropout=0.0)
    weights.save(weights.draw(shape, {}), folder)
    (folder / "tokenizer.json").write_bytes((deep / "model" / "tokenizer.json").read_bytes())
    flags = {"data": labelled("classify", "train"), "init": folder, "train__steps": 4, "train__batch_size": 8}
    flags |= {"distil__teacher": deep, "distil__share": 0, "distil__relations": 0.5, "log__every": 1}
    for name, tokens in (("small", 16), ("large", 1000)):
        done = lambert("finetune", out=tmp_path / name, **flags, train__micro_tokens=tokens)
        assert done.code == 0, done.err
    small, large = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("small", "large"))
    for name in large:
        torch.testing.assert_close(small[name], large[name], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(losses(tmp_path / "small", "relations"), losses(tmp_path / "large", "relations"), 1e-4)
    one_line(
        lambert("finetune", out=tmp_path / "large", **flags | {"distil__relations": 1}, train__micro_tokens=1000),
        2,
        "distil.relations 0.5 -> 1.0",
    )


def test_pretraining_a_small_student_of_a_teacher(
    deep: Path, corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    wide = {"model__init_range": 0.18}  # a narrow student learns slowly from 0.02
    flags = {"corpus": corpus, **small, **wide, "train__steps": 60, "optim__lr": 5e-3, "distil__teacher": deep}
    done = lambert("pretrain", out=tmp_path / "run", **flags, distil__relation_heads=8, distil__teacher_layer=3)
    assert done.code == 0, done.err
    found = losses(tmp_path / "run", "relations")
    assert found[-1] < 0.5 * found[0]
    tensors = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert not [name for name in tensors if "teacher" in name or "layer.1" in name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"distil__relation_heads": 5},
            "distil.relation_heads = 5 must divide the widths of teacher and student, 64 and",
        ),
        ({"distil__teacher_layer": 5}, "distil.teacher_layer = 5, but the teacher has 4 blocks"),
        ({"distil__student_layers": 2}, "distil.student_layers needs init"),
    ],
)
def test_refused_before_the_first_update(
    change: dict[str, object], message: str, deep: Path, corpus: Path, small: dict[str, object], tmp_path: Path,
    lambert: Lambert,
) -> None:  # fmt: skip
    flags = {"corpus": corpus, **small, "train__steps": 1, "distil__teacher": deep}
    one_line(lambert("pretrain", out=tmp_path / "run", **flags, **change), 2, message)
    assert not (tmp_path / "run").exists()


def test_a_teacher_with_another_vocabulary_is_refused(
    deep: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    folder = tmp_path / "other"
    model, _ = weights.load(deep / "model", {})
    weights.save(model, folder)
    text = (deep / "model" / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"[unused0]"', '"[unusedX]"').replace('"##a"', '"##A"'))
    flags = {"data": labelled("classify", "train"), "init": deep, "train__steps": 1, "distil__share": 0}
    done = lambert("finetune", out=tmp_path / "run", **flags, distil__teacher=folder, distil__relations=1)
    one_line(done, 2, "has another vocabulary: take a teacher with the vocabulary of the student")


def test_blocks_that_do_not_give_their_projections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = weights.draw(EncoderConfig(vocabulary=10), {}).encoder
    check_blocks(encoder)
    monkeypatch.delattr(PostNormBlock, "qkv")
    with pytest.raises(UsageError, match=r"needs the queries, keys and values of the blocks, and bert has no"):
        check_blocks(encoder)


def test_the_gradient_in_bfloat16_has_both_parts() -> None:
    """The blocks and the relations write to the gradients of the same weights, past torch."""
    shape = EncoderConfig(2, 64, 4, 128, vocabulary=50, dropout=0.0, attention_dropout=0.0)
    model, theirs = weights.draw(shape, {"mlm": 0}, 1), weights.draw(shape, {}, 2)
    net = RelationStudent(model, RelationTeacher(theirs.encoder.eval(), 1, 4, 1000.0))  # as much as the other part
    batch = make_batch([9, 5, 9, 12], 50)
    batch = batch.with_targets({**batch.targets, "relations": Target(torch.arange(4), torch.arange(4))})
    found = {}
    for name in ("float32", "bfloat16"):
        precision, gradients = Precision(name), Gradients(model)
        gradients.clear()
        compute = dataclasses.replace(precision.compute, gradients=gradients)
        with precision.autocast():
            sums_K = net(batch.with_compute(compute))
        precision.backward(sums_K.sum())
        gradients.collect()
        found[name] = dict(zip(gradients.names, (view.clone() for view in gradients.views), strict=True))
        gradients.release()
    for name, exact in found["float32"].items():
        error = (found["bfloat16"][name] - exact).norm() / exact.norm().clamp(min=1e-3)
        assert error < 0.05, name
