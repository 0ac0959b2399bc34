"""Pruning in one call: select, plan, export, verify; and measure, where that is asked for."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn

from upscale import masking, oracle
from upscale.api import export, plan_for
from upscale.errors import (
    AmountWarning,
    BatchError,
    SelectionError,
    SlowerWarning,
    UnverifiedWarning,
)
from upscale.model.accepting import ordinary_tensors
from upscale.model.batches import each_batch, recalibrate
from upscale.model.layers import check_fits
from upscale.planning import Plan, Way
from upscale.pruning import fuse as fusing
from upscale.recovery.biases import with_biases
from upscale.recovery.growing import grown
from upscale.recovery.recover import Recovery
from upscale.recovery.recover import recover as refit
from upscale.selected.amounts import Amount, Latency
from upscale.selected.selection import Selection
from upscale.selection.options import Options
from upscale.selection.select import select_channels
from upscale.subject import Subject
from upscale.targets.racing import race_models
from upscale.targets.runtime import multiple_for, pricing_for
from upscale.targets.target import Target
from upscale.verify import verify as verify_exported

Progress = Callable[[str], object]
Tune = Callable[[nn.Module, int], object]

# How often a latency is measured before the search for it ends, and how close is close enough.
TRIALS, NEAR = 8, 0.02
MOST_PRUNED = 0.95


@ordinary_tensors()
def prune(
    model: nn.Module,
    example: Any,
    *,
    amount: float | Amount | Latency | None = None,
    selection: Selection | None = None,
    order: str = "optimal",
    target: Target | None = None,
    widen: bool = True,
    verify: bool = True,
    measure: bool = False,
    fuse: bool = False,
    recover: bool | str = False,
    bias: bool = False,
    steps: int = 1,
    tune: Tune | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> fx.GraphModule:
    """Select, plan, export and verify in one call; the model itself is not changed.

    Parameters
    ----------
    amount
        As for `select`; or `Latency(share)`: as few channels go as bring the measured latency
        down to that share of the unpruned model's.
    selection
        The channels to keep, in the place of an amount and of what else `select` is told.
    order, target, widen
        As for `plan`.
    measure
        Race the unpruned model and several exports in one loop and return the fastest; what
        was measured is in `pruned.meta["race"]`. If pruning does not pay, a `SlowerWarning`
        says by how much.
    fuse
        Fold BatchNorms into convolutions and drop what does nothing: for inference alone.
    recover
        Refit what is left on the inputs in `data`, without labels, as `upscale.recover` does;
        `"norms"` renews the statistics of BatchNorms alone. With several steps, after each.
    bias
        Give a bias to each refitted layer that has none and no BatchNorm behind it.
    steps, tune
        With several steps the amount grows evenly; after each, `tune(masked, step)` may train
        the masked model as it likes before the next is taken.
    progress
        Called with a line of text whenever something was measured.
    verify
        Compare the export with the masked model; `pruned.meta["verified"]` says what was tested
        and what came of it. If nothing could be, an `UnverifiedWarning` says why.
    options
        Those of `select`.

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> prune(net, torch.randn(1, 4), amount=0.5).get_submodule("0").out_features
    4
    """
    _check_asks_once(amount, selection, steps, options)
    if recover not in (False, True, "norms"):
        raise SelectionError(f"recover is {recover!r}; it must be True, False or 'norms'")
    if recover and options.get("data") is None:
        raise SelectionError("recover needs data; pass data=, batches of inputs")
    if bias and recover is not True:
        raise SelectionError("a bias is added for a refit to use; pass recover=True too")
    if options.get("data") is not None:
        options["data"] = list(each_batch(options["data"]))  # criteria and refits go through it
        if not options["data"]:
            raise BatchError("data holds no batch; pass some of the model's inputs")
    subject = Subject.of(model, example)
    if bias:
        subject = with_biases(subject)
    way = Way(order, pricing_for(subject.example, target), widen)
    if "round_to" in options:
        options["round_to"] = multiple_for(options["round_to"], subject.example, target)
    tell = progress or (lambda line: None)
    job = _Job(subject, way, verify, selection or Selection(kept={}))
    mend = _Mender.of(model, recover, bias, options, tell)
    if amount is None:
        check_fits(subject.model, job.selection)
        drawn = _settled(job, 1, tune, mend, last=True)
    else:
        if isinstance(amount, Latency):
            amount = _share_for(job, amount, Options(Amount(0), **options), tell)
        drawn = _draw(job, Options(Amount.of(amount), **options), steps, tune, mend, tell)
    pruned = _fastest(drawn, tell) if measure else drawn.exported(drawn.plan(way))
    return fusing.fuse(pruned) if fuse else pruned


def _check_asks_once(
    amount: object, selection: Selection | None, steps: int, options: Mapping[str, Any]
) -> None:
    """Raise unless it is said once, and consistently, what to prune."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise SelectionError(f"steps is {steps!r}; it must be a whole number >= 1")
    if isinstance(amount, Latency) and steps > 1:
        raise SelectionError("a latency is reached in one step; prune in several to shares")
    if (amount is None) == (selection is None):
        raise SelectionError("say how much to prune, amount=, or what to keep, selection=: one")
    if selection is not None:
        if idle := sorted(options.keys() - {"data"}):
            raise SelectionError(f"{idle[0]} has no say where a selection is given; leave it out")
        if steps > 1:
            raise SelectionError("a selection is pruned to in one step; give an amount for several")


