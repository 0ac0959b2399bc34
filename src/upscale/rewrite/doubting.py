"""Plans that were read from a document are not trusted: what they export is held against what
they say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from upscale import oracle
from upscale.capture import Captured, Example
from upscale.errors import CaptureError, ExampleError, PlanError
from upscale.model.layers import KINDS, check_fits, column_axis, weight_names, weight_of
from upscale.planning import Plan
from upscale.selected.selection import Selection
from upscale.tools.grouping import grouped
from upscale.verify.comparing import Maker, compare


@contextmanager
def doubted(plan: Plan) -> Iterator[None]:
    """Whatever a plan that was read brings about is a `PlanError`."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:  # a plan that was tampered with may fail anywhere
        if isinstance(error, (CaptureError, ExampleError)) and not plan.held:
            raise  # the model itself, or the example, cannot be captured
        raise PlanError(
            f"the plan does not fit the model ({type(error).__name__}: {error!s:.200}); make the "
            "plan again"
        ) from error


def check_sizes(plan: Plan, captured: Captured) -> None:
    """Raise if a plan asks for more channels than anything in the model has."""
    shapes = (*captured.sizes.values(), *(info.shape for info in captured.values.values()))
    most = max((size for shape in shapes for size in shape), default=0)
    if any(size > most for size in _sizes(plan)):
        raise PlanError(
            f"the plan was made for another model: it asks for more than {most} channels at once, "
            "and nothing here has more; make the plan again"
        )


def _sizes(plan: Plan) -> Iterable[int]:
    """How many channels every part of a plan speaks of."""
    for edge in (*plan.graph.edges, *plan.graph.joins):
        yield sum(abs(piece.length) for piece in edge.pieces)
        yield from (len(piece.indices) for piece in edge.pieces if piece.indices is not None)
        yield from () if edge.spread is None else edge.spread.sizes
    asked = (told.fixed for told in plan.graph.asked.values())
    for sizes in (*plan.graph.sizes.values(), *asked):
        yield from sizes.values()
    for by_axis in (*plan.weights.cuts.values(), *plan.masks.zeroed.values()):
        yield from map(len, by_axis.values())
    yield from (*plan.graph.groups.values(), *plan.graph.widths.values())


def check_says(
    pruned: nn.Module, model: nn.Module, plan: Plan, example: Example, unrounded: Maker | None
) -> None:
    """Raise unless an export is shown to compute what its plan says it does."""
    if not compare(pruned, _masked(model, plan, example), example, unrounded=unrounded).exact:
        raise PlanError(
            "what the plan exports could not be shown to be what it says: its parts contradict "
            "each other, it was made for other weights, or the example shows nothing; make the "
            "plan again"
        )


def _masked(model: nn.Module, plan: Plan, example: Example) -> nn.Module:
    """The model in which all is zero that a plan says is pruned.

    Columns that meet a constant are read no more, but what they add is made up for.
    """
    made_up: list[tuple[str, Any]] = [*plan.weights.folds.items(), *plan.weights.gates.items()]
    columns = grouped((name, own.columns) for name, own in made_up)
    kept = {
        layer: tuple(sorted(set(plan.kept[name]).union(*columns[name])))
        for layer, name in weight_names(model).items()
        if name in plan.kept
    }
    selection = Selection(kept=kept)
    check_fits(model, selection)
    for name, channels in plan.masks.after.items():
        width = _outputs(model.get_submodule(name))
        if not all(0 <= channel < width for channel in channels):
            raise PlanError(f"the plan masks channels that {name} does not have; make it again")
    return oracle.masked(model, (selection,), example, zero_after=plan.masks.after)


def _outputs(module: nn.Module) -> int:
    """How many channels a layer or a normalisation makes."""
    if not isinstance(module, KINDS):
        return int(getattr(module, "num_features", 0))
    rows = int(weight_of(module).shape[1 - column_axis(module)])
    return rows * int(getattr(module, "groups", 1)) if column_axis(module) == 0 else rows
