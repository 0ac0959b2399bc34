"""Remembering: attributes that a model changes in `forward`, and whether a later call reads them.

A graph has no attributes. It does what the model does in its first call, so that what a call
leaves behind in Python must make no difference to the next.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from upscale.capture.packing import tensors_in
from upscale.capture.record import Example
from upscale.capture.state import Watch
from upscale.errors import CaptureError, StateError
from upscale.subject.layers import copied, parameter_names, tensors
from upscale.tools.draws import OwnDraws

# What tracing itself leaves on what it traces.
TRACED = re.compile(r"_tensor_constant\d+$")
# What every module has, in which buffers and layers are.
OWN = frozenset(vars(nn.Module()))


def check_written(
    model: nn.Module, twin: nn.Module, given: Mapping[str, Tensor], lines: Mapping[str, str]
) -> None:
    """Raise if tracing a twin of a model changed a tensor of it: the graph lacks such a write.

    `given` are the tensors that the twin had before, `lines` those that wrote to them.
    """
    now: dict[str, Any] = {**tensors(twin)}
    for name, tensor in tensors(model).items():
        found = now.get(name)
        if isinstance(found, fx.Proxy):
            continue  # bound to something that the graph has
        if found is not given[name] or not _equal(found, tensor):
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


def check_memory(
    model: nn.Module, example: Example, traced: nn.Module | None = None
) -> dict[str, str]:
    """Raise if a call changes attributes of a model, and a later call depends on them.

    They are found on the twin that was traced, or else by a call; then the names of tensors
    that the call changed are returned, with the lines that wrote to them.
    """
    if traced is not None:
        changed = _changed(model, traced)
        if changed:
            used = _fresh(model)
            _run(used, model, example)
            _check_attributes(model, example, used, changed)
        return {}
    used = _fresh(model)
    given, own = tensors(used), tensors(model)
    with Watch(used, _run.__code__) as watch:
        _run(used, model, example)
    now = tensors(used)
    written = [n for n in own if now.get(n) is not given[n] or not _equal(given[n], own[n])]
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
        expected = _run(_fresh(model), model, other)
    except Exception:  # the model may take no other example, and say so in any way
        other = example
        expected = _run(_fresh(model), model, other)
    if not _alike(_run(used, model, other), expected):
        raise _refusal(model, changed[0])
    before = {path: _attribute(used, path) for path in changed}
    _run(used, model, other)
    for path in changed:
        if type(before[path]) in (int, float) and before[path] != _attribute(used, path):
            _check_counter(model, example, path)


def _check_counter(model: nn.Module, example: Example, path: str) -> None:
    """Raise if a number that every call changes is of any use but to be changed."""
    twin = _fresh(model)
    owner, _, name = path.rpartition(".")
    setattr(twin.get_submodule(owner), name, _Counter())
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
    owner, _, name = path.rpartition(".")
    line = _assigned(type(model.get_submodule(owner)), name)
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


def _fresh(model: nn.Module) -> nn.Module:
    return copied(model, {})


def _run(twin: nn.Module, model: nn.Module, example: Example) -> list[Tensor]:
    """What a twin gives, with the model's own tensors: attributes alone are carried along."""
    given, own = example.copied(), tensors(model)
    with torch.no_grad(), OwnDraws():
        for name, tensor in tensors(twin).items():
            if name in own and tensor.shape == own[name].shape:
                tensor.copy_(own[name])
        result = twin(*given.args, **given.kwargs)
        return [tensor.clone() for tensor in tensors_in(result)]


def _another(leaf: Any) -> Any:
    """Another input of the same kind."""
    if not isinstance(leaf, Tensor) or leaf.ndim == 0:
        return leaf
    moved = leaf.roll(1, -1)
    return moved * 0.5 if leaf.is_floating_point() else moved


def _alike(ones: list[Tensor], others: list[Tensor]) -> bool:
    return len(ones) == len(others) and all(
        one.shape == other.shape and torch.allclose(one, other, equal_nan=True)
        for one, other in zip(ones, others, strict=True)
    )


def _changed(model: nn.Module, twin: nn.Module) -> list[str]:
    """The attributes, by path, that a twin has otherwise than its model."""
    own = dict(model.named_modules(remove_duplicate=False))
    found = []
    for path, module in twin.named_modules(remove_duplicate=False):
        if path not in own:
            found.append(path)
            continue
        here, there = _attributes(module), _attributes(own[path])
        for name in sorted(here.keys() | there.keys()):
            if not (path == "" and TRACED.match(name)) and (
                name not in here or name not in there or not _same(here[name], there[name], {})
            ):
                found.append(f"{path}.{name}" if path else name)
    return found


def _attributes(module: nn.Module) -> dict[str, Any]:
    plain = {name: value for name, value in vars(module).items() if name not in OWN}
    return plain | dict.fromkeys(module._buffers)


def _attribute(module: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(module.get_submodule(owner), name, None)


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
    same = (one == other) | ((one != one) & (other != other))
    return bool(same.all())
