"""Traces take turns in a process, and each is seen by its own thread alone.

To see what a model does, `torch.fx` puts functions of its own in place of `Module.__call__`,
`Module.__getattr__` and of whatever `torch.fx.wrap` names, and raises a flag. All of these are the
process's: while one thread traces, every other thread that runs a model runs into them.

    thread that traces         nn.Module.__call__             thread that serves
    model(proxy)      ──►    whose thread is this?    ◄──     other(x)
                               │               │
              the tracer's, which records      the original, as ever

So here `torch.fx.Tracer.trace`, which every trace goes through, also those that `torch.export`
and `torch.compile` make within, is run as it is written, but with three things in its reach
exchanged:

- what it puts in place of a function first asks in which thread it is called, and passes calls of
  other threads on to what was there before;
- its flag is true in its own thread and false in all others;
- one trace runs at a time. Two at once, whoever started them, would each put back what the other
  had put in place.

All that depends on how torch is written inside is in this file.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch.fx import _symbolic_trace as tracing

from upscale.tools.generated_code import let_texts_go
from upscale.tools.versions import (
    attributes_put_back,
    devices_traced,
    setter_of_buffers,
    tracing_flag,
)

_turn = threading.RLock()
_held = threading.local()


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """This thread's turn to trace: all others wait, those too in which `torch.compile` compiles.

    torch's own lock is taken first, as it is where a compilation traces: two locks that are
    always taken in one order never wait for each other.
    """
    depth = getattr(_held, "depth", 0)
    compiler = None if depth else sys.modules.get("torch._dynamo.convert_frame")
    with getattr(compiler, "compile_lock", contextlib.nullcontext()), _turn:
        _held.depth = depth + 1
        try:
            yield
        finally:
            _held.depth = depth


class _Here:
    """True in the thread that made it, false in every other.

    It stands where torch has `True` or `False`, and what asks torch computes with it as with these.

    >>> here, false = _Here(), False
    >>> false |= here
    >>> false, here & False, here == True, not here
    (True, False, True, False)
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __bool__(self) -> bool:
        return threading.get_ident() == self._thread

    def __int__(self) -> int:
        return int(bool(self))

    __index__ = __int__

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __xor__(self, other: Any) -> Any:
        return bool(self) ^ other

    __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return repr(bool(self))


def _only(here: _Here, new: Callable[..., Any], old: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is the new one here, and the old one in other threads."""

    @functools.wraps(new)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (new if here else old)(*args, **kwargs)

    return either


def _patcher_of(here: _Here) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Makes what torch.fx puts functions in place with, for one thread."""

    @contextlib.contextmanager
    def new_patcher() -> Iterator[Any]:
        with tracing._new_patcher() as made:
            patcher: Any = made
            patch, patch_method = patcher.patch, patcher.patch_method

            def patch_here(names: Any, name: str, new: Any, *rest: Any, **more: Any) -> None:
                old = names[name] if name in names else getattr(builtins, name)
                patch(names, name, _only(here, new, old), *rest, **more)

            def patch_method_here(owner: Any, name: str, new: Any, *rest: Any, **more: Any) -> None:
                patch_method(owner, name, _only(here, new, getattr(owner, name)), *rest, **more)

            patcher.patch, patcher.patch_method = patch_here, patch_method_here
            setter = setter_of_buffers()
            if setter is not None:
                patcher.patch_method(nn.Module, "__setattr__", setter)
            yield patcher

    return new_patcher


def _kept_to_its_thread(trace: FunctionType) -> Callable[..., fx.Graph]:
    """`Tracer.trace` in turn: its code as it is, on names of its module that are its own."""

    @functools.wraps(trace)
    def in_turn(self: fx.Tracer, *args: Any, **kwargs: Any) -> fx.Graph:
        with turn():
            here = _Here()
            names = {**trace.__globals__, "_new_patcher": _patcher_of(here)}
            own: Any = FunctionType(
                trace.__code__, names, trace.__name__, trace.__defaults__, trace.__closure__
            )
            own.__kwdefaults__ = trace.__kwdefaults__
            with tracing_flag(here), devices_traced():
                graph: fx.Graph = own(self, *args, **kwargs)
            return graph

    return in_turn


@contextlib.contextmanager
def export_turn() -> Iterator[None]:
    """A turn to call `torch.export` in, of which other threads notice nothing.

    For the time of an export torch tells the whole process that it is exporting, and switches
    the quick kernels off: models that serve beside it would take other ways, with other rounding.
    The first is told here alone. The second keeps those kernels out of graphs that are taken apart
    to their last operation, which ours are not. And what torch remembers of shapes for good goes
    with the export: it has symbols in it that no other export will ask for.
    """
    # Not above: few need it, and it takes torch seconds to load.
    import torch.export._trace as machinery
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    own: list[tuple[Any, str, Any]] = [
        (machinery, "_compiling_state_context", _exporting_here),
        (machinery, "_ignore_backend_decomps", contextlib.nullcontext),
        (machinery, "_detect_attribute_assignment", attributes_put_back),
        (FakeTensorMode, "cache", {}),
        # A compiled model is exported as what it was compiled from, which some versions refuse.
        (sys.modules.get("torch._dynamo.config"), "error_on_nested_fx_trace", False),
    ]
    with turn(), contextlib.ExitStack() as afterwards:
        for method in vars(ShapeEnv).values():
            if hasattr(method, "cache_clear"):
                afterwards.callback(method.cache_clear)
        for owner, name, new in own:
            if hasattr(owner, name):
                afterwards.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, new)
        yield


@contextlib.contextmanager
def _exporting_here() -> Iterator[None]:
    compiler: Any = torch.compiler
    before = compiler._is_compiling_flag, compiler._is_exporting_flag
    compiler._is_compiling_flag = compiler._is_exporting_flag = _Here()
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag = before


# torch loads it with the first trace, and it adds to the filters of warnings then. Not while
# somebody prunes: it is loaded here.
importlib.import_module("sympy")
fx.Tracer.trace = _kept_to_its_thread(fx.Tracer.trace)  # type: ignore[method-assign,arg-type]
let_texts_go()
