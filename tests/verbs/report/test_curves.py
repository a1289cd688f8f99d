"""Curves as they are drawn on the page."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.verbs.report import curves


def heights(svg: str) -> list[float]:
    """Heights of the points of the longest coloured path, from the top of the chart."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: var\(--run-0\)', svg)
    return [float(y) for _, y in re.findall(r"[ML] (\S+) (\S+)", max(paths, key=len))]


@pytest.mark.parametrize("noisy", [True, False])
def test_a_falling_loss_falls_on_the_page(noisy: bool) -> None:
    points = [(step, 8.0 - step / 20) for step in range(100)]
    drawn = heights(curves.draw(curves.Chart("Loss", [curves.Line(0, points)], noisy=noisy)))
    assert len(drawn) >= 2
    assert drawn == sorted(drawn)


def test_colours_are_the_pages() -> None:
    lines = [
        curves.Line(number, [(1, 1.0), (2, 2.0)], held_out=number % 2 == 1) for number in range(curves.COLOURS + 1)
    ]
    svg = curves.draw(curves.Chart("Loss", lines))
    assert "#fe0" not in svg
    for number in range(curves.COLOURS):
        assert f"var(--run-{number})" in svg
    assert "currentColor" in svg
    assert "var(--line)" in svg


def test_there_are_no_parts_of_updates() -> None:
    assert set(
        re.findall(r">([\d.]+)</text>", curves.draw(curves.Chart("Loss", [curves.Line(0, [(5, 3.0)])], ".0%")))
    ) == {"5"}


def test_one_point_and_a_constant_are_drawn() -> None:
    assert "var(--run-0)" in curves.draw(curves.Chart("Loss", [curves.Line(0, [(5, 1.0)])]))
    assert "var(--run-0)" in curves.draw(curves.Chart("Gradient norm", [curves.Line(0, [(1, 0.0), (2, 0.0)])]))
    assert "var(--run-0)" in curves.draw(curves.Chart("Gradient norm", [curves.Line(0, [(1, 1e-3), (2, 1e3)])]))


def test_a_single_point_has_a_marker() -> None:
    points = [(5, 1.0), (6, 1.0)]
    one, two = (curves.draw(curves.Chart("Loss", [curves.Line(0, points[:count])])) for count in (1, 2))
    assert re.search(r"<use [^>]*fill: var\(--run-0\)", one)
    assert not re.search(r"<use [^>]*fill: var\(--run-0\)", two)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2000))
def test_thinning_keeps_the_ends_and_the_mean(values: list[float]) -> None:
    points = list(enumerate(values))
    thin = curves._thin(points)
    assert len(thin) == min(len(points), curves.MOST_POINTS)
    assert [x for x, _ in thin] == sorted({x for x, _ in thin})
    lowest, highest = min(values), max(values)
    slack = 1e-9 * max(1.0, abs(lowest), abs(highest))
    assert all(lowest - slack <= y <= highest + slack for _, y in thin)
    smooth = curves._smooth(values)
    assert len(smooth) == len(values)
    assert all(lowest - slack <= y <= highest + slack for y in smooth)
