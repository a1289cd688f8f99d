"""Weak and strong scaling: what was measured here on two ranks and limited links, and what others published, beside the
planner's predictions, which go on to 4,096 devices.

    python -m benchmarks.scaling.run

Runs nothing: reads the logs of two_ranks, shared_cores, network (speed.jsonl) and plan (rows.jsonl), and writes the
tables into the README.md of this folder, and its plot.
"""

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.network.lab import bits_per_second
from benchmarks.network.model import step
from benchmarks.plan import run as plan
from benchmarks.scaling import extrapolated
from benchmarks.scaling.extrapolated import Series, by_chips, chip_hours, efficiency, on, rate, row_of
from benchmarks.support import experiment
from benchmarks.support.experiment import BENCHMARKS
from lambert.wings.plan.costs.steps import predict

MIXED = "lamb-64k-x1024"
"""The run of the LAMB paper with batches of 64k and 32k."""


def list_published() -> Iterator[list[Any]]:
    """Lines of chips, batch, sequences a chip, hours, and efficiency, published and predicted."""
    chips = by_chips()
    base = chips[min(chips)]
    for number, row in [*chips.items(), (row_of(MIXED)["devices"], row_of(MIXED))]:
        batches = [stage["batch"] for stage in row["stages"]]
        batch, each = batches[0], batches[0] // number
        shown = [batch, each] if batches[0] == batches[1] else ["64k, then 32k", "64, then 32"]
        share = chip_hours(base) / chip_hours(row)
        expected = plan.predict_row(base) * base["devices"] / (plan.predict_row(row) * number)
        hours = [f"{row['published']:.2f}", f"{plan.predict_row(row):.2f}"]
        yield [number, *shown, *hours, f"{share:.1%}", f"{expected:.1%}"]


def describe_times() -> str:
    """What the published times alone say, in words."""
    chips, mixed = by_chips(), row_of(MIXED)
    base, large = chips[min(chips)], chips[max(chips)]
    perfect, found, seconds = (3600 * hours for hours in (
        chip_hours(base) / large["devices"], large["published"], mixed["published"]
    ))  # fmt: skip
    updates = sum(stage["steps"] for stage in large["stages"])
    return (
        f"1,024 chips that lost nothing would take {perfect:,.0f} s. The run with 32k took {found:,.0f} s for "
        f"{updates:,} updates: {1000 * (found - perfect) / updates:.0f} ms more for each update than the "
        f"{3.6 * base['published']:.0f} ms of 16 chips. The mixed run took {seconds:,.0f} s for 8,599 updates, which "
        "is less than without any loss."
    )


def updates() -> Iterator[list[Any]]:
    """The parts of an update of 128 tokens by sequences a chip, in milliseconds, and a chip's sequences a second."""
    chips = by_chips()
    for row in (chips[min(chips)], chips[max(chips)], row_of(MIXED)):
        number, stage = row["devices"], row["stages"][0]
        found = predict(plan.work_of(row, stage), plan.devices_of(row))
        each = stage["batch"] // number
        parts = [f"{1000 * value:.1f}" for value in (*found.parts.values(), found.seconds)]
        yield [number, stage["batch"], each, *parts, f"{each / found.seconds:.0f}"]


def two_ranks() -> Iterator[list[Any]]:
    """Weak and strong scaling of two ranks of one core each, beside the planner."""
    together = extrapolated.together()
    alone = together[1, "float32"]["sequences_per_second"] / together[1, "float32"]["efficiency"]
    for (aggregate, method), row in together.items():
        low, high = row["efficiency_range"]
        planned = extrapolated.ranks_row(aggregate, method)
        shown = f"{row['efficiency']:.1%} ({low:.1%} to {high:.1%})"
        expected = efficiency(on(planned, 1, weak=True), planned)
        work = f"mini, {16 * aggregate} x 128 tokens a rank, {method}"
        yield ["weak", work, shown, f"{expected:.1%}", f"{row['sequences_per_second'] / alone:.1%}"]
    shared = experiment.select(experiment.read(BENCHMARKS / "shared_cores" / "log.jsonl"), load="ranks", variables={})
    for name, work, ranks, threads in (
        ("mini", "mini, 32 x 128 tokens in all", "ranks-mini-128-full", "zen5-mini-128-full"),
        ("names", "names of the demo, 8 x 36 tokens in all", "ranks-demo-names", "zen5-demo-names"),
    ):
        values = [row["share_of_quiet"] for row in experiment.select(shared, work=name)]
        shown = f"{statistics.median(values):.1%} ({min(values):.1%} to {max(values):.1%})"
        yield ["strong", f"{work}, beside one process with both cores", shown,
               f"{rate(row_of(ranks)) / rate(row_of(threads)):.1%}", ""]  # fmt: skip


