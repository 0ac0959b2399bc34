"""Examples as JSON and back: the shapes and dtypes of what a model was captured with."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from upscale.capture import Example
from upscale.errors import StoreError
from upscale.store import checks
from upscale.store.checks import Json, as_integers, as_list, as_object
from upscale.store.literals import json_to_literal, json_to_tree, literal_to_json, tree_to_json

LARGEST = 2**56  # elements; of these even the bytes can be counted


def example_to_json(example: Example) -> Json:
    """What the model was captured with, without its numbers."""
    leaves, spec = tree_flatten((example.args, dict(example.kwargs)))
    return {"packed": tree_to_json(spec), "leaves": [_leaf_to_json(leaf) for leaf in leaves]}


def json_to_example(value: Json, size: int) -> Example:
    """An example of the shapes in a file of so many bytes, on the meta device."""
    entries = as_object(value, "packed", "leaves")
    spec = json_to_tree(entries["packed"])
    leaves = [_json_to_leaf(leaf) for leaf in as_list(entries["leaves"])]
    if spec.num_leaves != len(leaves):
        raise StoreError("the file has more or fewer inputs than it packs")
    packed = tree_unflatten(leaves, spec)
    if not (isinstance(packed, tuple) and [type(part) for part in packed] == [tuple, dict]):
        raise StoreError("the file does not say what the model is called with")
    example = Example(*packed)
    check_example(example, size)
    return example


def example_bytes(example: Example) -> int:
    """How many bytes an example would take, if it had numbers."""
    return sum(tensor.nbytes for tensor in example.tensors)


def check_example(example: Example, size: int) -> None:
    """Raise if an example is too large for a file of so many bytes."""
    taken, most = example_bytes(example), checks.most_example_bytes(size)
    if taken > most:
        raise StoreError(
            f"the inputs that the model was captured with take {taken:,} bytes; with a file of "
            f"about {size:,} they may take {most:,}: capture the model with fewer samples"
        )


def _leaf_to_json(leaf: Any) -> Json:
    if isinstance(leaf, Tensor):
        return {"shape": list(leaf.shape), "dtype": literal_to_json(leaf.dtype)}
    return literal_to_json(leaf)


def _json_to_leaf(leaf: Json) -> Any:
    if not (isinstance(leaf, dict) and "shape" in leaf):
        return json_to_literal(leaf, {})
    entries = as_object(leaf, "shape", "dtype")
    shape = as_integers(entries["shape"])
    dtype = json_to_literal(entries["dtype"], {})
    if not isinstance(dtype, torch.dtype) or any(size < 0 for size in shape):
        raise StoreError("the file has an input that is no tensor")
    if len(shape) > checks.MOST_AXES or math.prod(size for size in shape if size) >= LARGEST:
        raise StoreError("the file has an input that is larger than any tensor")
    return torch.empty(shape, dtype=dtype, device="meta")
