"""Saved models for the tests of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS
from upscale.capture import Example
from upscale.store.container import LENGTH, METADATA, seal


def pruned_net(name: str, side: str = "input") -> tuple[fx.GraphModule, Any]:
    """One of the small networks, pruned, and inputs for it."""
    torch.manual_seed(0)
    make, example = NETS[name]
    model, inputs = calm(make()), example(2, 16)
    plan = upscale.plan(model, inputs, random_selection(model, 0.4, seed=1, side=side))
    return upscale.export(model, plan), inputs


def outputs(model: nn.Module, inputs: Any) -> list[Any]:
    """Every output of a model."""
    given = Example.of(inputs).copied()
    with torch.no_grad():
        return list(tree_leaves(model(*given.args, **given.kwargs)))


def assert_same(one: nn.Module, other: nn.Module, inputs: Any) -> None:
    """Raise unless two models give the very same numbers and hold the same tensors."""
    found, expected = outputs(one, inputs), outputs(other, inputs)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    states = one.state_dict(), other.state_dict()
    assert list(states[0]) == list(states[1])
    for name, tensor in states[0].items():
        same = states[1][name]
        assert (tensor.dtype, tensor.stride()) == (same.dtype, same.stride()), name
        torch.testing.assert_close(tensor, same, rtol=0, atol=0, equal_nan=True)


def round_trip(model: fx.GraphModule, place: Path) -> fx.GraphModule:
    """What comes back from a file."""
    upscale.save(model, place / "model.safetensors")
    return upscale.load(place / "model.safetensors")


def rewrite_document(path: Path, change: Any) -> None:
    """Edit a file's document and seal it anew."""
    content = path.read_bytes()
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    entries = json.loads(content[LENGTH.size : end])
    document = json.loads(entries.pop(METADATA)["upscale"])
    change(document)
    path.write_bytes(b"".join(seal(json.dumps(document), entries, content[end:])))