def links() -> Iterator[list[Any]]:
    """Lines of a method, and for each rate the share of an update that does not wait, measured and predicted."""
    speed = experiment.read(BENCHMARKS / "network" / "speed.jsonl")
    rates = sorted({row["rate"] for row in speed}, key=bits_per_second, reverse=True)
    yield ["method", *rates]
    for method in dict.fromkeys(row["method"] for row in speed):
        cells = []
        for limit in rates:
            found = step(speed[0], method, bits_per_second(limit))
            measured = statistics.median(extrapolated.share_computing(speed, method, limit))
            cells.append(f"{measured:.0%} [{1 - found.exchange / found.seconds:.0%}]")
        yield [method, *cells]


def others() -> Iterator[list[Any]]:
    """Published runs on more than one device, beside the planner."""
    for row in plan.groups(plan.rows())["Published runs"]:
        if row["devices"] > 1:
            digits = ",.3g" if row["published"] < 100 else ",.0f"
            figures = [format(row["published"], digits), format(plan.predict_row(row), digits)]
            yield [row["publication"], row["id"], row["devices"], row["unit"], *figures, f"{plan.error(row):+.0%}"]


def curves(series: Iterable[tuple[Series, Mapping[int, float]]], words: str = "") -> experiment.Curves:
    """Returns the lines of a panel, what was measured and what is predicted, of the works whose names have `words`."""
    found: dict[str, list[tuple[float, list[float]]]] = {}
    for one, predicted in series:
        if words in one.work:
            for kind, shares in (("measured", one.measured), ("predicted", predicted)):
                if shares:
                    name = f"{one.short}, {kind}"
                    found[name] = [(devices, [100 * share]) for devices, share in shares.items()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of README.md and plot.svg")
    args = parser.parse_args()
    header, *rates = links()
    large, ranks, slow = (
        [(one, one.predict()) for one in some]
        for some in (extrapolated.list_published(), extrapolated.ranks(), extrapolated.links())
    )
    text = [
        "## BERT-Large with LAMB\n",
        experiment.table(
            ["TPUv3 chips", "batch", "a chip", "hours", "predicted", "efficiency, published", "predicted"],
            list_published(),
        ),
        f"\n{describe_times()}",
        "\nAn update of 128 tokens, in milliseconds, predicted:\n",
        experiment.table(
            ["chips", "batch", "a chip", "arithmetic", "memory", "kernels", "exchange", "waiting", "all",
             "sequences/s of a chip"], updates()
        ),
        "\n## Two ranks\n",
        experiment.table(["scaling", "work", "measured", "predicted", "against 16 sequences a rank"], two_ranks()),
        "\n## Limited links\n",
        experiment.table(header, rates),
        "\n## Continued to 4,096 devices\n",
        experiment.table(
            ["work", "scaling", "100% on", "measured", *(f"{devices:,}" for devices in extrapolated.SHOWN)],
            [extrapolated.line(*one) for one in (*large, *ranks, *slow)],
        ),
        "\n## Others\n",
        experiment.table(
            ["published by", "row", "devices", "unit", "published", "predicted", "error of the time"], others()
        ),
    ]  # fmt: skip
    panels = {
        "BERT-Large": curves(large),
        "BERT-mini, 128 tokens, float32, 10 Gbit/s": curves(ranks, "float32"),
        "BERT-mini, 4 x 64 tokens a core, 1 Gbit/s": curves(slow, "1gbit"),
    }
    experiment.plot(args.out / "plot.svg", panels, "devices", "efficiency, per cent")
    experiment.publish(args.out / "README.md", "\n".join(text))


if __name__ == "__main__":
    main()
