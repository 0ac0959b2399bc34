import random
from itertools import combinations

import pytest
from hypothesis import given, settings

from tests.ordering.brute import least_cost
from tests.ordering.strategies import Family, families, feasible_families
from upscale.ordering import check, solve
from upscale.ordering.budget import Budget
from upscale.ordering.conflicts import find_triples, overlaps, small_conflict
from upscale.ordering.pqtree import admit_all, loose
from upscale.ordering.solver import collapse


def spoilt_family(seed: int, *, channels: int, sets: int, spoilt: int) -> list[set[int]]:
    generator = random.Random(seed)
    hidden = list(range(channels))
    generator.shuffle(hidden)
    family = []
    for _ in range(sets):
        start, stop = sorted(generator.sample(range(channels + 1), 2))
        family.append(set(hidden[start:stop]))
    for at in generator.sample(range(sets), spoilt):
        family[at] = set(generator.sample(range(channels), len(family[at])))
    return family


@settings(max_examples=150)
@given(families())
def test_no_order_of_a_small_family_costs_less(family: Family) -> None:
    sets, weights = family
    ordering = solve(sets, weights)
    check(sets, weights, ordering)
    assert ordering.optimal
    assert ordering.cost == pytest.approx(least_cost(sets, weights), abs=1e-12)


@given(families(max_channels=6, max_sets=8))
def test_the_bound_of_a_search_cut_short_is_a_bound(family: Family) -> None:
    sets, weights = family
    ordering = solve(sets, weights, time_limit=0.0)
    check(sets, weights, ordering)
    least = least_cost(sets, weights)
    assert ordering.lower_bound <= least + 1e-12
    assert least <= ordering.cost + 1e-12


@settings(max_examples=150)
@given(feasible_families())
def test_a_family_that_can_be_contiguous_is(sets: list[set[int]]) -> None:
    ordering = solve(sets)
    check(sets, None, ordering)
    assert ordering.cost == 0
    assert ordering.optimal


@settings(max_examples=60)
@given(families(max_channels=12, max_sets=9))
def test_mrap_is_never_better_than_optimal(family: Family) -> None:
    sets, weights = family
    paths = solve(sets, weights, method="mrap")
    check(sets, weights, paths)
    assert solve(sets, weights).cost <= paths.cost


@pytest.mark.parametrize("time_limit", [0.0, 0.001])
def test_a_search_cut_short_stays_honest_and_no_worse_than_mrap(time_limit: float) -> None:
    generator = random.Random(4)
    sets = [{c for c in range(40) if generator.random() < 0.1} for _ in range(60)]
    ordering = solve(sets, time_limit=time_limit)
    check(sets, None, ordering)
    full = solve(sets, time_limit=0.3)
    assert not ordering.optimal
    assert ordering.lower_bound <= full.cost <= ordering.cost
    assert ordering.cost <= solve(sets, method="mrap", time_limit=time_limit).cost


@pytest.mark.parametrize("sets", [8, 20, 40])
@pytest.mark.parametrize("spoilt", [1, 3, 6])
def test_planted_families_are_solved_to_proof(sets: int, spoilt: int) -> None:
    family = spoilt_family(sets + spoilt, channels=512, sets=sets, spoilt=spoilt)
    ordering = solve(family)
    check(family, None, ordering)
    assert ordering.optimal
    assert ordering.cost <= spoilt


def test_heaviest_subfamily_agrees_with_trying_them_all() -> None:
    generator = random.Random(9)
    for _ in range(25):
        sets = [{c for c in range(20) if generator.random() < 0.2} for _ in range(9)]
        weights = [float(generator.randint(1, 9)) for _ in sets]
        masks = [sum(1 << c for c in members) for members in sets]
        heaviest = max(
            sum(weights[at] for at in kept)
            for size in range(len(sets) + 1)
            for kept in combinations(range(len(sets)), size)
            if admit_all(loose((1 << 20) - 1), [masks[at] for at in kept]) is not None
        )
        assert solve(sets, weights).cost == sum(weights) - heaviest


def test_equal_inputs_give_equal_answers() -> None:
    generator = random.Random(2)
    sets = [{c for c in range(60) if generator.random() < 0.1} for _ in range(50)]
    weights = [generator.random() for _ in sets]
    shuffled = [sorted(members, reverse=True) for members in sets]
    for method in ("optimal", "mrap"):
        first = solve(sets, weights, method=method, time_limit=0.05)
        assert solve(shuffled, weights, method=method, time_limit=0.05) == first


def test_equal_sets_count_as_one_of_their_summed_weight() -> None:
    family = [{0, 1}, {1, 2}, {0, 2}, {0, 2}]
    ordering = solve(family, [2.0, 3.0, 1.5, 1.5])
    assert ordering.contiguous == (False, True, True, True)
    assert (ordering.cost, ordering.lower_bound) == (2.0, 2.0)


def test_weights_compare_exactly() -> None:
    # 0.1 + 0.2 > 0.3 in floats, though only just.
    ordering = solve([{0, 1}, {1, 2}, {0, 2}, {0, 2}], [0.3, 1.0, 0.1, 0.2])
    assert ordering.contiguous == (False, True, True, True)


def test_sets_of_no_weight_are_kept_where_they_fit() -> None:
    assert solve([{0, 1, 2, 3}, {1, 3}], [1.0, 0.0]).contiguous == (True, True)
    assert solve([{0, 1}, {1, 2}, {0, 2}], [0.0, 0.0, 0.0]).cost == 0


def test_a_triple_conflicts_exactly_when_no_order_makes_it_contiguous() -> None:
    # Each subset of the seven regions three sets can have stands for all families alike.
    for regions in range(1 << 7):
        region_masks = [mask for mask in range(1, 8) if regions >> (mask - 1) & 1]
        sets = [
            sum(1 << at for at, mask in enumerate(region_masks) if mask >> k & 1) for k in range(3)
        ]
        conflict = find_triples(sets, overlaps(sets), 0b111, Budget(1.0))
        fits = admit_all(loose((1 << 7) - 1), sets) is not None
        assert bool(conflict) != fits


def test_a_minimal_conflict_loses_it_with_any_one_set() -> None:
    generator = random.Random(6)
    for _ in range(40):
        masks = [generator.getrandbits(12) & generator.getrandbits(12) for _ in range(12)]
        everything = (1 << 12) - 1
        if admit_all(loose(everything), masks) is not None:
            continue
        conflict = small_conflict(masks, range(12), Budget(1.0))
        members = [mask for at, mask in enumerate(masks) if conflict >> at & 1]
        assert admit_all(loose(everything), members) is None
        for at in range(len(members)):
            assert admit_all(loose(everything), members[:at] + members[at + 1 :]) is not None


def test_a_long_chain_of_nested_sets_needs_no_deep_recursion() -> None:
    sets = [set(range(stop)) for stop in range(1, 1201)]
    assert solve(sets).order == tuple(range(1200))


def test_ten_thousand_channels_and_a_hundred_sets_collapse() -> None:
    family = collapse(spoilt_family(0, channels=10_000, sets=100, spoilt=0), [1.0] * 100)
    assert len(family.atoms) <= 200
