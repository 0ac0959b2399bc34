"""What a run of fine-tuning is of: its model, masks, recipe, data and weights, each by name.

What tells one from others is a sketch: a few texts and numbers, the same on any machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, default_collate

from upscale.lab.tuning.items import parted
from upscale.lab.tuning.recipes import Recipe, TuningError
from upscale.lab.tuning.teaching import Teacher
from upscale.lab.tuning.undisturbed import Draw, undisturbed
from upscale.model.batches import evaluating
from upscale.model.layers import parameter_names, tensors

# A text must be the same, a number nearly so: other machines round otherwise.
Fact = str | float

MOST_LOOKED_AT = 2**16
# Places taken in steps of this lie all over a tensor, whatever its shape.
STEP = 2_654_435_761


def sketch(value: Any) -> tuple[Fact, ...]:
    """A value's kind and what it holds; of a large tensor, what it holds at many of its places.

    >>> sketch(3), sketch(torch.zeros(2))
    (('int 3',), ('float32 (2,) zero',))
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, (float, complex)):
        value = torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else None)
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if value is None or isinstance(value, (bool, int, str, bytes)):
        said = repr(value)
        return (f"{type(value).__name__} {said if len(said) < 80 else digest(said.encode())}",)
    if callable(getattr(value, "tobytes", None)):  # a picture, or an array of other things
        return (f"{type(value).__name__} {digest(value.tobytes())}",)
    return (type(value).__qualname__,)


def first_apart(one: Sequence[Fact], other: Sequence[Fact], tolerance: float) -> int | None:
    """The place of the first fact that differs, or that only one of two rows has; None if they
    speak of the same thing."""
    for place, (a, b) in enumerate(zip_longest(one, other)):
        numbers = isinstance(a, float) and isinstance(b, float)
        if not (abs(a - b) <= tolerance if numbers else a == b):  # type: ignore[operator]
            return place
    return None


def digest(data: bytes) -> str:
    """A short name for data."""
    return hashlib.sha256(data).hexdigest()[:16]


def _of_tensor(tensor: Tensor) -> tuple[Fact, ...]:
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return (kind,)
    tensor = tensor.detach()
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()
    if len(flat) > MOST_LOOKED_AT:
        places = torch.arange(MOST_LOOKED_AT, device=flat.device) * STEP % len(flat)
        flat = flat[places]
    flat = flat.cpu()
    # Pictures of bytes are scaled by arithmetic of their own on each processor.
    if not flat.is_floating_point() and flat.dtype != torch.uint8:
        return (f"{kind} {digest(flat.numpy().tobytes())}",)
    return _of_numbers(kind, flat.double())


def _of_numbers(kind: str, flat: Tensor) -> tuple[Fact, ...]:
    """How large numbers are, and their sum under fixed weights, in units of that size."""
    finite = flat.isfinite()
    lost = len(flat) - int(finite.sum())
    kind = f"{kind} with {lost} that are no numbers" if lost else kind
    flat = flat.where(finite, 0.0)
    size = float(flat.square().mean().sqrt()) if len(flat) else 0.0
    if size == 0:
        return (f"{kind} zero",)
    weights = torch.arange(len(flat), dtype=torch.float64).cos()
    return kind, math.log(size), float((flat / size) @ weights) / math.sqrt(len(flat))


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
    "teacher": "another teacher",
    "answers": "a teacher that computes something else",
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


NO_TEACHER: Parts = {"teacher": Part("no teacher", ()), "answers": Part("no answers", ())}


def conditions(
    model: nn.Module,
    train: Dataset[Any],
    test: Dataset[Any],
    recipe: Recipe,
    teacher: Teacher | None = None,
) -> dict[str, Part]:
    """What stays the same from the first epoch to the last."""
    taught = NO_TEACHER if teacher is None else _teacher(teacher, test)
    return {
        **taught,
        "model": _structure(model),
        "masks": _masks(model),
        "recipe": Part(str(recipe), (json.dumps(asdict(recipe), sort_keys=True),)),
        "train": _contents(train),
        "test": _contents(test),
    }


def state(model: nn.Module, test: Dataset[Any]) -> dict[str, Part]:
    """What changes: the weights, and what the model makes of some test data with them."""
    return {
        "weights": Part.of("weights", _weights(model)),
        "outputs": Part.of("outputs", _outputs(model, test)),
    }


def differences(then: Parts, now: Parts) -> list[str]:
    """What is not as it was, with both named: there and here."""
    told = []
    for name, own in now.items():
        tolerance = OUTPUTS_TOLERANCE if name in ("outputs", "answers") else TOLERANCE
        before = then[name]
        place = first_apart(before.facts, own.facts, tolerance)
        if place is not None:
            told.append(f"{PHRASES[name]}: there {before.said}, here {own.said}")
            if name == "weights":  # each begins with the name of its tensor
                names = [fact for fact in own.facts[: place + 1] if isinstance(fact, str)]
                at = names[-1].split(" ")[0] if names else "their number"
                told[-1] += f", which differ at {at}"
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


def _weights(model: nn.Module) -> tuple[Fact, ...]:
    facts: list[Fact] = []
    for name, tensor in tensors(model).items():
        kind, *numbers = sketch(tensor)
        facts += [f"{name} {kind}", *numbers]
    return tuple(facts)


def _teacher(teacher: Teacher, test: Dataset[Any]) -> Parts:
    """Who teaches and how, and what the teacher makes of some test data."""
    model = teacher.model
    how = f"loss {teacher.loss}, temperature {teacher.temperature}, labels {teacher.labels}"
    structure = _structure(model)
    facts = (how, *structure.facts, *_masks(model).facts, *_weights(model))
    said = f"{structure.said.partition(' [')[0]} ({how})"
    return {
        "teacher": Part.of(said, facts),
        "answers": Part.of("answers", _outputs(model, test)),
    }


def _outputs(model: nn.Module, test: Dataset[Any]) -> tuple[Fact, ...]:
    """What tells apart what a model makes of a few test images."""
    if not size_of(test):
        return ()
    return _twice(lambda: [_leaves(looked_at(model, test))])


def looked_at(model: nn.Module, test: Dataset[Any]) -> Any:
    """What a model makes of a few test images; its buffers and all generators stay as they are."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    before = [(own, own.detach().clone()) for own in model.buffers()]
    with undisturbed(model, test) as draw, evaluating(model), torch.no_grad():
        inputs = parted(default_collate(_sample(test, PROBED, draw)))[0].to(device)
        made = draw(lambda: model(inputs))
        for own, value in before:
            if not torch.equal(own, value):
                own.copy_(value)
    return made


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
        if first_apart(a, b, TOLERANCE) is not None
    }
    return tuple(
        fact
        for row in first
        for place, leaf in enumerate(row)
        if place not in varying
        for fact in leaf
    )
