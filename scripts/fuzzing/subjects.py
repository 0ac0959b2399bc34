"""Subjects: small models of every kind, pruned, saved, and taken apart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS
from upscale.capture import Example
from upscale.store.container import LENGTH, METADATA

MODELS = (
    *("Residual", "Dense", "Shuffle", "TransformerBlock", "WeightNormed", "TiedAutoencoder"),
    *("WrappedSplit", "WrappedWindows", "OneChannel", "AsksOfAConcatenation"),
    *("Lstm", "Gru"),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A saved model: what it was pruned from, its file, taken apart, and what it computes."""

    name: str
    model: nn.Module
    plan: upscale.Plan
    content: bytes
    document: Any
    entries: Any
    data: bytes
    inputs: Any
    outputs: list[Any]


class Recurrent(nn.Module):
    """A recurrent layer between linears that can be pruned."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(6, 8), layer
        self.wide, self.head = nn.Linear(10, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        """What the head makes of every step."""
        out: Tensor = self.head(self.wide(self.layer(self.first(x).relu())[0]).relu())
        return out


def _lstm() -> nn.Module:
    return Recurrent(nn.LSTM(8, 5, num_layers=2, batch_first=True, bidirectional=True))


def _gru() -> nn.Module:
    return Recurrent(nn.GRU(8, 10, batch_first=True))


def subjects(names: tuple[str, ...], place: Path) -> list[Subject]:
    """Small models of every kind, pruned and saved."""
    return [_subject(name, place / f"{name}.safetensors") for name in names]


def _subject(name: str, path: Path) -> Subject:
    torch.manual_seed(0)
    recurrent = {"Lstm": _lstm, "Gru": _gru}
    if name in recurrent:
        model, inputs = calm(recurrent[name]()), torch.randn(2, 7, 6)
    else:
        make, example = NETS[name]
        model, inputs = calm(make()), example(2, 16)
    selection = random_selection(model, 0.4, seed=1)
    plan = upscale.plan(model, inputs, selection)
    pruned = upscale.export(model, plan)
    upscale.save(pruned, path)
    content = path.read_bytes()
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    entries = json.loads(content[LENGTH.size : end])
    document = json.loads(entries.pop(METADATA)["upscale"])
    data, outputs = content[end:], run(pruned, inputs)
    return Subject(name, model, plan, content, document, entries, data, inputs, outputs)


def run(model: nn.Module, inputs: Any) -> list[Any]:
    """Every output of a model."""
    given = Example.of(inputs).copied()
    with torch.no_grad():
        return list(tree_leaves(model(*given.args, **given.kwargs)))


def same(found: list[Any], expected: list[Any]) -> bool:
    """Whether outputs are the very same."""
    return len(found) == len(expected) and all(
        isinstance(one, Tensor)
        and one.shape == other.shape
        and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
        for one, other in zip(found, expected, strict=True)
    )
