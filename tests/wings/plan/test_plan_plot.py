"""The plot of `lambert plan`."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import one_line
from plans import LAMB, PRETRAIN, Lambert, found

from lambert.wings.plan import plot


def test_the_plot_has_the_choices_and_the_limits(lambert: Lambert, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = tmp_path / "plan.svg"
    command = (LAMB, "--device=A100-80GB,H100", "--price=A100-80GB=1.8,H100=3", f"--plot={written}")
    result = found(lambert, *command, "--budget=500USD", "--deadline=2d")
    root = ElementTree.parse(written).getroot()
    texts = {"".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {
        "lamb-large-128: time against cost of the choices", "time of the run (hours)", "cost of the run (USD)",
        "chosen", "over the budget or the deadline", "efficient: no other is both faster and cheaper",
        "A100-80GB", "H100", "budget: 500USD", "deadline: 2d",
    } <= texts  # fmt: skip
    for row in result["efficient"]:
        each = f"{row['nodes']} x {row['devices'] // row['nodes']}" if row["nodes"] > 1 else str(row["devices"])
        assert f"{each} {row['device']}" in texts
    first = written.read_bytes()
    found(lambert, *command, "--budget=500USD", "--deadline=2d")
    assert written.read_bytes() == first
    alone = lambert("plan", PRETRAIN, "--device=T4", f"--plot={written}")
    assert alone.code == 0, alone.err
    assert "over the budget or the deadline" not in written.read_text()
    assert "cost of the run (device-hours)" in written.read_text()


def test_a_plot_replaces_only_a_plot_and_needs_matplotlib(
    lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "logo.svg"
    other.write_text("<svg/>")
    command = (PRETRAIN, "--device=T4", f"--plot={other}")
    monkeypatch.setattr(plot, "find_spec", lambda name: object())
    one_line(lambert("plan", *command), 2, "`lambert plan` did not write it: name another file")
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    one_line(lambert("plan", *command), 2, "plot needs matplotlib: pip install 'lambert-bert[report]'")
    assert other.read_text() == "<svg/>"
