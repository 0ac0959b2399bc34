"""Plan documents, mutated: each exports what it says, or is refused."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import upscale
from scripts.fuzzing.mutations import mutate, nudge, text_of
from scripts.fuzzing.subjects import Subject, run, same
from scripts.fuzzing.watching import Watch
from upscale.capture import Example
from upscale.model.layers import weight_names
from upscale.planning.document import DIGEST, VERSION, digest_of

TOLERANCE = 1e-9


def edited(subject: Subject, rng: random.Random) -> str:
    """A document with something else in it, under the old digest."""
    document = json.loads(subject.plan.to_json())
    rng.choice((mutate, nudge))(document, rng)
    return text_of(document)


def forged(subject: Subject, rng: random.Random) -> str:
    """A document with something else in it, and a digest that fits."""
    document = json.loads(subject.plan.to_json())
    del document[DIGEST]
    filled = [name for name, value in document.items() if isinstance(value, (dict, list)) and value]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        part = rng.choice(filled if rng.random() < 0.8 else list(document))
        holder = {part: document[part]}
        rng.choice((mutate, nudge, nudge, nudge))(holder, rng)
        document[part] = holder.get(part)
    version = document.pop(VERSION, None)
    try:
        sealed = {VERSION: version, DIGEST: digest_of(document), **document}
    except (TypeError, ValueError):
        sealed = {VERSION: version, DIGEST: "", **document}
    return text_of(sealed)


def outcome(subject: Subject, text: str, watch: Watch) -> str:
    """What became of a document: `refused`, `same`, `another` that it says, or a fault."""
    # Wide from the start: what is folded is rounded to the precision of the weights.
    model = copy.deepcopy(subject.model).double()
    inputs = Example.of(subject.inputs).map(_wide)

    def read() -> upscale.Plan | None:
        try:
            return upscale.Plan.from_json(text)
        except upscale.PlanError:
            return None

    def export() -> tuple[upscale.Plan, nn.Module] | None:
        plan = read()
        if plan is None:
            return None
        try:
            return plan, upscale.export(model, plan, inputs)
        except upscale.PlanError:
            return None

    try:
        found, wrong = watch.during(export, len(text))
    except Exception as error:
        return f"fault: {type(error).__name__}: {error!s:.200}"
    if wrong is not None:
        return f"fault: {wrong}"
    if found is None:
        return "refused"
    plan, pruned = found
    if plan == subject.plan:
        return "same"
    return "another that it says" if _says(plan, pruned, model, inputs) else "fault: a difference"


def _wide(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _says(plan: upscale.Plan, pruned: nn.Module, model: nn.Module, inputs: Example) -> bool:
    """Whether an export computes what its plan says, on inputs it was not checked with."""
    kept = {}
    for layer, name in weight_names(model).items():
        own = set(plan.kept.get(name, range(10**6)))
        for table in (plan.weights.folds, plan.weights.gates):
            own |= set(table[name].columns) if name in table else set()
        if name in plan.kept:
            kept[layer] = sorted(own)
    masked = upscale.mask(model, upscale.Selection(kept=kept))
    for where, channels in plan.masks.after.items():
        module = masked.get_submodule(where)
        module.register_forward_hook(_zero(channels, -1 if isinstance(module, nn.Linear) else 1))
    torch.manual_seed(3)
    other = inputs.map(lambda x: torch.randn_like(x) if isinstance(x, Tensor) else x)
    found, expected = run(pruned, other), run(masked, other)
    return same(found, expected) or all(
        one.shape == two.shape
        and float((one - two).abs().max()) <= TOLERANCE * (1 + float(two.abs().max()))
        for one, two in zip(found, expected, strict=True)
    )


def _zero(channels: tuple[int, ...], axis: int) -> Callable[[Any, Any, Tensor], Tensor]:
    def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
        return output.index_fill(axis, torch.tensor(channels, dtype=torch.long), 0.0)

    return hook
