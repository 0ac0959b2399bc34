"""Digests by which a model is known again: of what it computes, and of constants in its graph."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from upscale.capture.captured import Captured, home
from upscale.capture.fingerprint.normal_form import normal_form
from upscale.capture.tracer import source_line

FORMAT = 2


def fingerprint(captured: Captured) -> str:
    """The number of the format and a digest of the normal form: equal for equal computations."""
    return f"{FORMAT}:{_digest(line.text for line in normal_form(captured))}"


def made_for(captured: Captured) -> str:
    """What a plan remembers of a capture: its fingerprint, and what its nodes are called.

    A plan speaks of nodes by their names, and one computation may be traced into others.
    """
    nodes = (
        f"{node.op} {node.name} {node.target if isinstance(node.target, str) else ''} "
        f"{tree_leaves(captured.observed[node.name].result)}"
        for node in captured.graph.nodes
    )
    return f"{fingerprint(captured)}:{_digest(nodes)}"


def difference(there: Captured, here: Captured) -> str | None:
    """The first line in which two computations differ, in words; `None` if they do not."""
    ours, theirs = normal_form(here), normal_form(there)
    for own, other in zip(ours, theirs, strict=False):
        if own.text != other.text:
            what = f"there {other.said}, here {own.said}"
            if other.said == own.said:
                what = f"{own.said} reads something else here than there"
            return f"{what}{_where(here, own.node)}"
    if len(ours) != len(theirs):
        return f"there {len(theirs)} operations, here {len(ours)}"
    return None


def digests_of_constants(
    targets: Set[str], extras: Mapping[str, Any], model: nn.Module
) -> dict[str, str]:
    """A digest of every tensor at `targets`, which a graph refers to in its extras or the model."""
    held = {path: extras[path] if path in extras else attrgetter(path)(model) for path in targets}
    return {path: _digest_of(part) for path, part in held.items() if isinstance(part, Tensor)}


def _digest_of(tensor: Tensor) -> str:
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        return kind
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    numbers = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return f"{kind} {hashlib.sha256(numbers).hexdigest()}"


def _digest(lines: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _where(captured: Captured, name: str) -> str:
    node = next((n for n in captured.graph.nodes if n.name == name), None)
    if node is None:
        return ""
    line = source_line(node)
    return f", at {home(node) or node.name}" + (f" ({line})" if line else "")
