"""The verbs: select, mask, plan, export, prune."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx, nn

from upscale import reference
from upscale.capture import Captured, Example, capture
from upscale.channels import Positions, positions
from upscale.errors import CaptureError, PlanError, SelectionError
from upscale.flow.analyse import analyse
from upscale.flow.domain import ChannelFlow, Reduce
from upscale.layers import column_axis, computes_weight, layers, weight_names, weight_of
from upscale.planning import Plan, make_plan
from upscale.rewrite.graph import rewrite
from upscale.selection.importance import importance_named
from upscale.selection.masks import Selection, keep_highest
from upscale.verify import verify as verify_exported


def select(
    model: nn.Module,
    example: Any,
    *,
    amount: float,
    importance: str = "l2",
    scope: str = "local",
    side: str = "input",
    constraint: str = "none",
) -> Selection:
    """Choose the input channels each layer keeps: the given share of the least important goes.

    Layers that read the model's input directly keep all of it.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    >>> len(select(net, torch.zeros(1, 4), amount=0.25).kept["1"])
    6
    """
    for name, value, known in (
        ("scope", scope, "local"),
        ("side", side, "input"),
        ("constraint", constraint, "none"),
    ):
        if value != known:
            raise SelectionError(f"{name} is {value!r}; only {known!r} can be selected so far")
    _check_model(model)
    flow = analyse(capture(model, Example.of(example)))
    return _select(model, flow, amount, importance)


def mask(model: nn.Module, selection: Selection) -> nn.Module:
    """A copy of a model in which every weight that the selection prunes is zero, and stays so.

    It is what an export must equal. Train it, save it, load it: the masks hold.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> mask(net, Selection(kept={"1": [0]})).get_submodule("1").weight[0, 1].item()
    0.0
    """
    _check_model(model)
    return reference.mask(model, selection)


def plan(
    model: nn.Module, example: Any, selection: Selection | None = None, *, order: str = "optimal"
) -> Plan:
    """Decide everything an export will do, as data; nothing is changed yet.

    Without a selection, columns of weights that are all zero count as pruned.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    >>> plan(net, torch.zeros(1, 4), Selection(kept={"1": [0, 5]})).copies
    0
    """
    _check_model(model)
    captured = capture(model, Example.of(example))
    selection = reference.zeroed(model) if selection is None else selection
    reference.check(model, selection)
    if selection.side != "input":
        raise SelectionError(
            "this selection is of the output side; only input selections can be exported so far"
        )
    return _plan(model, captured, analyse(captured), selection, order)


def export(model: nn.Module, plan: Plan) -> fx.GraphModule:
    """A new, smaller module that computes what the masked model computes.

    It trains, scripts, exports and compiles like any module; the model is not changed.
    """
    captured = plan.source if isinstance(plan, Plan) else None
    if not isinstance(captured, Captured):
        raise PlanError("export takes a plan that upscale.plan has just made; make it again")
    _check_same_model(model, captured)
    return rewrite(model, captured, plan)


def prune(
    model: nn.Module,
    example: Any,
    *,
    amount: float,
    importance: str = "l2",
    order: str = "optimal",
    verify: bool = True,
) -> fx.GraphModule:
    """Select, plan, export and verify in one call; the model itself is not changed.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> prune(net, torch.randn(1, 4), amount=0.5).get_submodule("0").out_features
    4
    """
    _check_model(model)
    given = Example.of(example)
    captured = capture(model, given)
    flow = analyse(captured)
    selection = _select(model, flow, amount, importance)
    pruned = rewrite(model, captured, _plan(model, captured, flow, selection, order))
    if verify:
        verify_exported(pruned, mask(model, selection), given)
    return pruned


def _select(model: nn.Module, flow: ChannelFlow, amount: float, importance: str) -> Selection:
    criterion = importance_named(importance)
    names = weight_names(model)
    prunable = {
        relation.layer[1:]
        for step in flow.steps
        for relation in step.relations
        if isinstance(relation, Reduce)
        if relation.read in flow.classes and not relation.channelwise
    }
    scores = {
        name: criterion(weight_of(layer).detach().movedim(column_axis(layer), 1)).tolist()
        for name, layer in layers(model).items()
        if names[name] in prunable
    }
    return Selection(kept=keep_highest(scores, amount), side="input")


def _plan(
    model: nn.Module, captured: Captured, flow: ChannelFlow, selection: Selection, order: str
) -> Plan:
    made = make_plan(flow, _kept_columns(model, selection), order)
    names = weight_names(model)
    for layer, module in layers(model).items():
        if (
            layer in selection.kept
            and computes_weight(module)
            and names[layer] in (*made.stayed, *made.unreached)
        ):
            raise SelectionError(
                f"{layer} computes its weight anew in every call and nothing here can be pruned "
                "with it; make its weight permanent first, or leave it out of the selection"
            )
    return replace(made, source=captured)


def _kept_columns(model: nn.Module, selection: Selection) -> dict[str, Positions]:
    """The columns each weight keeps, by the name of its value."""
    names = weight_names(model)
    return {f"@{names[layer]}": positions(tuple(kept)) for layer, kept in selection.kept.items()}


def _check_same_model(model: nn.Module, captured: Captured) -> None:
    owned = dict(
        (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
    )
    for value, info in captured.values.items():
        name = value.removeprefix("@")
        if value != name and (name not in owned or tuple(owned[name].shape) != info.shape):
            here = f"{tuple(owned[name].shape)}" if name in owned else "missing"
            raise PlanError(
                f"the plan was made for another model: there {name} is {info.shape}, here {here}"
            )
    modules = {
        name: type(module).__qualname__
        for name, module in model.named_modules(remove_duplicate=False)
    }
    for name, kind in captured.kinds.items():
        if modules.get(name) != kind:
            raise PlanError(
                f"the plan was made for another model: there {name} is a {kind}, "
                f"here {modules.get(name, 'missing')}"
            )


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise CaptureError(f"expected a torch.nn.Module, not {type(model).__name__}")


__all__ = ["Selection", "export", "mask", "plan", "prune", "select"]
