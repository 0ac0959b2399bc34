"""Comparing an export with the masked model: the same calls of both, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from upscale.capture import Example
from upscale.errors import VerificationError
from upscale.verify.inputs import Inputs, find_inputs, finite_share, makes_sense
from upscale.verify.judging import Comparison, Judge, Result
from upscale.verify.responding import Layers, touched
from upscale.verify.result import Verified
from upscale.verify.running import Precision, Runner

FLOAT32_EPS = torch.finfo(torch.float32).eps
Maker = Callable[[], nn.Module]


def compare(
    exported: nn.Module, masked: nn.Module, example: Example, *, unrounded: Maker | None = None
) -> Verified:
    """Run both models on the example and on inputs drawn like it, and compare what they return
    and what they write to their buffers.

    Both run in float64 where they can. Where a model rounds to less by itself, they run in the
    widest precision in which it does not, else in its own. `unrounded` makes the export anew
    from float64 weights, where the export had to round what it computed from them.
    """
    touches = touched(exported, masked)
    inputs = _inputs(masked, example, touches)
    for precision in (*_wider_precisions(masked, example), None):
        make = unrounded if unrounded and precision else (lambda: exported)
        found = _compared(make, masked, inputs, touches, precision)
        if found is not None:
            return found
    raise AssertionError("their own precision is never too wide")


def verify(
    exported: nn.Module, masked: nn.Module, example: Example, *, unrounded: Maker | None = None
) -> Verified:
    """Compare two models and raise if they differ by more than rounding."""
    verified = compare(exported, masked, example, unrounded=unrounded)
    if verified.differs:
        raise VerificationError(f"{verified} Please report this: it is a bug")
    return verified


def _wider_precisions(masked: nn.Module, example: Example) -> Iterator[torch.dtype]:
    """The precisions to try before the model's own, widest first."""
    yield torch.float64
    owned = (*masked.parameters(), *masked.buffers(), *example.tensors)
    eps = [torch.finfo(own.dtype).eps for own in owned if own.is_floating_point()]
    if max(eps, default=0.0) > FLOAT32_EPS:
        yield torch.float32


def _inputs(masked: nn.Module, example: Example, asked: Layers) -> list[Inputs]:
    """What to call both with. To find it the masked model runs in its own precision, which is
    quicker than float64 and takes less memory, and never in less than float32 if it can."""
    *_, narrowest = _wider_precisions(masked, example)
    own = None if narrowest == torch.float64 else narrowest
    failed = None
    for precision in dict.fromkeys((own, None, torch.float64)):
        try:
            return find_inputs(masked, example, asked, precision)
        except Exception as error:  # whatever a model raises where it does not run so wide
            failed = failed or error
    assert failed is not None
    raise failure("masked model", failed) from failed


def failure(which: str, error: Exception) -> VerificationError:
    """The error that says which of two models cannot run."""
    told = str(error).strip().splitlines() or [type(error).__name__]
    return VerificationError(f"the {which} fails on the example: {told[0]}")


def _compared(
    make: Maker, masked: nn.Module, inputs: Sequence[Inputs], asked: Layers, precision: Precision
) -> Verified | None:
    """What was found in some precision; `None` if it is too wide for one of the two."""
    with Runner(masked, precision) as theirs:
        expected = _called("masked model", theirs, inputs)
    if expected is None:
        return None
    exported = make()
    with Runner(exported, precision) as ours:
        results = _called("export", ours, [replace(taken, spare=False) for taken, _ in expected])
    if results is None:
        return None
    calls = [
        Comparison(taken, theirs_made, ours_made)
        for (taken, theirs_made), (_, ours_made) in zip(expected, results, strict=False)
    ]
    # What an export says of its buffers: which channels they are of. All else is computed.
    cuts = plan.weights.cuts if (plan := getattr(exported, "meta", {}).get("plan")) else {}
    return Judge(cuts, theirs, ours).judged(calls, tuple(asked))


def _called(
    which: str, runner: Runner, wanted: Sequence[Inputs]
) -> list[tuple[Inputs, Result]] | None:
    """What each call came to, up to one that fails; `None` if the precision is too wide.

    Spare inputs may be refused, and are left out once something beside the example told.
    """
    results: list[tuple[Inputs, Result]] = []
    told = False
    for inputs in wanted:
        if inputs.spare and told:
            continue
        before = runner.buffers()
        try:
            outputs = runner.call(inputs.example)
        except Exception as error:  # it may refuse drawn inputs, but not the example
            if results and inputs.spare:
                runner.restore(before)
                continue
            if results:
                break
            if runner.precision is None:
                raise failure(which, error) from error
            return None
        if results:
            told = told or makes_sense(outputs, finite_share(results[0][1].outputs))
        results.append((inputs, Result(outputs, runner.buffers())))
    return None if runner.precision is not None and runner.watch.narrows else results
