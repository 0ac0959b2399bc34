"""The configuration of a model: all that decides what it computes, but for its weights' values.

That is, for each module, its class, its attributes, its hooks and the code it runs, with what this
refers to: closures, defaults, globals, functions. Two models of one configuration trace alike, and
need not be traced to know it:

    plan = upscale.plan(model, x, selection)     # reads the configuration
    upscale.export(model, plan)                  # reads it again: the same, nothing is traced
    model.conv.stride = (2, 2)
    upscale.export(model, plan)                  # another: traced, and refused

What cannot be looked into makes a configuration unknown, which is like no other.
"""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from upscale.model.layers import tensors

PLAIN = (
    *(bool, int, str, bytes, type(None), type(...), range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
# What one object stands for whatever is done to it, or cannot be changed at all.
ATOMS = (
    *(types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.ModuleType, logging.Logger),
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket),
)
# Attributes of every module that say nothing of what it computes, or are read on their own.
SILENT = vars(nn.Module()).keys() - {"training"}
# Attributes of every class that say nothing of what its instances do.
SILENT_OF_CLASSES = {
    *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__"),
    *("__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__parameters__"),
    *("__orig_bases__", "__abstractmethods__", "_abc_impl", "__annotations_cache__"),
}
# A model whose code reaches further than this is not looked through.
MOST_PARTS = 50_000


class _Unknown(Exception):
    """Something is there that cannot be looked into."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a model is made of; `dtype` is that of its weights, and no matter of comparison."""

    parts: object
    dtype: torch.dtype | None

    def same(self, other: object) -> bool:
        """Whether another is known to be the same."""
        known = isinstance(other, Configuration) and self.parts is not None
        return known and self.parts == other.parts  # type: ignore[attr-defined]


def configuration(model: nn.Module) -> Configuration:
    """The configuration of a model as it is now."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    try:
        return Configuration(_Reader(model).read(), dtype)
    except (_Unknown, RecursionError):
        return Configuration(None, dtype)


@dataclass(eq=False, slots=True)
class _Is:
    """A thing that is the same as nothing but itself."""

    thing: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and self.thing is other.thing


class _Reader:
    """Reads one model."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.named_modules(remove_duplicate=False))
        self._tensors = list(tensors(model).items())
        # The first name of each, which a dict made backwards is left with.
        self._paths = {id(module): path for path, module in reversed(self._modules)}
        self._owned = {id(tensor): name for name, tensor in reversed(self._tensors)}
        # Numbers of things, with these themselves, so that nothing else gets their identity.
        self._known: dict[tuple[int, ...], tuple[int, object]] = {}
        self._count = 0

    def read(self) -> object:
        """All parts, comparable with those of another model."""
        weights = [(name, self._owned[id(x)], tuple(x.shape)) for name, x in self._tensors]
        modules = [(path, self._paths[id(m)], self._module(m)) for path, m in self._modules]
        return weights, modules

    def _module(self, module: nn.Module) -> object:
        again = self._again(module)
        if again is not None:
            return again
        held = (module._modules, module._parameters, module._buffers)
        gaps = [(name, part is None) for parts in held for name, part in parts.items()]
        if isinstance(module, fx.GraphModule):
            called = [n.target for n in module.graph.nodes if n.op == "call_function"]
            return gaps, module.code, module.training, [self._part(target) for target in called]
        own = [(name, self._part(x)) for name, x in vars(module).items() if name not in SILENT]
        given = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        hooks = [self._part(hook) for hook in given if not getattr(hook, "only_masks", False)]
        return gaps, own, hooks, self._part(type(module)), self._code(type(module).forward, module)

    def _part(self, part: Any) -> object:
        self._count += 1
        if self._count > MOST_PARTS:
            raise _Unknown
        kind = type(part)
        if isinstance(part, PLAIN):
            return kind, part
        if kind in (float, complex):
            return kind, repr(part)  # zero has a sign
        if kind is tuple:
            return kind, [self._part(x) for x in part]
        if isinstance(part, Tensor):
            return self._tensor(part)
        if isinstance(part, nn.Module):
            if id(part) not in self._paths:
                raise _Unknown  # a module that hides from named_modules
            return "module", self._paths[id(part)]
        if isinstance(part, ATOMS) or (isinstance(part, type) and _is_torch(part)):
            return _Is(part)
        if isinstance(part, (tuple, frozenset)):
            return self._object(part, kind)
        again = self._again(part)
        return self._composite(part, kind) if again is None else ("again", again)

    def _composite(self, part: Any, kind: type) -> object:
        if isinstance(part, types.FunctionType):
            return self._code(part, None)
        if isinstance(part, types.MethodType):
            return self._code(part.__func__, part.__self__), self._part(part.__self__)
        if isinstance(part, functools.partial):
            return [self._part(x) for x in (part.func, part.args, part.keywords)]
        if isinstance(part, (staticmethod, classmethod)):
            return kind, self._part(part.__func__)
        if isinstance(part, property):
            return kind, [self._part(x) for x in (part.fget, part.fset, part.fdel)]
        if isinstance(part, type):
            bases = [base for base in part.__mro__ if not _is_torch(base)]
            return _Is(part), [(base.__qualname__, list(self._class(base))) for base in bases]
        return self._object(part, kind)

    def _object(self, part: Any, kind: type) -> object:
        """A collection, or an instance of a class written in Python."""
        if isinstance(part, dict):
            items: Iterable[object] = [(self._part(k), self._part(v)) for k, v in part.items()]
        elif isinstance(part, (set, frozenset)):
            if not all(isinstance(x, (str, int)) for x in part):
                raise _Unknown
            items = sorted(part, key=repr)
        elif isinstance(part, (tuple, list)):
            items = [self._part(x) for x in part]
        elif hasattr(part, "__dict__") and kind.__module__ != "builtins":
            items = []
        else:
            raise _Unknown
        own = [(name, self._part(x)) for name, x in getattr(part, "__dict__", {}).items()]
        built_in = kind.__module__ in ("builtins", "collections")
        return _Is(kind) if built_in else self._part(kind), items, own

    def _class(self, kind: type) -> Iterator[tuple[str, object]]:
        """What a class gives its instances; of its methods, only that they are what they were."""
        for name, part in vars(kind).items():
            if name in SILENT_OF_CLASSES:
                continue
            if isinstance(part, types.FunctionType):
                yield name, (_Is(part), _Is(part.__code__))
            elif isinstance(part, (staticmethod, classmethod, property, functools.cached_property)):
                yield name, _Is(part)
            else:
                yield name, self._part(part)

    def _code(self, function: Any, owner: object) -> object:
        """A function, and what the names in it stand for; `owner` is what its `self` is."""
        if not isinstance(function, types.FunctionType):
            return self._part(function)
        if _is_torch(function):
            return _Is(function), _Is(function.__code__)
        again = self._again(function, type(owner))
        if again is not None:
            return again
        names = sorted(set(_names(function.__code__)))
        cells = [_contents(cell) for cell in function.__closure__ or ()]
        given = [function.__defaults__, function.__kwdefaults__, vars(function), cells]
        return (
            (_Is(function), _Is(function.__code__)),
            [self._part(x) for x in given],
            [(name, self._global(function, name, names)) for name in names],
            [(name, self._method(owner, name)) for name in names],
        )

    def _global(self, function: types.FunctionType, name: str, names: list[str]) -> object:
        if name not in function.__globals__:
            return None
        found = function.__globals__[name]
        if not isinstance(found, types.ModuleType):
            return self._part(found)
        inner = [(other, vars(found)[other]) for other in names if other in vars(found)]
        return _Is(found), [(other, self._part(part)) for other, part in inner]

    def _method(self, owner: object, name: str) -> object:
        """What code may call by a name of what it belongs to, in each class that has it."""
        found = [vars(base)[name] for base in type(owner).__mro__ if name in vars(base)]
        methods = [part.fget if isinstance(part, property) else part for part in found]
        own = [m for m in methods if isinstance(m, types.FunctionType) and not _is_torch(m)]
        return [self._code(method, owner) for method in own]

    def _tensor(self, tensor: Tensor) -> object:
        if id(tensor) in self._owned:
            return "owned", self._owned[id(tensor)]
        if tensor.is_inference():
            raise _Unknown  # it does not count how often it was written into
        return _Is(tensor), tensor._version

    def _again(self, *things: object) -> int | None:
        """The number under which things were read before; from now on they have one."""
        key = tuple(map(id, things))
        if key in self._known:
            return self._known[key][0]
        self._known[key] = (len(self._known), things)
        return None


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in a piece of code and in functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it was never filled
        return None


def _is_torch(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in ("torch", "builtins")
