"""Attributes that forward changes, and whether a later call of the model depends on them.

A graph has no attributes. It does what the model does in its first call, so that what a call
leaves behind in Python must make no difference to the next:

    self.shape = x.shape          harmless: every call sets it before it reads it
    self.calls += 1               harmless: it is counted and nothing else
    self.mean = 0.9 * self.mean + x.mean()     refused, with its line: keep it in a buffer
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import PurePath
from types import CodeType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from upscale.capture.captured import place_of, schema_of
from upscale.capture.example import Example, alike, tensors_in
from upscale.capture.origin import line_of, running_line
from upscale.errors import CaptureError, StateError
from upscale.model.layers import copied, parameter_names, tensors
from upscale.tools.own_draws import OwnDraws

Tensors: TypeAlias = Mapping[str, Tensor]
# What tracing itself leaves on what it traces.
TRACED = re.compile(r"_tensor_constant\d+$")
# What every module has, in which buffers and layers are.
OWN = frozenset(vars(nn.Module()))


class Watch(TorchDispatchMode):
    """Notes the line that first writes to each tensor of a model, while its code runs."""

    def __init__(self, watched: Tensors, within: CodeType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: dict[str, str] = {}
        self._names = {place_of(tensor): name for name, tensor in watched.items()}
        self._within = within

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in schema_of(func).written_in(args, kwargs or {}):
            name = self._names.get(place_of(tensor))
            if name is not None and (line := line_of(running_line(self._within))):
                self.lines.setdefault(name, line)
        return func(*args, **(kwargs or {}))


def check_written(model: Tensors, twin: Tensors, before: Tensors, lines: Mapping[str, str]) -> None:
    """Raise if tracing a twin of a model changed a tensor of it: the graph lacks such a write.

    `before` are the tensors that the twin had, `lines` those that wrote to them.
    """
    for name, tensor in model.items():
        now: Any = twin.get(name)
        changed = now is not before[name] or not _equal(now, tensor)
        if changed and not isinstance(now, fx.Proxy):  # which the graph has
            raise CaptureError(_unseen(name, lines.get(name, "")))


def check_seen(changed: Mapping[str, str], written: Set[str]) -> None:
    """Raise if a call changed a tensor that a graph of it does not write."""
    for name in sorted(changed.keys() - written):
        raise StateError(_unseen(name, changed[name]))


def _unseen(name: str, line: str) -> str:
    at = f" at {line}" if line else ""
    return (
        f"forward writes to {name}{at} in a way that no graph shows; write to a buffer by its "
        "name, as in self.buffer.copy_(...), and to parameters outside of forward"
    )


def check_memory(model: nn.Module, example: Example, traced: nn.Module) -> None:
    """Raise if tracing a twin of a model changed attributes, and a later call depends on them."""
    changed = _changed(model, traced)
    if changed:
        used = copied(model, {})
        _run(used, model, example)
        _check_attributes(model, example, used, changed)


def changed_in_a_call(model: nn.Module, example: Example) -> dict[str, str]:
    """The names of tensors that a call of a model changes, with the lines that write to them.

    Raises if it changes attributes and a later call depends on them, or if it changes parameters.
    """
    used = copied(model, {})
    before, own = tensors(used), tensors(model)
    with Watch(before, _run.__code__) as watch:
        _run(used, model, example)
    now = tensors(used)
    written = [n for n in own if now.get(n) is not before[n] or not _equal(before[n], own[n])]
    _check_attributes(model, example, used, _changed(model, used))
    names = parameter_names(model)
    lines = {names[id(own[name])]: watch.lines.get(name, "") for name in written}
    check_seen({n: at for n, at in lines.items() if isinstance(own[n], nn.Parameter)}, set())
    return lines


def _check_attributes(
    model: nn.Module, example: Example, used: nn.Module, changed: list[str]
) -> None:
    """Raise if a call that follows another depends on attributes that are changed."""
    if not changed:
        return
    other = example.map(_another)
    try:
        expected = _run(copied(model, {}), model, other)
    except Exception:  # the model may take no other example, and say so in any way
        other = example
        expected = _run(copied(model, {}), model, other)
    if not alike(_run(used, model, other), expected, rtol=1e-5, atol=1e-8):
        raise _refusal(model, changed[0])
    before = {path: getattr(*owner_of(used, path), None) for path in changed}
    _run(used, model, other)
    for path in changed:
        now = getattr(*owner_of(used, path), None)
        if type(before[path]) in (int, float) and before[path] != now:
            _check_counter(model, example, path)


def _check_counter(model: nn.Module, example: Example, path: str) -> None:
    """Raise if a number that every call changes is of any use but to be changed."""
    twin = copied(model, {})
    setattr(*owner_of(twin, path), _Counter())
    try:
        _run(twin, model, example)
    except Exception as error:  # the model's code met something that is no number
        raise _refusal(model, path) from error


class _Counter:
    """Stands for a number that calls change: it can be counted up, and nothing else."""

    def __add__(self, other: object) -> _Counter:
        if not isinstance(other, (int, float)):
            raise TypeError("a number kept from call to call is computed with")
        return self

    __iadd__ = __sub__ = __isub__ = __add__


def _refusal(model: nn.Module, path: str) -> StateError:
    owner, name = owner_of(model, path)
    line = _assigned(type(owner), name)
    at = f" at {line}" if line else ""
    return StateError(
        f"forward changes the attribute {path}{at}, and what it computes in a later call depends "
        "on it; an export has no attributes: keep it in a buffer, or compute it outside of forward"
    )


def _assigned(kind: type, name: str) -> str:
    """`file.py:12` where a class first changes an attribute, if its code can be read."""
    named = rf"\.{re.escape(name)}\b"
    changes = re.compile(rf"{named}(\[.*\])?\s*([-+*/|&@%]|//|\*\*)?=[^=]|{named}\.\w+\(")
    for own in kind.__mro__:
        if own.__module__.startswith("torch.") or own is object:
            continue
        try:
            lines, first = inspect.getsourcelines(own)
            file = PurePath(inspect.getsourcefile(own) or "").name
            made = _lines_of(vars(own).get("__init__"))
        except (OSError, TypeError):
            continue  # made where no source is: typed in, or compiled
        for at, line in enumerate(lines, start=first):
            if at not in made and changes.search(line):
                return f"{file}:{at}"
    return ""


def _lines_of(function: Any) -> range:
    if function is None:
        return range(0)
    lines, first = inspect.getsourcelines(function)
    return range(first, first + len(lines))


def _run(twin: nn.Module, model: nn.Module, example: Example) -> list[Tensor]:
    """What a twin gives, with the model's own tensors: attributes alone are carried along."""
    given, own = example.copied(), tensors(model)
    with torch.no_grad(), OwnDraws():
        for name, tensor in tensors(twin).items():
            if name in own and tensor.shape == own[name].shape:
                tensor.copy_(own[name])
        result = twin(*given.args, **given.kwargs)
        return [tensor.clone() for tensor in tensors_in(result)]


