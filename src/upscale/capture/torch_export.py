"""Call `torch.export` with as many sizes free as it can tell in bounded time.

First every size is free (`x: [s0, 3, s1, s2]`), then the batch alone (`[s0, 3, 224, 224]`), then
none; what came out fixed is said in words.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from upscale.capture.captured import Example
from upscale.capture.records import Unpacking
from upscale.capture.tracer import Here, turn
from upscale.model.layers import tensors
from upscale.tools.quiet import quietly
from upscale.tools.versions import attributes_put_back

# What telling how sizes depend on each other may take; it grows beyond all bounds in some models.
SECONDS = 10.0


class Unexported(Exception):
    """A model's code cannot be exported, whatever sizes are free."""


class OutOfTime(Exception):
    """An export took longer than it was given."""


@dataclass(frozen=True, slots=True)
class Program:
    """What `torch.export` made of a model.

    `unpacking` knows how its outputs are packed, `fixed` says which sizes it takes for granted,
    and why; `changed` are the tensors that a call of the model was seen to change, with the line
    that wrote them.
    """

    exported: ExportedProgram
    unpacking: Unpacking
    fixed: tuple[str, ...]
    changed: Mapping[str, str] = field(default_factory=dict)


def export_program(make: Callable[[], nn.Module], example: Example) -> Program:
    """The program of a model that `make` gives afresh.

    First with every size free; if that fails or takes too long, with the batch alone; else for
    the example's sizes.
    """
    failures: list[Exception] = []
    for free, seconds in ((None, SECONDS), (1, 3 * SECONDS), (0, float("inf"))):
        try:
            program, unpacking = _export(make(), example, free, seconds)
        except Unexported:
            raise
        except Exception as error:  # torch.export raises of every kind, and runs the model's code
            failures.append(error)
        else:
            return Program(program, unpacking, _fixed(program, _why_fixed(failures)))
    raise failures[0]


def _export(
    model: nn.Module, example: Example, free: int | None, seconds: float
) -> tuple[ExportedProgram, Unpacking]:
    """Export a model with its inputs' first `free` sizes free, all if that is `None`."""
    own = vars(model).get("forward")
    unpacking = Unpacking(model)
    _bound(model, seconds)
    signature = _named(inspect.signature(model.forward), example)
    given = signature.bind(*example.args, **example.kwargs).arguments

    def sizes_free(leaf: Any) -> Any:
        axes = range(leaf.ndim)[:free] if isinstance(leaf, Tensor) else ()
        return dict.fromkeys(axes, torch.export.Dim.AUTO) or None

    dynamic = {name: tree_map(sizes_free, value) for name, value in given.items()}
    vars(model.forward)["__signature__"] = signature
    try:
        with export_turn(), quietly(), torch.enable_grad():
            kwargs = dict(example.kwargs)
            program = torch.export.export(
                model, example.args, kwargs, dynamic_shapes=dynamic, strict=False
            )
        return program, unpacking
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own


@contextmanager
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
        (machinery, "_ignore_backend_decomps", nullcontext),
        (machinery, "_detect_attribute_assignment", attributes_put_back),
        (FakeTensorMode, "cache", {}),
        # A compiled model is exported as what it was compiled from, which some versions refuse.
        (sys.modules.get("torch._dynamo.config"), "error_on_nested_fx_trace", False),
    ]
    with turn(), ExitStack() as afterwards:
        for method in vars(ShapeEnv).values():
            if hasattr(method, "cache_clear"):
                afterwards.callback(method.cache_clear)
        for owner, name, new in own:
            if hasattr(owner, name):
                afterwards.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, new)
        yield


@contextmanager
def _exporting_here() -> Iterator[None]:
    compiler: Any = torch.compiler
    before = compiler._is_compiling_flag, compiler._is_exporting_flag
    compiler._is_compiling_flag = compiler._is_exporting_flag = Here()
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag = before


def holds_parameters(program: ExportedProgram, model: nn.Module) -> bool:
    """Whether a program has parameters or buffers of a model as constants, under other names."""
    owned = tensors(model)
    places = {tensor.data_ptr() for tensor in owned.values()} - {0}
    return any(
        isinstance(held, Tensor) and name not in owned and held.data_ptr() in places
        for name, held in program.constants.items()
    )


@contextmanager
def restored(model: nn.Module) -> Iterator[nn.Module]:
    """The model itself, to run within; what it sets of its attributes is taken back after."""
    before = [
        (held, dict(held))
        for m in model.modules()
        for held in (vars(m), m._parameters, m._buffers, m._modules)
    ]
    try:
        yield model
    finally:
        for held, content in before:
            held.clear()
            held.update(content)


def _named(signature: inspect.Signature, example: Example) -> inspect.Signature:
    """A signature with names of their own for what is passed through `**kwargs`.

    torch.export loses its way where inputs come as a dict in the place of one input.
    """
    taken = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(taken) < len(signature.parameters):
        known = {p.name for p in taken}
        free = (name for name in example.kwargs if name not in known)
        taken += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in free]
    return signature.replace(parameters=taken)


def _bound(model: nn.Module, seconds: float) -> None:
    """Let a model's forward raise when its time is up, or when it decides on numbers.

    The clock is this thread's own, which stands still while others have the processor.
    """
    forward = model.forward

    @functools.wraps(forward)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        try:
            with lengths_free(model), _Deadline(time.thread_time() + seconds):
                return forward(*args, **kwargs)
        except RuntimeError as error:
            if "data-dependent" in str(error):
                # torch prints the whole graph if it meets this error itself.
                raise Unexported(str(error)) from error
            raise

    model.forward = bounded


class _Deadline(TorchFunctionMode):
    """Looks at the clock before every operation."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.thread_time() > self._until:
            raise OutOfTime
        return func(*args, **(kwargs or {}))


def _why_fixed(failures: list[Exception]) -> str:
    if not failures:
        return "as torch.export tells, the model takes no other"
    failure = failures[0]
    if isinstance(failure, OutOfTime):
        return f"with every size free torch.export takes longer than {SECONDS:.0f} s"
    return f"with every size free torch.export fails: {(str(failure) or repr(failure))[:200]}"


def _fixed(program: ExportedProgram, because: str) -> tuple[str, ...]:
    """What to say of the sizes that a program takes for granted."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    sizes = [
        f"{spec.arg.name}.shape[{axis}] = {size}"
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
        for axis, size in enumerate(values[spec.arg.name].shape)
        if isinstance(size, int) or size.node.maybe_as_int() is not None
    ]
    return (f"{', '.join(sizes)}: {because}",) if sizes else ()


@contextmanager
def lengths_free(model: nn.Module) -> Iterator[None]:
    """Let `len(tensor)` be a size, in the files that a model's classes come from.

    Python's own has to give a plain number, for which the size would be fixed. For everything
    else ours is what `len` is, so that nobody who runs there meanwhile is disturbed.
    """
    files = {kind.__module__ for module in model.modules() for kind in type(module).__mro__}
    spaces = [
        space
        for name in files - {"builtins"}
        if name.partition(".")[0] != "torch"
        if "len" not in (space := vars(sys.modules.get(name, object)))
        if isinstance(space, dict)
    ]
    for space in spaces:
        space["len"] = _length
    try:
        yield
    finally:
        for space in spaces:
            space.pop("len", None)


def _length(of: Any) -> Any:
    return of.shape[0] if isinstance(of, Tensor) and of.ndim else len(of)
