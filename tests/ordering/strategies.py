"""Families of channel sets for property tests."""

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

Family = tuple[list[frozenset[int]], list[float]]


@st.composite
def families(draw: DrawFn, max_channels: int = 7, max_sets: int = 5) -> Family:
    """Any sets over a few channels, with weights that floats hold exactly or not at all well."""
    channels = st.frozensets(st.integers(0, draw(st.integers(0, max_channels - 1))))
    sets = draw(st.lists(channels, max_size=max_sets))
    weight = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 1.0, 2.0, 7.5])
    return sets, draw(st.lists(weight, min_size=len(sets), max_size=len(sets)))


@st.composite
def feasible_families(draw: DrawFn, max_channels: int = 40, max_sets: int = 12) -> list[set[int]]:
    """Intervals of a hidden order: some order makes all of them contiguous."""
    count = draw(st.integers(1, max_channels))
    hidden = draw(st.permutations(range(count)))
    ends: SearchStrategy[list[int]] = st.lists(st.integers(0, count), min_size=2, max_size=2)
    return [set(hidden[min(a, b) : max(a, b)]) for a, b in draw(st.lists(ends, max_size=max_sets))]
