"""Whether outputs respond to the weights that an export has otherwise: if not, equality of
outputs says nothing about those."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.oracle import layers_of
from upscale.verify.result import TOLERANCE
from upscale.verify.running import Runner, signs
from upscale.verify.tensors import aliases, difference, is_inexact, path_in, tensors

# What a call may keep for its gradients; above, and for lack of gradients, weights are disturbed.
MOST_KEPT_BYTES = 2**29
# So many roundings are no response, as long as that is not much.
ROUNDINGS, MOST_OVERLOOKED = 100, 1e-3
# Beyond so many layers they are disturbed together, and answer together.
ASKED_ALONE = 8

# The names of the weights of each layer, by the layer's.
Layers = Mapping[str, tuple[str, ...]]


def touched(exported: nn.Module, masked: nn.Module) -> Layers:
    """The layers whose weights an export has in another shape, order or number, and the names
    of those weights in the masked model; parameters of no layer only where there is no layer.

    Layers that are not in the export at all are none of them: nothing is left to test.
    """
    names, ours = aliases(tensors(masked).items()), tensors(exported)
    first = {id(weight): name for name, weight in masked.named_parameters()}

    def differs(weight: Tensor) -> bool:
        paths = (path_in(exported, name) for name in names[id(weight)])
        own = [ours[path] for path in paths if path in ours]
        return not own or own[0].shape != weight.shape or not torch.equal(own[0].to(weight), weight)

    parts = [name.split(".") for name in ours]
    left = {".".join(own[:depth]) for own in parts for depth in range(len(own))}
    found: dict[str, tuple[str, ...]] = {}
    for name, layer in layers_of(masked).items():
        weights = [own for part, own in layer.named_parameters() if part != "bias"]
        changed = tuple(first[id(own)] for own in weights if differs(own))
        if changed and path_in(exported, name) in left and changed not in found.values():
            found[name] = changed
    if found:
        return found
    kept = {name: own for name, own in masked.named_parameters() if path_in(exported, name) in ours}
    return {name: (name,) for name, own in kept.items() if differs(own)}


def ask(runner: Runner, example: Example, asked: Layers) -> tuple[list[Tensor], frozenset[str]]:
    """What a model returns, and the layers whose weights move that by more than rounding.

    Gradients of a random sum of the outputs tell it of all layers in one pass. Where they say
    nothing (rounding, argmax, code without gradients) or take too much memory, weights are
    disturbed instead: that needs no memory, but a call for each.
    """
    if not asked:
        return runner.call(example), frozenset()
    before = runner.buffers()
    weights = {name: runner.weights[name] for names in asked.values() for name in names}
    outputs, strength = _graded(runner, example, weights, before)
    least = max(TOLERANCE, min(ROUNDINGS * runner.watch.eps, MOST_OVERLOOKED))
    found = {
        layer for layer, names in asked.items() if any(strength.get(n, 0) > least for n in names)
    }
    rest = [layer for layer in asked if layer not in found]
    after = runner.buffers() if rest else {}

    def moves(some: Sequence[str]) -> bool:
        names = [name for layer in some for name in asked[layer]]
        runner.restore(before)
        runner.disturb(names, 0.5, seed=1)
        try:
            moved = runner.call(example, again=True)
        except Exception:  # other weights may lead a model astray: then nothing is known
            return False
        finally:
            runner.reset(names)
        pairs = zip(moved, outputs, strict=len(moved) == len(outputs))
        return any(difference(a, b) > least for a, b in pairs)

    if rest and moves(rest):
        alone = 1 < len(rest) <= ASKED_ALONE
        found |= {layer for layer in rest if not alone or moves([layer])}
    runner.restore(after)
    return outputs, frozenset(found)


def _graded(
    runner: Runner, example: Example, weights: Mapping[str, Tensor], before: Mapping[str, Tensor]
) -> tuple[list[Tensor], dict[str, float]]:
    """The outputs, and by how much of their size each weight's own size moves them."""
    kept = _Kept(runner.weights.values())
    strength: dict[str, float] = {}
    hooks = []
    for name, weight in weights.items():
        if is_inexact(weight):
            weight.requires_grad_(True)
            hooks.append(weight.register_post_accumulate_grad_hook(_noting(name, strength)))
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
            outputs = runner.call(example, graded=True)
            written = [own for own in runner.model.buffers() if own.requires_grad]
            total = None if kept.overflowed else _random_sum([*outputs, *written])
        if total is not None:
            total.backward()
    except Exception:  # some models run only without gradients, and then weights are disturbed
        runner.restore(before)
        runner.model.requires_grad_(False)
        strength.clear()
        outputs = runner.call(example, again=True)
    finally:
        for hook in hooks:
            hook.remove()
        runner.model.requires_grad_(False).zero_grad()
    runner.settle()
    return [output.detach() for output in outputs], strength


def _noting(name: str, strength: dict[str, float]) -> Any:
    """A hook that notes how strongly a weight is felt, and lets go of its gradient."""

    def note(weight: Tensor) -> None:
        assert weight.grad is not None
        felt = torch.linalg.vector_norm(weight.grad * weight.detach(), dtype=torch.float64)
        if felt == 0 and not weight.detach().any():
            # Where all of a weight is masked, what matters is that something would be felt.
            felt = torch.linalg.vector_norm(weight.grad) / math.sqrt(max(1, weight.numel()))
        strength[name] = float(felt)
        weight.grad = None

    return note


def _random_sum(values: Sequence[Tensor]) -> Tensor | None:
    """A sum of all finite numbers with random signs, every tensor scaled to the same size."""
    generator = torch.Generator().manual_seed(0)
    total: Tensor | None = None
    for value in values:
        if not value.requires_grad:
            continue
        value = torch.view_as_real(value) if value.is_complex() else value
        finite = value.detach().isfinite()
        size = value.detach()[finite].double().square().sum().sqrt().item()
        if size > 0:
            part = (value * signs(value, generator))[finite].sum() / size
            total = part if total is None else total + part
    return total


class _Kept:
    """What a call keeps for its gradients, and nothing once that is too much."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = {own.untyped_storage().data_ptr() for own in weights}
        self.bytes = 0

    @property
    def overflowed(self) -> bool:
        return self.bytes > MOST_KEPT_BYTES

    def pack(self, tensor: Tensor) -> Tensor | None:
        if tensor.untyped_storage().data_ptr() not in self._weights:
            self.bytes += tensor.numel() * tensor.element_size()
        return None if self.overflowed else tensor

    def unpack(self, kept: Tensor | None) -> Tensor:
        assert kept is not None  # nobody asks for gradients of what overflowed
        return kept
