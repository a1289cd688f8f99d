"""Run folders and corpora whose files hold what nobody wrote: report and pretrain answer, and never with a bug of ours.

LAMBERT_FUZZ_EXAMPLES is the number of examples, few in the suite.
"""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from patience import limited

from lambert.core.contents import digests

Lambert = Callable[..., Any]

EXAMPLES = int(os.environ.get("LAMBERT_FUZZ_EXAMPLES", "15"))
fuzz = examples(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

KEYS = [
    "step", "loss", "loss/mlm", "heldout/mlm", "lr", "grad_norm", "tokens", "sequences", "tokens_per_second",
    "sequences_per_second", "wait_share", "utilisation", "ceiling_gflops", "memory_mb", "skipped", "imbalance",
    "exchange_seconds", "exchange_wait_seconds", "time", "what", "ranks", "parameter", "processes", "title", "tables",
    "examples", "columns", "rows", "caption",
]  # fmt: skip
odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 9) | st.floats() | st.text(max_size=5)
    | st.sampled_from([10**400, -(2**63), 1e308, 5e-324, "x", "nan", "2026-01-01T00:00:00+0000", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
rows = st.lists(
    st.fixed_dictionaries({"step": st.integers(-1, 99) | odd}, optional=dict.fromkeys(KEYS[1:19], odd)) | odd,
    max_size=4,
)
raw = st.binary(max_size=30)


def lines(found: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in found).encode()


def test_report(lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    files = {
        "metrics.jsonl": rows.map(lines) | raw,
        "incidents.jsonl": rows.map(lines) | raw,
        "scores.json": odd.map(json.dumps).map(str.encode) | raw,
        "environment.json": odd.map(json.dumps).map(str.encode) | raw,
        "summary.json": odd.map(json.dumps).map(str.encode) | raw,
        "config.toml": raw
        | st.sampled_from([b"a = nan", b"exchange = 1", b"exchange.method = []", b"[train]\nx = {}"]),
        "log.txt": raw | st.just(b"2026-01-01T00:00:00+0000 2 ranks, 0 a machine (x), gradients by float32\n"),
    }

    @fuzz
    @given(st.fixed_dictionaries(files))
    def check(contents: dict[str, bytes]) -> None:
        for name, content in contents.items():
            (run / name).write_bytes(content)
        with limited():
            called = lambert("report", run)
        assert called.code in (0, 3), (called.err, contents)
        assert not Path("crash.txt").exists()

    check()


def altered(value: Any, data: st.DataObject) -> Any:
    """The value with one place in it changed, removed or replaced."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 4)):
        name = data.draw(st.sampled_from(sorted(value)))
        if not data.draw(st.integers(0, 3)):
            return {key: item for key, item in value.items() if key != name}
        return value | {name: altered(value[name], data)}
    if isinstance(value, list) and value and data.draw(st.integers(0, 4)):
        place = data.draw(st.integers(0, len(value) - 1))
        return [*value[:place], altered(value[place], data), *value[place + 1 :]]
    return data.draw(odd)


@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_resume(
    name: str, pretrained: Path, corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"

    @examples(fuzz, max_examples=max(5, EXAMPLES // 10))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(pretrained, run)
        newest = max((run / "checkpoints").iterdir())
        found = json.loads((newest / name).read_text())
        (newest / name).write_text(json.dumps(altered(found, data)))
        more = {"train__steps": 8, "train__save_every": 2, "train__evaluate_every": 4}
        with limited():
            called = lambert("pretrain", corpus=corpus, out=run, **small | more)
        assert called.code in (0, 2, 3, 4), called.err
        assert not Path("crash.txt").exists()

    check()


def test_corpus(
    corpus: Path, texts: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A corpus whose hashes fit what was written into its manifest and its index."""
    monkeypatch.chdir(tmp_path)
    made, run = tmp_path / "corpus", tmp_path / "run"

    def index(data: st.DataObject) -> bytes:
        rows = np.load(corpus / "train/index.npy").copy()
        at = data.draw(st.integers(0, rows.size - 1))
        rows.flat[at] = data.draw(st.sampled_from([0, -1, 1, 10**6, 2**62, -(2**63)]) | st.integers(0, 400))
        out = io.BytesIO()
        np.save(out, rows if data.draw(st.booleans()) else rows[: at // 2])
        return out.getvalue()

    @examples(fuzz, max_examples=max(10, EXAMPLES // 10))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for folder in (made, run):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(corpus, made)
        manifest = json.loads((made / "manifest.json").read_text())
        del manifest["manifest_sha256"]
        if data.draw(st.booleans()):
            (made / "train/index.npy").write_bytes(index(data))
            whole, blocks = digests(made / "train/index.npy")
            manifest["splits"]["train"] |= {"index_sha256": whole, "index_blocks": blocks}
            if data.draw(st.booleans()):
                manifest["splits"]["train"]["sentences"] = len(np.load(made / "train/index.npy"))
        else:
            manifest = altered(manifest, data)
        (made / "manifest.json").write_text(json.dumps(manifest))
        mode = data.draw(st.sampled_from(["pairs", "balanced", "full", "google", "prepare"]))
        with limited():
            if mode == "prepare":
                lines: dict[str, object] = {"documents": "line", "vocabulary": 160, "heldout": 0.2, "workers": 1}
                called = lambert("prepare", input=texts, out=made, **lines)
            else:
                called = lambert("pretrain", corpus=made, out=run, **small, packing__mode=mode, train__steps=1)
        assert called.code in (0, 2, 3, 4), called.err
        if called.code:
            one_line(called, called.code)
        assert not Path("crash.txt").exists()

    check()
