"""The verb: a masked model, refitted on a few hundred inputs without labels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from upscale.api import masked_by
from upscale.recovery.refitting import Refitted, Refitting
from upscale.recovery.shelf import Shelf
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, SideBySide, inputs_of
from upscale.recovery.sites import find_sites
from upscale.selected.selection import Selection
from upscale.selection.batches import batches_of
from upscale.subject import Subject


def recover(
    model: nn.Module,
    selection: Selection | Sequence[Selection],
    batches: Iterable[Any],
    *,
    rounds: int = 1,
    choose: bool = False,
    memory_bytes: int = 2 << 30,
    progress: Callable[[str], object] | None = None,
) -> nn.Module:
    """The masked model of a selection with refitted weights."""
    selections = tuple(selection) if isinstance(selection, (list, tuple)) else (selection,)
    taken = list(batches_of(batches, 1))
    example = taken[0].args if taken[0].args else dict(taken[0].kwargs)
    subject = Subject.of(model, example)
    unpruned = copy.deepcopy(subject.model).eval()
    pruned = masked_by(subject.model, selections, lambda: subject.norms)
    pruned.eval()
    captured = subject.captured
    inputs = [inputs_of(captured.graph, subject.model, b.args, b.kwargs) for b in taken]
    sites, norms = find_sites(captured, subject.model)
    kept = {
        subject.weights[name]: tuple(own)
        for each in selections
        if each.side == "input"
        for name, own in each.kept.items()
    }
    counts = {}
    if choose:
        counts = {weight: len(own) for weight, own in kept.items()}
        kept = {}
        pruned = copy.deepcopy(subject.model).eval()
    held = frozenset(n for n, m in pruned.named_modules() if m._forward_hooks)
    with torch.no_grad(), Shelf(memory_bytes) as shelf:
        beside = SideBySide(captured, unpruned, pruned, inputs, shelf)
        models = {PRUNED: pruned, UNPRUNED: unpruned}
        run = Refitting(beside, models, sites, norms, kept, held, lambda *_: None, rounds, counts)
        run.run()
    if choose:
        first = selections[0]
        chosen = {n: run.chosen[subject.weights[n]] for n in first.kept}
        pruned = masked_by(pruned, (first.with_kept(chosen),), lambda: {})
        pruned.__dict__["_selection"] = first.with_kept(chosen)
    results: list[Refitted] = run.results
    pruned.__dict__["_recovery"] = results
    return pruned
