"""What the demo's models learned, as a table: held-out losses, and the names that they find with and without
pre-training."""

import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lambert.inference.text_model import TextModel, load
from lambert.verbs import evaluate
from lambert.verbs.settings.evaluate import EvaluateConfig

SENTENCES = (
    "he said that miss barfoot and mr. micklethwaite had gone down to clevedon on the monday .",
    "when i came back to rome , rowland was sitting with christina on the terrace .",
)
PREDICTIONS = "predictions.jsonl"
COLUMNS = ("", "this model", "to compare with")


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a demo."""

    folder: Path
    """The folder of the demo."""
    model: Path
    """The first model with pre-training."""
    losses: tuple[float, float]
    """Held-out masked-LM losses of both stages, in nats."""
    unigram_entropy: float
    """The loss of predictions from the frequencies of the pieces, in nats."""
    seeds: int
    """Models of each kind."""
    f1: tuple[float, float]
    """Mean F1 of the names, with and without pre-training."""
    error: float
    """Standard error of the difference of both."""
    examples: tuple[tuple[str, str], ...]
    """Sentences, and the names found in them."""

    @property
    def gain(self) -> float:
        """How much pre-training raises F1."""
        return self.f1[0] - self.f1[1]

    def scores(self) -> dict[str, float]:
        """The results by name."""
        return {"mlm": self.losses[1], "f1": self.f1[0], "f1_scratch": self.f1[1], "gain_se": self.error}

    def rows(self) -> list[tuple[str, str, str]]:
        """The rows of the table."""
        losses = zip((32, 64), self.losses, strict=True)
        worth = f"{self.gain / self.error:.1f} standard errors" if self.error else "nothing was found on either side"
        return [
            *(
                (
                    f"held-out masked-LM loss, {tokens} tokens",
                    f"{loss:.3f} nats",
                    f"{self.unigram_entropy:.3f} (unigram entropy)",
                )
                for tokens, loss in losses
            ),
            (
                f"names found, F1, mean of {self.seeds} seeds",
                f"{self.f1[0]:.1%}",
                f"{self.f1[1]:.1%} (the same from scratch)",
            ),
            ("what pre-training is worth", f"{self.gain:+.1%} ± {self.error:.1%}", worth),
        ]

    def summary(self) -> dict[str, Any]:
        """The results for the report."""
        return {
            "title": "Lambert demo: raw text to a scored model",
            "tables": [{"caption": "What it learned", "columns": COLUMNS, "rows": self.rows()}],
            "examples": [{"caption": "Names in lower case", "columns": ["text", "names found"], "rows": self.examples}],
        }

    def show(self, seconds: float) -> None:
        """Prints the results, and how long the demo took."""
        from rich.console import Console
        from rich.table import Table

        console = Console(width=100, highlight=False)
        console.print()
        for sentence, answer in self.examples:
            console.print(sentence, style="dim", markup=False)
            console.print(f"  names: {answer}", markup=False)
        table = Table(*COLUMNS, title=f"\n{seconds:.0f} seconds from raw text")
        for row in self.rows():
            table.add_row(*row)
        console.print(table)
        if self.gain <= 2 * self.error:
            console.print("The gain is within two standard errors: this run does not show that pre-training helped.")
        report = self.folder / "report.html"
        started = Path(sys.argv[0])  # as it was typed, where the environment is not active
        command = started if started.name == "lambert" and not shutil.which("lambert") else "lambert"
        places = {"model": str(self.model), **({"report": str(report)} if report.exists() else {})}
        places["to try"] = f"{command} serve --model {shlex.quote(str(self.model))}"
        for name, place in places.items():
            console.print(f"{name:8}{place}", markup=False, soft_wrap=True)


def compared(folder: Path, pretrained: list[Path], scratch: list[Path]) -> Results:
    """Returns the results of a demo from its run folders, with and without pre-training, one for each seed."""
    test = folder / "data" / "names-test.jsonl"
    for run in (*pretrained, *scratch):
        evaluate.run(EvaluateConfig(run, test, predictions=run / PREDICTIONS))
    manifest = json.loads((folder / "corpus" / "manifest.json").read_text(encoding="utf-8"))
    first, second = (json.loads((folder / f"pretrain-{n}" / "scores.json").read_text()) for n in (32, 64))
    f1, error = f1_of_names(pretrained, scratch, test)
    model = load(pretrained[0] / "model")
    return Results(
        folder=folder,
        model=pretrained[0] / "model",
        losses=(first["mlm"], second["mlm"]),
        unigram_entropy=manifest["splits"]["heldout"]["unigram_cross_entropy"],
        seeds=len(pretrained),
        f1=f1,
        error=error,
        examples=tuple((sentence, ", ".join(names(model, sentence)) or "none") for sentence in SENTENCES),
    )


def f1_of_names(pretrained: list[Path], scratch: list[Path], test: Path) -> tuple[tuple[float, float], float]:
    """Returns the mean F1 of names in the test passages with and without pre-training, and the standard error of the
    difference, from the passages (paired bootstrap) and the seeds of both sides."""
    truth = [json.loads(line)["tags"] for line in test.read_text(encoding="utf-8").splitlines()]

    def counts(run: Path) -> list[tuple[int, int, int]]:
        """Returns for each passage the numbers of correct, predicted and true names."""
        rows = []
        lines = (run / PREDICTIONS).read_text(encoding="utf-8").splitlines()
        for line, tags in zip(lines, truth, strict=True):
            predicted = json.loads(line)["tags"]
            hits = sum(a == b == "NAME" for a, b in zip(predicted, tags, strict=True))
            rows.append((hits, predicted.count("NAME"), tags.count("NAME")))
        return rows

    def f1(side: Any, passages: Any) -> Any:
        """Returns F1 of each seed."""
        hits, predicted, true = np.moveaxis(side[:, passages].sum(1), -1, 0)
        return 2 * hits / np.maximum(predicted + true, 1)

    with_counts, without_counts = (np.array([counts(run) for run in runs]) for runs in (pretrained, scratch))
    draws = np.random.default_rng(0).integers(0, len(truth), (1000, len(truth)))
    passages = np.std([f1(with_counts, draw).mean() - f1(without_counts, draw).mean() for draw in draws])
    a, b = f1(with_counts, slice(None)), f1(without_counts, slice(None))
    seeds = (a.var(ddof=1) + b.var(ddof=1)) / len(a)
    return (float(a.mean()), float(b.mean())), float(np.sqrt(passages**2 + seeds))


def names(model: TextModel, sentence: str) -> list[str]:
    """Returns the names in a sentence."""
    words = sentence.split()
    return [word for word, tag in zip(words, model({"tokens": words})["tags"], strict=True) if tag == "NAME"]
