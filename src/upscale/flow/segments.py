"""Segments: producers and consumers connected through shared channels (the paper's step 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.relations import Carry, Line


@dataclass(frozen=True, slots=True)
class Segment:
    """Producers and consumers connected through shared channels, by their weights' names."""

    producers: tuple[str, ...]
    consumers: tuple[str, ...]

    @property
    def single_branch(self) -> bool:
        """Whether one producer feeds one consumer, and nothing else."""
        return len(self.producers) == 1 and len(self.consumers) == 1


def find_segments(flow: ChannelFlow) -> tuple[Segment, ...]:
    """The segments of a flow: start at a producer, add consumers, their producers, and so on."""
    carried = carried_classes(flow)
    makers: dict[int, set[str]] = defaultdict(set)
    readers: dict[int, set[str]] = defaultdict(set)

    def channels(line: Line) -> set[int]:
        return {carried.get(c, c) for c in flow.classes[line].tolist()}

    for _, relation in flow.layers:
        if not relation.channelwise:
            for channel in channels(relation.out):
                makers[channel].add(relation.name)
            if relation.read in flow.classes:
                for channel in channels(relation.read):
                    readers[channel].add(relation.name)
    return _connected(makers, readers)


def carried_classes(flow: ChannelFlow) -> dict[int, int]:
    """The class of the channel that each merged feature's class is part of."""
    carried: dict[int, int] = {}
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Carry):
                features = np.arange(flow.sizes[relation.out])
                channels = relation.channel(features, flow.sizes[relation.read])
                sources = flow.classes[relation.read][channels].tolist()
                for feature, source in zip(
                    flow.classes[relation.out].tolist(), sources, strict=True
                ):
                    carried[feature] = carried.get(source, source)
    return carried


def _connected(
    makers: Mapping[int, set[str]], readers: Mapping[int, set[str]]
) -> tuple[Segment, ...]:
    """Join channels that share a producer or a consumer, each in its role."""
    links: dict[tuple[str, str], set[int]] = defaultdict(set)
    ends: dict[int, set[tuple[str, str]]] = {}
    for channel, producers in makers.items():
        ends[channel] = {("producer", p) for p in producers}
        ends[channel] |= {("consumer", c) for c in readers.get(channel, ())}
        for end in ends[channel]:
            links[end].add(channel)
    segments, seen = [], set()
    for channel in sorted(ends):
        if channel in seen:
            continue
        found: set[tuple[str, str]] = set()
        front = [channel]
        seen.add(channel)
        while front:
            for end in ends[front.pop()] - found:
                found.add(end)
                front += links[end] - seen
                seen |= links[end]
        segments.append(
            Segment(
                tuple(sorted(name for role, name in found if role == "producer")),
                tuple(sorted(name for role, name in found if role == "consumer")),
            )
        )
    return tuple(segments)
