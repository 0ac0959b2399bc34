"""Capture a model: trace it into a graph, then observe one run of the graph on shapes alone.

    model, example ──► symbolic_trace ──► inline ──► observe ──► Captured
                         │ fails                       ▲
                         └──► export_trace ────────────┘

The model's code runs once on the plain way, on proxies. Its functions are inlined only if it has
any, and `torch.export` is asked only if `torch.fx` cannot tell.
"""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from upscale.capture.buffer_writes import BufferMemory, check_apart
from upscale.capture.captured import Captured, Example, Observed, place_of, two_of_each
from upscale.capture.changed_attributes import check_memory, check_seen, owner_of
from upscale.capture.export_trace import program_of, trace_program
from upscale.capture.fingerprint.digests import digests_of_constants
from upscale.capture.inline import open_functions
from upscale.capture.observe import Observer, run_nodes
from upscale.capture.symbolic_trace import Traced, bind, calls_python, trace_symbolically, twin_of
from upscale.capture.torch_export import Program
from upscale.capture.tracer import turn
from upscale.channels import Parameter
from upscale.errors import CaptureError, ExampleError, SizeError, StateError
from upscale.model.accepting import with_numbers
from upscale.model.layers import computed_weights, modules_of, tensors

# What a model may return besides tensors.
KNOWN = (Tensor, int, float, complex, str, type(None), torch.dtype, torch.device)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Put garbage collection off. Captures and plans make many objects and no garbage, and
    looking through them again and again takes a fifth of the time.

    Not beside other threads: the collector is theirs too, and they may make garbage meanwhile.
    """
    pausing = gc.isenabled() and threading.active_count() == 1
    if pausing:
        gc.disable()
    try:
        yield
    finally:
        if pausing:
            gc.enable()


@turn()
@collector_paused()
def capture(model: nn.Module, example: Example, *, numbers: bool = True) -> Captured:
    """Trace a model and observe one run of it; the model itself is not touched.

    The graph is traced symbolically, so batch and image size stay free; by `torch.export`
    where that fails. Unless `numbers` are needed, the model may be on the meta device.
    """
    _check_devices(model, example)
    if numbers:
        with_numbers(model)
    _check_hooks(model)
    bind(model, example)
    try:
        traced = trace_symbolically(model, example)
        if traced.attributes:
            check_memory(model, example, traced.attributes)
        traced, observer = _observe_opened(traced, model, example)
        if traced.baked and observer.state:
            raise CaptureError("what is computed from a buffer that forward writes to is constant")
    except StateError as error:  # another way to capture would lose it too
        raise StateError(_refused(model, error)) from error
    except Exception as first:  # tracing runs the caller's code, which may raise anything
        returned = _check_runs(model, example)
        try:
            traced, observer = _capture_by_export(model, example)
        except StateError as error:
            raise StateError(_refused(model, error)) from error
        except Exception as second:
            raise CaptureError(_why_not(model, returned, first, second)) from first
    owned = tensors(model)
    state = observer.state
    if state:
        check_apart(model, state)
    modules = modules_of(model)
    held = {str(node.target) for node in traced.graph.find_nodes(op="get_attr")} - owned.keys()
    return Captured(
        name=type(model).__name__,
        graph=traced.graph,
        extras=traced.extras,
        computed=computed_weights(model),
        kinds={name: type(module).__qualname__ for name, module in modules.items()},
        leaves=frozenset(n for n, m in modules.items() if next(m.children(), None) is None),
        observed=_keeping(observer.observed, state) if state else observer.observed,
        values=observer.values,
        sizes={**{n: i.shape for n, i in observer.values.items()}, **observer.measured},
        training=model.training,
        example=example.map(_shape_of),
        doubted=traced.doubted,
        constants=digests_of_constants(held, traced.extras, model) if held else {},
        state=state,
        fixed=traced.fixed,
    )


def _keeping(observed: Mapping[str, Observed], state: frozenset[str]) -> dict[str, Observed]:
    """What was observed, with a note on each node that writes what later calls may read."""
    return {
        name: replace(seen, keeps=not state.isdisjoint((*seen.writes, *seen.statistics)))
        for name, seen in observed.items()
    }


def _observe_opened(traced: Traced, model: nn.Module, example: Example) -> tuple[Traced, Observer]:
    """Observe a graph; once more with the model's own functions inlined, if it calls any."""
    observer = _observe(traced, model, example)
    seen = observer.observed
    wrapped = {n for n in traced.graph.nodes if calls_python(n) and seen[n.name].calls}
    if not wrapped:
        return traced, observer
    traced, opened = open_functions(traced, model, example, wrapped)
    if opened is not None:
        with suppress(CaptureError):  # a function may do more than can be followed
            return opened, _observe(opened, model, example)
    return traced, observer


def _capture_by_export(model: nn.Module, example: Example) -> tuple[Traced, Observer]:
    doubled = two_of_each(example)
    try:
        return _observe_program(model, program_of(model, doubled), example)
    except SizeError:  # what two do is not what one does
        if doubled is example:
            raise
        return _observe_program(model, program_of(model, example), example)


def _observe_program(model: nn.Module, made: Program, example: Example) -> tuple[Traced, Observer]:
    try:
        traced = trace_program(model, made)
        observer = _observe(traced, model, example)
    except StateError:
        raise
    except CaptureError:
        # Writes in place through views are gone from the functional form, with some structure.
        traced = trace_program(model, made, functional=True)
        observer = _observe(traced, model, example)
    check_seen(traced.changed, observer.written)
    return traced, observer