@dataclass(frozen=True, slots=True)
class _Job:
    """What to prune, how, and the channels chosen so far; if they were `planned` for, the plan."""

    subject: Subject
    way: Way
    verify: bool
    selection: Selection
    planned: Plan | None = None

    def plan(self, way: Way) -> Plan:
        """The plan that a way of planning makes."""
        if self.planned is not None and way == self.way:
            return self.planned
        return plan_for(self.subject, (self.selection,), way)

    def masked(self) -> nn.Module:
        """The model with the masks that users train."""
        return masking.masked_by(self.subject.model, (self.selection,), lambda: self.subject.norms)

    def tuned(self, model: nn.Module) -> _Job:
        """The job with a masked model that was mended or trained."""
        return replace(self, subject=self.subject.tuned(model))

    def grown(self) -> _Job:
        """The job with all channels that its plan reads, and this plan."""
        plan, (selection,) = grown(self.subject.model, self.plan(self.way), (self.selection,))
        return replace(self, selection=selection, planned=plan)

    def exported(self, plan: Plan) -> fx.GraphModule:
        """What a plan exports, verified if that was asked for."""
        model, example, masks = self.subject.model, self.subject.example, self.subject.masks
        pruned = export(model, plan)
        if not self.verify:
            return pruned

        def unrounded() -> nn.Module:
            return export(copy.deepcopy(model).double(), plan)

        # What is folded is rounded to the weights' own precision; compare without that.
        wide = unrounded if plan.weights.rounds else None
        expected = oracle.masked(model, (self.selection,), example, zero_after=masks)
        verified = verify_exported(pruned, expected, example, unrounded=wide)
        pruned.meta["verified"] = verified
        if verified.relative_error is None:
            message = (
                f"the export could not be verified: {verified.because}. Pass an example on "
                "which it responds, or compare yourself with what upscale.mask gives"
            )
            warnings.warn(message, UnverifiedWarning, stacklevel=3)
        return pruned


@dataclass(frozen=True, slots=True)
class _Mender:
    """What makes the masked model of a job come close to the unpruned one again.

    Layers that choose for themselves, by what refitting leaves, do so again where they are met:
    then what they read is what they will read.
    """

    model: nn.Module
    data: list[Any]
    norms_alone: bool
    bias: bool
    chooses: bool
    tell: Progress

    @classmethod
    def of(
        cls,
        model: nn.Module,
        recover: bool | str,
        bias: bool,
        options: Mapping[str, Any],
        tell: Progress,
    ) -> _Mender | None:
        """What was asked for, if anything."""
        if not recover:
            return None
        constraint, side = options.get("constraint", "none"), options.get("side", "input")
        by_error = options.get("importance") == "reconstruction"
        chooses = recover is True and by_error and (constraint, side) == ("none", "input")
        return cls(model, options["data"], recover == "norms", bias, chooses, tell)

    def mended(self, job: _Job) -> _Job:
        """A job whose model is mended, with the channels that it was mended for."""
        if self.norms_alone:
            count = len(job.subject.example.args) or 1
            return job.tuned(recalibrate(job.masked(), self.data, count))
        own = masking.hold_outputs(job.subject.model, job.subject.masks)
        refitted = refit(
            own,
            job.selection,
            self.data,
            towards=self.model,
            choose=self.chooses,
            bias=self.bias,
            progress=self.tell,
        )
        told = Recovery.of(refitted)
        assert told is not None
        return replace(job.tuned(refitted), selection=told.selections[0])

    def finished(self, job: _Job) -> _Job:
        """The same, for the last time: what the plan reads anyway is kept as well."""
        if not self.chooses:
            return self.mended(job.grown())
        chosen = self.mended(job)
        grown = replace(job, selection=chosen.selection).grown()
        if grown.selection == chosen.selection:
            return chosen
        return replace(self, chooses=False).mended(grown)


