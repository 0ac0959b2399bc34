"""Files and plans of one version, written for the others and read by them.

    python -m scripts.matrix.exchange write PLACE           # in one environment
    python -m scripts.matrix.exchange read PLACE [PLACE..]  # in another: a line of JSON

Every small network of the tests is pruned and written with its plan, its weights before it was
pruned, its inputs and its outputs, in float64. Whoever reads holds three models against these
outputs: the file's, the file's beside a model of its class, and what the plan makes of that model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS
from upscale.capture import Example

TOLERANCE = 1e-10
SHARE = 0.4


def untouched(name: str) -> tuple[nn.Module, Example]:
    """A network in float64 and inputs for it, the same numbers every time."""
    torch.manual_seed(0)
    make, inputs = NETS[name]
    example = Example.of(inputs(2, 16)).map(_double)
    return calm(make()).double(), example


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def outputs(model: nn.Module, example: Example) -> dict[str, Tensor]:
    """Every tensor that a model gives, by number."""
    given = example.copied()
    with torch.no_grad():
        made = tree_leaves(model(*given.args, **given.kwargs))
    return numbered([leaf for leaf in made if isinstance(leaf, Tensor)])


def numbered(tensors: list[Tensor]) -> dict[str, Tensor]:
    """Tensors as a file holds them, each with memory of its own."""
    return {f"{place:03}": tensor.detach().clone() for place, tensor in enumerate(tensors)}


def write(place: Path) -> None:
    """Prune every network and write what a reader needs; sums, too, that output pruning splits."""
    place.mkdir(parents=True, exist_ok=True)
    for name in NETS:
        model, example = untouched(name)
        for seed, side in enumerate(SIDES):
            # Every layer keeps something: of a constant output no plan can be shown to be right.
            selection = random_selection(model, SHARE, seed, side=side, empty=False)
            plan = upscale.plan(model, example, selection)
            pruned = upscale.export(model, plan)
            stem = f"{name}.{side}"
            upscale.save(pruned, place / f"{stem}.safetensors")
            (place / f"{stem}.plan.json").write_text(plan.to_json(), encoding="utf-8")
            save_file(outputs(pruned, example), place / f"{stem}.outputs")
        save_file({k: t.clone() for k, t in model.state_dict().items()}, place / f"{name}.weights")
        save_file(numbered(example.tensors), place / f"{name}.inputs")


SIDES = ("input", "output")


def read(place: Path) -> Iterator[tuple[str, str | None]]:
    """What is wrong with each thing in a place; `None` if it computes what it did there."""
    for name in NETS:
        model, example = untouched(name)
        model.load_state_dict(load_file(place / f"{name}.weights"))
        given = iter(load_file(place / f"{name}.inputs").values())
        example = example.map(lambda _, given=given: next(given))  # type: ignore[misc]
        for side in SIDES:
            stem = f"{name}.{side}"
            expected = load_file(place / f"{stem}.outputs")
            for way, make in _ways(model, example, place / stem).items():
                yield f"{stem} {way}", _fault(make, example, expected)


def _ways(model: nn.Module, example: Example, stem: Path) -> dict[str, Callable[[], nn.Module]]:
    file = stem.with_name(f"{stem.name}.safetensors")
    text = stem.with_name(f"{stem.name}.plan.json").read_text(encoding="utf-8")
    return {
        "file": lambda: upscale.load(file),
        "file with model": lambda: upscale.load(file, model),
        "plan": lambda: upscale.export(model, upscale.Plan.from_json(text), example),
    }


def _fault(
    make: Callable[[], nn.Module], example: Example, expected: dict[str, Tensor]
) -> str | None:
    try:
        found = outputs(make(), example)
        if found.keys() != expected.keys():
            return f"{len(found)} outputs, not {len(expected)}"
        for key, tensor in expected.items():
            apart = (found[key] - tensor).abs().max().item() if tensor.numel() else 0.0
            if not apart <= TOLERANCE * max(1.0, tensor.abs().max().item()):
                return f"outputs are {apart:.1e} apart"
    except upscale.UpscaleError as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Write, or read and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("write", "read"))
    parser.add_argument("places", nargs="+", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "write":
        write(*arguments.places)
        return
    found: dict[str, Any] = {}
    for place in arguments.places:
        said = dict(read(place))
        faults = {name: fault for name, fault in said.items() if fault is not None}
        found[place.name] = {"read": len(said), "faults": faults}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
