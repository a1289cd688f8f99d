"""The figures for people, within 100 columns."""

from typing import Any

from lambert.stages.bench.config import BenchConfig

NAME = 22


def table(config: BenchConfig, result: dict[str, Any]) -> str:
    """What was measured, a line for each side, a line for each peer's ratio, and the ceilings."""
    unit, found = result["unit"], result["sides"]
    lines = [_title(config, result)]
    columns = {
        "sequences/s": ("sequences_per_second", ",.2f", 12),
        f"real {unit}/s": (f"{unit}_per_second", ",.0f", 17),
        "padded": (f"padded_{unit}_per_second", ",.0f", 11),
        "ceiling": ("share_of_ceiling", ".1%", 9),
        "memory": ("memory_mb", ",", 9),
        "build s": ("build_seconds", ",.1f", 9),
        "compile s": ("compile_seconds", ",.1f", 11),
    }
    columns = {head: column for head, column in columns.items() if found["lambert"][column[0]] is not None}
    lines.append(" " * NAME + "".join(f"{head:>{width}}" for head, (_, _, width) in columns.items()))
    for name, side in found.items():
        cells = [f"{format(side[key], form):>{width}}" for key, form, width in columns.values()]
        lines.append(f"{name[: NAME - 1]:{NAME}}" + "".join(cells))
    for name, side in found.items():
        if "ratio" in side:
            low, high = side["ratio_range"]
            lines.append(f"{side['ratio']} times {name} (round by round {low} to {high})")
    return "\n".join([*lines, *_ceilings(config, result)])


def _title(config: BenchConfig, result: dict[str, Any]) -> str:
    parts = [config.work, config.size]
    if result["sequences"]:
        fill = result["tokens"] / result["sequences"] / config.length
        parts.append(f"{result['sequences']} sequences of up to {config.length} tokens, {fill:.0%} full")
    if result["gflop"]:
        parts.append(f"{config.precision}, dropout {config.dropout:g}")
    return ", ".join([*parts, f"median of {config.rounds}"])


def _ceilings(config: BenchConfig, result: dict[str, Any]) -> list[str]:
    where = f"{result['device']}, {result['threads']} threads"
    lines = []
    if result["ceiling_gflops"]:
        lines.append(
            f"ceiling: {result['ceiling_gflops']:,} GFLOP/s, the best {config.precision} matrix product on {where}"
        )
    if result["shaped_ceiling_gflops"]:
        share = result["sides"]["lambert"]["share_of_shaped_ceiling"]
        lines.append(
            f"         {result['shaped_ceiling_gflops']:,} GFLOP/s in the shapes of this batch: lambert {share:.1%}"
        )
    lines.append(f"memory copy: {result['copy_gb_per_second']:,} GB/s; ceilings are taken between the rounds")
    return lines
