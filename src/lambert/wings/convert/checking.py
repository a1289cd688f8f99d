"""Compares a model folder, as Lambert reads it, with the library that made it, on the user's texts.

The library computes in a process of its own (`source_library`). It compares the token ids, the length at which texts
are cut, the prompts, the labels in their order, and the outputs.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lambert.core.batch import Batch, Ints, Source, Target, flat_batch
from lambert.core.errors import DataError, UsageError, quote
from lambert.core.modules import MODULES, root
from lambert.inference.text_model import TextModel
from lambert.inference.text_model import load as load_model
from lambert.model import folder as layout
from lambert.model.families import reads_segments
from lambert.model.publish import NOISE, TOLERANCE, scale_difference
from lambert.tasks.config import Columns
from lambert.tasks.reading.table import read_rows
from lambert.tasks.task import own_class
from lambert.tasks.vectors.sentence_transformers import activation_of
from lambert.text.rows import kind, read_lines
from lambert.text.tokenizers import roles
from lambert.wings.convert import source_library
from lambert.wings.convert.settings import Against

MOST = 1000
"""Maximum number of rows of a file that are compared (our choice: on a CPU, BERT-Base computes them in about two
minutes)."""
_ROWS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_PAIRS = {"text_b": "text", "context": "question", "sentence2": "sentence1"}
"""Keys of the second text of a pair, with those of the first."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A text or a pair of texts to compare."""

    place: str
    """Names the row in messages."""
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A line of the table of a check."""

    what: str
    """token ids, labels, vectors, ..."""
    compared: str
    """The number of compared items, with their unit."""
    difference: float | None = None
    """The largest difference of numbers; None for items that are equal or not."""
    bound: float = 0.0
    """The largest difference that rounding can explain."""
    problem: str = ""
    """The first difference, empty if there is none."""


@dataclass(slots=True)
class Check:
    """The result of the comparison of a folder."""

    library: str
    """Name and version of the library, or its name if it was not used."""
    table: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines about what could not be compared."""

    def lines(self) -> Iterator[str]:
        """Yields the table and the notes for the user."""
        if self.table:
            cells = [(self.library, "compared", "largest difference", "bound"), *map(_cells, self.table)]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            for row in cells:
                yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        yield from (f"note: {note}" for note in self.notes)

    def problem(self) -> str:
        """Returns the first difference, or an empty text."""
        return next((one.problem for one in self.table if one.problem), "")

    def add_equal(self, what: str, compared: str, problem: str) -> None:
        """Adds a line about items that are equal unless there is a `problem`."""
        self.table.append(Comparison(what, compared, problem=problem))

    def close(
        self, what: str, compared: Sequence[tuple[str, Any, Any]], unit: str, exact: Callable[[int], Any]
    ) -> None:
        """Adds a line about numbers.

        Args:
            compared: For each row its place, the expected numbers (the library's) and the computed ones (Lambert's).
            exact: Returns the library's numbers of a row in float64. It is called only if rounding proportional to the
                outputs does not explain a difference.
        """
        if not compared:
            return
        largest = max((float(np.abs(expected).max(initial=0.0)) for _, expected, _ in compared))
        differences = [_difference(expected, computed) for _, expected, computed in compared]
        bound, worst = TOLERANCE * max(1.0, largest), max(differences)
        if not scale_difference(worst, largest) <= TOLERANCE:
            noise = max(_difference(expected, exact(row)) for row, (_, expected, _) in enumerate(compared))
            bound = max(bound, NOISE * noise) if np.isfinite(noise) else bound
        problem = ""
        if wrong := [row for row, one in enumerate(differences) if not one <= bound]:
            place, expected, computed = compared[wrong[0]]
            problem = f"{what} of {place} differ by {differences[wrong[0]]:.1e}, more than {bound:.1e}"
            if np.shape(expected) != np.shape(computed):
                shapes = [list(np.shape(values)) for values in (expected, computed)]
                problem = f"{what} of {place} have the shape {shapes[0]} in the library and {shapes[1]} in Lambert"
        self.table.append(Comparison(what, f"{len(compared):,} {unit}", worst, bound, problem))


