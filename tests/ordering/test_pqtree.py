from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from tests.ordering.brute import count_runs
from upscale.ordering.pqtree import Node, admit, arrange, elements, loose

ELEMENTS = 5
families = st.lists(st.integers(1, (1 << ELEMENTS) - 1), max_size=5)


def orders(tree: Node) -> set[tuple[int, ...]]:
    """All orders a tree allows, spelt out."""
    pieces = [orders(child) for child in tree.children]
    pieces += [{(element,)} for element in elements(tree.loose)]
    rows = permutations(pieces) if not tree.fixed else iter([pieces, pieces[::-1]])
    found = set()
    for row in rows:
        heads: set[tuple[int, ...]] = {()}
        for piece in row:
            heads = {head + tail for head in heads for tail in piece}
        found |= heads
    return found


def side_by_side(family: list[int]) -> set[tuple[int, ...]]:
    sets = [set(elements(mask)) for mask in family]
    return {
        order
        for order in permutations(range(ELEMENTS))
        if all(count_runs(members, order) <= 1 for members in sets)
    }


@given(families)
def test_the_tree_allows_exactly_the_orders_that_keep_all_sets_side_by_side(
    family: list[int],
) -> None:
    tree = loose((1 << ELEMENTS) - 1)
    for at, members in enumerate(family):
        admitted = admit(tree, members)
        allowed = side_by_side(family[: at + 1])
        if admitted is None:
            assert not allowed
            return
        tree = admitted
        assert orders(tree) == allowed
        assert tuple(arrange(tree)) in allowed


@given(families, st.integers(1, (1 << ELEMENTS) - 1))
def test_a_refused_set_leaves_the_tree_as_it_was(family: list[int], members: int) -> None:
    tree = loose((1 << ELEMENTS) - 1)
    for earlier in family:
        tree = admit(tree, earlier) or tree
    before = repr(tree)
    admit(tree, members)
    assert repr(tree) == before