def _another(leaf: Tensor) -> Tensor:
    """Another input of the same kind."""
    moved = leaf.roll(1, -1) if leaf.ndim else leaf
    return moved * 0.5 if leaf.ndim and leaf.is_floating_point() else moved


def _changed(model: nn.Module, twin: nn.Module) -> list[str]:
    """The attributes, by path, that a twin has otherwise than its model."""
    modules = dict(model.named_modules(remove_duplicate=False))
    changed = []
    for path, module in twin.named_modules(remove_duplicate=False):
        if path not in modules:
            changed.append(path)
            continue
        here, there = (
            {**{k: v for k, v in vars(m).items() if k not in OWN}, **dict.fromkeys(m._buffers)}
            for m in (module, modules[path])
        )
        for name in sorted(here.keys() | there.keys()):
            if path == "" and TRACED.match(name):
                continue
            if name not in here or name not in there or not _same(here[name], there[name], {}):
                changed.append(f"{path}.{name}" if path else name)
    return changed


def owner_of(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module within another that an attribute belongs to, and what it is called there."""
    owner, _, name = path.rpartition(".")
    return module.get_submodule(owner), name


def _same(one: Any, other: Any, met: dict[int, Any]) -> bool:
    """Whether two things are equal, as far as can be told."""
    if one is other or met.get(id(one)) is other:
        return True
    if type(one) is not type(other):
        return False
    met[id(one)] = other
    if isinstance(one, Tensor):
        return _equal(one, other)
    if isinstance(one, nn.Module):
        return True  # looked at on its own
    if isinstance(one, (Set, int, float, complex, str, bytes)):
        return bool(one == other) or (one != one and other != other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[k], other[k], met) for k in one)
    if isinstance(one, Sequence):
        return len(one) == len(other) and all(map(lambda a, b: _same(a, b, met), one, other))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if hasattr(one, "__dict__") and not callable(one):
        return _same(vars(one), vars(other), met)
    return True


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_meta or torch.equal(one, other):
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())
