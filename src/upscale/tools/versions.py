"""What differs between versions of torch, and nothing else asks which one there is.

The rest of the package calls what stands here. What torch does is tried once, when this is
imported: no trace asks again. A name that only some versions have is looked for where it is needed,
so the name itself is asked for and no number compared: a build from between two releases, or a
patched one, is then known by what it can do.

    older torch                                      newer torch
    a packed value's parts are `children_specs`      they are `children()`
    a buffer is never bound to what stands for it    `self.count += 1` can be traced
    one flag says that some thread traces            each thread has its own
    no device is asked of what stands for it         `torch.ones(2, device=x.device)` can be traced
    an export may not bind tensors to attributes     it may, with a warning
    an exported program takes any size               it refuses sizes that would decide otherwise
    generated code loses the class of a named tuple  it has it among its names
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.fx import _symbolic_trace
from torch.overrides import handle_torch_function
from torch.utils._pytree import TreeSpec


def tree_children(spec: TreeSpec) -> list[TreeSpec]:
    """What a packed value is made of, one level below; torch 2.9 made it a method."""
    if hasattr(spec, "children"):
        return list(spec.children())
    return list(spec.children_specs)  # type: ignore[attr-defined,unused-ignore]


# Lets its argument be what torch.fx asks whether it traces, where all threads ask one and the same.
# Newer versions keep a flag for each thread, which says so by itself.
tracing_flag: Callable[[Any], contextlib.AbstractContextManager[Any]] = (
    functools.partial(mock.patch.object, _symbolic_trace, "_is_fx_tracing_flag")
    if hasattr(_symbolic_trace, "_is_fx_tracing_flag")
    else contextlib.nullcontext
)


def _setter_of_buffers() -> Callable[[nn.Module, str, Any], None] | None:
    holder = nn.Module()
    holder.register_buffer("held", None)
    stand_in: Any = fx.Proxy(fx.Graph().placeholder("held"))
    try:
        holder.held = stand_in
    except TypeError:
        return _set_buffer
    return None


_set_attribute = nn.Module.__setattr__


def _set_buffer(module: nn.Module, name: str, value: Any) -> None:
    if isinstance(value, fx.Proxy) and name in vars(module).get("_buffers", {}):
        module._buffers[name] = value  # type: ignore[assignment]
    else:
        _set_attribute(module, name, value)


# What to put in place of `Module.__setattr__` while tracing; `None` if torch's own will do. Older
# versions refuse `self.count += 1`, where the sum is a proxy and the count a buffer.
SETTER_OF_BUFFERS = _setter_of_buffers()

# What makes tensors on a device that is asked for.
MAKERS = (
    *("arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace"),
    *("logspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like"),
    *("randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
    "zeros_like",
)


@contextlib.contextmanager
def _devices_asked() -> Iterator[None]:
    own = {name: getattr(torch, name) for name in MAKERS}
    for name, maker in own.items():
        setattr(torch, name, _asking(maker))
    try:
        yield
    finally:
        for name, maker in own.items():
            setattr(torch, name, maker)


def _refuses_devices() -> bool:
    stand_in: Any = fx.Proxy(fx.Graph().placeholder("device"))
    try:
        torch.ones(1, device=stand_in)
    except TypeError:
        return True
    return False


def _asking(maker: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(maker)
    def asking(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if isinstance(device, fx.Proxy):
            return handle_torch_function(maker, (device,), *args, **kwargs)
        return maker(*args, **kwargs)

    return asking


# Lets what makes tensors take a proxy for a device, which older versions refuse. For calls without
# a proxy nothing changes, so that other threads notice nothing.
devices_traced: Callable[[], contextlib.AbstractContextManager[None]] = (
    _devices_asked if _refuses_devices() else contextlib.nullcontext
)


@contextlib.contextmanager
def attributes_put_back(module: nn.Module) -> Iterator[None]:
    """What `torch.export` runs a model within: what it sets of its attributes is taken back.

    Older versions raise if a tensor was among them, or if there are more than before; newer ones
    warn. Whoever exports here knows already what a call changes.
    """
    before = [
        (held, {name: value for name, value in vars(held).items() if name != "training"})
        for held in module.modules()
    ]
    try:
        yield
    finally:
        for held, attributes in before:
            vars(held).update(attributes)


def _writes_named_tuples() -> bool:
    kind = namedtuple("kind", ["part"])
    graph = fx.Graph()
    graph.output(kind(graph.placeholder("part")))
    return kind in graph.python_code("self").globals.values()


# Whether code that torch generates knows the class of a named tuple that it returns.
WRITES_NAMED_TUPLES = _writes_named_tuples()


class GuardsFn(nn.Module):
    """What an exported program asks of its inputs; named as torch names its own."""

    _is_impure = True  # nobody reads what it gives, and it must not go for that

    def __init__(self, conditions: dict[str, str]) -> None:
        """Take conditions on `args`, each with the words that a user is told if it fails."""
        super().__init__()
        from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

        lines = [f"  torch._assert({c}, {'Guard failed: ' + w!r})" for c, w in conditions.items()]
        names: dict[str, Any] = {**SYMPY_INTERP, "math": math, "torch": torch}
        exec("\n".join(["def forward(*args):", *lines, "  return"]), names)
        self.forward = names["forward"]


def module_of(program: ExportedProgram) -> fx.GraphModule:
    """A program as a module that refuses sizes on which the model might do something else.

    Older versions give one that takes any size: what was decided while it was exported is then
    gone. It is still known to the sizes themselves, and written down from there.
    """
    module: Any = program.module()
    inputs = module.graph.find_nodes(op="placeholder")
    if not hasattr(module, "_guards_fn") and inputs:
        module._guards_fn = GuardsFn(_conditions(inputs))
        with module.graph.inserting_after(inputs[-1]):
            module.graph.call_module("_guards_fn", tuple(inputs))
        module.recompile()
    return module  # type: ignore[no-any-return]


def _conditions(inputs: list[fx.Node]) -> dict[str, str]:
    """What holds of the sizes of inputs, as code on `args` and as it is said to a user.

    A size is a symbol to torch, which knows in what range it is and what was asked of it while
    the model ran: `x: [s0, 3, s1]`, and `s1 % 2 == 0`. That gives `x.size()[1] == 3` and
    `x.size()[2] % 2 == 0`.
    """
    first: dict[Any, _Place] = {}
    equal: list[tuple[_Place, Any]] = []
    asked: list[Any] = []
    for place, size in _sizes(inputs):
        if isinstance(size, int):
            equal.append((place, size))
            continue
        symbol, meaning, env = size.node._expr, size.node.expr, size.node.shape_env
        if first.setdefault(symbol, place) != place or symbol != meaning:
            equal.append((place, meaning))
        asked += [guard.expr for guard in env.guards]
        if symbol == meaning and symbol in env.var_to_range:
            bounds = env.var_to_range[symbol]
            asked += [symbol >= bounds.lower] if bounds.lower > 2 else []
            asked += [symbol <= bounds.upper] if bounds.upper.is_Integer else []
    # Of an even size torch writes `2*k`, and k is no size of an input; that it is even was asked.
    equal = [(place, size) for place, size in equal if _symbols(size) <= first.keys()]
    asked = [expression for expression in asked if _symbols(expression) <= first.keys()]
    codes = _written([f"args[{index}]" for index in range(len(inputs))], first, equal, asked)
    words = _written([node.name for node in inputs], first, equal, asked)
    # Parsed and written again, words lose the parentheses that nobody needs.
    return {c: ast.unparse(ast.parse(w, mode="eval")) for c, w in zip(codes, words, strict=True)}


_Place = tuple[int, int]  # which input, and which axis of it


def _sizes(inputs: list[fx.Node]) -> Iterator[tuple[_Place, Any]]:
    for index, node in enumerate(inputs):
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            yield from (((index, axis), size) for axis, size in enumerate(value.shape))


def _symbols(expression: Any) -> set[Any]:
    return getattr(expression, "free_symbols", set())


def _written(
    names: list[str], first: dict[Any, _Place], equal: list[tuple[_Place, Any]], asked: list[Any]
) -> list[str]:
    """Equalities and expressions as Python code, by the names that inputs have there."""
    from torch.utils._sympy.printers import PythonPrinter

    def size(place: _Place) -> str:
        return f"{names[place[0]]}.size()[{place[1]}]"

    class Printer(PythonPrinter):
        def _print_Symbol(self, symbol: Any) -> str:  # noqa: N802  # sympy looks for it
            return size(first[symbol])

    text = Printer().doprint
    return [
        *(f"{size(place)} == {text(meaning)}" for place, meaning in equal),
        *(text(expression) for expression in asked),
    ]
