"""From a file to a module: each node becomes calls of torch, by the table of operators."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

import upscale.onnx_files.operators  # noqa: F401  (fills the table)
from upscale.errors import OnnxError
from upscale.onnx_files.build import FOLDED, TIMES, Build, Held
from upscale.onnx_files.dtypes import dtype_of
from upscale.onnx_files.naming import Names
from upscale.onnx_files.operators.table import OPERATORS, Call
from upscale.onnx_files.reading import onnx, opset_of, read_model, tensor_of
from upscale.onnx_files.values import Made, Size, Sizes, Value

# What free sizes are taken to be while a file is read, each in two ways: first of the batch.
BATCH = (2, 3)
FREE = ((64, 96), (128, 160), (192, 224), (256, 288))
# Where a file leaves a size free that the rest of it takes for granted, these are tried for it.
GUESSES = (48, 32, 224, 320, 640)
# Guessing ends when so many times the nodes of the file were visited.
TURNS = 2
QUANTISED = re.compile("Quantize|Quantise|Integer|^QLinear")


@dataclass(frozen=True, slots=True)
class Vector:
    """Sizes that the file has a name for: numbers, or the names of nodes that ask for them."""

    entries: tuple[int | str, ...]
    scalar: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The file that a module was imported from.

    `origins` tells the place of the ONNX node that each node of the graph belongs to, `held` the
    constant behind each parameter, `made` the node that makes what the file has a name for, and
    `sizes` are the nodes that ask for sizes, and `vectors` what the file makes of them.
    `fixed` are the sizes that the file leaves free and the module takes for granted.
    """

    model: Any
    origins: Mapping[str, int]
    held: Mapping[str, Held]
    made: Mapping[str, str]
    sizes: frozenset[str]
    vectors: Mapping[str, Vector]
    example: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    fixed: tuple[str, ...] = ()

    def __deepcopy__(self, memo: Any) -> Source:
        return self  # it never changes, and holds the whole file


def from_onnx(
    path: str | os.PathLike[str], *, shapes: Mapping[str, Sequence[int]] | None = None
) -> fx.GraphModule:
    """The model that an ONNX file holds, as a module whose weights keep their names.

    It computes what ONNX Runtime computes, and is pruned, exported and saved like any module.
    Sizes that the file leaves free stay free where its graph keeps them so; `shapes` are sizes for
    its inputs, by name, for a file that says less than it needs.

    A layer is named after its weight: `conv1` for `conv1.weight`, and `conv2d_1.w_0` for a
    constant of that name, whose parameter is `conv2d_1.w_0.weight`.
    """
    model = read_model(path)
    failed: OnnxError | None = None
    visited = list[str]()
    try:
        for sizes in _assignments(model, shapes or {}):
            try:
                return _imported(model, sizes, visited)
            except OnnxError as error:
                failed = failed or error
                if getattr(error, "refused", False) or len(visited) > TURNS * len(model.graph.node):
                    break
    except OnnxError as error:
        raise OnnxError(f"{Path(path)}: {error}") from (error.__cause__ or error)
    except Exception as error:  # a damaged file breaks what any of its parts is taken to be
        said = f"{type(error).__name__}: {error}"
        raise OnnxError(f"{Path(path)} is damaged, or says what ONNX does not: {said}") from error
    raise OnnxError(f"{Path(path)}: {failed}") from (failed and (failed.__cause__ or failed))


Runs = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]


def given_inputs(model: Any) -> list[Any]:
    """The inputs of a model that its file holds no constant for."""
    constants = {own.name for own in model.graph.initializer}
    return [own for own in model.graph.input if own.name not in constants]


