"""The paper's worked examples, each under the name it has there.

Channels of figures are known only as far as text and captions tell them: of consumer B in figure
"mrap" that it shares one channel with D and one with E, none of them common to both.
"""

from collections.abc import Callable

import pytest

from tests.ordering.brute import cost_of
from upscale.ordering import check, solve
from upscale.ordering.budget import Budget
from upscale.ordering.mrap import build_graph, find_path

FIGURE_IV = {"B": {1, 3}, "D": {0, 3, 4}, "E": {0, 1, 2}}
CASE_1 = {"B": {1, 3}, "C": {2, 4}}
CASE_2 = {"B": {1, 3}, "C": {2, 3}}
CASE_3 = {"B": {1, 3, 4}, "C": {2, 3, 4}, "D": {1, 2}}
PIPELINE = {"B": {1, 3, 4}, "C": {2, 3, 4}, "D": {1, 4}}
SUBSETS = {"A": {1, 2, 3}, "B": {1, 2}, "C": {2, 3}}
SUBSETS_1 = {"A": {1, 2, 3}, "B": {2, 3, 4, 5}, "C": {4, 5, 6}, "D": {3, 4, 5}, "E": {2, 3, 5}}
SUBSETS_2 = {"A": {1, 2, 3, 4}, "B": {2, 3, 4, 5}, "C": {4, 5, 6}, "D": {2, 4, 5}, "E": {2, 3, 5}}

Example = dict[str, set[int]]


def mask_of(channels: set[int]) -> int:
    return sum(1 << channel for channel in channels)


def rewards(example: Example) -> tuple[list[int], list[int]]:
    graph = build_graph([mask_of(channels) for channels in example.values()])
    count = len(graph.channels)
    edges = [(i, j) for i in range(count) for j in range(i) if graph.near[i] >> j & 1]
    return [graph.node_reward(i) for i in range(count)], [graph.edge_reward(*e) for e in edges]


def first_path(example: Example) -> tuple[str, int]:
    graph = build_graph([mask_of(channels) for channels in example.values()])
    path = find_path(graph, (1 << len(example)) - 1, Budget(1.0))
    return "".join(list(example)[node] for node in path.nodes), path.reward


def paper_order(example: Example) -> tuple[int, ...]:
    return solve(list(example.values()), method="mrap").order


def test_figure_mrap_takes_d_and_e_then_b() -> None:
    assert rewards(FIGURE_IV) == ([2, 3, 3], [-1, -1, -1])
    path, reward = first_path(FIGURE_IV)
    assert sorted(path) == ["D", "E"]
    assert reward == 3 + 3 - 1


@pytest.mark.parametrize(
    ("example", "nodes", "edges"),
    [
        ({"C": {1, 3}}, [2], []),
        ({"B": {1, 3}, "D": {2, 4}}, [2, 2], []),
        ({"B": {1, 3}, "D": {2, 3}}, [2, 2], [-1]),
        (FIGURE_IV, [2, 3, 3], [-1, -1, -1]),
    ],
    ids=["i", "ii", "iii", "iv"],
)
def test_figure_graphs_rewards(example: Example, nodes: list[int], edges: list[int]) -> None:
    assert rewards(example) == (nodes, edges)


@pytest.mark.parametrize(
    ("example", "order"),
    [
        ({"C": {1, 3}}, (1, 3)),
        ({"B": {1, 3}, "D": {2, 4}}, (1, 3, 2, 4)),
        ({"B": {1, 3}, "D": {2, 3}}, (1, 3, 2)),
        (FIGURE_IV, (1, 2, 0, 3, 4)),
    ],
    ids=["i", "ii", "iii", "iv"],
)
def test_figure_ordering(example: Example, order: tuple[int, ...]) -> None:
    assert paper_order(example) == order


def test_how_reordering_reduces_copies_case_1_disjoint_sets() -> None:
    for method in ("optimal", "mrap"):
        assert solve(list(CASE_1.values()), method=method).order == (1, 3, 2, 4)


def test_how_reordering_reduces_copies_case_2_overlapping_sets() -> None:
    for method in ("optimal", "mrap"):
        assert solve(list(CASE_2.values()), method=method).order == (1, 3, 2)


def test_how_reordering_reduces_copies_case_3_unsolvable_sets() -> None:
    sizes = [float(len(channels)) for channels in CASE_3.values()]
    for method in ("optimal", "mrap"):
        ordering = solve(list(CASE_3.values()), sizes, method=method)
        assert ordering.contiguous == (True, True, False)
        assert ordering.cost == 2.0
    assert solve(list(CASE_3.values()), sizes).optimal


def test_how_the_graph_solves_case_1_without_edges_any_order_of_nodes_works() -> None:
    assert rewards(CASE_1)[1] == []
    assert solve(list(CASE_1.values()), method="mrap").cost == 0


def test_how_the_graph_solves_case_2_a_line_of_convolutions_is_one_path() -> None:
    line = {"A": {1, 8}, "B": {8, 2, 7}, "C": {7, 3, 6}, "D": {6, 4}}
    assert first_path(line) == ("ABCD", 7)
    assert solve(list(line.values()), method="mrap").order == (1, 8, 2, 7, 3, 6, 4)


def test_how_the_graph_solves_case_3_the_reward_is_the_channels_on_the_path() -> None:
    assert first_path(CASE_3) == ("BC", 4)


def test_reordering_pipeline_example() -> None:
    assert paper_order(PIPELINE) == (1, 3, 4, 2)
    # The paper leaves D out; no copy is needed at all.
    assert solve(list(PIPELINE.values())).cost == 0


def test_a_parent_is_rewarded_when_its_children_cover_it() -> None:
    assert first_path(SUBSETS) == ("BC", 2 + 2 - 1 + 3)
    assert paper_order(SUBSETS) == (1, 2, 3)
    assert solve(list(SUBSETS.values())).order == (1, 2, 3)


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        (CASE_1, (1, 3, 2, 4)),
        (CASE_2, (1, 3, 2)),
        (CASE_3, (1, 3, 4, 2)),
        (PIPELINE, (1, 3, 4, 2)),
        (FIGURE_IV, (1, 2, 0, 3, 4)),
        (SUBSETS, (1, 2, 3)),
        (SUBSETS_1, (1, 2, 3, 4, 5, 6)),
        (SUBSETS_1, (1, 2, 3, 5, 4, 6)),
        (SUBSETS_2, (1, 2, 3, 4, 5, 6)),
    ],
)
@pytest.mark.parametrize("weighing", [lambda channels: 1.0, len], ids=["one each", "size"])
def test_optimal_is_at_least_as_good_as_any_order_the_paper_prints(
    example: Example, printed: tuple[int, ...], weighing: Callable[[set[int]], float]
) -> None:
    sets = list(example.values())
    weights = [float(weighing(channels)) for channels in sets]
    ordering = solve(sets, weights)
    check(sets, weights, ordering)
    assert ordering.optimal
    assert ordering.cost <= cost_of(sets, weights, printed)
