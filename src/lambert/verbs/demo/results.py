"""The results of the demo as a table: the held-out loss, and the names that its models find with and without
pre-training."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lambert.inference.text_model import TextModel, load
from lambert.verbs.demo import ENCODER, REPORT, TUNED

SENTENCES = (
    '"i am not happy, mr. rochester," said jane.',
    '"my dear mr. bennet," said his lady to him one day.',
)
"""In lower case. Their names are of novels that are not in the data. The models of all seeds that were tried find these
names and no other word (docs/log.md, "Sentences of the demo")."""
COLUMNS = ("", "this model", "to compare with")


@dataclass(frozen=True, slots=True)
class Gain:
    """The F1 of the names with and without pre-training, and the difference."""

    f1: float
    """Mean over the seeds, with pre-training."""
    scratch: float
    """The same of fresh weights."""
    low: float
    """Lower end of the 95% interval of the difference."""
    high: float
    """Upper end."""
    seeds: int
    """Number of runs behind each mean."""

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """The rows of the table."""
        times = f"{self.f1 / self.scratch:.1f} times" if self.scratch else "from scratch, none is found"
        interval = f"95% interval {100 * self.low:+.1f} to {100 * self.high:+.1f}"
        return [
            (f"names found, F1, {self.seeds} seeds", f"{self.f1:.1%}", f"{self.scratch:.1%} (the same from scratch)"),
            ("what pre-training adds", f"{100 * (self.f1 - self.scratch):+.1f} points", f"{times}, {interval}"),
        ]


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a demo."""

    folder: Path
    """The folder of the demo."""
    loss: float
    """Held-out masked-LM loss, in nats."""
    unigram_entropy: float
    """The loss of predictions from the frequencies of the pieces, in nats."""
    gain: Gain | None = None
    """None in a short demo."""
    examples: tuple[tuple[str, str], ...] = ()
    """Sentences, and the names found in them."""

    @property
    def run(self) -> Path:
        """The run folder of the first fine-tuned model."""
        return self.folder / TUNED / "seed-1"

    def scores(self) -> dict[str, float]:
        """The results by name."""
        scores = {"mlm": self.loss}
        return scores if self.gain is None else {**scores, "f1": self.gain.f1, "f1_scratch": self.gain.scratch}

    def rows(self) -> list[tuple[str, str, str]]:
        """The rows of the table."""
        unigrams = f"{self.unigram_entropy:.2f} (frequencies of words alone)"
        loss = ("loss of masked words, held-out text", f"{self.loss:.2f} nats", unigrams)
        return [loss, *(self.gain.rows if self.gain else ())]

    def summary(self) -> dict[str, Any]:
        """The results for the report."""
        title = "Lambert demo: raw text to a scored model" if self.gain else "Lambert demo, short: all commands ran"
        found: dict[str, Any] = {
            "title": title,
            "tables": [{"caption": "What the model learned", "columns": COLUMNS, "rows": self.rows()}],
        }
        if self.examples:
            columns = ["text", "names found"]
            found["examples"] = [{"caption": "Names in lower case", "columns": columns, "rows": self.examples}]
        return found

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
        started = Path(sys.argv[0])  # as it was typed, where the environment is not active
        command = started if started.name == "lambert" and not shutil.which("lambert") else "lambert"
        if self.gain is None:
            console.print(
                "All commands ran, and pre-training began on the expected curve. A short demo has fewer updates than "
                "its recipe on purpose, too few for a meaningful score. "
                f"For a result, in 90 seconds on two cores: {command} demo",
                markup=False,
            )
        elif self.gain.low <= 0:
            console.print("The 95% interval contains 0: this run does not show that pre-training helped.")
        report, model = self.folder / REPORT, self.run / "model"
        places = {"model": str(model), **({"report": str(report)} if report.exists() else {})}
        if self.gain is not None:
            places["to try"] = f"{command} serve --model {shlex.quote(str(model))}"
        for name, place in places.items():
            console.print(f"{name:8}{place}", markup=False, soft_wrap=True)


def read_results(folder: Path, outcome: Mapping[str, Any] | None) -> Results:
    """Returns the results of the demo in `folder`; `outcome` is the comparison of its models, from scratch first, or
    None if there is none."""
    manifest = json.loads((folder / "corpus" / "manifest.json").read_text(encoding="utf-8"))
    scores = json.loads((folder / ENCODER / "scores.json").read_text(encoding="utf-8"))
    found = Results(folder, scores["mlm"], manifest["splits"]["heldout"]["unigram_cross_entropy"])
    if outcome is None:
        return found
    f1 = outcome["comparisons"][0]["scores"]["f1"]
    model = load(found.run / "model")
    return replace(
        found,
        gain=Gain(f1["second"], f1["first"], f1["low"], f1["high"], outcome["systems"][0]["seeds"]),
        examples=tuple((sentence, ", ".join(find_names(model, sentence)) or "none") for sentence in SENTENCES),
    )


def find_names(model: TextModel, sentence: str) -> list[str]:
    """Returns the names in a sentence."""
    found = model({"text": sentence})
    return [word for word, tag in zip(found["tokens"], found["tags"], strict=True) if tag == "NAME"]
