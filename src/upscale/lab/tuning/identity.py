"""What a run of fine-tuning is of: its model, masks, recipe, data and weights, each by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, default_collate

from upscale.lab.tuning.recipes import Recipe, TuningError
from upscale.lab.tuning.sketches import Fact, digest, first_apart, near, sketch
from upscale.lab.tuning.undisturbed import Draw, undisturbed
from upscale.model.layers import parameter_names, tensors
from upscale.selection.batches import evaluating

SAMPLED, PROBED = 64, 8
# Weights and data come out of the same file, or of the same arithmetic, to rounding; what a model
# makes of data on another device differs by more.
TOLERANCE, OUTPUTS_TOLERANCE = 1e-4, 5e-3
PHRASES = {
    "model": "another model",
    "masks": "another mask",
    "recipe": "another recipe",
    "train": "other training data",
    "test": "other test data",
    "weights": "other weights",
    "outputs": "a model that computes something else",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a run depends on: what to call it, and what tells it from others."""

    said: str
    facts: tuple[Fact, ...]

    @classmethod
    def of(cls, said: str, facts: tuple[Fact, ...]) -> Part:
        """A part that is called so, and by a digest of its facts."""
        return cls(f"{said} [{digest(json.dumps(facts).encode())[:8]}]", facts)


Parts = Mapping[str, Part]


def conditions(
    model: nn.Module, train: Dataset[Any], test: Dataset[Any], recipe: Recipe
) -> dict[str, Part]:
    """What stays the same from the first epoch to the last."""
    return {
        "model": _structure(model),
        "masks": _masks(model),
        "recipe": Part(str(recipe), (json.dumps(asdict(recipe), sort_keys=True),)),
        "train": _contents(train),
        "test": _contents(test),
    }


def state(model: nn.Module, test: Dataset[Any]) -> dict[str, Part]:
    """What changes: the weights, and what the model makes of some test data with them."""
    facts: list[Fact] = []
    for name, tensor in tensors(model).items():
        kind, *numbers = sketch(tensor)
        facts += [f"{name} {kind}", *numbers]
    return {
        "weights": Part.of("weights", tuple(facts)),
        "outputs": Part.of("outputs", _outputs(model, test)),
    }


def differences(then: Parts, now: Parts) -> list[str]:
    """What is not as it was, with both named: there and here."""
    told = []
    for name, own in now.items():
        tolerance = OUTPUTS_TOLERANCE if name == "outputs" else TOLERANCE
        before = then[name]
        if not near(before.facts, own.facts, tolerance):
            told.append(f"{PHRASES[name]}: there {before.said}, here {own.said}")
            if name == "weights":
                told[-1] += f", which differ at {_differing(before, own, tolerance)}"
    return told


def parts_to_json(parts: Parts) -> dict[str, Any]:
    """Parts as plain data."""
    return {name: asdict(part) for name, part in parts.items()}


def json_to_parts(given: Any, names: tuple[str, ...]) -> dict[str, Part]:
    """Parts of these names from plain data; raises what comes up where it is none."""
    return {name: Part(str(given[name]["said"]), tuple(given[name]["facts"])) for name in names}


def size_of(images: Dataset[Any]) -> int:
    """How many images there are."""
    try:
        return len(images)  # type: ignore[arg-type]  # datasets that can be drawn from have one
    except TypeError as error:
        raise TuningError(
            f"{type(images).__name__} has no length; give datasets whose images have numbers"
        ) from error


def _differing(one: Part, other: Part, tolerance: float) -> str:
    """The tensor at which weights begin to differ."""
    place = first_apart(one.facts, other.facts, tolerance)
    names = [str(f) for f in other.facts[: (place or 0) + 1] if isinstance(f, str)]
    return names[-1].split(" ")[0] if names else "their number"


def _structure(model: nn.Module) -> Part:
    """Classes, what they say of themselves, and the names and shapes of what they own."""
    names = parameter_names(model)
    lines = [
        f"{name} {type(module).__qualname__}({module.extra_repr()})"
        for name, module in model.named_modules(remove_duplicate=False)
    ]
    lines += [
        f"{name} is {names[id(own)]} {own.dtype} {tuple(own.shape)} {own.requires_grad}"
        for name, own in tensors(model).items()
    ]
    count = sum(parameter.numel() for parameter in model.parameters())
    said = f"{type(model).__qualname__} of {count:,} weights"
    return Part.of(said, (digest("\n".join(lines).encode()),))


def _masks(model: nn.Module) -> Part:
    """What hooks hold at zero. Hooks of others are known by their names alone."""
    held = []
    for name, module in model.named_modules():
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            owner = getattr(hook, "__self__", hook)
            kind = type(owner)
            ours = kind.__module__.startswith("upscale.")
            held.append(f"{name} {kind.__qualname__} {_plain(vars(owner)) if ours else ''}")
    said = f"{len(held)} masks" if held else "no mask"
    return Part.of(said, (digest("\n".join(held).encode()),))


def _plain(value: Any) -> Any:
    """What a mask holds, as text that is the same in every process."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return sorted((str(name), _plain(own)) for name, own in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(own) for own in value]
    return value if isinstance(value, (bool, int, float, str)) else type(value).__qualname__


def _contents(images: Dataset[Any]) -> Part:
    """The length of a dataset and some of its images, all over it."""
    size = size_of(images)
    with undisturbed(images) as draw:
        facts = _twice(lambda: [_leaves(item) for item in _sample(images, SAMPLED, draw)])
    return Part.of(f"{type(images).__name__} of {size:,} images", (str(size), *facts))


def _sample(images: Dataset[Any], most: int, draw: Draw) -> list[Any]:
    size = size_of(images)
    count = min(size, most)
    return [draw(partial(images.__getitem__, turn * size // count)) for turn in range(count)]


def _outputs(model: nn.Module, test: Dataset[Any]) -> tuple[Fact, ...]:
    """What a model makes of a few test images; its own buffers stay as they are."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    before = [(own, own.detach().clone()) for own in model.buffers()]
    with undisturbed(model, test) as draw, evaluating(model), torch.no_grad():
        images = _sample(test, PROBED, draw)
        if not images:
            return ()
        inputs = default_collate(images)[0].to(device)
        facts = _twice(lambda: [_leaves(draw(lambda: model(inputs.clone())))])
        for own, value in before:
            if not torch.equal(own, value):
                own.copy_(value)
    return facts


def _leaves(item: Any) -> list[tuple[Fact, ...]]:
    return [sketch(leaf) for leaf in tree_leaves(item)]


def _twice(look: Any) -> tuple[Fact, ...]:
    """The facts of some rows of leaves, without leaves that differ from one look to the next.

    Those are random by a generator that could not be found.
    """
    first: list[list[tuple[Fact, ...]]] = look()
    second: list[list[tuple[Fact, ...]]] = look()
    varying = {
        place
        for one, other in zip(first, second, strict=True)
        for place, (a, b) in enumerate(zip_longest(one, other, fillvalue=()))
        if not near(a, b, TOLERANCE)
    }
    return tuple(
        fact
        for row in first
        for place, leaf in enumerate(row)
        if place not in varying
        for fact in leaf
    )
