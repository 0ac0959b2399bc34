import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from upscale.ordering import check, solve
from upscale.ordering.budget import Budget
from upscale.ordering.mrap import build_graph, channel_order, find_path

masks = st.lists(st.integers(1, 255), min_size=1, max_size=6, unique=True)


@given(masks)
def test_nodes_apart_on_a_path_share_channels_only_as_parent_and_child(channels: list[int]) -> None:
    graph = build_graph(channels)
    path = find_path(graph, (1 << len(channels)) - 1, Budget(1.0)).nodes
    for one, other in pairwise(path):
        assert graph.near[one] >> other & 1
    for at, one in enumerate(path):
        for other in path[at + 2 :]:
            assert not graph.near[one] >> other & 1 or graph.kin[one] >> other & 1


@given(masks)
def test_without_subsets_the_reward_is_the_number_of_channels(channels: list[int]) -> None:
    graph = build_graph(channels)
    path = find_path(graph, (1 << len(channels)) - 1, Budget(1.0))
    if not any(graph.kin):
        assert path.reward == len(channel_order(graph, path.nodes))


@given(masks)
def test_no_single_node_or_pair_has_more_reward(channels: list[int]) -> None:
    graph = build_graph(channels)
    best = find_path(graph, (1 << len(channels)) - 1, Budget(1.0)).reward
    for one in range(len(channels)):
        assert graph.node_reward(one) <= best
        for other in range(one):
            if graph.near[one] >> other & 1:
                pair = graph.node_reward(one) + graph.node_reward(other)
                assert pair + graph.edge_reward(one, other) <= best


def test_a_search_cut_short_still_orders_every_channel() -> None:
    generator = random.Random(3)
    sets = [{c for c in range(30) if generator.random() < 0.3} for _ in range(40)]
    for time_limit in (0.0, 0.001, 0.1):
        check(sets, None, solve(sets, method="mrap", time_limit=time_limit))


def test_mrap_claims_no_bound() -> None:
    ordering = solve([{0, 1}, {1, 2}, {0, 2}], method="mrap")
    assert (ordering.cost, ordering.lower_bound) == (1.0, 0.0)