def _draw(
    job: _Job,
    options: Options,
    steps: int = 1,
    tune: Tune | None = None,
    mend: _Mender | None = None,
    tell: Progress = lambda line: None,
) -> _Job:
    """Choose channels, in steps."""
    amount = options.amount
    for step in range(1, steps + 1):
        if steps > 1:
            tell(f"step {step} of {steps}")
        options = replace(options, amount=replace(amount, share=amount.share * step / steps))
        job = replace(job, selection=select_channels(job.subject, options))
        job = _settled(job, step, tune, mend, last=step == steps)
        options = replace(options, within=job.selection)
    return job


def _settled(job: _Job, step: int, tune: Tune | None, mend: _Mender | None, *, last: bool) -> _Job:
    """A job with channels chosen, mended and tuned as was asked for."""
    if mend is not None:
        job = mend.finished(job) if last else mend.mended(job)
    if tune is not None:
        model = job.masked()
        tune(model, step)
        job = job.tuned(model)
    return job


def _fastest(job: _Job, tell: Progress) -> fx.GraphModule:
    """The fastest of several exports, and a warning if it is no faster than the model itself."""
    plan = job.plan(job.way)
    exports = {"planned": job.exported(plan)}
    narrow = job.plan(replace(job.way, widen=False))
    if narrow.graph.edges != plan.graph.edges or narrow.weights.cuts != plan.weights.cuts:
        exports["narrow"] = job.exported(narrow)
    if plan.graph.sums:
        # What is added lacks different channels: putting it together may cost more than it saves.
        exports["whole sums"] = job.exported(job.plan(replace(job.way, sums="whole")))
    if job.selection.side == "input":
        # The masked model with nothing removed competes too; masks of outputs are no weights.
        zeroed = job.subject.tuned(job.masked())
        whole = replace(job, subject=zeroed, selection=Selection(kept={}), planned=None)
        exports["whole"] = whole.exported(whole.plan(job.way))
    model, example = job.subject.model, job.subject.example
    taken = race_models({"unpruned": model, **exports}, example, job.way.pricing.target)
    for name, own in taken.items():
        tell(f"{name}: {own}")
    best = min(exports, key=lambda name: taken[name].median_ms)
    ratios = {name: own.median_ms / taken["unpruned"].median_ms for name, own in taken.items()}
    if best == "whole" or ratios[best] >= 1:
        message = (
            f"pruning does not pay here: the fastest export ({best}) takes {ratios[best]:.2f} "
            f"times as long as the unpruned model, the pruned one {ratios['planned']:.2f} times"
        )
        warnings.warn(message, SlowerWarning, stacklevel=3)
    exports[best].meta["race"] = taken
    return exports[best]


def _share_for(job: _Job, asked: Latency, options: Options, tell: Progress) -> Amount:
    """The least share of channels whose export is as fast as asked, by bisection."""
    low, high, best = 0.0, MOST_PRUNED, None
    share, reached = 1 - asked.share, 1.0
    for trial in range(1, TRIALS + 1):
        drawn = _draw(replace(job, verify=False), replace(options, amount=Amount(share)))
        models = {"unpruned": job.subject.model, "pruned": drawn.exported(drawn.plan(job.way))}
        taken = race_models(models, job.subject.example, job.way.pricing.target)
        ratio = taken["pruned"].median_ms / taken["unpruned"].median_ms
        reached = min(reached, ratio)
        without = f"without {share:.1%} of channels {ratio:.1%} of the latency"
        tell(f"trial {trial} of {TRIALS}: {without}")
        if ratio <= asked.share:
            high = best = share
        else:
            low = share
        if (best == share and ratio > asked.share - NEAR) or high - low < NEAR / 2:
            break
        share = (low + high) / 2
    if best is None:
        message = f"asked {asked}; without {high:.0%} of channels it is still {reached:.1%}"
        warnings.warn(message, AmountWarning, stacklevel=3)
    return Amount(high if best is None else best)
