"""The figures as a table of at most 100 columns."""

from typing import Any

from lambert.wings.bench.environments import describe
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.work import OWN

NAME = 22
COLUMNS = {
    "sequences_per_second": ("sequences/s", ",.2f", 12),
    "tokens_per_second": ("real tokens/s", ",.0f", 14),
    "padded_tokens_per_second": ("padded", ",.0f", 11),
    "share_of_ceiling": ("ceiling", ".1%", 9),
    "milliseconds": ("ms", ",.2f", 11),
    "ns_per_parameter": ("ns/parameter", ",.3f", 14),
    "gb_per_second": ("GB/s", ",.1f", 8),
    "mb_per_second": ("MB/s", ",.2f", 10),
    "times_consumed": ("consumed", ",.1f", 10),
    "memory_mb": ("MB", ",", 8),
    "start_seconds": ("start s", ",.1f", 9),
    "build_seconds": ("build s", ",.1f", 9),
    "compile_seconds": ("compile s", ",.1f", 11),
}
"""By figure of a side: the heading, the format and the width of its column. A work shows the figures that it has."""


def table(config: BenchConfig, result: dict[str, Any]) -> list[str]:
    """Returns a line for each side, a line for each peer's ratio, and the ceilings."""
    sides = result["sides"]
    shown = {figure: column for figure, column in COLUMNS.items() if sides[OWN].get(figure) is not None}
    lines = [_title(config, result), " " * NAME + "".join(f"{head:>{width}}" for head, _, width in shown.values())]
    for name, side in sides.items():
        cells = [_cell(side.get(figure), form, width) for figure, (_, form, width) in shown.items()]
        lines.append(f"{name[: NAME - 1]:{NAME}}" + "".join(cells))
    for name, side in sides.items():
        if "ratio" in side:
            low, high = side["ratio_range"]
            lines.append(f"{side['ratio']} times {name} (round by round {low} to {high})")
            if tried := side["environments_tried"]:
                lines.append(f"    {name}: the fastest of {len(tried)} environments is {describe(side['environment'])}")
    return [*lines, *_ceilings(config, result)]


def _cell(value: float | None, form: str, width: int) -> str:
    return f"{'-' if value is None else format(value, form):>{width}}"


def _title(config: BenchConfig, result: dict[str, Any]) -> str:
    parts = [config.work]
    if result["unit"] == "parameters":
        parts.append(f"{config.size}, {result['parameters'] / 1e6:,.1f} million parameters")
    elif result["unit"] == "bytes":
        parts.append(f"{result['bytes'] / 1e6:,.1f} MB of text")
    if result["gflop"]:
        parts.append(config.size)
    if result["sequences"]:
        fill = result["tokens"] / result["sequences"] / config.length
        parts.append(f"{result['sequences']} sequences of up to {config.length} tokens, {fill:.0%} full")
    if result["gflop"]:
        parts.append(f"{config.precision}, dropout {config.dropout or 0:g}")
    return ", ".join([*parts, f"median of {config.rounds}"])


def _ceilings(config: BenchConfig, result: dict[str, Any]) -> list[str]:
    where = f"on {result['device']}, {result['threads']} threads"
    lines = []
    if result["ceiling_gflops"]:
        best = f"{result['ceiling_gflops']:,} GFLOP/s"
        product = "bfloat16" if config.precision in ("float8", "int8") else config.precision
        lines.append(f"ceiling: {best}, the best {product} matrix product {where}")
    if result["shaped_ceiling_gflops"]:
        share = result["sides"][OWN]["share_of_shaped_ceiling"]
        best = f"{result['shaped_ceiling_gflops']:,} GFLOP/s"
        lines.append(f"         {best}, the products of these layers alone (median); lambert reaches {share:.1%}")
    copies = f"{result['copy_gb_per_second']:,} GB/s"
    lines.append(f"memory copy: {copies}, read and written, {where}")
    return lines
