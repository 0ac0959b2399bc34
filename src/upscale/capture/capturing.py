"""Capturing: trace a model, then observe one run of the graph on shapes alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from upscale.capture.exporting import Program
from upscale.capture.fingerprint import digests_of_constants
from upscale.capture.inline import open_functions
from upscale.capture.observe import Observer
from upscale.capture.record import Captured, Example
from upscale.capture.remembering import check_seen
from upscale.capture.state import Memory, check_apart
from upscale.capture.tracing import (
    Traced,
    bind,
    program_of,
    trace_program,
    trace_symbolically,
    two_of_each,
)
from upscale.capture.turns import turn
from upscale.errors import CaptureError, ExampleError, SizeError, StateError
from upscale.subject.accepting import with_numbers
from upscale.subject.layers import computes_weight, copied, layers, parameter_names, weight_of
from upscale.tools.collector import collector_paused

# What a model may return besides tensors.
KNOWN = (Tensor, int, float, complex, str, type(None), torch.dtype, torch.device)


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
    check_apart(model, observer.state, parameter_names(model))
    return Captured(
        name=type(model).__name__,
        graph=traced.graph,
        extras=traced.extras,
        computed={
            name: tuple(weight_of(layer).shape)
            for name, layer in layers(model).items()
            if computes_weight(layer)
        },
        kinds={
            name: type(module).__qualname__
            for name, module in model.named_modules(remove_duplicate=False)
        },
        leaves=frozenset(
            name
            for name, module in model.named_modules(remove_duplicate=False)
            if next(module.children(), None) is None
        ),
        observed=observer.observed,
        values=observer.values,
        sizes={**{n: i.shape for n, i in observer.values.items()}, **observer.measured},
        training=model.training,
        example=example.map(lambda x: _shape_of(x) if isinstance(x, Tensor) else x),
        doubted=traced.doubted,
        constants=digests_of_constants(traced.graph, traced.extras, model),
        state=observer.state,
        fixed=traced.fixed,
    )


def _observe_opened(traced: Traced, model: nn.Module, example: Example) -> tuple[Traced, Observer]:
    """Observe a graph; once more with functions opened, if there are any."""
    observer = _observe(traced, model, example)
    busy = {name for name, seen in observer.observed.items() if seen.calls}
    traced, opened = open_functions(traced, model, example, busy)
    if opened is not None:
        try:
            return opened, _observe(opened, model, example)
        except CaptureError:
            pass  # what a function does within may be more than can be followed
    return traced, observer


def _capture_by_export(model: nn.Module, example: Example) -> tuple[Traced, Observer]:
    doubled = two_of_each(example)
    try:
        return _observe_program(model, program_of(model, doubled), example)
    except SizeError:  # what two do is not what one does
        if doubled is example:
            raise
        return _observe_program(model, program_of(model, example), example)


def _observe_program(
    model: nn.Module, program: Program, example: Example
) -> tuple[Traced, Observer]:
    try:
        traced = trace_program(model, program)
        observer = _observe(traced, model, example)
    except StateError:
        raise
    except CaptureError:
        # Writes in place through views are gone from the functional form, with some structure.
        traced = trace_program(model, program, functional=True)
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
        raise ExampleError(
            f"the model fails on an example of shape {shapes} at {entered[-1]}: "
            f"{_first_line(error)}"
        ) from error


class _Twin:
    """A copy of a model whose parameters were replaced, and the names of what replaced them."""

    def __init__(self, model: nn.Module, replace: Callable[[Tensor], Tensor]) -> None:
        self.replace = replace
        names = parameter_names(model)
        twins: dict[int, Any] = {}
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                new = replace(tensor)
                twins[id(tensor)] = (
                    nn.Parameter(new, requires_grad=tensor.requires_grad)
                    if isinstance(tensor, nn.Parameter)
                    else new
                )
        self.owned = {id(new): f"@{names[key]}" for key, new in twins.items()}
        self.module = copied(model, dict(twins))

    def attribute(self, path: str) -> Any:
        """What the copy has at a path; `None` if nothing."""
        found: Any = self.module
        for part in path.split("."):
            found = getattr(found, part, None)
        return found


def _shape_of(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def _observe(traced: Traced, model: nn.Module, example: Example) -> Observer:
    """Observe a run on shapes alone; on numbers, where the model's code needs them.

    A batch of one would hide an axis that is merged with the batch, so two are run, and the
    shapes of one written down after.
    """
    twin, doubled = _Twin(model, _shape_of), two_of_each(example)
    try:
        with torch.device("meta"):
            if doubled is not example:
                try:
                    observer = _run(traced, twin, doubled)
                    observer.measure(*_given(traced, twin, example))
                    return observer
                except CaptureError:
                    raise
                except Exception:  # the model may insist on a batch of one
                    twin = _Twin(model, _shape_of)
            return _run(traced, twin, example)
    except CaptureError:
        raise
    except Exception:
        return _run(traced, _Twin(model, torch.clone), example)


def _run(traced: Traced, twin: _Twin, example: Example) -> Observer:
    plain = _plain_tensors(traced.graph, twin)
    for path, extra in traced.extras.items():
        owner, _, name = path.rpartition(".")
        held = twin.replace(extra) if isinstance(extra, Tensor) else extra
        setattr(twin.module.get_submodule(owner), name, held)
    lasting = Memory(twin.module, twin.owned, {path: twin.attribute(path) for path in plain})
    observer = Observer(twin.module, traced.graph, twin.owned, lasting)
    with torch.inference_mode():
        observer.run(*_given(traced, twin, example), enable_io_processing=False)
    return observer


def _plain_tensors(graph: fx.Graph, twin: _Twin) -> list[str]:
    """The paths of tensors that a graph reads and that the model has as attributes alone."""
    paths = dict.fromkeys(str(node.target) for node in graph.find_nodes(op="get_attr"))
    found = {path: twin.attribute(path) for path in paths}
    return [p for p, own in found.items() if isinstance(own, Tensor) and id(own) not in twin.owned]


def _given(traced: Traced, twin: _Twin, example: Example) -> list[Any]:
    given = example.map(lambda x: twin.replace(x) if isinstance(x, Tensor) else x)
    return traced.inputs(twin.module, given)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or repr(error)
    return text.splitlines()[0].rstrip(".") + "."
