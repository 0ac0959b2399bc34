"""The verb: a masked model, refitted on a few hundred inputs without labels."""

from __future__ import annotations

import copy
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from upscale import masking
from upscale.capture import Captured
from upscale.errors import RecoveryError, RecoveryWarning
from upscale.model.accepting import ordinary_tensors
from upscale.model.batches import evaluating
from upscale.model.layers import check_fits, weight_names
from upscale.planning.plan import Plan
from upscale.recovery.given import check_responds, taken_batches
from upscale.recovery.growing import check_made_of, grown
from upscale.recovery.refitting import Refit, Refitting, few_rows
from upscale.recovery.shelf import MEMORY, Shelf
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, Mask, SideBySide
from upscale.recovery.sites import CONVOLUTIONS, TRANSPOSED, find_sites
from upscale.selected.selection import Selection
from upscale.subject import Subject

Progress = Callable[[str], object]
# Operations that are all a module does.
WHOLE_MODULES = {"linear", "batch_norm", *CONVOLUTIONS, *TRANSPOSED}


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of each layer, in the order in which they ran, and what was left as it is.

    `selections` are those that the model is masked by: with `choose`, of the columns chosen; with
    a plan, of all that it reads. `plan` then exports just that.
    """

    refits: tuple[Refit, ...]
    left: Mapping[str, str]
    selections: tuple[Selection, ...]
    plan: Plan | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Recovery | None:
        """How a model was recovered, if `recover` made it."""
        return _RECOVERIES.get(model)

    def __str__(self) -> str:
        names = [refit.weight.removesuffix(".weight") for refit in self.refits]
        width = max((len(name) for name in (*names, *self.left)), default=0)
        lines = [f"{len(names)} layers refitted, {len(self.left)} left as they are"]
        for name, refit in zip(names, self.refits, strict=True):
            fate = "keeps its weights" if refit.kept else f"{refit.after:.4f}"
            lines.append(f"{name:{width}}  error {refit.before:.4f} → {fate}")
        return "\n".join([*lines, *(f"{name:{width}}  {why}" for name, why in self.left.items())])


_RECOVERIES: weakref.WeakKeyDictionary[nn.Module, Recovery] = weakref.WeakKeyDictionary()


@ordinary_tensors()
def recover(
    model: nn.Module,
    selection: Selection | Sequence[Selection],
    batches: Iterable[Any],
    *,
    towards: nn.Module | None = None,
    choose: bool = False,
    plan: Plan | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> nn.Module:
    """The masked model of a selection, refitted so that each layer makes what it made before.

    No labels, no training: both networks run once over the batches, and every layer that still
    reads something is fitted by least squares when it is met. Masks hold; the result trains,
    saves and exports like what `mask` gives. BatchNorms get the statistics of what they now see.

    Parameters
    ----------
    batches
        Inputs of the model: tensors, tuples or dicts, as `select` takes its data. A few hundred
        samples are enough; a target that comes with them is not looked at. A fifth is held out:
        it decides how far weights may move, and a layer that would do worse there keeps its own.
    towards
        The network to come close to, if it is not the model itself: the unpruned one, where the
        model was pruned before.
    choose
        Choose anew which columns each layer keeps, as many as the selection does: when the layer
        is met, those go whose loss the others can best make up for. Channels are then chosen layer
        by layer, whatever the constraint of the selection was.
    plan
        The plan of the selection, if there is one: columns that it reads anyway, so that less is
        copied, are kept as well. `Recovery.of(recovered).plan` exports what comes of it; that
        reads, copies and makes the same.
    memory
        Bytes of values to hold in memory; what is beyond lies on disk until it is read.
    progress
        Called with a line of text now and then: how far it is, and the time left.

    Returns
    -------
    nn.Module
        `Recovery.of` tells what became of each of its layers.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    >>> inputs = [torch.randn(64, 4) for _ in range(4)]
    >>> masked = recover(net, Selection(kept={"2": [0, 1, 2, 5, 6]}), inputs)
    >>> bool(masked.get_submodule("2").weight[:, 3].any())
    False
    """
    inputs = taken_batches(model, batches)
    example = inputs[0]
    selections = (selection,) if isinstance(selection, Selection) else tuple(selection)
    with evaluating(model):
        subject = Subject.of(model, example)
        aim = subject if towards is None else Subject.of(towards, example)
    for each in selections:
        check_fits(subject.model, each)
    names = weight_names(subject.model)
    if plan is not None:
        if choose:
            raise RecoveryError("a plan reads columns that are chosen; leave choose= or plan= out")
        check_made_of(plan, selections, names)
        plan, selections = grown(subject.model, plan, selections)
    outputs = [each for each in selections if each.side == "output"]
    pruned = masking.hold_outputs(subject.model, subject.masks)
    pruned = masking.masked_by(pruned, outputs, lambda: subject.norms).eval()
    reference = copy.deepcopy(aim.model).eval()
    check_responds(reference, inputs)
    sites, norms = find_sites(aim.captured, aim.model)
    kept = _kept(pruned, [each for each in selections if each.side == "input"], names)
    models = {UNPRUNED: reference, PRUNED: pruned}
    masked = _masked_nodes(aim.captured, pruned)
    with torch.no_grad(), Shelf(memory) as shelf:
        beside = SideBySide(aim.captured, models, inputs, shelf, masked)
        run = Refitting(beside, models, sites, norms, kept, choose, _Teller(progress))
        run.run()
    if few := few_rows(run.refits):
        message = (
            f"{len(few)} layers, {few[0]} first, were fitted to fewer rows than they have columns: "
            "they stay close to their old weights, or keep them. Pass more batches to have them "
            "fitted better"
        )
        warnings.warn(message, RecoveryWarning, stacklevel=3)
    fitted = {site.weight for site in sites.values()}
    left = {
        layer: LEFT for layer, weight in names.items() if weight in kept and weight not in fitted
    }
    selections = tuple(_narrowed(each, names, kept) for each in selections)
    recovered = masking.masked_by(pruned, [s for s in selections if s.side == "input"], dict)
    modes = {name: module.training for name, module in model.named_modules()}
    for name, twin in recovered.named_modules():
        twin.training = modes[name]
    _RECOVERIES[recovered] = Recovery(tuple(run.refits), left, selections, plan)
    return recovered


def _kept(
    model: nn.Module, selections: Iterable[Selection], names: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    """The columns that selections, and masks that are on a model already, leave each weight."""
    kept: dict[str, set[int]] = {}
    for own in (masking.kept_columns(model), *(each.kept for each in selections)):
        for layer, columns in own.items():
            weight = names[layer]
            kept[weight] = kept.get(weight, set(columns)) & set(columns)
    return {weight: tuple(sorted(columns)) for weight, columns in kept.items()}


def _narrowed(
    selection: Selection, names: Mapping[str, str], kept: Mapping[str, tuple[int, ...]]
) -> Selection:
    """An input selection, of the columns that weights have kept."""
    if selection.side == "output":
        return selection
    return replace(selection, kept={layer: kept[names[layer]] for layer in selection.kept})


LEFT = "is left: it is not called as a plain convolution or linear layer, or shares its weight"


def _masked_nodes(captured: Captured, pruned: nn.Module) -> dict[str, Mask]:
    """The nodes after which output masks make something zero, with what does so.

    A node that calls a module runs its hooks. One that `torch.export` wrote in the place of a
    module does not; there the masks are laid on what it makes, if that is all the module did.
    """
    masks: dict[str, Mask] = {}
    modules = {n: own for n, own in pruned.named_modules() if masking.held_channels(own)}
    for node in captured.graph.nodes:
        seen = captured.observed[node.name]
        if seen.home not in modules:
            continue
        if node.op == "call_module":
            masks[node.name] = _as_it_is
        elif len(seen.calls) == 1 and seen.calls[0].op in WHOLE_MODULES:
            masks[node.name] = partial(masking.held, modules[seen.home])
        else:
            raise RecoveryError(
                f"{node.name}: output masks on {seen.home} cannot be refitted, for it is made of "
                "several operations in a model that torch.fx cannot trace; prune its input side"
            )
    return masks


def _as_it_is(made: Any) -> Any:
    return made


class _Teller:
    """Tells how far a pass is, once a second at most, and how long it will take."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._start, self._told = progress, time.monotonic(), 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic() - self._start
        if self._progress is None or (now - self._told < 1 and done < total):
            return
        self._told = now
        left = now / done * (total - done)
        self._progress(f"refitting: {done} of {total} operations, {left:.0f} s left")
