"""What two models' calls come to: equal to rounding, different, or nothing that could tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from upscale.verify.inputs import Inputs, finite_share, makes_sense
from upscale.verify.result import NAMES_SHOWN, TOLERANCE, Verified
from upscale.verify.running import Runner, in_precision, signs
from upscale.verify.tensors import aliases, difference, is_inexact, path_in, plain, tensors

# How many roundings of the coarsest numbers a result may be off by, however few it sums.
ROUNDINGS = 4
# Rounding is estimated by disturbing every number once; sums round more often than that.
TIMES_NOISE = 8
NOISE_RUNS = 3
# What rounding moves by more shows nothing.
MOST_TOLERANCE = 0.05
KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Result:
    """What a call returned, and the buffers after it."""

    outputs: Sequence[Tensor]
    buffers: Mapping[str, Tensor]


# What the masked model's calls came to, by the names of the inputs.
_Run = dict[str, Result]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both models made of the same inputs: the masked one first, which is right."""

    inputs: Inputs
    theirs: Result
    ours: Result


@dataclass(frozen=True, slots=True)
class _Item:
    """One thing to compare: how far apart, what rounding may do, and where it is."""

    error: float
    tolerance: float
    where: str

    @property
    def wrong(self) -> bool:
        """Whether rounding does not explain it."""
        return self.error > self.tolerance

    @property
    def blurred(self) -> bool:
        """Whether rounding alone could make it anything."""
        return not self.wrong and self.tolerance > MOST_TOLERANCE

    def order(self) -> tuple[bool, float]:
        """The worst is the greatest."""
        return self.wrong, self.error / self.tolerance if self.wrong else self.error


