"""Plans of a few parameters, made by hand, and what cuts a model as they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from upscale.lowering.lowered import Folding, Masks
from upscale.planning.plan import GraphChanges, Plan, Report, WeightChanges
from upscale.rewrite.weights import Cutter

Indices = Sequence[int]


def cutter(
    model: nn.Module,
    *,
    cuts: Mapping[str, Mapping[int, Indices]] | None = None,
    kept: Mapping[str, Indices] | None = None,
    zeroed: Mapping[str, Mapping[int, Indices]] | None = None,
    folds: Mapping[str, tuple[Mapping[int, float], int | None]] | None = None,
    groups: Mapping[str, int] | None = None,
) -> Cutter:
    """What cuts a model's parameters.

    By parameter: `cuts` the indices that stay along each axis, `kept` the columns whose weights
    are not zero, `zeroed` the indices that become zero along each axis, `folds` the number that
    each folded column meets, and the column that stands for them (`None`: the bias does). By the
    node that calls a convolution: `groups` how many it has.
    """
    folded = folds or {}
    nothing = frozenset[str]()
    plan = Plan(
        order="none",
        kept={name: tuple(own) for name, own in (kept or {}).items()},
        graph=GraphChanges((), (), nothing, nothing, {}, {}, groups or {}, {}),
        weights=WeightChanges(
            cuts={name: _tuples(own) for name, own in (cuts or {}).items()},
            folds={
                name: Folding(tuple(met), into, pads=False) for name, (met, into) in folded.items()
            },
        ),
        masks=Masks(zeroed={name: _tuples(own) for name, own in (zeroed or {}).items()}),
        report=Report((), (), (), 0.0, 0.0, 0, 0.0),
    )
    return Cutter(model, {}, plan, {name: tuple(met.values()) for name, (met, _) in folded.items()})


def _tuples(axes: Mapping[int, Indices]) -> dict[int, tuple[int, ...]]:
    return {axis: tuple(indices) for axis, indices in axes.items()}