def _cells(one: Comparison) -> tuple[str, str, str, str]:
    if one.difference is None:
        return one.what, one.compared, "DIFFERENT" if one.problem else "equal", ""
    return one.what, one.compared, f"{one.difference:.1e}{' DIFFERENT' if one.problem else ''}", f"{one.bound:.1e}"


def _difference(one: Any, other: Any) -> float:
    """Returns the largest difference of two arrays; infinity if it is not finite, or their shapes differ."""
    if np.shape(one) != np.shape(other):
        return float("inf")
    found = float(np.abs(np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)).max(initial=0.0))
    return found if np.isfinite(found) else float("inf")


def read_texts(path: Path) -> tuple[list[CheckRow], bool]:
    """Returns the first rows of a file, and whether it has more: a text in each line, or rows (JSON lines, CSV, TSV,
    Parquet) with `text` and perhaps `text_b`, or `question` and `context`."""
    found: Iterable[CheckRow]
    if kind(path) in _ROWS:
        found = (_row(place, row) for place, row in read_rows(path, Columns("text", label="", header=True)))
    else:
        stripped = ((number, line.strip()) for number, line in read_lines(path))
        found = (CheckRow(f"{path}:{number}", (line,)) for number, line in stripped if line)
    rows = [*islice(found, MOST + 1)]
    if not rows:
        raise DataError(f"{path} holds no texts.")
    return rows[:MOST], len(rows) > MOST


def _row(place: str, row: Mapping[str, Any]) -> CheckRow:
    second = next((key for key in _PAIRS if isinstance(row.get(key), str)), None)
    keys = ("text",) if second is None else (_PAIRS[second], second)
    if wrong := [key for key in keys if not isinstance(row.get(key), str)]:
        have = ", ".join(map(str, row))
        raise DataError(
            f"{place}: {wrong[0]!r} is not a text. Rows to check have text, or text and text_b; found: {have}."
        )
    return CheckRow(place, tuple(row[key] for key in keys))


def check(source: Path, folder: Path, texts: Path, against: Against = "", code: Sequence[str] = ()) -> Check:
    """Compares Lambert's results from `folder` with the library's from `source`, the imported folder; both may be the
    same.

    Args:
        against: The library; empty: sentence-transformers if it wrote `source`, otherwise transformers.
        code: Names of code from outside that `folder` may import.

    Raises DataError if the library cannot compute `source`.
    """
    source = layout.model_folder(source)
    settings = layout.read_config(source)
    of_sentences = root(source) is not None or activation_of(source, settings) != ""  # a CrossEncoder has an activation
    library = against or ("sentence-transformers" if of_sentences else "transformers")
    rows, more = read_texts(texts)
    found = Check(library)
    if importlib.util.find_spec(library.replace("-", "_")) is None:
        found.notes.append(
            f"{library} is not installed, so token ids, lengths, prompts, labels and outputs were not compared with "
            f"it: pip install {library}."
        )
        return found
    if more:
        found.notes.append(f"the first {MOST:,} rows of {texts} were compared.")
    if library == "sentence-transformers" and not of_sentences:
        raise UsageError(f"--against sentence-transformers: {source} has no {MODULES}. Use --against transformers.")
    model = load_model(folder, device="cpu", code=code)
    _FolderComparison(found, model, source, settings, rows, texts).run()
    return found


