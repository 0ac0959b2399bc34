"""Lowering: what masks bring about becomes steps, columns and zeros, one pass after the other.

`place masks → find constants → fold → read gates → split sums → repeat`. Each pass takes a lowered
flow and gives the next. Without output masks nothing is constant: then nobody enters here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from upscale import masking
from upscale.capture import Captured
from upscale.channels import Parameter, Positions, positions
from upscale.flow.analyse import analyse
from upscale.lowering.constants import find_constants, fold_constants, numbers_met
from upscale.lowering.gates import factors_met, read_gates
from upscale.lowering.lowered import Folding, Gating, Lowered, Masks
from upscale.lowering.masks import place_masks
from upscale.lowering.repeats import repeat_constants
from upscale.lowering.sums import split_sums
from upscale.selected.selection import Selection
from upscale.subject import Subject

Channels = tuple[int, ...]


def lower(
    subject: Subject, lowered: Lowered, selections: Sequence[Selection], sums: str
) -> tuple[Subject, Lowered]:
    """What is left to plan for once outputs are masked too, and the subject it is about.

    That is another where masks have to be held at run time: then the model is captured with what
    holds them.
    """
    outputs = [each for each in selections if each.side == "output"]
    after = _masked_outputs(subject, outputs)
    named = {subject.weights[layer] for selection in outputs for layer in selection.kept}
    unread = frozenset(name for name in named if Parameter(name) not in subject.flow.uses)
    lowered = replace(lowered, unreached=unread)
    if not after:
        return subject, lowered
    masks = place_masks(subject.model, subject.captured, after)
    if masks.held:
        subject = subject.holding(masks.held)
    model, captured = subject.model, subject.captured
    lowered = replace(lowered, flow=subject.flow, masks=masks, fixed=captured.fixed)
    constants = find_constants(subject.flow, model, captured, masks, lowered.kept)
    lowered = fold_constants(lowered, model, captured, constants)
    lowered = read_gates(lowered, model, captured, constants)
    lowered = split_sums(lowered, captured, constants, sums)
    return subject, repeat_constants(lowered, constants)


def numbers_for(
    model: nn.Module,
    captured: Captured,
    masks: Masks,
    kept: Mapping[str, Sequence[int]],
    folds: Mapping[str, Folding],
    gates: Mapping[str, Gating],
) -> dict[str, tuple[float, ...]]:
    """The numbers that columns meet which are folded, or read from a gate: those of the weights
    that are exported, which may not be those that were planned with."""
    flow = analyse(captured)
    columns: dict[str, Positions] = {Parameter(n): positions(own) for n, own in kept.items()}
    constants = find_constants(flow, model, captured, masks, columns)
    met = numbers_met(flow, constants, folds)
    return met | factors_met(captured, flow, constants, gates)


def _masked_outputs(subject: Subject, outputs: Sequence[Selection]) -> dict[str, Channels]:
    """The channels that are zero after modules: by selections, or by masks the model came with."""
    after = dict(subject.masks)
    for selection in outputs:
        norms = subject.norms if selection.after == "norm" else {}
        for name, gone in masking.outputs_gone(subject.model, selection, norms).items():
            after[name] = tuple(sorted({*after.get(name, ()), *gone}))
    return after
