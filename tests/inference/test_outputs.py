"""Which folder holds the model, and what a batch size may not change."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processors import needs_fast

from lambert.core.batch import Batch
from lambert.core.errors import DataError, UsageError
from lambert.distributed.detection import detect
from lambert.engine.precision import Precision
from lambert.inference.outputs import (
    batch_bounds,
    check_padding,
    check_positions,
    check_segments,
    load_task,
    outputs,
    ready,
)
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.folder import model_folder
from lambert.tasks.config import Columns, TaskConfig
from lambert.text.tokenizers import tokenizer as tokenizers


def test_a_run_folder_stands_for_its_model(pretrained: Path, tmp_path: Path) -> None:
    assert model_folder(pretrained) == model_folder(pretrained / "model") == pretrained / "model"
    with pytest.raises(DataError, match="No such model folder"):
        model_folder(tmp_path / "none")


@pytest.mark.parametrize("given", [".", "model"])
def test_a_run_without_a_model_says_how_far_it_is(given: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    with pytest.raises(DataError, match=r"is a run that has no model yet\. Repeat the call"):
        model_folder(tmp_path / given)
    (tmp_path / "log.txt").write_text("SavedAndStopped: Stopped by SIGINT; saved after update 20 of 1,000. To continue")
    with pytest.raises(DataError, match=r"no model yet\. It was saved after update 20 of 1,000\. Repeat the call"):
        model_folder(tmp_path / given)


@pytest.mark.parametrize(
    ("files", "given", "message"),
    [
        ((), "bert-base-uncased", "No such model folder: .*Nothing is downloaded: .*hf download NAME"),
        (("m.zip",), "m.zip", r"m\.zip is an archive, .* Unpack it"),
        (("m.tar.gz",), "m.tar.gz", "is an archive"),
        (("model.safetensors",), "model.safetensors", "is a file. Give the folder that holds it"),
        (
            ("bert_model.ckpt.index", "bert_config.json"),
            "",
            "is a TensorFlow checkpoint. Convert it first: lambert import --from",
        ),
        (("bert_model.ckpt.index",), "bert_model.ckpt", "is a TensorFlow checkpoint"),
        (("model.ckpt-9.index",), "model.ckpt-9.data-00000-of-00001", "is a TensorFlow checkpoint"),
    ],
)
def test_what_is_no_model_folder_is_named(files: tuple[str, ...], given: str, message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        model_folder(tmp_path / given)


def test_weights_beside_a_tensorflow_checkpoint_are_read(tmp_path: Path) -> None:
    for name in ("bert_model.ckpt.index", "model.safetensors"):
        (tmp_path / name).touch()
    assert model_folder(tmp_path) == tmp_path


def test_another_family_is_refused_before_its_tokenizer_is_missed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    with pytest.raises(DataError, match=r"has model_type = 'deberta-v2', a family that Lambert does not have. Take"):
        load_task(tmp_path, "")


def test_a_task_is_cut_to_the_models_positions(pretrained: Path) -> None:
    loaded = load_task(pretrained, "")
    model, task = loaded.model, loaded.task
    assert (task.config.name, task.config.max_length, model.training) == ("mask", 64, False)
    check_positions(64, model)
    with pytest.raises(UsageError, match=r"task\.max_length = 65 exceeds the model's 64 positions"):
        check_positions(65, model)


TOLERANCE = {"float32": 1e-5, "bfloat16": 0.1, "int8": 0.1}


@pytest.fixture
def cores() -> Iterator[int]:
    """Three threads for torch in this test."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_outputs_come_in_order_whatever_the_batches(
    precision: str, tuned: Callable[[str], Path], labelled: Callable[[str, str], Path], cores: int
) -> None:
    needs_fast(precision)
    loaded = load_task(tuned("classify"), "")
    model, task = loaded.model, loaded.task
    data, world = task.read(labelled("classify", "dev")), detect("cpu")
    with torch.inference_mode():
        epochs = np.zeros(16, dtype=np.int64)
        expected = model.outputs(data.collate(epochs, np.arange(16)))["label"]
    model, mode = ready(model, precision, world.device)
    for threads in (1, cores):
        torch.set_num_threads(threads)
        for micro_tokens in (1, 50, 10_000):
            found, done = [], 0

            def advance(sequences: int) -> None:
                nonlocal done
                done += sequences

            for batch in outputs(model, data, mode, world, micro_tokens, advance):
                found.append(batch["label"].float())
            assert (done, torch.get_num_threads()) == (16, threads)
            assert len(found) == {1: 16, 10_000: threads}.get(micro_tokens, len(found))
            assert float((torch.cat(found) - expected).abs().max()) < TOLERANCE[precision]


def test_an_error_in_a_batch_is_raised(
    tuned: Callable[[str], Path], labelled: Callable[[str, str], Path], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_task(tuned("classify"), "")
    model, task = loaded.model, loaded.task
    data, world = task.read(labelled("classify", "dev")), detect("cpu")

    def broken(batch: Batch) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(model, "outputs", broken)
    with pytest.raises(MemoryError, match="no room"):
        list(outputs(model, data, Precision("float32"), world, 50))
    assert torch.get_num_threads() == cores


@given(st.lists(st.integers(1, 400), max_size=60), st.integers(1, 3000), st.integers(1, 5))
def test_batches_are_even(lengths: list[int], micro_tokens: int, streams: int) -> None:
    cuts = batch_bounds(np.array(lengths, dtype=np.int64), micro_tokens, streams)
    assert [number for low, high in cuts for number in range(low, high)] == [*range(len(lengths))]
    if not lengths:
        return
    sizes = [sum(lengths[low:high]) for low, high in cuts]
    assert min(sizes) > 0
    assert max(sizes) <= max(micro_tokens, 1) + max(lengths)
    assert max(sizes) <= sum(lengths) / min(streams, len(lengths)) + max(lengths)


def test_int8_needs_a_processor() -> None:
    model = weights.draw(EncoderConfig(vocabulary=9), {"span": 0})
    with pytest.raises(UsageError, match="'int8' runs on CPUs only, not on meta: use bfloat16"):
        ready(model, "int8", torch.device("meta"))


def test_pairs_need_two_kinds_of_segments() -> None:
    one = weights.draw(EncoderConfig(vocabulary=9, segment_types=1), {"span": 0})
    two = weights.draw(EncoderConfig(vocabulary=9, segment_types=2), {"span": 0})
    pairs = TaskConfig(name="classify", columns=Columns(text_b="b"))
    check_segments(TaskConfig(name="classify"), one)
    for task in (pairs, TaskConfig(name="squad")):
        check_segments(task, two)
        with pytest.raises(UsageError, match="segment_types = 1, and text pairs need 2"):
            check_segments(task, one)


@pytest.mark.parametrize(("pad", "message"), [(0, ""), (1, r"'\[UNK\]'"), (2, r"'\[CLS\]'"), (5, "'a'"), (99, "")])
def test_padding_that_texts_have_is_refused(pad: int, message: str, tmp_path: Path) -> None:
    tokenizer = tokenizers.build([*tokenizers.SPECIAL_PIECES, "a"], lowercase=True)
    config = EncoderConfig(block="roberta", segment_types=1, position_offset=pad + 1, pad=pad)
    with pytest.raises(DataError, match=f"pad_token_id = .*{message}") if message else nullcontext():
        check_padding(tokenizer, config, tmp_path)
    check_padding(tokenizer, replace(config, position_offset=0), tmp_path)
