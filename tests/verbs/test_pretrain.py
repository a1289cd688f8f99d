"""Pre-training end to end: the run folder, continuing, second stages, and what is refused before the first update."""

import json
import os
import shutil
import signal
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commands import last_line
from forked import Forked
from safetensors.torch import load_file

from lambert.runs import updates

Lambert = Callable[..., Any]

CLOCKED = {
    "time", "sequences_per_second", "tokens_per_second", "utilisation", "ceiling_gflops", "wait_share", "memory_mb",
    "checkpoint_pause_seconds",
}  # fmt: skip
"""Keys of metrics.jsonl that no two runs have in common."""
TRUST = {f"trust/{group}_{of}" for group in ("embeddings", "blocks", "heads") for of in ("min", "median", "max")}
COUNTED = {"step", "sequences", "tokens", "skipped", "loss", "loss/mlm", "loss/nsp", "lr", "grad_norm", *TRUST}
HELD_OUT = {"heldout/mlm", "heldout/mlm_accuracy", "heldout/nsp", "heldout/nsp_accuracy"}


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def learnt(run: Path) -> tuple[bytes, list[dict[str, Any]], str]:
    """What must not depend on how often a run was stopped: weights, metrics but for the clock, scores."""
    kept = [{key: value for key, value in row.items() if key not in CLOCKED} for row in rows(run)]
    return (run / "model" / "model.safetensors").read_bytes(), kept, (run / "scores.json").read_text()


def everything(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_the_run_folder(pretrained: Path, corpus: Path) -> None:
    assert {path.name for path in pretrained.iterdir()} == {
        "config.toml", "data.json", "environment.json", "metrics.jsonl", "log.txt", "lock.json", "checkpoints", "model",
        "scores.json",
    }  # fmt: skip
    config = tomllib.loads((pretrained / "config.toml").read_text())
    assert (config["corpus"], config["model"]["hidden"], config["optim"]["name"]) == (str(corpus), 32, "lamb")
    found = rows(pretrained)
    training_rows, scores = [row for row in found if "loss" in row], [row for row in found if "loss" not in row]
    assert [row["step"] for row in training_rows] == [2, 4, 6, 8]
    assert all(set(row) == COUNTED | CLOCKED for row in training_rows)
    assert [row["sequences"] for row in training_rows] == [16, 32, 48, 64]
    assert [(row["step"], set(row)) for row in scores] == [(4, {"step", *HELD_OUT}), (8, {"step", *HELD_OUT})]
    last = {f"heldout/{name}": value for name, value in json.loads((pretrained / "scores.json").read_text()).items()}
    assert last == {key: value for key, value in scores[-1].items() if key != "step"}
    assert {path.name for path in (pretrained / "checkpoints").iterdir()} == {"step-000006", "step-000008"}
    assert {path.name for path in (pretrained / "checkpoints" / "step-000008").iterdir()} == {
        "model.safetensors", "optimizer.safetensors", "exchange.safetensors", "state.json", "manifest.json",
    }  # fmt: skip
    assert {path.name for path in (pretrained / "model").iterdir()} == {
        "config.json", "model.safetensors", "README.md", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
        "SHA256SUMS",
    }  # fmt: skip
    card = (pretrained / "model" / "README.md").read_text()
    assert f"{scores[-1]['heldout/mlm']:.4f}" in card
    assert 'mode = "pairs"' in card
    environment = json.loads((pretrained / "environment.json").read_text())
    assert environment["packages"]["torch"]
    assert environment["threads"] == 1


def test_it_learns_and_its_recipe_repeats_it(corpus: Path, tmp_path: Path, lambert: Lambert) -> None:
    shape = {"model__layers": 1, "model__hidden": 32, "model__intermediate": 64, "model__positions": 32}
    more = {"packing__sequence_length": 32, "optim__lr": 4e-2, "train__steps": 60, "train__batch_size": 32}
    run = tmp_path / "first"
    assert lambert("pretrain", corpus=corpus, out=run, **shape, **more, train__evaluate_every=1).code == 0
    losses = [row["heldout/mlm"] for row in rows(run) if "heldout/mlm" in row]
    entropy = json.loads((corpus / "manifest.json").read_text())["splits"]["heldout"]["unigram_entropy"]
    assert losses[0] > 1.3 * entropy
    assert losses[-1] < 1.05 * entropy
    again = lambert("pretrain", run / "config.toml", "--out", tmp_path / "second")
    assert again.code == 0, again.err
    assert learnt(tmp_path / "second") == learnt(run)


# --- continuing ---


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, number: signal.Signals) -> None:
    """From now on a signal arrives while update `at` is computed."""
    train = updates.train

    def struck(*arguments: Any, **settings: Any) -> Iterator[Any]:
        with closing(train(*arguments, **settings)) as steps:  # type: ignore[type-var]
            for step in steps:
                yield step
                if step.index == at - 1:
                    signal.raise_signal(number)

    monkeypatch.setattr(updates, "train", struck)