def _assignments(model: Any, shapes: Mapping[str, Sequence[int]]) -> Iterator[Runs]:
    """Sizes for all inputs, in two runs; more fixed ones, the longer it takes."""
    inputs = given_inputs(model)
    unknown = set(shapes) - {own.name for own in inputs}
    if unknown:
        names = ", ".join(own.name for own in inputs)
        raise OnnxError(f"it has no input {sorted(unknown)[0]!r}; its inputs are {names}")
    dims: dict[str, list[str | int]] = {}
    for own in inputs:
        if not own.type.HasField("tensor_type"):
            raise _refusal(f"its input {own.name} is no tensor")
        dims[own.name] = _dims(own)
    free = list(dict.fromkeys(d for own in dims.values() for d in own if isinstance(d, str)))
    batches = {own[0] for own in dims.values() if own and isinstance(own[0], str)}
    others = [name for name in free if name not in batches]
    known: dict[str, int] = {}
    for name, given in shapes.items():
        if len(given) != len(dims[name]):
            raise OnnxError(f"its input {name} has {len(dims[name])} axes, not {len(given)}")
        known |= {
            d: int(size) for d, size in zip(dims[name], given, strict=True)
            if isinstance(d, str) and d not in batches
        }  # fmt: skip
    usual = dict.fromkeys(sorted(batches), BATCH) | dict(zip(others, itertools.cycle(FREE)))

    def runs(taken: Mapping[str, tuple[int, int]]) -> Runs:
        return {
            name: tuple(
                tuple(taken[d][run] if isinstance(d, str) else d for d in own) for run in (0, 1)
            )  # type: ignore[misc]
            for name, own in dims.items()
        }

    yield runs(usual)
    if known:
        yield runs({**usual, **{d: (size, size) for d, size in known.items()}})
        yield runs(
            {
                **usual,
                **{d: (s, s) for d, s in known.items()},
                **dict.fromkeys(sorted(batches), (1, 1)),
            }
        )
        return
    for guess in GUESSES:
        for name in others:
            yield runs({**usual, name: (guess, guess)})
    for guess in GUESSES:
        yield runs({**usual, **dict.fromkeys(others, (guess, guess))})
        yield runs({d: (1, 1) if d in batches else (guess, guess) for d in free})


def _dims(given: Any) -> list[str | int]:
    """The sizes of an input: numbers, or names of those that are free."""
    if not given.type.tensor_type.HasField("shape"):
        raise OnnxError(f"its input {given.name} has no shape")
    return [
        own.dim_value if own.dim_value > 0
        else own.dim_param if own.dim_param not in ("", "?")
        else f"{given.name}.{axis}"
        for axis, own in enumerate(given.type.tensor_type.shape.dim)
    ]  # fmt: skip


def _imported(model: Any, sizes: Runs, visited: list[str]) -> fx.GraphModule:
    """The module of a file, built while its free sizes are taken to be those given."""
    opset, graph = opset_of(model), fx.Graph()
    held = sum(int(np.prod(own.dims, initial=1)) for own in model.graph.initializer)
    build = Build(graph, Names(), FOLDED + TIMES * held)
    values: dict[str, Value] = {}
    for own in model.graph.initializer:
        held_now = tensor_of(own)
        values[own.name] = held_now
        build.know(held_now, own.name)
    made: dict[str, str] = {}
    example = []
    for own in given_inputs(model):
        dtype = dtype_of(own.type.tensor_type.elem_type)
        node = graph.placeholder(re.sub(r"\W", "_", own.name) or "input")
        one, other = (torch.empty(s, dtype=dtype, device="meta") for s in sizes[own.name])
        taken = Made(node, (one, other))
        values[own.name] = taken
        build.inputs.append(taken)
        made[own.name] = node.name
        example.append((own.name, tuple(sizes[own.name][0]), dtype))
    for place, node in enumerate(model.graph.node):
        build.current = place
        visited.append(node.op_type)
        _visit(node, values, build, opset, made)
    nodes = []
    for own in model.graph.output:
        if own.name not in values:
            raise OnnxError(f"nothing makes its output {own.name}")
        result = build.tensor(values[own.name])
        if not isinstance(result, Made):
            raise OnnxError(f"its output {own.name} does not depend on any input")
        nodes.append(result.node)
    build.current = -1
    graph.output(nodes[0] if len(nodes) == 1 else tuple(nodes))
    module = fx.GraphModule(build.root, graph, "OnnxModel")
    module.graph.eliminate_dead_code()
    module.recompile()
    fixed = _fixed(model, sizes)
    vectors = {
        name: Vector(
            tuple(each.node.name if isinstance(each, Size) else each for each in own.entries),
            own.scalar,
            own.dtype,
        )
        for name, own in values.items()
        if isinstance(own, Sizes)
    }
    return _named_alike(
        module,
        Source(
            model,
            build.origins,
            build.held,
            made,
            frozenset(build.sizes),
            vectors,
            tuple(example),
            fixed,
        ),
    )


def _fixed(model: Any, sizes: Runs) -> tuple[str, ...]:
    """What is said of sizes that the file leaves free and that were taken for granted."""
    return tuple(
        f"{own.name}: axis {axis} is taken to be {one}, which the file leaves free"
        for own in given_inputs(model)
        for axis, (dim, one, other) in enumerate(zip(_dims(own), *sizes[own.name], strict=True))
        if isinstance(dim, str) and one == other
    )