@dataclass(frozen=True, slots=True)
class Judge:
    """The runners of both models after their calls, and the cuts: what the export has left of
    buffers, by name and axis."""

    cuts: Mapping[str, Mapping[int, Sequence[int]]]
    theirs: Runner
    ours: Runner

    def judged(self, calls: Sequence[Comparison], asked: tuple[str, ...]) -> Verified:
        """The verdict on calls of both models, of which the first was with the example."""
        at_least = finite_share(calls[0].theirs.outputs)
        sensible = [own for own in calls[1:] if makes_sense(own.theirs.outputs, at_least)]
        used = [calls[0], *sensible]
        items = list(self._items(used, ()))
        if any(item.wrong for item in items):
            noise = [self._disturbed(calls, seed) for seed in range(NOISE_RUNS)]
            items = list(self._items(used, noise))
        clear = [item for item in items if not item.blurred]
        worst = max(clear or items, key=_Item.order, default=_Item(0.0, self._tolerance, ""))
        answered = frozenset().union(*(own.inputs.answered for own in used))
        untested = [name for name in asked if name not in answered]
        result = Verified(
            relative_error=worst.error,
            tolerance=worst.tolerance,
            precision=self._precision,
            inputs=tuple(own.inputs.name for own in used),
            outputs=len(used[0].theirs.outputs),
            buffers=len(items) - sum(len(own.theirs.outputs) for own in used),
            untested=(*untested, *(item.where for item in items if item.blurred)),
        )
        if worst.wrong:
            return replace(result, because=worst.where)
        because = _no_evidence(calls, asked, answered)
        if items and not clear:
            because = f"rounding alone moves {worst.where} by {worst.tolerance:.0%} of its size"
        return result if because is None else replace(result, relative_error=None, because=because)

    @property
    def _tolerance(self) -> float:
        return max(TOLERANCE, ROUNDINGS * self._eps)

    @property
    def _eps(self) -> float:
        return max(self.theirs.watch.eps, self.ours.watch.eps)

    @property
    def _precision(self) -> str:
        if self.theirs.precision is not None:
            return str(self.theirs.precision).removeprefix("torch.")
        names = {torch.finfo(kind).eps: str(kind).removeprefix("torch.") for kind in KINDS}
        return f"its own precision, {names.get(self._eps, 'of few bits')}"

    def _items(self, used: Sequence[Comparison], noise: Sequence[_Run]) -> Iterator[_Item]:
        for own in used:
            ours, theirs = own.ours.outputs, own.theirs.outputs
            others = [run[own.inputs.name].outputs for run in noise if own.inputs.name in run]
            if len(ours) != len(theirs):
                where = f"{len(ours)} outputs instead of {len(theirs)}"
                yield _Item(float("inf"), self._tolerance, where)
                continue
            for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                where = f"output {at + 1} of {len(theirs)} of the call with {own.inputs.name}"
                disturbed = [run[at] for run in others if len(run) == len(theirs)]
                yield self._item(one, other, disturbed, where)
        last = used[-1]
        runs = [run[last.inputs.name] for run in noise if last.inputs.name in run]
        for name, path in self._written(last):
            if path is None:
                where = f"the export lacks the buffer {name}, to which the masked model writes"
                yield _Item(float("inf"), self._tolerance, where)
                continue
            theirs = [self._cut(name, own.buffers[name]) for own in (last.theirs, *runs)]
            where = f"the buffer {name} after {len(used)} calls"
            yield self._item(last.ours.buffers[path], theirs[0], theirs[1:], where)

    def _item(self, ours: Tensor, theirs: Tensor, others: Sequence[Tensor], where: str) -> _Item:
        """Two tensors held against each other; `others` are the second, disturbed by rounding."""
        others = [other for other in others if other.shape == theirs.shape]
        if not is_inexact(theirs):
            # Whole numbers jump, as argmax does at ties: where rounding does that, it is excused.
            excused = torch.zeros_like(theirs, dtype=torch.bool)
            for other in others:
                excused |= plain(other) != plain(theirs)
            return _Item(difference(ours, theirs, excused), self._tolerance, where)
        noise = max((difference(other, theirs) for other in others), default=0.0)
        return _Item(difference(ours, theirs), max(self._tolerance, TIMES_NOISE * noise), where)

    def _written(self, last: Comparison) -> Iterator[tuple[str, str | None]]:
        """The buffers that either model wrote to, and their names in the export."""
        for names in aliases(self.theirs.source.named_buffers(remove_duplicate=False)).values():
            name = names[0]
            found = (path_in(self.ours.source, own) for own in names)
            paths = [path for path in found if path in last.ours.buffers]
            wrote = difference(last.theirs.buffers[name], self.theirs.at_first[name])
            if not paths:
                if wrote and not self._is_of_a_norm_that_left(name):
                    yield name, None
            elif wrote or difference(last.ours.buffers[paths[0]], self.ours.at_first[paths[0]]):
                yield name, paths[0]

    def _is_of_a_norm_that_left(self, name: str) -> bool:
        """Whether a buffer holds statistics of channels that nobody reads any more."""
        owner = name.rpartition(".")[0]
        path = path_in(self.ours.source, owner)
        left = any(own.startswith(f"{path}.") for own in tensors(self.ours.source))
        return not left and isinstance(self.theirs.source.get_submodule(owner), _NormBase)

    def _cut(self, name: str, whole: Tensor) -> Tensor:
        """What the export should have of a buffer."""
        for axis, kept in self.cuts.get(name, {}).items():
            indices = torch.tensor(kept, dtype=torch.long, device=whole.device)
            whole = whole.index_select(axis, indices)
        return whole

    def _disturbed(self, calls: Sequence[Comparison], seed: int) -> _Run:
        """The masked model's calls again, with every weight and input off by one rounding."""
        run: _Run = {}
        generator = torch.Generator().manual_seed(seed)

        def off(leaf: Tensor) -> Tensor:
            wide = in_precision(leaf, self.theirs.precision)
            if not is_inexact(wide):
                return wide
            return (wide * (1 + self._eps * signs(wide, generator))).to(wide.dtype)

        with Runner(self.theirs.source, self.theirs.precision) as other:
            other.disturb(list(other.weights), self._eps, seed)
            for call in calls:
                try:
                    outputs = other.call(call.inputs.example.map(off))
                except Exception:  # a call that fails says nothing about rounding
                    break
                run[call.inputs.name] = Result(outputs, other.buffers())
        return run


def _no_evidence(
    calls: Sequence[Comparison], asked: tuple[str, ...], answered: frozenset[str]
) -> str | None:
    """Why nothing was tested, or `None` if something was."""
    more = [own for own in calls if own.inputs.example is not calls[0].inputs.example]
    where = f"on the example or on {len(more)} drawn inputs" if more else "on the example"
    if not any(output.numel() for own in calls for output in own.theirs.outputs):
        return f"the model returns no numbers {where}"
    if not any(finite_share(own.theirs.outputs) for own in calls):
        return f"no output is finite {where}"
    if asked and not answered:
        names = ", ".join(asked[:NAMES_SHOWN]) + ", ..." * (len(asked) > NAMES_SHOWN)
        return f"no output responds {where} to the weights that pruning changed ({names})"
    return None
