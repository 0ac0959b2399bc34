"""Finishing: the best draft becomes a plan, with all that is reported of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from upscale.flow.channel_flow import ChannelFlow
from upscale.lowering.lowered import Lowered
from upscale.names import Parameter, by_name
from upscale.planning.plan import (
    GraphChanges,
    Inserted,
    Plan,
    Report,
    WeightChanges,
    bytes_copied,
    fetched,
)
from upscale.planning.writer import Cuts, Written


class Burden(NamedTuple):
    """What makes one plan better than another: bytes, then copies, then pieces."""

    copied_bytes: int
    copies: int
    pieces: int


def measured(written: Written) -> Burden:
    """What a draft copies."""
    edges = fetched(written.graph)
    return Burden(
        bytes_copied(edges, concatenated_bytes(written.draft.flow)),
        sum(edge.copied_bytes > 0 for edge in edges),
        sum(len(edge.pieces) for edge in written.graph.edges),
    )


def finished(lowered: Lowered, order: str, best: Written) -> Plan:
    """The plan that a draft makes of a lowered flow."""
    flow = lowered.flow
    read = {value for step in flow.steps for value in step.reads}
    pruned = {layer.name for _, layer in flow.layers}
    kept = by_name(lowered.kept)
    left = sorted(kept.keys() - pruned)
    unreached = {name for name in left if Parameter(name) not in read} | lowered.unreached
    return Plan(
        order=order,
        kept={name: tuple(columns.tolist()) for name, columns in kept.items()},
        graph=_with_turns(flow, best.graph, lowered.renamed),
        weights=WeightChanges(
            cuts={
                name: {axis: tuple(own.tolist()) for axis, own in by_axis.items()}
                for name, by_axis in by_name(best.cuts).items()
            },
            folds=lowered.folds,
            gates=lowered.gates,
        ),
        masks=lowered.masks,
        report=Report(
            stayed=tuple(name for name in left if Parameter(name) in read),
            unreached=tuple(sorted(unreached)),
            frozen=tuple(step.frozen for step in flow.steps if step.frozen),
            order_cost=best.draft.orders.cost,
            lower_bound=best.draft.orders.lower_bound,
            unpruned_concatenated_bytes=concatenated_bytes(flow),
            estimated_us=best.price / 1000,
            zeros=_zeros_left(lowered, best.graph, best.cuts),
            fixed=lowered.fixed,
        ),
    )


def _with_turns(flow: ChannelFlow, graph: GraphChanges, renamed: Mapping[str, str]) -> GraphChanges:
    """The changes with the steps that lowering inserted, each at the node where it runs."""
    turns: dict[str, list[str]] = {step.at: [] for step in flow.steps if step.at is not None}
    inserted = {}
    for step in flow.steps:
        node = step.node if step.at is None else step.at
        if node in turns:
            turns[node].append(step.node)
        if step.at is not None and step.executed:
            weights = [value for value in step.reads if isinstance(value, Parameter)]
            reads = tuple(value for value in step.reads if value not in weights)
            weight = weights[0].name if weights else None
            inserted[step.node] = Inserted(reads, step.makes[0], weight)
    ordered = {node: tuple(names) for node, names in turns.items()}
    return replace(graph, turns=ordered, inserted=inserted, renamed=renamed)


def _zeros_left(lowered: Lowered, graph: GraphChanges, cuts: Cuts) -> dict[str, tuple[int, ...]]:
    """The rows of weights that are zero and are computed all the same."""
    run = {v for step in lowered.flow.steps if step.node not in graph.gone for v in step.reads}
    left = {}
    for weight, by_axis in lowered.masks.zeroed.items():
        for axis, gone in by_axis.items():
            here = cuts.get(Parameter(weight), {}).get(axis)
            rows = np.array(gone) if here is None else np.intersect1d(gone, here)
            if Parameter(weight) in run and len(rows) and weight.endswith("weight"):
                left[weight] = tuple(rows.tolist())
    return left


def concatenated_bytes(flow: ChannelFlow) -> int:
    """Bytes that the unpruned model's own concatenations and channel paddings write."""
    return sum(flow.nbytes[joined.out.value] for _, joined in flow.selects if joined.joined)