class _FolderComparison:
    """The comparison of one folder with one library."""

    def __init__(
        self, found: Check, model: TextModel, source: Path, settings: Mapping[str, Any], rows: list[CheckRow],
        texts: Path,
    ) -> None:  # fmt: skip
        self.found, self.model, self.source, self.settings = found, model, source, settings
        self.tokenizer, self.config = model.tokenizer, model.model.config
        task = own_class(model.task_config.name)
        bare = task.computes_vectors or not model.has_head  # the folder may name a head that it does not have
        architecture = str((settings.get("architectures") or [""])[0])
        if not architecture or bare:
            architecture = layout.architecture(self.config, {} if bare else model.model.labels)[0]
        self.architecture = architecture
        self.by_vectors = found.library == "sentence-transformers" and task.computes_vectors
        self.crosses = found.library == "sentence-transformers" and not self.by_vectors
        self.by_task = task.cross_encoder and (self.crosses or found.library == "transformers")
        self.rows = self._arrange_rows(rows, self.crosses or task.reads_pairs(model.task_config), texts)

    def _arrange_rows(self, rows: list[CheckRow], pairs: bool, texts: Path) -> list[CheckRow]:
        """Returns the rows that can be compared, for pairs as pairs, with one longer than every limit."""
        special = {roles.content(self.tokenizer, number) for number in roles.special_ids(self.tokenizer)}
        plain = [row for row in rows if not any(name in text for name in special for text in row.texts)]
        if len(plain) < len(rows):
            self.found.notes.append(
                f"{len(rows) - len(plain):,} rows with the names of special tokens ({' '.join(sorted(special))}) were "
                "not compared: in a text, Lambert reads these names as text."
            )
        if not plain:
            raise DataError(
                f"Every row of {texts} contains the name of a special token, such as {min(special)}: add rows without "
                "one."
            )
        if self.by_vectors:
            plain = [CheckRow(row.place, (text,)) for row in plain for text in row.texts]
        elif pairs and any(len(row.texts) == 1 for row in plain):
            plain = [
                CheckRow(f"{one.place} with the next row", (one.texts[0], other.texts[-1]))
                for one, other in pairwise([*plain, plain[0]])
            ]
            self.found.notes.append(f"{texts} has no pairs of texts: each text was compared with the one after it.")
        if self.by_vectors or self.by_task:
            long = " ".join(" ".join(row.texts) for row in plain)
            while len(long) < 8 * self.config.positions:
                long = f"{long} {long}"
            long = long[: 8 * self.config.positions]
            first = plain[0].texts
            longer = [(long,)] if len(first) == 1 else [(long, first[1]), (first[0], long), (long, long)]
            plain += [CheckRow(f"the texts of {texts} joined", parts) for parts in longer]
        return plain

    def run(self) -> None:
        """Computes with both and compares."""
        facts, arrays = self._run_library("float32")
        if "unsupported" in facts:
            self.found.notes.append(f"{facts['unsupported']}, so nothing was compared with it.")
            return
        self.found.library = f"{self.found.library} {facts['version']}"
        exact: list[Mapping[str, Any]] = []

        def in_float64(key: str) -> Any:
            if not exact:
                exact.append(self._run_library("float64")[1])
            return exact[0][key]

        if self.by_vectors:
            self._vectors(facts, arrays, in_float64)
        elif self.by_task:
            self._task(facts, arrays, in_float64)
        else:
            self._direct(facts, arrays, in_float64)

    def _run_library(self, dtype: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
        job = {
            "library": self.found.library.partition(" ")[0], "dtype": dtype,
            "folder": str((root(self.source) or self.source if self.by_vectors else self.source).resolve()),
            "rows": [row.texts for row in self.rows], "positions": self.config.positions, "pairs": self.crosses,
            "architecture": self.architecture,
        }  # fmt: skip
        return compute(job)

    # --- what is compared ---

    def _vectors(self, facts: Mapping[str, Any], arrays: Mapping[str, Any], exact: Callable[[str], Any]) -> None:
        texts = [row.texts[0] for row in self.rows]
        source: Any = self.model.vectors(texts, prompt="").source
        same = self._cut_ids(facts, source, source.texts_NG[:, 0])
        computed = self.model.encode(texts, prompt="")
        self._close("vectors", same, arrays["vectors"], computed, lambda row: exact("vectors")[row])
        few = len(arrays["default"])
        known = [row for row in same if row < few]
        for name, prompt in facts["prompts"].items():
            computed, key = self.model.encode(texts[:few], prompt=prompt), f"prompt/{name}"
            of_row = partial(lambda key, row: exact(key)[row], key)
            self._close(f"vectors, prompt {name!r}", known, arrays[key], computed, of_row)
        embed, prompts = self.model.embed, facts["prompts"]
        document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), "")
        for name, expected, own in (
            ("queries", prompts.get("query", ""), embed.prompt), ("documents", document, embed.prompt_b),
        ):  # fmt: skip
            problem = (
                f"the prompt of {name} is {expected!r} in the library and {own!r} in Lambert" if expected != own else ""
            )
            self.found.add_equal(f"prompt of {name}", "1 prompt", problem)
        found = self.model.encode(texts[:few])
        if facts["default_prompt"] is None and prompts.get("query"):
            self.found.notes.append(
                f"unless a prompt is named, Lambert's encode puts {prompts['query']!r}, that of queries, before a "
                "text, and sentence-transformers puts none."
            )
        else:
            expected = arrays["default"]
            self._close("vectors as encode gives them", known, expected, found, lambda row: exact("default")[row])

    def _task(self, facts: Mapping[str, Any], arrays: Mapping[str, Any], exact: Callable[[str], Any]) -> None:
        task = self.model.task
        if "whole" in facts:
            self._whole_ids(facts)
        keys = task.config.columns.row_keys()
        request = self.model.request([dict(zip(keys, row.texts, strict=False)) for row in self.rows])
        same = self._cut_ids(facts, request.source)
        if task.names_labels:
            self._labels(facts["labels"], task.config.labels)
        outputs = [*self.model.outputs(request.source)]
        logits_NL = torch.cat([batch[task.head].float() for batch in outputs]).numpy().reshape(len(self.rows), -1)
        if not self.crosses:
            expected = [arrays[f"{row}/logits"] for row in range(len(self.rows))]
            self._close("logits", same, expected, logits_NL, lambda row: exact(f"{row}/logits"))
            return
        answers = request.finish(outputs)
        computed = [answer["value"] if "value" in answer else [*answer["probabilities"].values()] for answer in answers]
        self._close("scores", same, arrays["scores"], computed, lambda row: exact("scores")[row])

    def _direct(self, facts: Mapping[str, Any], arrays: Mapping[str, Any], exact: Callable[[str], Any]) -> None:
        """Compares a model with outputs for tokens, on the texts that fit it."""
        same = self._whole_ids(facts)
        short = [row for row in same if len(facts["whole"][row]) <= facts["limit"]]
        if len(short) < len(same):
            self.found.notes.append(f"outputs of {len(same) - len(short):,} rows were not compared: they are too long.")
        if own_class(self.model.task_config.name).names_labels:
            self._labels(facts["labels"], self.model.task.config.labels)
        names = [name.partition("/")[2] for name in arrays if name.startswith("0/")]
        computed = [self._outputs(row, names) if row in set(short) else {} for row in range(len(self.rows))]
        for name in names:
            title = {"log_sum": "log of the sum of exponentials"}.get(name, name)
            expected = [arrays[f"{row}/{name}"] for row in range(len(self.rows))]
            found = [values.get(name) for values in computed]
            self._close(title, short, expected, found, partial(lambda n, row: exact(f"{row}/{n}"), name))

    def _outputs(self, row: int, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Returns Lambert's outputs of a row by the library's names."""
        encoding = self.tokenizer.encode(*self.rows[row].texts)
        ids, types = np.array(encoding.ids, dtype=np.int64), np.array(encoding.type_ids, dtype=np.int64)
        types = types if reads_segments(self.config) else np.zeros_like(ids)
        targets = {"mlm": Target(torch.arange(len(ids)), torch.from_numpy(ids))}
        batch = flat_batch(ids, types, np.array([len(ids)]), targets)
        model = self.model.model
        with torch.inference_mode():
            if "states" in names:
                return {"states": model.encoder(batch).float().numpy()}
            found = model.outputs(batch)
            if "start_logits" in names:
                start_T, end_T = found["span"].float().unbind(-1)
                return {"start_logits": start_T.numpy(), "end_logits": end_T.numpy()}
            if "log_sum" in names:
                logits_TV = found["mlm"].float()
                return {"logits": logits_TV[:, batch.ids_T].numpy(), "log_sum": logits_TV.logsumexp(-1).numpy()}
            (values,) = found.values()
        return {"logits": values.float().numpy() if "tag" in found else values[0].float().numpy()}

    def _whole_ids(self, facts: Mapping[str, Any]) -> list[int]:
        """Compares the token ids of the whole texts and returns the rows that have equal ones."""
        encodings = [self.tokenizer.encode(*row.texts) for row in self.rows]
        computed = [encoding.ids for encoding in encodings]
        same, problem = self._same_ids("token ids", facts["whole"], computed)
        types = [
            row for row in same
            if reads_segments(self.config) and facts["types"][row] is not None
            and facts["types"][row] != encodings[row].type_ids[: len(facts["types"][row])]
            and len(facts["types"][row]) == len(computed[row])
        ]  # fmt: skip
        if types and not problem:
            problem = f"the segment types of {self._describe_row(types[0])} differ"
        self.found.add_equal("token ids", f"{len(computed):,} rows", problem)
        return same

    def _cut_ids(self, facts: Mapping[str, Any], source: Source, texts_N: Ints | None = None) -> list[int]:
        """Compares the token ids after texts are cut, and returns the rows that have equal ones. `texts_N`: numbers of
        the sequences of the rows, if equal texts are computed once."""
        indices_S = np.arange(source.size(0))
        batch: Batch = source.collate(np.zeros_like(indices_S), indices_S)
        ids_T = batch.ids_T.tolist()
        computed = [ids_T[start:end] for start, end in pairwise(batch.bounds_S1.tolist())]
        if texts_N is not None:
            computed = [computed[text] for text in texts_N]
        if len(computed) != len(self.rows):
            self.found.notes.append("the model divides long texts into windows, so their tokens were not compared.")
            return []
        same, problem = self._same_ids(f"token ids, cut at {facts['limit']},", facts["cut"], computed)
        self.found.add_equal(f"token ids, cut at {facts['limit']}", f"{len(computed):,} rows", problem)
        return same

    def _same_ids(self, what: str, expected: Sequence[Any], computed: Sequence[Any]) -> tuple[list[int], str]:
        wrong = [row for row, (one, other) in enumerate(zip(expected, computed, strict=True)) if one != other]
        problem = ""
        if wrong:
            one, other = expected[wrong[0]], computed[wrong[0]]
            difference = f"there are {len(one)} in the library and {len(other)} in Lambert"
            at = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
            if at is not None:
                pieces = [f"{ids[at]} ({self.tokenizer.id_to_token(ids[at])!r})" for ids in (one, other)]
                difference = f"token {at} is {pieces[0]} in the library and {pieces[1]} in Lambert"
            place = self._describe_row(wrong[0])
            problem = f"{what} of {place} differ: {difference} ({len(wrong):,} of {len(computed):,} rows differ)"
        differing = {*wrong}
        return [row for row in range(len(computed)) if row not in differing], problem

    def _labels(self, expected: Sequence[str], computed: Sequence[str]) -> None:
        pairs = enumerate(zip(expected, computed, strict=False))
        wrong = next(((number, one, other) for number, (one, other) in pairs if one != other), None)
        problem = "label {} is {!r} in the library and {!r} in Lambert".format(*wrong) if wrong else ""
        if len(expected) != len(computed):
            problem = f"there are {len(expected)} labels in the library and {len(computed)} in Lambert"
        self.found.add_equal("labels in their order", f"{len(expected):,} labels", problem)

    def _close(self, what: str, rows: Sequence[int], expected: Any, computed: Any, exact: Callable[[int], Any]) -> None:
        compared = [(self._describe_row(row), expected[row], computed[row]) for row in rows]
        self.found.close(what, compared, "rows", lambda number: exact(rows[number]))

    def _describe_row(self, row: int) -> str:
        return f"{self.rows[row].place} ({quote(self.rows[row].texts[0])})"


def compute(job: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Returns the results of a job of `source_library`, computed in another process, offline and on the CPU. Raises
    DataError if the library cannot compute it."""
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "USE_TORCH"), "1")
    rest = {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory(prefix="lambert-check-") as aside:
        path = Path(aside, "job.json")
        path.write_text(json.dumps(job), encoding="utf-8")
        # By its path, so that Lambert is not imported. -P: its folder, where modules are called onnx and openvino, is
        # not searched.
        command = [sys.executable, "-P", source_library.__file__, str(path)]
        done = subprocess.run(
            command, cwd=aside, env={**os.environ, **offline, **rest}, stdin=subprocess.DEVNULL, capture_output=True,
            check=False,
        )  # fmt: skip
        result = path.with_name("result.json")
        if done.returncode or not result.is_file():
            last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit {done.returncode}"]
            raise DataError(f"{job['library']} ended while it computed {job['folder']}: {last[0]}")
        facts = json.loads(result.read_text(encoding="utf-8"))
        if "error" in facts:
            error = " ".join(facts["error"].split())
            raise DataError(f"{job['library']} {facts['version']} cannot compute {job['folder']}: {error[:300]}")
        with np.load(path.with_name("result.npz"), allow_pickle=False) as arrays:
            return facts, dict(arrays)