def _visit(
    node: Any, values: dict[str, Value], build: Build, opset: int, made: dict[str, str]
) -> None:
    label = f"{node.op_type} {node.name or ', '.join(node.output)}"
    if node.domain not in ("", "ai.onnx"):
        raise _refusal(f"{label} is an operator of {node.domain}, which is not ONNX's own")
    if QUANTISED.search(node.op_type):
        raise _refusal(f"{label}: the model is quantised; prune it before it is quantised")
    if node.op_type == "Constant":
        own = constant(node)
        values[node.output[0]] = own
        build.know(own, node.output[0])
        return
    if node.op_type not in OPERATORS:
        raise _refusal(f"{label}: the operator is not supported")
    for name in node.input:
        if name and name not in values:
            raise OnnxError(f"{label} reads {name}, which nothing makes before it")
    inputs = tuple(values[name] if name else None for name in node.input)
    try:
        call = Call(node.op_type, inputs, attributes(node), tuple(node.output), opset)
        result = OPERATORS[node.op_type](call, build)
    except OnnxError as error:
        raise OnnxError(f"{label}: {error}") from error
    except Exception as error:  # torch says in many ways that operands do not fit
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OnnxError(f"{label} cannot be read: {first}") from error
    results = result if isinstance(result, list) else [result]
    for name, value in zip(node.output, results, strict=False):
        if not name:
            continue
        values[name] = value
        if isinstance(value, torch.Tensor):
            build.know(value, name)
        elif isinstance(value, Made):
            made[name] = value.node.name


def constant(node: Any) -> torch.Tensor:
    """What a Constant node holds."""
    (own,) = node.attribute
    if own.name == "value":
        return tensor_of(own.t)
    plain = {"value_float": torch.float32, "value_floats": torch.float32,
             "value_int": torch.int64, "value_ints": torch.int64}  # fmt: skip
    if own.name not in plain:
        raise _refusal(f"Constant {node.output[0]}: {own.name} is not supported")
    held = onnx().helper.get_attribute_value(own)
    return torch.tensor(
        held if isinstance(held, int | float) else list(held), dtype=plain[own.name]
    )


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of a node, as plain values."""
    found: dict[str, Any] = {}
    for own in node.attribute:
        if own.type in (own.GRAPH, own.GRAPHS, own.SPARSE_TENSOR, own.SPARSE_TENSORS):
            raise OnnxError(f"its attribute {own.name} holds a graph")
        if own.type == own.TENSOR:
            found[own.name] = tensor_of(own.t)
            continue
        value = onnx().helper.get_attribute_value(own)
        if isinstance(value, bytes):
            value = value.decode()
        elif own.type in (own.INTS, own.FLOATS):
            value = list(value)
        elif own.type == own.STRINGS:
            value = [each.decode() for each in value]
        found[own.name] = value
    return found


def _named_alike(module: fx.GraphModule, source: Source) -> fx.GraphModule:
    """The module with its nodes named as a trace of it names them: so a capture names them too."""
    traced = fx.Tracer().trace(module)
    names = {}
    for old, new in zip(module.graph.nodes, traced.nodes, strict=True):
        if (old.op, str(old.target)) != (new.op, str(new.target)):
            raise OnnxError(f"its graph cannot be traced again at {old.name}")
        names[old.name] = new.name
    named = fx.GraphModule(module, traced, "OnnxModel")
    origins = {names[k]: v for k, v in source.origins.items() if k in names}
    made = {k: names[v] for k, v in source.made.items() if v in names}
    sizes = frozenset(names[own] for own in source.sizes if own in names)
    vectors = {
        k: replace(v, entries=tuple(names.get(own, own) for own in v.entries))
        for k, v in source.vectors.items()
    }
    named.meta["onnx"] = replace(source, origins=origins, made=made, sizes=sizes, vectors=vectors)
    return named.eval()


def _refusal(said: str) -> OnnxError:
    """An error that no other sizes would mend."""
    error = OnnxError(said)
    error.refused = True  # type: ignore[attr-defined]
    return error


def source_of(module: Any) -> Source:
    """The file that a module was imported from."""
    source = getattr(module, "meta", {}).get("onnx")
    if not isinstance(source, Source):
        raise OnnxError("the model was not imported with upscale.from_onnx")
    return source
