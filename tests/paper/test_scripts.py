"""The scripts that measure the paper's results again: their grids, counts, tables and averages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import upscale
from paper import (
    accuracy,
    constraints,
    fine_tuned,
    first_figure,
    gain_by_model,
    headlines,
    input_output,
    latency,
    nets,
    page,
    single_branch,
    subjects,
    tables,
    tradeoff,
)
from paper.common import NEARLY_ALL, ROOT, STEPS, ahead, chosen, paper_number, table
from upscale.lab.sweep.metrics import metric_of
from upscale.sweep import Cell, Trial, read_records

RACE: dict[str, Any] = {
    f"{name}_{what}": value
    for name, ratio in (("unpruned", 1.0), ("ours", 0.6), ("baseline", 0.8), ("zero_copy", 0.5))
    for what, value in (
        ("ratio", ratio),
        ("mean_ms", 10 * ratio),
        ("deviation_ms", 0.1),
        ("peak_bytes", 1_000_000),
    )
}
TABLES: dict[str, Any] = {
    "amounts_pct": [10, 30],
    "models": {
        "net": {
            "L2": {
                "accuracy_unconstrained_pct": [50.0, None],
                "accuracy_constrained_pct": [40.0, 30.0],
                "latency_upscale_ms": [[0.9, 0.1], None],
                "latency_baseline_ms": [[1.0, 0.1], [1.0, 0.1]],
                "latency_zero_copy_ms": [[0.8, 0.1], [1.0, 0.1]],
            }
        }
    },
}


def told(*, quick: bool = False, imagenet: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        quick=quick, imagenet=imagenet, models=None, criteria=None, amounts=None, images=None
    )


def test_a_resnets_single_branch_convolutions_are_the_first_of_each_block() -> None:
    trial = Trial(Cell("torchvision:resnet18", "paper.single_branch:convolutions", 0.0))
    assert single_branch.convolutions.measure(trial) == {"all": 20, "single_branch": 8}


@pytest.mark.parametrize("imagenet", [None, Path("images")])
@pytest.mark.parametrize("quick", [True, False])
def test_every_grid_has_cells(
    quick: bool, imagenet: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nets.cifar, "resnets", lambda: ["resnet20"])
    monkeypatch.setattr(nets.subjects, "trained_names", lambda: ["densenet"])
    arguments = told(quick=quick, imagenet=imagenet)
    if imagenet is not None and not quick:
        arguments.models = ("resnet18",)
    scripts = (
        accuracy,
        constraints,
        first_figure,
        headlines,
        latency,
        tables,
        tradeoff,
        fine_tuned,
    )
    for script in scripts:
        assert all(grid.cells() for grid in script.grids(arguments)), script.__name__
    assert all(grid.cells() for grid in single_branch.grids(("resnet18",), runs=5))


def test_a_script_measures_what_it_is_asked_for_of_what_there_is() -> None:
    assert chosen(None, ("a", "b", "c"), few=("b",)) == ["b"]
    assert chosen(("c", "a"), ("a", "b", "c"), few=("b",)) == ["a", "c"]
    with pytest.raises(SystemExit, match="no d here; there is a, b"):
        chosen(("d",), ("a", "b"), few=())


def test_every_script_measures_the_amounts_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nets.cifar, "resnets", lambda: ["resnet20"])
    arguments = told()
    arguments.amounts = (0.2, 0.35)
    scripts = (accuracy, constraints, first_figure, headlines, latency, tradeoff, fine_tuned)
    for script in scripts:
        asked = {cell.amount for cell in cells(script, arguments) if cell.segments == "all"}
        assert asked == {0.2, 0.35}, script.__name__


def test_fewer_test_images_are_other_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nets.cifar, "resnets", lambda: ["resnet20"])
    few, every = told(), told()
    few.images = 1000
    assert not {*cells(accuracy, few)} & {*cells(accuracy, every)}
    assert nets.images_of(few) == "CIFAR-10, 1,000 images"
    assert nets.images_of(every) == "CIFAR-10"


def test_no_record_of_the_jpeg_copy_is_taken_for_one_of_the_lossless_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nets.cifar, "resnets", lambda: ["resnet20", "resnet56"])
    monkeypatch.setattr(nets.subjects, "trained_names", lambda: list(subjects.BUILDERS))
    few = told()
    few.images = 1000
    asked = {
        cell
        for script in (accuracy, constraints, input_output, tradeoff, fine_tuned)
        for cell in cells(script, few)
        if cell.model.startswith(("paper.cifar:", "paper.subjects:"))
    }
    assert asked
    assert all(str(cell.sample).startswith("paper.lossless:") for cell in asked)
    recorded = {record.cell for record in read_records(ROOT / "paper" / "records.sqlite")}
    of_jpeg = {cell for cell in recorded if str(cell.sample).startswith("paper.cifar:")}
    assert not asked & of_jpeg


def cells(script: Any, arguments: argparse.Namespace) -> Iterator[Cell]:
    for grid in script.grids(arguments):
        yield from grid.cells()


def test_accuracy_is_measured_in_steps_of_two_and_a_half_percent() -> None:
    assert STEPS[:3] == (0.0, 0.025, 0.05)
    assert len(STEPS) == 41
    assert STEPS[-2:] == (0.975, 0.999)


def test_gains_compare_cells_that_differ_in_one_setting_and_savings_one_race() -> None:
    free = Cell("a:net", "accuracy", 0.1, constraint="none")
    bound = Cell("a:net", "accuracy", 0.1, constraint="segment")
    alone = Cell("a:net", "accuracy", 0.2, constraint="none")
    top1 = {free: 90.0, bound: 80.0, alone: 70.0}
    found = {cell: {"top1_percent": own} for cell, own in top1.items()}
    assert headlines.accuracy_gains(found) == {"net": [10.0]}
    assert headlines.accuracy_gains(found, within=(0.1, 0.1)) == {"net": [10.0]}
    assert headlines.accuracy_gains(found, within=(0.2, 0.3)) == {}
    found = {Cell("a:net", "race", 0.1): RACE}
    assert headlines.latency_savings(found)["net"] == [pytest.approx(25.0)]


def test_the_papers_averages_leave_out_what_it_does_not_give() -> None:
    gains, savings = headlines.paper_gains(TABLES)
    assert gains == {"net": [10.0]}
    assert savings["net"] == [pytest.approx(10.0)]
    assert list(headlines.rows({}, gains)) == [("net", None, 0, 10.0), ("all", None, 0, 10.0)]


def test_the_papers_number_is_that_of_the_same_model_criterion_and_amount() -> None:
    quantity = "accuracy_constrained_pct"
    assert paper_number(TABLES, "net", "l2", quantity, 0.3) == 30.0
    assert paper_number(TABLES, "net", "l2", quantity, 0.2) is None
    assert paper_number(TABLES, "net", "l1", quantity, 0.3) is None
    assert paper_number({}, "net", "l2", quantity, 0.3) is None


def test_efficientnets_have_a_table_of_their_own() -> None:
    own = {"unconstrained": [76.2], "constrained": [75.9]}
    tables = {"efficientnet_lamp_accuracy_pct": {"amounts_pct": [10], "efficientnet_b1": own}}
    found = accuracy.paper_accuracy(tables, "efficientnet_b1", "lamp", "segment", 0.1)
    assert found == 75.9
    assert accuracy.paper_accuracy(tables, "efficientnet_b1", "l1", "segment", 0.1) is None


def test_a_row_of_accuracies_holds_both_constraints_and_the_papers() -> None:
    found = {
        Cell("a:net", "accuracy", 0.1, constraint="none"): {"top1_percent": 90.0},
        Cell("a:net", "accuracy", 0.1, constraint="segment"): {"top1_percent": 80.0},
    }
    assert list(accuracy.rows(found, TABLES)) == [["net", "L2", "10", 90.0, 80.0, 50.0, 40.0]]
    (panel,) = accuracy.panels(found, "constraint", accuracy.CONSTRAINTS)
    assert [line.points for line in panel.lines] == [[(10.0, 90.0)], [(10.0, 80.0)]]


def test_gains_by_model_stand_beside_the_papers_means() -> None:
    tables = {"headlines": {"resnet50_mean_gain_points": 3.1}}
    rows = gain_by_model.rows({"resnet50": [1.0, 3.0]}, {"resnet50": [3.0]}, tables)
    assert rows[0] == ("resnet50", 2.0, 2, 3.0, 3.0, 1, 3.0, 3.1)
    assert gain_by_model.rows({}, {}, tables)[0][-1] is None


def test_gains_by_criterion_are_of_amounts_that_leave_something() -> None:
    found = {
        Cell("a:net", "accuracy", amount, importance="l1", constraint=constraint): {
            "top1_percent": top1
        }
        for constraint, amount, top1 in (
            ("none", 0.1, 90.0),
            ("segment", 0.1, 80.0),
            ("none", 0.9, 11.0),
            ("segment", 0.9, 10.0),
        )
    }
    assert gain_by_model.by_criterion(found) == [("net", 10.0, None, None, None, None)]


def test_sides_are_compared_at_amounts_that_both_have() -> None:
    found = {
        Cell("a:net", "accuracy", 0.1, side="input"): {"top1_percent": 90.0},
        Cell("a:net", "accuracy", 0.1, side="output"): {"top1_percent": 80.0},
        Cell("a:net", "accuracy", 0.2, side="input"): {"top1_percent": 10.0},
    }
    assert list(input_output.rows(found)) == [("net", "L2", 90.0, 80.0, 10.0, "1 of 1")]


def test_latencies_are_compared_as_shares_of_the_baseline() -> None:
    found = {Cell("a:net", "race", 0.1): RACE}
    ((name, count, ours, paper, *_),) = latency.rows(found, TABLES)
    assert (name, count, ours, paper) == ("net", 1, "0.750", "0.900")
    (panel,) = latency.panels(found)
    assert [line.points for line in panel.lines] == [[(10.0, 0.6)], [(10.0, 0.8)], [(10.0, 0.5)]]


def test_a_result_table_has_a_row_for_each_export() -> None:
    rows = list(tables.rows({Cell("a:net", "race", 0.1): RACE}, TABLES))
    assert [row[3] for row in rows] == ["ours", "baseline", "zero-copy"]
    assert rows[0][4:6] == ("6.00 ± 0.100", "0.90 ± 0.100")


def test_the_first_figure_shows_ours_and_the_baseline() -> None:
    found = {Cell("torchvision:mobilenet_v3_small", "race", 0.95): RACE}
    (row,) = first_figure.rows(found, {})
    assert row == ["L2", "95", "0.600", "6.00", None, "0.800", "8.00", None]
    (panel,) = first_figure.panels(found)
    assert [line.label for line in panel.lines] == ["L2, ours", "L2, baseline"]


def test_a_race_holds_all_exports_against_the_unpruned_model() -> None:
    cell = Cell("upscale:digits", "race", 0.4, shape="1,1,8,8", runtime="torchscript", runs=2)
    assert (
        cell.settled()
        == Cell(
            "upscale:digits",
            "race",
            0.4,
            method="none",
            shape="1,1,8,8",
            runtime="torchscript",
            runs=2,
        ).settled()
    )
    found = dict(metric_of("race").measure(Trial(cell)))
    json.dumps(found)
    for name in ("unpruned", "ours", "baseline", "zero_copy"):
        assert found[f"{name}_mean_ms"] > 0
        assert found[f"{name}_deviation_ms"] >= 0
        assert found[f"{name}_peak_bytes"] > 0
    assert found["ours_ratio"] == found["ours_median_ms"] / found["unpruned_median_ms"]


@pytest.mark.parametrize("name", subjects.BUILDERS)
def test_subjects_are_small_and_tell_ten_classes_apart(name: str) -> None:
    model = subjects.BUILDERS[name]().eval()
    assert sum(2 * own.numel() for own in model.state_dict().values()) < 2_000_000
    with torch.inference_mode():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_a_table_shows_what_is_absent_as_a_dash() -> None:
    assert table(["a", "b"], [(1.25, None)]).splitlines()[-1] == "| 1.2 | – |"


def test_accuracies_after_each_epoch_stand_in_one_row() -> None:
    now = Cell("a:net", "accuracy", 0.5, importance="lamp", constraint="none")
    then = Cell("a:net", fine_tuned.TUNED, 0.5, importance="lamp", constraint="none")
    epochs = [{"number": n, "top1_percent": 50.0 + n} for n in range(1, 6)]
    found = {now: {"top1_percent": 9.0}, then: {"top1_percent": 55.0, "epochs": epochs}}
    (row,) = fine_tuned.rows(found)
    assert row == ("net", "50", "unconstrained", 9.0, 51.0, 52.0, 53.0, 54.0, 55.0)
    assert [len(panel.lines[0].points) for panel in fine_tuned.panels(found)] == [1, 5, 1]


def test_tradeoffs_put_accuracy_beside_macs_and_the_papers_numbers() -> None:
    own = {"segments": "all", "amount": 0.1}
    found = {
        Cell("paper.imagenet:resnet18", "accuracy", **own): {"top1_percent": 60.0},
        Cell("paper.imagenet:resnet18", "macs", **own): {"exported": 1_500_000_000},
    }
    paper = {"all": {"gflops": [1.6], "accuracy_pct": [54.88]}}
    tables = {"fine_tuned_1_epoch_l2": {"amounts_pct": [10], "models": {"ResNet18": paper}}}
    (row,) = tradeoff.rows(found, [0.1], {"resnet18": {"all": 1.0}}, tables)
    assert row == ["resnet18", "all", "10", "1.5000", None, 60.0, None, None, None, 54.88, 1.6]
    (panel,) = tradeoff.panels(found, "gmacs", tuned=False)
    assert [line.points for line in panel.lines] == [[], [(1.5, 60.0)]]


def test_single_branch_segments_give_more_of_theirs_for_the_same_share_of_all_channels() -> None:
    parts = tradeoff.parts("torchvision:resnet18", "1,3,64,64")
    # The second convolutions of all blocks read 1,920 channels, all layers after the first 4,352.
    assert parts == {"single-branch": 1920 / 4352, "all": 1.0}
    assert tradeoff.asked(0.1, parts["single-branch"]) == pytest.approx(0.1 * 4352 / 1920)
    assert tradeoff.asked(0.9, parts["single-branch"]) == NEARLY_ALL


def test_latency_and_accuracy_of_one_selection_are_one_point() -> None:
    found = {
        Cell("a:net", "accuracy", 0.1, constraint="segment"): {"top1_percent": 80.0},
        Cell("a:net", "latency", 0.1, constraint="segment", runs=5): {"ratio": 0.75},
        Cell("a:net", "accuracy", 0.1, segments="single-branch"): {"top1_percent": 60.0},
        Cell("a:net", constraints.PEER_METRIC, 0.1): {"top1_percent": 70.0, "ratio": 0.7},
    }
    told = constraints.points(found)
    assert told["net", "segment", 0.1] == {"top1": 80.0, 1: 0.75}
    (row,) = constraints.rows(told)
    assert row[:4] == ["net", "10", None, None]
    assert row[4:] == ["80.0 at 0.75, –", "60.0 at –, –", "70.0 at 0.70, –"]
    single, _ = constraints.panels(told)
    assert [(line.label, line.points) for line in single.lines] == [
        ("segment", [(0.75, 80.0)]),
        ("Torch-Pruning", [(0.7, 70.0)]),
    ]


def test_curves_are_compared_where_both_are_known() -> None:
    one = [(2.0, 30.0), (0.0, 10.0)]
    assert ahead(one, [(0.5, 10.0), (2.0, 31.0), (2.5, 0.0)]) == 2.0
    assert ahead(one, [(2.5, 0.0)]) is None
    assert ahead([], one) is None


def test_ways_to_prune_are_compared_at_the_same_latency() -> None:
    told: constraints.Points = {
        ("net", "none", 0.1): {1: 1.0, "top1": 80.0},
        ("net", "none", 0.2): {1: 0.8, "top1": 60.0},
        ("net", "segment", 0.1): {1: 0.9, "top1": 65.0},
    }
    alone, many = constraints.gains(told)
    assert alone == ["net", 1, "+5.0", None, None, None]
    assert many == ["net", 32, None, None, None, None]


def test_the_peer_prunes_single_branch_segments_where_it_breaks_the_others() -> None:
    whole = Cell("a:dense", constraints.PEER_METRIC, 0.1)
    part = Cell("a:padded", constraints.PEER_METRIC, 0.1)
    found = {whole: {"segments": "all"}, part: {"segments": "single-branch"}}
    assert constraints.partly(found) == ["padded"]


def test_all_segments_are_compared_with_single_branch_ones_at_the_same_cost() -> None:
    found: dict[Cell, dict[str, Any]] = {}
    for segments, amount, macs, top1 in (
        ("all", 0.1, 4e9, 80.0),
        ("all", 0.2, 2e9, 60.0),
        ("single-branch", 0.1, 3e9, 50.0),
    ):
        own: dict[str, Any] = {"segments": segments, "amount": amount}
        found[Cell("a:net", "accuracy", **own)] = {"top1_percent": top1}
        found[Cell("a:net", "macs", **own)] = {"exported": macs}
    assert list(tradeoff.gains(found)) == [["net", "+20.0", None, None, None]]


def test_the_first_figure_tells_from_where_on_an_export_is_faster() -> None:
    slow = {**RACE, "ours_ratio": 1.1, "baseline_ratio": 1.2}
    model = "torchvision:mobilenet_v3_small"
    found = {Cell(model, "race", 0.05): slow, Cell(model, "race", 0.4): RACE}
    assert list(first_figure.summary(found)) == [
        "- ours: below the unpruned model from 40% on; at best 0.60 of its latency",
        "- baseline: below the unpruned model from 40% on; at best 0.80 of its latency",
    ]
    (ours, _) = first_figure.summary({Cell(model, "race", 0.05): slow})
    assert ours == "- ours: never below the unpruned model; at best 1.10 of its latency"


def test_the_page_shows_the_results_as_they_are_recorded() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, page.RESULTS) == text, "python -m paper.page"
    assert len(page.PLACE.findall(text)) >= 9


def test_a_page_may_show_some_paragraphs_of_a_result(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("one\n\ntwo\n\nthree\n\nDrawn: a.png\n")
    place = "x\n<!-- results: a{} -->\nold\n<!-- end -->\ny\n"
    whole, part = place.format(""), place.format(" 2-3")
    assert page.filled(whole, tmp_path).split() == (
        "x <!-- results: a --> one two three <!-- end --> y".split()
    )
    assert page.filled(part, tmp_path).split() == (
        "x <!-- results: a 2-3 --> two three <!-- end --> y".split()
    )


@pytest.mark.parametrize("name", subjects.trained_names())
def test_trained_subjects_are_exported_exactly(name: str) -> None:
    model = subjects.trained(name).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    selection = upscale.select(model, x, amount=upscale.Parameters(0.2), importance="l1")
    masked = upscale.mask(model, selection)
    exported = upscale.export(model, upscale.plan(model, x, selection))
    with torch.inference_mode():
        expected = masked(x)
        torch.testing.assert_close(exported(x), expected, rtol=1e-10, atol=1e-10)
        assert (model(x) - expected).abs().max() > 1e-3
