"""The scripts that measure the paper's results again: their grids, counts and averages."""

from __future__ import annotations

import pytest

from paper import headlines, single_branch
from paper.common import table
from upscale.sweep import Cell, Trial


def test_a_resnets_single_branch_convolutions_are_the_first_of_each_block() -> None:
    trial = Trial(Cell("torchvision:resnet18", "paper.single_branch:convolutions", 0.0))
    assert single_branch.convolutions.measure(trial) == {"all": 20, "single_branch": 8}


@pytest.mark.parametrize("quick", [True, False])
def test_every_grid_has_cells(quick: bool) -> None:
    for grid in (
        *headlines.grids((0.1, 0.3), quick=quick),
        *single_branch.grids(("resnet18",), runs=5),
    ):
        assert grid.cells()


def test_gains_and_savings_compare_cells_that_differ_in_one_setting() -> None:
    free = Cell("a:net", "accuracy", 0.1, constraint="none")
    bound = Cell("a:net", "accuracy", 0.1, constraint="segment")
    alone = Cell("a:net", "accuracy", 0.2, constraint="none")
    top1 = {free: 90.0, bound: 80.0, alone: 70.0}
    found = {cell: {"top1_percent": own} for cell, own in top1.items()}
    assert headlines.accuracy_gains(found) == {"net": [10.0]}
    ours, plain = Cell("a:net", "latency", 0.1), Cell("a:net", "latency", 0.1, method="none")
    found = {ours: {"ratio": 0.6}, plain: {"ratio": 0.8}}
    assert headlines.latency_savings(found)["net"] == [pytest.approx(25.0)]


def test_the_papers_averages_leave_out_what_it_does_not_give() -> None:
    own = {
        "accuracy_unconstrained_pct": [50.0, None],
        "accuracy_constrained_pct": [40.0, 30.0],
        "latency_upscale_ms": [[0.9, 0.1], None],
        "latency_baseline_ms": [[1.0, 0.1], [1.0, 0.1]],
    }
    gains, savings = headlines.paper_gains({"models": {"net": {"L1": own}}})
    assert gains == {"net": [10.0]}
    assert savings["net"] == [pytest.approx(10.0)]
    assert list(headlines.rows({}, gains)) == [("net", None, 0, 10.0), ("all", None, 0, 10.0)]


def test_a_table_shows_what_is_absent_as_a_dash() -> None:
    assert table(["a", "b"], [(1.25, None)]).splitlines()[-1] == "| 1.2 | – |"
