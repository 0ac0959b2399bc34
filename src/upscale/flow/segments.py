"""Segments: producers and consumers connected through shared channels (the paper's step 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from upscale.flow.channel_flow import ChannelFlow


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
    ends: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for _, layer in flow.layers:
        sides = (("producer", layer.out), ("consumer", layer.read))
        for role, line in () if layer.channelwise else sides:
            for channel in flow.classes[line].tolist() if line in flow.classes else ():
                ends[flow.carried.get(channel, channel)].add((role, layer.name))
    made = {channel: own for channel, own in ends.items() if "producer" in dict(own)}
    return _connected(made)


def _connected(ends: Mapping[int, set[tuple[str, str]]]) -> tuple[Segment, ...]:
    """Join channels that share a producer or a consumer, each in its role."""
    links: dict[tuple[str, str], set[int]] = defaultdict(set)
    for channel, own in ends.items():
        for end in own:
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
        ordered = sorted(found)
        making = tuple(name for role, name in ordered if role == "producer")
        reading = tuple(name for role, name in ordered if role == "consumer")
        segments.append(Segment(making, reading))
    return tuple(segments)
