"""The table: rows as cells, on the screen and as a page of the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scripts.zoo.trial import (
    LEAST_MOVE,
    LEAST_PRUNABLE,
    LEAST_SEEN,
    LEAST_VARIATION,
    MOST_PLAN_SECONDS,
)
from trials.lively import MOST_RESPONSE, NUDGE
from upscale.verify import TOLERANCE

ERRORS = {"inputs": ("input",), "outputs": ("output",), "both": ("input", "output")}
HEADER = (
    *("model", "", *(f"relative error, {group}" for group in ERRORS), "if two channels swap"),
    *("layers pruned", "prunable", "frozen", "edges that copy", "plan s", "export s", "peak MiB"),
)


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    if "cases" not in row:
        return [row["model"], row["status"], row["error"], *[""] * (len(HEADER) - 3)]

    def each(show: Callable[[Mapping[str, Any]], str], sides: Sequence[str] = ()) -> str:
        mine = (case for case in row["cases"] if not sides or tuple(case["sides"]) == sides)
        return " / ".join(show(case) for case in mine) or "–"

    frozen = [f"{share:.1%} {operation}" for operation, share in row["frozen"].items()]
    return [
        row["model"],
        row["status"],
        *(each(lambda case: f"{case['relative_error']:.0e}", sides) for sides in ERRORS.values()),
        each(lambda case: f"{case['swaps_seen']:.0e}"),
        each(lambda case: str(case["layers_pruned"])) + f" of {row['layers']}",
        f"{row['prunable']:.1%}",
        ", ".join(frozen) or "–",
        each(lambda case: f"{case['copies']} of {case['reads']}"),
        each(lambda case: f"{case['plan_seconds']:.2f}"),
        each(lambda case: f"{case['export_seconds']:.2f}"),
        f"{row['peak_mib']:,.0f}",
    ]


def summary(rows: list[dict[str, Any]]) -> str:
    """The sentence above the table."""
    exact = sum(row["status"] == "exact" for row in rows)
    cases = [case for row in rows for case in row.get("cases", ())]
    if not cases:
        return f"{exact} of {len(rows)} models exact."
    slowest = max(case["plan_seconds"] for case in cases)
    worst = max(case["relative_error"] for case in cases)
    return (
        f"{exact} of {len(rows)} models exact at {TOLERANCE:.0e}; largest relative error "
        f"{worst:.0e}, slowest plan {slowest:.1f} s."
    )


def document(rows: list[dict[str, Any]], about: Mapping[str, str]) -> str:
    """The page for the docs."""
    names = " / ".join(about["cases"].split("; "))
    table = [HEADER, ["---"] * len(HEADER), *(cells(row) for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join(
        [
            "# Every torchvision classifier",
            "",
            summary(rows),
            "",
            f"Written by `{about['command']}` on {about['date']}: torch {about['torch']}, "
            f"torchvision {about['torchvision']}, Python {about['python']}, one thread.",
            "",
            "Every convolution and linear drops a share of its input channels at random, of its "
            f"output channels, or of both: {names}, in this order where a cell has several "
            "numbers. Weights are random and scaled so that "
            "the output follows the input through all layers, and calmly: one rounding of the "
            f"input may move the masked model's output by at most {MOST_RESPONSE:.0e}. The "
            "exported model is compared with the masked one in float64.",
            "",
            f"A row fails where the relative error exceeds {TOLERANCE:.0e}, where outputs for "
            f"different images are less than {LEAST_VARIATION:.0%} apart, where moving pixels "
            f"by {NUDGE:.0e} moves them by less than {LEAST_MOVE:.0e}, where a wrong export "
            f"differs by less than {LEAST_SEEN:.0e}, where a plan takes more than "
            f"{MOST_PLAN_SECONDS:.0f} s, or where a model without attention has less than "
            f"{LEAST_PRUNABLE:.0%} of its weights in prunable layers.",
            "",
            "- **if two channels swap**: the relative error of a wrong export, in which two "
            "output channels of one layer trade their weights: the least of four layers from the "
            "first to the last.",
            "- **layers pruned**: convolutions and linears whose weight is smaller in the "
            "export, of those that evaluation reaches.",
            "- **prunable**: share of convolution and linear weights in layers whose input "
            "channels or output channels can leave. Columns that read the model's input or a "
            "frozen tensor leave too, but do not count.",
            "- **frozen**: share of all parameters that stay whole, by the operation that keeps "
            "them so.",
            "- **edges that copy**: reads that gather or copy by runs, of all reads of a tensor "
            "with channels in the export.",
            "- **plan s** includes capture; **export s** excludes verification. Both are processor "
            "time, after a first capture, in which torch imports what it needs.",
            "- **peak MiB** is the whole process, float64 verification included.",
            "",
            *lines,
            "",
        ]
    )


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = [list(HEADER), *(cells(row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(HEADER))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    print(summary(rows))
