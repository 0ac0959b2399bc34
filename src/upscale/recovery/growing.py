"""Growing: what a plan reads anyway is kept as well, and need not be zero.

A layer keeps columns 0 1 2 4 5. So that nothing is copied the plan reads 0 1 2 3 4 5, with zeros
for column 3. Its input is there, its weight is there: kept, it costs nothing, and a refit may use
it. The plan stays as it is, but for what it sets to zero.

    kept    0 1 2 · 4 5
    read    0 1 2 3 4 5     a window, a widened read, a whole block
    grown   0 1 2 3 4 5
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import nn

from upscale.channels import Parameter, positions
from upscale.errors import PlanError
from upscale.model.layers import column_axis, columns, weight_names
from upscale.planning.plan import Plan, origin_of, remember
from upscale.selected.selection import Selection


def grown(
    model: nn.Module, plan: Plan, selections: Sequence[Selection]
) -> tuple[Plan, tuple[Selection, ...]]:
    """The selections that a plan was made of, with all columns that it reads; and their plan.

    It is the same plan: nothing moves. Output masks stay as they are, for what they make zero
    nothing reads further down.
    """
    names, kept = weight_names(model), dict(plan.kept)
    named = {layer for each in selections if each.side == "input" for layer in each.kept}
    more = {}
    for layer in sorted(named & names.keys()):
        own, name = model.get_submodule(layer), names[layer]
        more[layer] = _read(plan, name, column_axis(own), columns(own))
        if name in kept:
            kept[name] = tuple(sorted({*kept[name], *more[layer]}))
    stayed = tuple(name for name in plan.stayed if name not in {names[n] for n in more})
    changed = replace(plan, kept=kept, report=replace(plan.report, stayed=stayed))
    origin = origin_of(plan)
    if origin is not None:
        read = {Parameter(name): positions(own) for name, own in kept.items()}
        remember(changed, replace(origin, lowered=replace(origin.lowered, kept=read)))
    return changed, tuple(
        _with(each, more) if each.side == "input" else each for each in selections
    )


def check_made_of(plan: Plan, selections: Sequence[Selection], names: Mapping[str, str]) -> None:
    """Raise unless a plan keeps what selections of columns keep; `names` are those of weights."""
    kept: dict[str, set[int]] = {}
    for each in selections:
        for layer, own in each.kept.items() if each.side == "input" else ():
            kept[names[layer]] = kept.get(names[layer], set(own)) & set(own)
    # What meets nothing behind output masks has left the plan, if it was selected or not.
    masked = bool(plan.masks.after)
    left = {name: set(own) for name, own in plan.kept.items() if name in kept or not masked}
    same = all(left[n] <= own for n, own in kept.items()) if left.keys() == kept.keys() else False
    if not same or not (masked or left == kept):
        raise PlanError("the plan was made of another selection than the one to recover")


def _with(selection: Selection, more: Mapping[str, Collection[int]]) -> Selection:
    """A selection whose layers keep more; their windows hold that at least."""
    kept = {layer: tuple(sorted({*own, *more[layer]})) for layer, own in selection.kept.items()}
    if kept == selection.kept:
        return selection
    windows = {layer: {*own, *kept.get(layer, ())} for layer, own in selection.windows.items()}
    return replace(selection, kept=kept, windows=windows, reached=None)


def _read(plan: Plan, weight: str, axis: int, count: int) -> Collection[int]:
    """The columns of a weight that a plan reads, and that meet what the model computes there."""
    if weight in plan.stayed:
        return range(count)
    # What keeps nothing reads zeros, if at all.
    if not plan.kept.get(weight):
        return ()
    read = plan.weights.cuts.get(weight, {}).get(axis, ())
    # What always meets one number is in a bias, what meets a gate's multiple in a small layer.
    elsewhere = (plan.weights.folds.get(weight), plan.weights.gates.get(weight))
    return set(read).difference(*(own.columns for own in elsewhere if own is not None))
