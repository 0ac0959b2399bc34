"""The way through: subject → lowered flow → plan → export. Every verb goes this way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import fx, nn

from upscale import masking
from upscale.capture import Captured, Configuration
from upscale.capture.fingerprint import made_for
from upscale.lowering.lower import lower, numbers_for
from upscale.lowering.lowered import Lowered
from upscale.planning import Plan, Way, make_plan
from upscale.planning.plan import remember, stamped
from upscale.rewrite.graph import rewrite
from upscale.selected.selection import Selection
from upscale.subject import Subject
from upscale.tools.collector_pause import collector_paused


@dataclass(frozen=True)
class MadeFrom:
    """What a plan was made from: a capture, the model's configuration, and the lowered flow."""

    captured: Captured
    configuration: Configuration
    lowered: Lowered

    @cached_property
    def fingerprint(self) -> str:
        """What the model computes, as a digest."""
        return made_for(self.captured)


@collector_paused()
def plan_for(subject: Subject, selections: Sequence[Selection], way: Way) -> Plan:
    """Lower a subject and plan for what is left."""
    held, lowered = lower(subject, selections, way.sums)
    plan = make_plan(lowered, way)
    remember(plan, MadeFrom(held.captured, subject.configuration, lowered))
    return plan


def export_for(model: nn.Module, captured: Captured, plan: Plan) -> fx.GraphModule:
    """What a plan makes of a captured model with the weights it has now."""
    numbers = {}
    folds, gates = plan.weights.folds, plan.weights.gates
    if folds or gates:
        numbers = numbers_for(model, captured, plan.masks, plan.kept, folds, gates)
    return rewritten(model, captured, plan, numbers)


@collector_paused()
def rewritten(
    model: nn.Module, captured: Captured, plan: Plan, numbers: Mapping[str, tuple[float, ...]]
) -> fx.GraphModule:
    """The export of a model in which folded columns meet the given numbers."""
    held = masking.hold_outputs(model, plan.masks.held) if plan.masks.held else model
    pruned = rewrite(held, captured, plan, numbers)
    # The export's own copy of the plan says what it was made for, and keeps no capture alive.
    pruned.meta |= {"plan": stamped(plan), "example": captured.example}
    return pruned