def _why_not(model: nn.Module, returned: Any, first: Exception, second: Exception) -> str:
    """What to tell of a model that neither way captures: its own cause, where it is known."""
    if isinstance(first, CaptureError):
        return _refused(model, first)
    strange = [leaf for leaf in tree_leaves(returned) if not isinstance(leaf, KNOWN)]
    if strange:
        kind = type(strange[0]).__name__
        return (
            f"{type(model).__name__} returns a {kind}, which a graph cannot hold. Let it return "
            "tensors in tuples and dicts alone: switch a cache off (use_cache=False), or wrap the "
            f"model in a module that leaves the {kind} out"
        )
    return (
        f"{type(model).__name__} cannot be captured. torch.fx says: {_first_line(first)} "
        f"torch.export says: {_first_line(second)} Python control flow on the values of "
        "tensors is the usual cause: keep it out of the part to be pruned, or wrap the "
        "function that has it with torch.fx.wrap"
    )


def _refused(model: nn.Module, error: CaptureError) -> str:
    return f"{type(model).__name__} cannot be captured: {_first_line(error)}"


def _check_devices(model: nn.Module, example: Example) -> None:
    owned = {str(p.device) for p in model.parameters()}
    given = {str(x.device) for x in example.tensors}
    if not example.tensors:
        raise ExampleError(
            "the example holds no tensor; pass what the model's forward takes: "
            "a tensor, a tuple of them or a dict of keyword inputs"
        )
    if owned and given and owned != given:
        raise ExampleError(
            f"the model is on {', '.join(sorted(owned))} and the example on "
            f"{', '.join(sorted(given))}; move both to one device"
        )


def _check_hooks(model: nn.Module) -> None:
    """A graph starts inside the model's own call: what hooks on it do would be lost."""
    hooks = (*model._forward_pre_hooks.values(), *model._forward_hooks.values())
    if any(not getattr(hook, "only_masks", False) for hook in hooks):
        raise CaptureError(
            f"{type(model).__name__} itself has forward hooks, which an export would lose; "
            "remove them, or wrap the model in a module that does what they do"
        )


def _check_runs(model: nn.Module, example: Example) -> Any:
    """What the model itself makes of the example; raises if it fails, naming the layer."""
    twin, given, entered = copy.deepcopy(model), example.copied(), [type(model).__name__]
    for name, module in twin.named_modules():
        if name:
            module.register_forward_pre_hook(lambda *_, name=name: entered.append(name))
    try:
        with torch.no_grad():
            return twin(*given.args, **given.kwargs)
    except Exception as error:
        shapes = ", ".join(str(tuple(x.shape)) for x in example.tensors)
        where = f"an example of shape {shapes} at {entered[-1]}"
        raise ExampleError(f"the model fails on {where}: {_first_line(error)}") from error


_shape_of = partial(torch.empty_like, device="meta")


def _observe(traced: Traced, model: nn.Module, example: Example) -> Observer:
    """Observe a run on shapes alone; on numbers, where the model's code needs them.

    A batch of one would hide an axis that is merged with the batch, so two are run, and the
    shapes of one written down after.
    """
    doubled = two_of_each(example)
    for examples in [(example,)] if doubled is example else [(doubled, example), (example,)]:
        try:
            return _run(traced, model, *examples)
        except CaptureError:
            raise
        except Exception:  # the model may insist on a batch of one, or on numbers
            continue
    return _run(traced, model, example, on_shapes=False)


def _run(traced: Traced, model: nn.Module, *examples: Example, on_shapes: bool = True) -> Observer:
    """Run a graph of a model on a twin, whose tensors have no numbers if it is `on_shapes`.

    The first example is observed; of another, the shapes alone are written down.
    """
    change = _shape_of if on_shapes else torch.clone
    twin, owned = twin_of(model, change)
    names: dict[int, str] = {}
    for name, tensor in owned.items():
        names.setdefault(id(tensor), Parameter(name))
    plain = [
        path
        for path in {str(node.target) for node in traced.graph.find_nodes(op="get_attr")}
        if isinstance(found := _attribute(twin, path), Tensor) and id(found) not in names
    ]
    for path, extra in traced.extras.items():
        held = change(extra) if isinstance(extra, Tensor) else extra
        setattr(*owner_of(twin, path), held)
    places = [(place_of(tensor), names[id(tensor)], tensor) for tensor in owned.values()]
    memory = BufferMemory(
        buffers={p: n for p, n, tensor in places if not isinstance(tensor, nn.Parameter)},
        parameters={p: n for p, n, tensor in places if isinstance(tensor, nn.Parameter)},
        plain={place_of(_attribute(twin, path)): path for path in plain},
    )
    observer = Observer(twin, traced.graph, names, memory)
    with torch.inference_mode(), torch.device("meta") if on_shapes else nullcontext():
        first, *others = (traced.inputs(twin, example.map(change)) for example in examples)
        run_nodes(observer, first)
        for other in others:
            observer.measure(*other)
    return observer


def _attribute(module: Any, path: str) -> Any:
    """What a module has at a path; `None` if nothing."""
    return reduce(lambda part, name: getattr(part, name, None), path.split("."), module)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or repr(error)
    return text.splitlines()[0].rstrip(".") + "."
