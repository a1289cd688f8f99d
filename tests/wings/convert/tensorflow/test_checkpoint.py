"""Checkpoints that TensorFlow wrote, that others wrote, and damaged ones."""

import math
import random
import shutil
from pathlib import Path

import pytest
import tensorflow_checkpoints as written
import torch

from lambert.core.errors import DataError, UsageError
from lambert.model.files import tensorflow_prefixes
from lambert.wings.convert.tensorflow import bert_names as tensorflow
from lambert.wings.convert.tensorflow.checkpoint import Checkpoint, find

GOLDEN = Path(__file__).parents[3] / "golden" / "tensorflow"
LAYER = {
    "attention/self/query": (768, 768), "attention/self/key": (768, 768), "attention/self/value": (768, 768),
    "attention/output/dense": (768, 768), "intermediate/dense": (768, 3072), "output/dense": (3072, 768),
}  # fmt: skip


def base(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of BERT-Base with both heads of pre-training."""
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    dense = {"bert/pooler/dense": (768, 768), "cls/predictions/transform/dense": (768, 768)}
    for number in range(12):
        layer = f"bert/encoder/layer_{number}"
        dense |= {f"{layer}/{name}": shape for name, shape in LAYER.items()}
        norms += [f"{layer}/attention/output/LayerNorm", f"{layer}/output/LayerNorm"]
    return {
        "bert/embeddings/word_embeddings": (vocabulary, 768),
        "bert/embeddings/position_embeddings": (512, 768),
        "bert/embeddings/token_type_embeddings": (2, 768),
        "cls/predictions/output_bias": (vocabulary,),
        "cls/seq_relationship/output_weights": (2, 768),
        "cls/seq_relationship/output_bias": (2,),
        **{f"{name}/kernel": shape for name, shape in dense.items()},
        **{f"{name}/bias": shape[1:] for name, shape in dense.items()},
        **{f"{name}/{kind}": (768,) for name in norms for kind in ("gamma", "beta")},
    }


def test_the_index_of_a_released_checkpoint() -> None:
    checkpoint = Checkpoint(GOLDEN / "released")
    assert {name: entry.shape for name, entry in checkpoint.entries.items()} == base(21128)
    entries = sorted(checkpoint.entries.values(), key=lambda entry: entry.offset)
    assert [entry.size for entry in entries] == [4 * math.prod(entry.shape) for entry in entries]
    ends = [entry.offset + entry.size for entry in entries]
    assert [entry.offset for entry in entries] == [0, *ends[:-1]]  # without a gap
    with pytest.raises(DataError, match=r"released\.data-00000-of-00001 is missing.*Fetch all files"):
        tensorflow.open_checkpoint(GOLDEN / "released")


def test_the_data_that_tensorflow_wrote_has_its_checksums() -> None:
    """The beginning of a data file, with the first four tensors."""
    checkpoint = Checkpoint(GOLDEN / "written")
    assert len(checkpoint.entries) == 47
    end = (GOLDEN / "written.data-00000-of-00001").stat().st_size
    whole = [name for name, entry in checkpoint.entries.items() if entry.offset + entry.size <= end]
    assert [name.removeprefix("bert/embeddings/") for name in whole] == [
        "LayerNorm/beta", "LayerNorm/gamma", "position_embeddings", "token_type_embeddings"
    ]  # fmt: skip
    for name in whole:
        assert checkpoint.tensor(name).shape == checkpoint.entries[name].shape
    with pytest.raises(DataError, match=r"written\.data-00000-of-00001 has 33,792 bytes, and .* the file is cut short"):
        checkpoint.check_data()


@pytest.mark.parametrize(
    "options", [{}, {"shards": 3}, {"per_block": 2}, {"per_block": 1, "snappy": True}, {"snappy": True, "shards": 2}]
)
def test_what_others_wrote_is_read(options: dict[str, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {f"a/layer_{n}/kernel": torch.randn(3, n % 3 + 1) for n in range(40)} | {"b": torch.randn(5)}
    tensors |= {"a/half": torch.randn(7).half(), "a/brain": torch.randn(2, 3, 5).bfloat16(), "empty": torch.zeros(0, 4)}
    written.write(tmp_path / "x", tensors, **options)
    checkpoint = Checkpoint(tmp_path / "x")
    checkpoint.check_data()
    assert checkpoint.entries.keys() == tensors.keys()
    for name, tensor in tensors.items():
        found = checkpoint.tensor(name)
        assert found.dtype == torch.float32
        assert found.equal(tensor.float())
    kernel = checkpoint.tensor("a/layer_1/kernel", transposed=True)
    assert kernel.is_contiguous()
    assert kernel.equal(tensors["a/layer_1/kernel"].T)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crc32c": 1}, r"x\.data-00000-of-00001 is damaged: a/b does not have the CRC-32C"),
        ({"dtype": 9}, "a/b is of int64; only float32, float16 and bfloat16"),
        ({"dtype": 99}, "a/b is of the type 99; only"),
        ({"size": 12}, r"a/b has the shape \[2, 3\] and 12 bytes"),
        ({"slices": [b"\x0a\x02\x08\x01"]}, "a/b is stored in slices, which is not supported"),
    ],
)
def test_tensors_that_cannot_be_read(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    written.write(tmp_path / "x", {"a/b": torch.randn(2, 3)}, entries={"a/b": changes})
    with pytest.raises(DataError, match=message):
        Checkpoint(tmp_path / "x").tensor("a/b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": 4}, "x.data-00000-of-00001 has 24 bytes, and a/b ends at byte 28"),
        ({"offset": -1}, "x.data-00000-of-00001 has 24 bytes, and a/b ends at byte"),
        ({"shard_id": 3}, "x.data-00003-of-00001 is missing"),
        ({"shard_id": -3}, "of-00001 is missing"),
    ],
)
def test_places_outside_of_the_data(changes: dict[str, int], message: str, tmp_path: Path) -> None:
    written.write(tmp_path / "x", {"a/b": torch.randn(2, 3)}, entries={"a/b": changes})
    with pytest.raises(DataError, match=message):
        Checkpoint(tmp_path / "x").check_data()


@pytest.mark.parametrize(
    ("tensors", "header", "message"),
    [
        ({"a": torch.zeros(1)}, {"endianness": 1}, "big-endian"),
        ({"a": torch.zeros(1)}, {"num_shards": 0}, "does not say how many data files"),
        ({"a\nb": torch.zeros(1)}, {}, r"'a\\nb' is not a name"),
        ({"a": torch.zeros([1] * 9)}, {}, "a has 9 dimensions"),
    ],
)
def test_indices_that_cannot_be_read(
    tensors: dict[str, torch.Tensor], header: dict[str, int], message: str, tmp_path: Path
) -> None:
    written.write(tmp_path / "x", tensors, header=header)
    with pytest.raises(DataError, match=message):
        Checkpoint(tmp_path / "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "is an HDF5 file, as Keras writes it, not the index of a TensorFlow"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64, "a pointer of Git LFS"),
        (b"", "is cut short or another kind of file"),
        (bytes(1000), "is cut short or another kind of file"),
    ],
)
def test_other_files(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(content)
    with pytest.raises(DataError, match=message):
        Checkpoint(tmp_path / "x")


def test_a_cut_index_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    content = (GOLDEN / "released.index").read_bytes()
    blocks, footer = content[:-48], content[-48:]
    for size in [*range(0, len(content), 197), *range(len(blocks) - 5, len(content))]:
        (tmp_path / "x.index").write_bytes(content[:size])
        with pytest.raises(DataError, match="is cut short or another kind of file"):
            Checkpoint(tmp_path / "x")
        if size < len(blocks):
            (tmp_path / "x.index").write_bytes(blocks[:size] + footer)
            with pytest.raises(DataError, match=r"is damaged: .* Fetch it again"):
                Checkpoint(tmp_path / "x")


@pytest.mark.parametrize("snappy", [False, True])
def test_a_changed_bit_is_found_or_changes_nothing(snappy: bool, tmp_path: Path) -> None:
    """Nothing reads the block of metadata, its place in the footer, and the zeros after both places."""
    names = [f"bert/encoder/layer_{n}/output/dense/{kind}" for n in range(12) for kind in ("kernel", "bias")]
    written.write(tmp_path / "x", {name: torch.zeros(2) for name in names}, per_block=7, snappy=snappy)
    expected, path, draw = Checkpoint(tmp_path / "x").entries, tmp_path / "x.index", random.Random(0)
    content, found = path.read_bytes(), 0
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert Checkpoint(tmp_path / "x").entries == expected
        except DataError:
            found += 1
    assert found > 0.9 * len(range(0, len(content) - 80, 7))


def test_which_checkpoint_a_path_names(tmp_path: Path) -> None:
    prefix = tmp_path / "model.ckpt-200"
    written.write(prefix, {"a": torch.zeros(1)})
    for name in ("", "model.ckpt-200", "model.ckpt-200.index", "model.ckpt-200.data-00000-of-00001"):
        assert find(tmp_path / name) == prefix
    for name in ("model.ckpt-2", "model", "other"):
        assert find(tmp_path / name) is None
    shutil.copy(f"{prefix}.index", tmp_path / "model.ckpt-10.index")
    with pytest.raises(UsageError, match=r"holds 2 checkpoints: model.ckpt-10, model.ckpt-200. Name one: --from .*200"):
        find(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert tensorflow_prefixes(tmp_path) == []
