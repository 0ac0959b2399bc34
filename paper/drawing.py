"""Figures: panels of lines, and bars, drawn with matplotlib where it is installed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLOURS = ("#3b6ea8", "#c8553d", "#4f9d69", "#8d5a97", "#c79a2b", "#5b5b5b")
OURS, OTHER, BOUND = "-", "--", ":"


@dataclass(frozen=True, slots=True)
class Line:
    """Points that belong together, joined in their order; those without a value are left out."""

    label: str
    points: Sequence[tuple[float, float | None]]
    style: str = OURS
    colour: str = COLOURS[0]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure, with a level to compare with if there is one."""

    title: str
    lines: Sequence[Line]
    level: float | None = None


def draw(
    path: Path, panels: Sequence[Panel], *, x_label: str, y_label: str, columns: int = 4
) -> None:
    """A figure of panels, side by side and below each other; says where it is."""
    pyplot = _pyplot(path)
    if pyplot is None or not panels:
        return
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (4.2 * columns + 1, 3.2 * rows + 0.8)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    flat = [axis for row in axes for axis in row]
    for axis, panel in zip(flat, panels, strict=False):
        for line in panel.lines:
            points = [(x, y) for x, y in line.points if y is not None]
            axis.plot(
                [x for x, _ in points],
                [y for _, y in points],
                line.style,
                marker=".",
                markersize=4,
                color=line.colour,
                label=line.label,
            )
        if panel.level is not None:
            axis.axhline(panel.level, color="#999999", linewidth=0.8)
        axis.locator_params(axis="x", nbins=6)
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(x_label, fontsize=8)
        axis.set_ylabel(y_label, fontsize=8)
    for axis in flat[len(panels) :]:
        axis.set_axis_off()
    most = max(range(len(panels)), key=lambda place: len(panels[place].lines))
    flat[most].legend(fontsize=7)
    _save(pyplot, figure, path)


def draw_bars(
    path: Path, names: Sequence[str], series: Mapping[str, Sequence[float | None]], *, y_label: str
) -> None:
    """Bars by name, one of each series side by side; says where the figure is."""
    pyplot = _pyplot(path)
    if pyplot is None or not names:
        return
    figure, axis = pyplot.subplots(figsize=(0.7 * len(names) + 3, 4))
    width = 0.8 / len(series)
    for turn, (label, values) in enumerate(series.items()):
        places = [n + (turn + 0.5) * width - 0.4 for n in range(len(names))]
        heights = [0.0 if value is None else value for value in values]
        axis.bar(places, heights, width, label=label, color=COLOURS[turn % len(COLOURS)])
    axis.axhline(0, color="#999999", linewidth=0.8)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_ylabel(y_label)
    axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(series))
    _save(pyplot, figure, path)


def _pyplot(path: Path) -> Any:
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        print(f"\n{path.name} is not drawn: pip install upscale[plot]")
        return None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"\nDrawn: {path.name}")
