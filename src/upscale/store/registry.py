"""The registry: names that files use, and the functions, methods and layers they stand for.

It is built from the words of this package alone: `store.words`, and the operations of the table
that say so. A name in a file is a key of these tables or an error; nothing is ever imported or
looked up because a file says so.
"""

from __future__ import annotations

import builtins
import importlib
import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from upscale.capture.size_guards import require_size
from upscale.errors import StoreError
from upscale.ops import table
from upscale.store import words
from upscale.tools.optional_packages import MissingPackageError, import_torchvision

Function = Callable[..., Any]

# An operation of another library (`demo::gate`) is in none of the places that are looked in.
OPERATIONS = (
    *(name for name, known in table.OPERATIONS.items() if known.stored and ":" not in name),
    *words.OPERATIONS,
    *words.IN_PLACE,
)

METHODS = frozenset(
    name for name in (*OPERATIONS, *words.METHODS) if callable(getattr(Tensor, name, None))
)

# Values that are neither plain nor made of parts.
CONSTANTS: dict[str, object] = {
    **{f"torch.{name}": getattr(torch, name) for name in words.CONSTANTS},
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "ellipsis": ...,
}

TYPES = {
    "Tensor": Tensor,
    "Tensor | None": Tensor | None,
    "list[Tensor]": list[Tensor],
    "tuple[Tensor, Tensor]": tuple[Tensor, Tensor],
    "dict[str, Tensor]": dict[str, Tensor],
}

_VISION = "torchvision."


@cache
def functions() -> dict[str, Function]:
    """Every function a graph may call, by its name in files; torchvision's are apart."""
    found: dict[str, Function] = {
        "getattr": getattr,
        "collections.OrderedDict": OrderedDict,
        "upscale.require_size": require_size,
        "torch._assert": torch._assert,
        "torch.ops.aten._assert_async": torch.ops.aten._assert_async.default,
    }
    places: tuple[tuple[str, object, Sequence[str]], ...] = (
        ("operator", operator, words.OPERATORS),
        ("builtins", builtins, words.BUILTINS),
        ("math", math, words.MATHS),
        ("torch", torch, (*OPERATIONS, *words.SYMBOLIC)),
        ("torch.fft", torch.fft, words.FFTS),
        ("torch.linalg", torch.linalg, words.LINEAR_ALGEBRA),
        ("torch.nn.functional", F, OPERATIONS),
    )
    for place, holder, names in places:
        for name in names:
            function = getattr(holder, name, None)
            if callable(function) and not isinstance(function, ModuleType):
                found[f"{place}.{name}"] = function
    for name in OPERATIONS:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            found[f"aten.{name}.{overload}"] = getattr(packet, overload)
    return found


@cache
def _names() -> dict[Function, str]:
    """The first name of every function."""
    return {function: name for name, function in reversed(functions().items())}


def name_of(function: Function) -> str | None:
    """The name of a function in files, if it has one."""
    name = getattr(function, "__name__", "")
    if words.TORCHVISION.get(name) == getattr(function, "__module__", None):
        return _VISION + name
    try:
        return _names().get(function)
    except TypeError:  # not everything that can be called can be a key
        return None


def function_named(name: object) -> Function:
    """The function of a name in a file; raises if there is none."""
    if isinstance(name, str) and name in functions():
        return functions()[name]
    if isinstance(name, str) and name.removeprefix(_VISION) in words.TORCHVISION:
        name = name.removeprefix(_VISION)
        try:
            import_torchvision()
        except MissingPackageError as error:
            raise StoreError(f"the file calls torchvision's {name}: {error}") from error
        found: Function = getattr(importlib.import_module(words.TORCHVISION[name]), name)
        return found
    raise StoreError(f"the file calls {str(name)[:80]!r}, which is no operation of this version")
