"""The tracer: writes down what a model does to proxies, in turn and seen by its own thread alone.

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

All that depends on how `torch.fx` is written inside is in this file.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterator, Set
from pathlib import PurePath
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch.fx import _symbolic_trace as tracing

from upscale.capture.attention import (
    ENCODERS,
    encoder,
    is_plain_encoder,
    is_plain_self_attention,
    self_attention,
)
from upscale.capture.captured import is_own_dict, is_record
from upscale.capture.in_place import AUGMENTED, NO_GRAD, WRITES
from upscale.capture.records import PACKS, maker_of
from upscale.tools.generated_code import let_texts_go
from upscale.tools.versions import (
    SETTER_OF_BUFFERS,
    WRITES_NAMED_TUPLES,
    devices_traced,
    tracing_flag,
)

# What a proxy has of its own; to set anything else would be lost.
SET = ("tracer", "node", "root", "attr", "_node")
# These files stand between a model and torch while it runs: no line of theirs is the model's.
OURS = PurePath(__file__).parent
BETWEEN = OURS.parent / "tools"

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


class Here:
    """True in the thread that made it, false in every other.

    It stands where torch has `True` or `False`, and what asks torch computes with it as with these.

    >>> here, false = Here(), False
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


def _only(here: Here, new: Callable[..., Any], old: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is the new one here, and the old one in other threads."""

    @functools.wraps(new)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (new if here else old)(*args, **kwargs)

    return either


def _patcher_of(here: Here) -> Callable[[], contextlib.AbstractContextManager[Any]]:
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
            if SETTER_OF_BUFFERS is not None:
                patcher.patch_method(nn.Module, "__setattr__", SETTER_OF_BUFFERS)
            yield patcher

    return new_patcher


def _kept_to_its_thread(trace: FunctionType) -> Callable[..., fx.Graph]:
    """`Tracer.trace` in turn: its code as it is, on names of its module that are its own."""

    @functools.wraps(trace)
    def in_turn(self: fx.Tracer, *args: Any, **kwargs: Any) -> fx.Graph:
        with turn():
            here = Here()
            names = {**trace.__globals__, "_new_patcher": _patcher_of(here)}
            own: Any = FunctionType(
                trace.__code__, names, trace.__name__, trace.__defaults__, trace.__closure__
            )
            own.__kwdefaults__ = trace.__kwdefaults__
            with tracing_flag(here), devices_traced():
                graph: fx.Graph = own(self, *args, **kwargs)
            return graph

    return in_turn


# torch loads it with the first trace, and it adds to the filters of warnings then. Not while
# somebody prunes: it is loaded here.
importlib.import_module("sympy")
fx.Tracer.trace = _kept_to_its_thread(fx.Tracer.trace)  # type: ignore[method-assign,arg-type]
let_texts_go()


class Tracer(fx.Tracer):
    """Looks into self-attention, and not into the layers of `stock`.

    These may be of a class that derives from torch's and computes as it does.
    """

    def __init__(self, stock: Set[str], within: CodeType, *, proxy_buffers: bool) -> None:
        super().__init__()
        self._stock, self._within = stock, within
        self.proxy_buffer_attributes = proxy_buffers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        stock = module_qualified_name in self._stock
        return stock or bool(super().is_leaf_module(m, module_qualified_name))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_arg(self, a: Any) -> Any:
        tuples = not WRITES_NAMED_TUPLES and isinstance(a, tuple) and hasattr(a, "_fields")
        maker = maker_of(a) if tuples or is_own_dict(a) or is_record(a) else None
        if maker is None:
            return super().create_arg(a)
        args, kwargs = super().create_arg(maker.args), super().create_arg(maker.keywords)
        node = self.create_node("call_function", maker.func, args, kwargs)
        node.meta[PACKS] = True
        return node

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if not torch.is_grad_enabled():
            node.meta[NO_GRAD] = True
        node.stack_trace = running_line(self._within)
        return node

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if isinstance(m, nn.MultiheadAttention) and is_plain_self_attention(m, args, kwargs):
            return self_attention(m, args[0])
        if isinstance(m, ENCODERS) and is_plain_encoder(m, args, kwargs):
            return encoder(m, args[0])
        return super().call_module(m, forward, args, kwargs)


class _Proxy(fx.Proxy):
    """Marks what augmented assignments make: `x += y` is traced as `x + y`, and may write to x."""

    def __getattr__(self, k: str) -> fx.proxy.Attribute:
        return _Attribute(self, k)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in SET:
            raise TypeError(f"a graph cannot set {name} of a tensor")
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write into part of a buffer; elsewhere a graph would not know who reads it later."""
        if self.node.op != "get_attr":
            raise TypeError("a proxy does not support item assignment")
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def _marking(operation: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], Any]:
    def augmented(proxy: fx.Proxy, other: Any) -> Any:
        made = operation(proxy, other)
        made.node.meta[AUGMENTED] = True
        return made

    return augmented


for _operation, _writing in WRITES.items():
    setattr(_Proxy, f"__{_writing.__name__}__", _marking(_operation))


class _Attribute(_Proxy, fx.proxy.Attribute):
    """What `x.T` or `x.data` gives, which may share memory with x."""


def line_of(trace: str) -> str:
    """`file.py:12` of the innermost model code in a stack trace, or nothing.

    >>> line_of('File "/models/net.py", line 12, in forward')
    'net.py:12'
    """
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    lines = [f"{PurePath(path).name}:{line}" for path, line in frames if _is_model_code(path)]
    return lines[-1] if lines else ""


def source_line(node: fx.Node) -> str:
    """`file.py:12` of the model code behind a node, or nothing."""
    return line_of(node.stack_trace or "")


def running_line(caller: CodeType | None = None) -> str:
    """The innermost line of model code that runs, within `caller`, as a stack trace has it.

    One line, because a whole trace for every node takes longer than tracing does.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not caller:
        if _is_model_code(frame.f_code.co_filename):
            return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}'
        frame = frame.f_back
    return ""


@functools.cache
def _is_model_code(path: str) -> bool:
    file = PurePath(path)
    return "torch" not in file.parts and file.parent not in (OURS, BETWEEN)
