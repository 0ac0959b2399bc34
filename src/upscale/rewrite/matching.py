"""Matching: whether a plan was made for the model it is applied to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from upscale import masking
from upscale.capture import Captured, Configuration, Example, capture, configuration
from upscale.capture.fingerprint.digests import FORMAT, difference, made_for
from upscale.channels import Parameter
from upscale.errors import PlanError, UpscaleError
from upscale.model.layers import tensors
from upscale.planning import Plan
from upscale.planning.plan import origin_of

ANOTHER = "the plan was made for another model"
TRACED_OTHERWISE = (
    "the model computes what the plan was made for, but is traced into other nodes here, by "
    "another version of torch or from code written otherwise; plan again"
)


def captured_for(model: nn.Module, plan: Plan, example: Any) -> Captured:
    """The capture a plan was made from, or one just like it; raises if the model is another.

    A model whose configuration is that of the one planned for need not be captured again.
    """
    origin = origin_of(plan)
    if origin is None:
        return _captured_anew(model, plan, example)
    there: Captured = origin.captured
    _check_shapes(model, there)
    before, now = origin.configuration, configuration(model)
    if now.same(before):
        return there
    if example is None:
        example = _example_like(there.example, model, before, now)
    try:
        here = _captured(model, plan, example)
    except UpscaleError as error:
        raise PlanError(
            f"{ANOTHER}: this one cannot be captured as that one was: {error}"
        ) from error
    found = difference(there, here)
    if found is not None:
        raise PlanError(f"{ANOTHER}: {found}")
    if made_for(here) != origin.fingerprint:
        raise PlanError(TRACED_OTHERWISE)
    return here


def check_masks(gone: Mapping[str, tuple[int, ...]], plan: Plan) -> None:
    """Raise if a model came with output masks that the plan does not know of."""
    for name, channels in gone.items():
        if not set(channels) <= set(plan.masks.after.get(name, ())):
            raise PlanError(f"{ANOTHER}: there {name} has no such output mask as here")


def _captured_anew(model: nn.Module, plan: Plan, example: Any) -> Captured:
    """The capture of a model by which a plan from JSON is known to be made for it."""
    if example is None:
        raise PlanError(
            "this plan was read from JSON: pass an example, export(model, plan, example)"
        )
    form, _, rest = plan.made_for.partition(":")
    if form != str(FORMAT) or ":" not in rest:
        raise PlanError(
            "the plan knows its model by a fingerprint of another version of upscale; plan again"
        )
    here = _captured(model, plan, example)
    found = made_for(here)
    if found.rpartition(":")[0] != plan.made_for.rpartition(":")[0]:
        raise PlanError(
            f"{ANOTHER} or mode: what this one computes has other operations, constants or "
            "parameters, or they are put together otherwise"
        )
    if found != plan.made_for:
        raise PlanError(TRACED_OTHERWISE)
    return here


def _captured(model: nn.Module, plan: Plan, example: Any) -> Captured:
    held = masking.hold_outputs(model, plan.held) if plan.held else model
    return capture(held, Example.of(example), numbers=False)


def _example_like(
    example: Example, model: nn.Module, before: Configuration, now: Configuration
) -> Example:
    """An example of zeros where the model is, in its precision if that has changed since."""
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))

    def like(leaf: Tensor) -> Tensor:
        dtype = now.dtype if leaf.dtype == before.dtype else leaf.dtype
        return torch.zeros_like(leaf, device=device, dtype=dtype)

    return example.map(like)


def _check_shapes(model: nn.Module, captured: Captured) -> None:
    owned = tensors(model)
    for value, info in captured.values.items():
        name = value.name if isinstance(value, Parameter) else None
        if name is not None and (name not in owned or tuple(owned[name].shape) != info.shape):
            here = f"{tuple(owned[name].shape)}" if name in owned else "missing"
            raise PlanError(f"{ANOTHER}: there {name} is {info.shape}, here {here}")
