"""Graphs as node tables and back.

Making a graph module generates and runs code. Every text of a file that could stand in that
code is an identifier, a path within quotes, or the `repr` of a literal; functions and methods
come from the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx
from torch.fx.graph import CodeGen, _PyTreeCodeGen, _PyTreeInfo

from upscale.errors import StoreError
from upscale.store import words
from upscale.store.checks import Json, as_entry, as_identifier, as_list, as_object, as_path
from upscale.store.literals import (
    check_names,
    json_to_literal,
    json_to_tree,
    literal_to_json,
    tree_to_json,
)
from upscale.store.registry import METHODS, TYPES, function_named, name_of

MOST_NODES = 100_000


def graph_to_json(graph: fx.Graph) -> dict[str, Json]:
    """A graph as a table; raises on what a file cannot hold, naming the node."""
    nodes = []
    for node in graph.nodes:
        try:
            nodes.append(_node_to_json(node))
        except StoreError as error:
            raise StoreError(
                f"node {node.name} ({node.op} {_said(node)}) cannot be saved: {error}. Write it "
                "with torch's own operations, or keep it out of the part that is exported"
            ) from error
    if len(nodes) > MOST_NODES:
        raise StoreError(f"the graph has {len(nodes):,} nodes; a file holds {MOST_NODES:,}")
    return {"nodes": nodes, "signature": _codegen_to_json(graph._codegen)}


def json_to_graph(table: Json) -> fx.Graph:
    """The graph of a table in a file."""
    entries = as_object(table, "nodes", "signature")
    listed = as_list(entries["nodes"])
    if len(listed) > MOST_NODES:
        raise StoreError(f"the file has {len(listed):,} nodes; at most {MOST_NODES:,} are read")
    graph = fx.Graph()
    graph.set_codegen(_json_to_codegen(entries["signature"]))
    nodes: dict[str, fx.Node] = {}
    for entry in listed:
        _add_node(graph, nodes, entry)
    ops = [node.op for node in graph.nodes]
    if ops.count("output") != 1 or ops[-1] != "output":
        raise StoreError("the file's nodes do not end with the one output")
    return graph


def _node_to_json(node: fx.Node) -> dict[str, Json]:
    entry: dict[str, Json] = {
        "op": node.op,
        "name": as_identifier(node.name, "a node"),
        "target": _target_to_json(node),
        "args": [literal_to_json(argument) for argument in node.args],
    }
    if node.kwargs:
        entry["kwargs"] = {
            as_identifier(key, "an argument"): literal_to_json(value)
            for key, value in node.kwargs.items()
        }
    known = [name for name, annotation in TYPES.items() if annotation == node.type]
    return {**entry, "type": known[0]} if known else entry


def _target_to_json(node: fx.Node) -> str:
    if node.op != "call_function":
        return str(TARGETS[node.op](node.target))
    function: Any = node.target
    name = name_of(function)
    if name is None and isinstance(function, type):
        raise StoreError(
            f"it makes a {function.__name__}, a class that a file cannot name (tuples, lists, "
            "dicts and OrderedDicts are known)"
        )
    if name is None:
        raise StoreError("it calls a function that is not in the registry")
    _check_attribute(function, node.args, node.kwargs)
    return name


def _add_node(graph: fx.Graph, nodes: dict[str, fx.Node], entry: Json) -> None:
    given = as_object(entry, "op", "name", "target", "args", kwargs={}, type=None)
    name, op = as_identifier(given["name"], "a node"), given["op"]
    found = as_entry(TARGETS, op, "kind of node")(given["target"])
    if name in nodes:
        raise StoreError(f"the file has two nodes {name!r}")
    args = tuple(json_to_literal(item, nodes) for item in as_list(given["args"]))
    if not isinstance(given["kwargs"], dict):
        raise StoreError("the file has a node whose named arguments are no object")
    kwargs = {
        as_identifier(key, "an argument"): json_to_literal(value, nodes)
        for key, value in given["kwargs"].items()
    }
    least, most = {"output": (1, 1), "placeholder": (0, 1)}.get(op, (0, len(args)))
    if not least <= len(args) <= most or (kwargs and op in ("output", "placeholder")):
        raise StoreError("the file has an input with more than a default, or not one output")
    _check_attribute(found, args, kwargs)
    annotation = None if given["type"] is None else as_entry(TYPES, given["type"], "type")
    nodes[name] = graph.create_node(op, found, args, kwargs, name=name, type_expr=annotation)


def _method(target: Json) -> str:
    if not isinstance(target, str) or target not in METHODS:
        raise StoreError(f"{str(target)[:80]!r} is no method in the registry")
    return target


def _parameter(target: Json) -> str:
    name = target.lstrip("*") if isinstance(target, str) else target
    as_identifier(name, "an input")
    if len(target) - len(name) > 2:
        raise StoreError(f"{target[:80]!r} is no name for an input")
    return str(target)


# What a node calls or reads, by its kind: found by the target that a file has for it.
TARGETS: Mapping[str, Callable[[Json], Any]] = {
    "call_function": function_named,
    "call_method": _method,
    "call_module": as_path,
    "get_attr": as_path,
    "placeholder": _parameter,
    "output": lambda target: "output",
}


def _check_attribute(function: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """`getattr` may ask for a few things only."""
    if function is getattr and (
        len(args) != 2
        or kwargs
        or not isinstance(args[0], fx.Node)
        or args[1] not in words.ATTRIBUTES
    ):
        raise StoreError("it asks for an attribute that is not in the registry")


def _codegen_to_json(codegen: CodeGen) -> Json:
    """How inputs and outputs are packed, if not plainly."""
    if type(codegen) is CodeGen:
        return None
    info = getattr(codegen, "pytree_info", None)
    if type(codegen) is not _PyTreeCodeGen or info is None:
        raise StoreError(f"the graph's signature is a {type(codegen).__name__}")
    return {
        "inputs": [as_identifier(name, "an input") for name in info.orig_args],
        "packed": tree_to_json(check_names(info.in_spec)),
        "output": None if info.out_spec is None else tree_to_json(info.out_spec),
    }


def _json_to_codegen(signature: Json) -> CodeGen:
    if signature is None:
        return CodeGen()
    entries = as_object(signature, "inputs", "packed", "output")
    names = [as_identifier(name, "an input") for name in as_list(entries["inputs"])]
    out = entries["output"]
    packed = check_names(json_to_tree(entries["packed"]))
    return _PyTreeCodeGen(_PyTreeInfo(names, packed, None if out is None else json_to_tree(out)))


def _said(node: fx.Node) -> str:
    target: Any = node.target
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"
