"""The paper's own search, maximum-reward acyclic paths, for comparison.

It follows the paper's main text. Where that leaves a choice or contradicts itself:

- Two nodes are neighbours when they share a channel. Algorithm 1 has `A <- R_e > 0`, which no
  edge fulfils, because edge rewards are negative.
- A path leaving a node may not return to the node's other neighbours, except to its parents and
  children (modification 1). The appendix's own subset paths break this rule; it is kept here.
- A parent whose children on the path hold all its channels adds its reward (modification 2), but
  stays in the graph for later paths, since these are found in `G - p`.
- Consumers that keep the same channels are one node.
- Equal rewards: the path whose nodes retain more in sum wins, as in the appendix's case 3, or the
  one found first. A path is read in the direction that leaves fewer of its nodes' channels to
  copy (parents and children make a difference), or orders channels lower first.
- The recurrence is exponential. It is searched depth first, best neighbour first, with half of
  the remaining budget for each path; then the best path found so far stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upscale.ordering.budget import Budget
from upscale.ordering.pqtree import elements, union


@dataclass(frozen=True, slots=True)
class Graph:
    """Consumers as nodes: `channels` are masks, `near` and `kin` masks of other nodes.

    `kin` are a node's parents and children.
    """

    channels: tuple[int, ...]
    near: tuple[int, ...]
    kin: tuple[int, ...]

    def node_reward(self, node: int) -> int:
        """The number of channels the consumer retains."""
        return self.channels[node].bit_count()

    def edge_reward(self, one: int, other: int) -> int:
        """Minus the number of channels both retain."""
        return -(self.channels[one] & self.channels[other]).bit_count()


@dataclass(frozen=True, slots=True)
class Path:
    """Nodes in a row, the nodes it may not visit, its reward, and what its nodes retain in sum.

    `covered` are parents off the path all of whose channels children on the path hold.
    """

    nodes: tuple[int, ...]
    invalid: int
    covered: int
    reward: int
    retained: int

    @property
    def merit(self) -> tuple[int, int]:
        """What makes one path better than another."""
        return self.reward, self.retained


def build_graph(channels: Sequence[int]) -> Graph:
    """The paper's graph, with a node for each different mask of channels.

    >>> graph = build_graph([0b0101, 0b0110])
    >>> graph.node_reward(0), graph.edge_reward(0, 1), graph.near
    (2, -1, (2, 1))
    """
    nodes = tuple(dict.fromkeys(mask for mask in channels if mask))
    near = [0] * len(nodes)
    kin = [0] * len(nodes)
    for i, one in enumerate(nodes):
        for j, other in enumerate(nodes):
            shared = one & other
            if i != j and shared:
                near[i] |= 1 << j
                if shared in (one, other):
                    kin[i] |= 1 << j
    return Graph(nodes, tuple(near), tuple(kin))


def find_path(graph: Graph, nodes: int, budget: Budget) -> Path:
    """The acyclic path of maximum reward through some of `nodes` (a mask, not empty).

    >>> graph = build_graph([0b00011, 0b11010, 0b01101])
    >>> path = find_path(graph, 0b111, Budget(1.0))
    >>> path.nodes, path.reward
    ((1, 2), 5)
    """
    reserve = budget.steps // 2
    starts = []
    for node in elements(nodes):
        retained = graph.node_reward(node)
        starts.append(Path((node,), 1 << node, 0, retained, retained))
    best = max(starts, key=lambda path: path.merit)
    unexplored = starts[::-1]
    while unexplored and budget.steps > reserve:
        path = unexplored.pop()
        longer = [
            _extend(graph, path, node, nodes)
            for node in elements(graph.near[path.nodes[-1]] & nodes & ~path.invalid)
        ]
        budget.spend(2 + 30 * len(longer))
        longer.sort(key=lambda path: path.merit)
        unexplored += longer
        if path.merit > best.merit:
            best = path
    return best


def _extend(graph: Graph, path: Path, node: int, nodes: int) -> Path:
    last = path.nodes[-1]
    on_path = union(1 << each for each in (*path.nodes, node))
    reward = path.reward + graph.node_reward(node) + graph.edge_reward(last, node)
    covered = path.covered
    if covered >> node & 1:
        covered ^= 1 << node
        reward -= graph.node_reward(node)
    for parent in elements(graph.kin[node] & nodes & ~on_path & ~covered):
        held = union(graph.channels[child] for child in elements(graph.kin[parent] & on_path))
        if held == graph.channels[parent]:
            covered |= 1 << parent
            reward += graph.node_reward(parent)
    invalid = path.invalid | 1 << node | graph.near[last] & ~graph.kin[last]
    retained = path.retained + graph.node_reward(node)
    return Path((*path.nodes, node), invalid, covered, reward, retained)


def channel_order(graph: Graph, nodes: Sequence[int]) -> list[int]:
    """The ordering equation: own channels of each node, then those shared with the next.

    >>> channel_order(build_graph([0b101, 0b110]), [0, 1])
    [0, 2, 1]
    """
    masks = [0, *(graph.channels[node] for node in nodes), 0]
    order: dict[int, None] = {}
    for before, here, after in zip(masks, masks[1:], masks[2:], strict=False):
        order.update(dict.fromkeys(elements(here & ~before & ~after)))
        order.update(dict.fromkeys(elements(here & after)))
    return list(order)


def _copied(graph: Graph, nodes: Sequence[int], order: Sequence[int]) -> int:
    """How many channels of the nodes do not lie side by side in the order."""
    place = {channel: at for at, channel in enumerate(order)}
    copied = 0
    for node in nodes:
        places = [place[channel] for channel in elements(graph.channels[node])]
        if max(places) - min(places) >= len(places):
            copied += len(places)
    return copied


def order_by_paths(channels: Sequence[int], budget: Budget) -> list[int]:
    """An order of all channels: path after path until every node is used.

    >>> order_by_paths([0b01010, 0b11001, 0b00111], Budget(1.0))
    [1, 2, 0, 3, 4]
    """
    graph = build_graph(channels)
    remaining = (1 << len(graph.channels)) - 1
    order: dict[int, None] = {}
    while remaining:
        path = find_path(graph, remaining, budget)
        forwards = channel_order(graph, path.nodes)
        backwards = channel_order(graph, path.nodes[::-1])
        better = min((_copied(graph, path.nodes, way), way) for way in (forwards, backwards))[1]
        order.update(dict.fromkeys(better))
        for node in path.nodes:
            remaining &= ~(1 << node)
    return list(order)
