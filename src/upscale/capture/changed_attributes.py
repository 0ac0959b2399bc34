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
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture.captured import Example, alike, tensors_in
from upscale.capture.symbolic_trace import Watch, changed_attributes, unseen
from upscale.errors import StateError
from upscale.model.layers import copied, equal, parameter_names, tensors
from upscale.tools.own_draws import OwnDraws


def check_memory(model: nn.Module, example: Example, changed: Sequence[str]) -> None:
    """Raise if a later call of a model depends on attributes that the first one changes."""
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
    written = [n for n in own if now.get(n) is not before[n] or not equal(before[n], own[n])]
    if changed := changed_attributes(model, used):
        _check_attributes(model, example, used, changed)
    names = parameter_names(model)
    lines = {names[id(own[name])]: watch.lines.get(name, "") for name in written}
    check_seen({n: at for n, at in lines.items() if isinstance(own[n], nn.Parameter)}, set())
    return lines


def check_seen(changed: Mapping[str, str], written: Set[str]) -> None:
    """Raise if a call changed a tensor that a graph of it does not write."""
    for name in sorted(changed.keys() - written):
        raise StateError(unseen(name, changed[name]))


def _check_attributes(
    model: nn.Module, example: Example, used: nn.Module, changed: Sequence[str]
) -> None:
    """Raise if a call that follows another depends on attributes that are changed."""
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


def owner_of(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module within another that an attribute belongs to, and what it is called there."""
    owner, _, name = path.rpartition(".")
    return module.get_submodule(owner), name
