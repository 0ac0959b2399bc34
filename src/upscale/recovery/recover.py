"""The verb: a masked model, refitted on a few hundred inputs without labels."""

from __future__ import annotations

import copy
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from upscale import masking
from upscale.capture import Example
from upscale.errors import RecoveryError, RecoveryWarning
from upscale.model.accepting import ordinary_tensors
from upscale.model.batches import evaluating
from upscale.model.layers import check_fits
from upscale.planning.plan import Plan
from upscale.recovery.apart import masked_nodes, multiplying, reading
from upscale.recovery.biases import with_biases
from upscale.recovery.given import check_responds, taken_batches
from upscale.recovery.growing import check_made_of, grown
from upscale.recovery.refitting import Refit, Refitting, few_rows
from upscale.recovery.shelf import MEMORY, Shelf
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, SideBySide
from upscale.recovery.sites import find_sites
from upscale.selected.selection import Selection
from upscale.subject import Subject

Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of each layer, in the order in which they ran, and what was left as it is.

    `left` names what is pruned, or reads what has changed, and could not be refitted: a layer, or a
    weight that is no layer's of its own.
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
    bias: bool = False,
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
    bias
        Give a bias to each refitted layer that has none and no BatchNorm behind it. Without it no
        parameter is added.
    plan
        The plan of the selection, if there is one: columns that it reads anyway, so that less is
        copied, are kept as well. `Recovery.of(recovered).plan` exports what comes of it; that
        reads, copies and makes the same. Where biases were added there is none: plan again.
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
    selections = (selection,) if isinstance(selection, Selection) else tuple(selection)
    with evaluating(model):
        subject = Subject.of(model, inputs[0])
        aim = subject if towards is None else Subject.of(towards, inputs[0])
        plain = subject.model
        if bias:
            subject, aim = with_biases(subject), with_biases(aim)
    for each in selections:
        check_fits(subject.model, each)
    if plan is not None:
        if choose:
            raise RecoveryError("a plan reads columns that are chosen: give choose= or plan=")
        check_made_of(plan, selections, subject.weights)
        plan, selections = grown(plain, plan, selections)
        plan = plan if subject.model is plain else None  # it was made for a model without biases
    pruned, told = _refitted(subject, aim, selections, inputs, choose, memory, _Teller(progress))
    if few := few_rows(told.refits):
        message = (
            f"{len(few)} layers, {few[0]} first, were fitted to fewer rows than they have columns: "
            "they stay close to their old weights, or keep them. Pass more batches to have them "
            "fitted better"
        )
        warnings.warn(message, RecoveryWarning, stacklevel=3)
    inputs_kept = [each for each in told.selections if each.side == "input"]
    recovered = masking.masked_by(pruned, inputs_kept, dict)
    modes = {name: module.training for name, module in model.named_modules()}
    for name, twin in recovered.named_modules():
        twin.training = modes[name]
    _RECOVERIES[recovered] = replace(told, plan=plan)
    return recovered


def _refitted(
    subject: Subject,
    aim: Subject,
    selections: Sequence[Selection],
    inputs: Sequence[Example],
    choose: bool,
    memory: int,
    tell: Callable[[int, int], None],
) -> tuple[nn.Module, Recovery]:
    """A subject's model with weights refitted towards another's, and what became of each."""
    outputs = [each for each in selections if each.side == "output"]
    pruned = masking.hold_outputs(subject.model, subject.masks)
    pruned = masking.masked_by(pruned, outputs, lambda: subject.norms).eval()
    reference = copy.deepcopy(aim.model).eval()
    check_responds(reference, inputs)
    sites, norms = find_sites(aim.captured, aim.model)
    kept, names = _kept(subject, selections), subject.weights
    # Groups of a transposed convolution have columns of their own, which no one fit can tell apart.
    sites = {n: s for n, s in sites.items() if not (s.own_columns and s.weight in kept)}
    fitted = {site.weight for site in sites.values()}
    left = {n: kept[weight] for n, weight in names.items() if weight in kept.keys() - fitted}
    pruned = masking.mask(pruned, Selection(kept=left))
    models = {UNPRUNED: reference, PRUNED: pruned}
    masked = masked_nodes(aim.captured, pruned) | reading(aim.captured, {names[n] for n in left})
    with torch.no_grad(), Shelf(memory) as shelf:
        beside = SideBySide(aim.captured, models, inputs, shelf, masked)
        run = Refitting(beside, models, sites, norms, kept, choose, tell)
        run.run()
    unfitted = multiplying(aim.captured, beside.apart) - fitted - {names[layer] for layer in left}
    layer_of = {weight: layer for layer, weight in reversed(names.items())}
    told = [*left, *sorted(layer_of.get(weight, weight) for weight in unfitted)]
    selections = tuple(_narrowed(each, names, kept) for each in selections)
    return pruned, Recovery(tuple(run.refits), dict.fromkeys(told, LEFT), selections)


def _kept(subject: Subject, selections: Iterable[Selection]) -> dict[str, tuple[int, ...]]:
    """The columns that selections, and masks that are on a model already, leave each weight."""
    kept: dict[str, set[int]] = {}
    inputs = (each.kept for each in selections if each.side == "input")
    for own in (masking.kept_columns(subject.model), *inputs):
        for layer, columns in own.items():
            weight = subject.weights[layer]
            kept[weight] = kept.get(weight, set(columns)) & set(columns)
    return {weight: tuple(sorted(columns)) for weight, columns in kept.items()}


def _narrowed(
    selection: Selection, names: Mapping[str, str], kept: Mapping[str, tuple[int, ...]]
) -> Selection:
    """An input selection, of the columns that weights have kept; other windows than theirs go."""
    if selection.side == "output":
        return selection
    own = {layer: kept[names[layer]] for layer in selection.kept}
    windows = {n: w for n, w in selection.windows.items() if set(own.get(n, ())) <= set(w)}
    return replace(selection, kept=own, windows=windows)


LEFT = "is left: it is not called as a plain convolution or linear layer, or shares its weight"


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