@pytest.mark.parametrize(("at", "number", "code"), [(3, signal.SIGTERM, 75), (5, signal.SIGINT, 130)])
def test_stopped_and_continued_it_is_the_same_run(
    at: int,
    number: signal.Signals,
    code: int,
    same: dict[str, object],
    pretrained: Path,
    tmp_path: Path,
    lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same["train__save_every"] = 0
    with monkeypatch.context() as patch:
        interrupted(patch, at, number)
        stopped = lambert("pretrain", out=tmp_path / "run", **same)
    last_line(stopped, code, number.name, f"saved after update {at} of 8", "the same command again")
    assert not (tmp_path / "run" / "model").exists()
    continued = lambert("pretrain", out=tmp_path / "run", **same)
    assert continued.code == 0
    assert f"continuing after update {at} of 8" in continued.err
    assert learnt(tmp_path / "run") == learnt(pretrained)


def dying() -> None:
    """This process is killed after update 5."""
    train = updates.train

    def struck(*arguments: Any, **settings: Any) -> Iterator[Any]:
        for step in train(*arguments, **settings):
            if step.index == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            yield step

    updates.train = struck  # type: ignore[assignment]


@pytest.mark.slow
def test_killed_and_continued_it_is_the_same_run(
    same: dict[str, object], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    out = tmp_path / "run"
    flags = [f"--{name.replace('__', '.')}={value}" for name, value in same.items()]
    killed = Forked("pretrain", f"--out={out}", *flags, prepare=dying).called()
    assert killed.code == -signal.SIGKILL, killed.err
    # The one after update 4 was still being written, or was not.
    done = max(int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*"))
    assert done in (2, 4)
    continued = lambert("pretrain", out=out, **same)
    assert continued.code == 0
    assert f"continuing after update {done} of 8" in continued.err
    assert {path.name for path in (out / "checkpoints").iterdir()} == {"step-000006", "step-000008"}
    assert learnt(out) == learnt(pretrained)


def test_a_run_that_has_ended_is_left_as_it_is(same: dict[str, object], pretrained: Path, lambert: Lambert) -> None:
    before = everything(pretrained)
    done = lambert("pretrain", out=pretrained, **same)
    assert (done.code, done.err) == (0, "")
    assert "has all its 8 updates already" in done.out
    assert everything(pretrained) == before


def test_what_was_lost_behind_the_last_checkpoint_is_made_again(
    same: dict[str, object], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    (tmp_path / "run" / "scores.json").unlink()
    assert lambert("pretrain", out=tmp_path / "run", **same).code == 0
    assert learnt(tmp_path / "run") == learnt(pretrained)


def test_a_changed_setting_is_named_and_a_free_one_accepted(
    same: dict[str, object], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    run = tmp_path / "run"
    shutil.copytree(pretrained, run)
    for setting, value, said in [
        ("optim__lr", 0.5, "optim.lr 0.001 -> 0.5"),
        ("train__batch_size", 16, "train.batch_size 8 -> 16"),
        ("masking__max_predictions", 3, "masking.max_predictions not set -> 3"),
        ("train__steps", 9, "train.steps 8 -> 9"),
    ]:
        before = everything(run)
        last_line(lambert("pretrain", out=run, **{**same, setting: value}), 2, str(run), said, "another --out")
        assert everything(run) == before
    free = {
        "log__every": 1,
        "train__micro_tokens": 100,
        "train__save_every": 5,
        "guard__patience": 3,
        "train__keep_checkpoints": 1,
    }
    shutil.rmtree(run / "checkpoints" / "step-000008")
    assert lambert("pretrain", out=run, **{**same, **free}).code == 0
    assert [row["step"] for row in rows(run) if "loss" in row] == [2, 4, 6, 7, 8]


def test_settings_of_a_run_that_never_began_may_change(
    same: dict[str, object], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    del same["train__steps"]
    last_line(lambert("pretrain", out=tmp_path / "run", **same), 2, "train.steps or train.epochs")
    assert lambert("pretrain", out=tmp_path / "run", **same, train__steps=8).code == 0
    assert learnt(tmp_path / "run") == learnt(pretrained)


# --- what the result depends on ---


def test_micro_batches_change_the_result_by_rounding_alone(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    found = []
    small |= {"model__dropout": 0, "model__attention_dropout": 0, "optim__name": "adamw", "optim__eps": 1e-3}
    for micro in (60, 100_000):
        run = tmp_path / str(micro)
        assert lambert("pretrain", corpus=corpus, out=run, **small, train__steps=5, train__micro_tokens=micro).code == 0
        found.append((load_file(run / "model" / "model.safetensors"), rows(run)))
    (split, rows_split), (whole, rows_whole) = found
    assert max(float((split[name] - whole[name]).abs().max()) for name in whole) < 1e-6
    for ours, theirs in zip(rows_split, rows_whole, strict=True):
        for key in set(ours) - CLOCKED:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-5), key


def test_epochs_are_passes_over_the_data(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    settings = {**small, "train__epochs": 1.5, "packing__mode": "full", "train__batch_size": 5}
    done = lambert("pretrain", corpus=corpus, out=tmp_path / "run", **settings)
    assert done.code == 0
    manifest = json.loads((corpus / "manifest.json").read_text())
    documents, steps = manifest["splits"]["train"]["documents"], rows(tmp_path / "run")[-1]["step"]
    assert 1.5 * documents / 5 <= steps  # a document is at least one sequence
    last = [row for row in rows(tmp_path / "run") if "loss" in row][-1]
    assert set(last) == (COUNTED | CLOCKED) - {"loss/nsp"}
    assert json.loads((tmp_path / "run/model/config.json").read_text())["architectures"] == ["BertForMaskedLM"]


@pytest.mark.parametrize("mode", ["pairs", "balanced", "google"])
def test_one_held_out_document_is_scored_without_next_sentences(
    mode: str, texts: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    few = tmp_path / "few.txt"
    few.write_text("".join(texts.read_text().splitlines(keepends=True)[:6]))
    corpus = tmp_path / "corpus"
    assert lambert("prepare", input=few, out=corpus, documents="line", vocabulary=120, workers=1).code == 0
    assert json.loads((corpus / "manifest.json").read_text())["splits"]["heldout"]["documents"] == 1
    done = lambert("pretrain", corpus=corpus, out=tmp_path / "run", **small, train__steps=2, packing__mode=mode)
    assert done.code == 0, done.err
    assert set(json.loads((tmp_path / "run" / "scores.json").read_text())) == {"mlm", "mlm_accuracy"}


def test_nothing_held_out_is_nothing_to_score(
    texts: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    made = lambert("prepare", input=texts, out=corpus, documents="line", vocabulary=120, heldout=0, workers=1)
    assert made.code == 0
    assert lambert("pretrain", corpus=corpus, out=run, **small, train__steps=2, train__evaluate_every=1).code == 0
    assert json.loads((run / "scores.json").read_text()) == {}
    assert "Held-out" not in (run / "model" / "README.md").read_text()


# --- a second stage ---


@pytest.fixture
def second(corpus: Path, small: dict[str, object], pretrained: Path) -> dict[str, object]:
    without = {name: value for name, value in small.items() if not name.startswith("model__")}
    return {**without, "corpus": corpus, "init": pretrained, "packing__sequence_length": 64, "train__steps": 2}


def test_a_second_stage_begins_with_the_first_ones_weights(
    second: dict[str, object], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    for name, init in (("run", pretrained), ("model", pretrained / "model")):
        settings = {**second, "init": init, "optim__lr": 1e-30}
        assert lambert("pretrain", out=tmp_path / name, **settings).code == 0
        first, last = (load_file(run / "model" / "model.safetensors") for run in (pretrained, tmp_path / name))
        assert set(first) == set(last)
        assert all(first[tensor].equal(last[tensor]) for tensor in first)


def test_moments_are_kept_on_demand(
    second: dict[str, object], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    def saved(run: Path, update: int) -> tuple[Any, Any]:
        folder = run / "checkpoints" / f"step-{update:06d}"
        return load_file(folder / "optimizer.safetensors"), json.loads((folder / "state.json").read_text())["optimizer"]

    # With betas next to 1 and a rate of next to 0 the moments stay what they were.
    still = {"optim__betas": "0.9999999", "optim__lr": 1e-30, "train__save_every": 1}
    flags = ["--optim.betas", "0.9999999", "0.9999999"]
    del still["optim__betas"]
    assert lambert("pretrain", *flags, "--keep-moments", out=tmp_path / "kept", **second, **still).code == 0
    assert lambert("pretrain", *flags, out=tmp_path / "fresh", **second, **still).code == 0
    before, _ = saved(pretrained, 8)
    kept, described = saved(tmp_path / "kept", 1)
    fresh, _ = saved(tmp_path / "fresh", 1)
    moments = [name for name in before if before[name].ndim == 2]
    assert moments
    for name in moments:
        scale = float(before[name].abs().max())
        assert float((kept[name] - before[name]).abs().max()) < 1e-4 * scale
        assert float(fresh[name].abs().max()) < 1e-3 * scale
    assert all(group["betas"] == [0.9999999, 0.9999999] for group in described["groups"])


def test_moments_need_a_run(second: dict[str, object], pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    shutil.copytree(pretrained / "model", tmp_path / "model-only")
    second["init"] = tmp_path / "model-only"
    last_line(lambert("pretrain", "--keep-moments", out=tmp_path / "run", **second), 2, "keep_moments", "checkpoints")


# --- refused before the first update ---


def test_another_vocabulary_is_refused(
    texts: Path, second: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    other = tmp_path / "other"
    made = lambert("prepare", input=texts, out=other, documents="line", vocabulary=90, heldout=0.2, workers=1)
    assert made.code == 0
    second["corpus"] = other
    refused = lambert("pretrain", out=tmp_path / "run", **second)
    last_line(refused, 3, str(other), "another vocabulary", "--tokenizer")
    assert not (tmp_path / "run").exists()
    # what the message says to do works
    advice = other.parent / "again"
    flags = {"documents": "line", "heldout": 0.2, "workers": 1, "tokenizer": second["init"]}
    assert lambert("prepare", input=texts, out=advice, **{**flags, "tokenizer": f"{second['init']}/model"}).code == 0
    assert lambert("pretrain", out=tmp_path / "run", **{**second, "corpus": advice}).code == 0


@pytest.mark.parametrize(
    ("change", "code", "parts"),
    [
        ({"packing__sequence_length": 128}, 2, ["packing.sequence_length = 128", "64 positions"]),
        ({"model__vocabulary": 5}, 2, ["model.vocabulary = 5"]),
        ({"model__heads": 3}, 2, ["heads = 3", "hidden = 32"]),
        ({"model__modern__window": 5}, 2, ["model.modern.window = 5 is not a setting of BERT: leave it out."]),
        ({"model__position_offset": 2}, 2, ["model.position_offset = 2 is not a setting of BERT"]),
        ({"model__pad": 3}, 2, ["model.pad = 3, but a fresh BERT for this tokenizer has 0: leave it out."]),
        (
            {"model__block": "nomic_bert", "model__activation": "gelu_tanh"}, 2,
            ["model.activation = gelu_tanh is not a setting of NomicBERT"],
        ),
        (
            {"model__block": "distilbert", "model__norm_eps": 1e-5}, 2,
            ["model.norm_eps = 1e-05, but a fresh DistilBERT", "has 1e-12"],
        ),
        ({"corpus": "nowhere"}, 3, ["No prepared corpus at nowhere"]),
        ({"init": "nowhere"}, 3, ["No such model folder: nowhere"]),
        ({"optim__name": "adamww"}, 2, ["optim.name", "adamw"]),
        ({"train__device": "cuda:77"}, None, ["cuda"]),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(
    change: dict[str, object], code: int | None, parts: list[str], same: dict[str, object], tmp_path: Path,
    lambert: Lambert,
) -> None:  # fmt: skip
    refused = lambert("pretrain", out=tmp_path / "run", **{**same, **change})
    last_line(refused, code or refused.code, *parts)
    assert refused.code in (2, 3, 4)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_without_a_shape_there_is_no_model(corpus: Path, tmp_path: Path, lambert: Lambert) -> None:
    last_line(
        lambert("pretrain", corpus=corpus, out=tmp_path / "run", train__steps=2), 2, "No model", "[model]", "init"
    )


def test_a_shape_beside_init_must_be_the_same(
    second: dict[str, object], small: dict[str, object], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    shape = {name: value for name, value in small.items() if name.startswith("model__")}
    wrong = lambert("pretrain", out=tmp_path / "run", **second, **{**shape, "model__layers": 2})
    last_line(wrong, 2, "model.layers = 2", f"{pretrained / 'model'} has 1")
    assert lambert("pretrain", out=tmp_path / "run", **second, **shape).code == 0


def test_a_negative_seed_is_a_seed(corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert) -> None:
    flags = small | {"corpus": corpus, "train__steps": 2, "train__device": "cpu"}
    losses = []
    for seed in (-(2**63), -1, 1):
        done = lambert("pretrain", **flags, out=tmp_path / str(seed), seed=seed)
        assert done.code == 0, done.err
        rows = map(json.loads, (tmp_path / str(seed) / "metrics.jsonl").read_text().splitlines())
        losses.append([row["loss"] for row in rows if "loss" in row])
    assert len({tuple(loss) for loss in losses}) == 3


def test_a_ramp_is_continued_where_it_was_stopped(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    ramp = {"train__batch_size": 8, "train__first_batch_size": 2, "train__ramp_steps": 6, "train__steps": 8}
    flags = {**small, **ramp, "corpus": corpus, "log__every": 1}
    assert lambert("pretrain", out=tmp_path / "whole", **flags).code == 0
    assert [row["sequences"] for row in rows(tmp_path / "whole") if "loss" in row] == [2, 4, 8, 12, 18, 24, 32, 40]
    with monkeypatch.context() as patch:
        interrupted(patch, 4, signal.SIGINT)
        assert lambert("pretrain", out=tmp_path / "cut", **flags).code == 130
    assert lambert("pretrain", out=tmp_path / "cut", **flags).code == 0
    assert learnt(tmp_path / "cut") == learnt(tmp_path / "whole")


@pytest.mark.parametrize(
    ("ramp", "message"),
    [
        ({"train__first_batch_size": 2}, "need each other"),
        ({"train__first_batch_size": 3, "train__ramp_steps": 4}, "must divide"),
    ],
)
def test_ramps_that_are_none(
    ramp: dict[str, object], message: str, corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    last_line(lambert("pretrain", corpus=corpus, out=tmp_path / "run", **{**small, **ramp}), 2, message)


def test_raw_text_is_prepared_with_the_tokenizer_of_the_model(
    texts: Path, pretrained: Path, second: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    flags = {**second, "corpus": tmp_path / "corpus", "text": texts, "out": tmp_path / "run", "packing__mode": "full"}
    first = lambert("pretrain", **flags)
    assert first.code == 0, first.err
    own = json.loads((tmp_path / "corpus" / "tokenizer.json").read_text(encoding="utf-8"))
    assert own["model"] == json.loads((pretrained / "model" / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    again = lambert("pretrain", **flags)
    assert again.code == 0
    assert "already prepared" in again.out + again.err
    other = tmp_path / "other.txt"
    other.write_text("Another text.\n", encoding="utf-8")
    refused = lambert("pretrain", **{**flags, "text": other})
    last_line(refused, 2, "other inputs", "choose another --corpus, or move it away")
    last_line(lambert("pretrain", corpus=tmp_path / "c", out=tmp_path / "d", text=texts, model__layers=1), 2, "init")
