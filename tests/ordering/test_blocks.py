import random
from itertools import permutations

from tests.ordering.brute import cost_of, count_runs
from upscale.ordering import check, solve


def few_random_sets(generator: random.Random) -> list[set[int]]:
    return [{c for c in range(6) if generator.random() < 0.5} for _ in range(6)]


def test_runs_come_close_to_the_fewest_of_any_order_of_equal_cost() -> None:
    generator = random.Random(7)
    found = fewest = 0
    for _ in range(40):
        sets = few_random_sets(generator)
        ordering = solve(sets)
        runs = [
            sum(count_runs(members, order) for members in sets)
            for order in permutations(ordering.order)
            if cost_of(sets, [1.0] * len(sets), order) == ordering.cost
        ]
        found += sum(ordering.runs)
        fewest += min(runs)
    assert fewest <= found <= 1.03 * fewest


def test_a_set_that_cannot_be_contiguous_lies_in_few_runs() -> None:
    # Two sets fix three thirds; half of each third is wanted, and only two halves can meet.
    sets = [set(range(60)), set(range(30, 90)), set(range(0, 90, 2))]
    assert solve(sets, [9.0, 9.0, 1.0]).runs == (1, 1, 2)
    crossing = [*sets, set(range(0, 90, 3)), set(range(1, 90, 5))]
    ordering = solve(crossing)
    check(crossing, None, ordering)
    assert max(ordering.runs) <= 5


def test_heavier_sets_get_fewer_runs() -> None:
    generator = random.Random(1)
    kept = [set(range(40)), set(range(20, 60))]
    rest = [set(generator.sample(range(60), 30)) for _ in range(6)]
    plain = solve([*kept, *rest], [100.0, 100.0] + [1.0] * 6)
    tilted = solve([*kept, *rest], [100.0, 100.0, 30.0] + [1.0] * 5)
    assert tilted.runs[2] <= plain.runs[2]
    assert tilted.runs[2] == min(tilted.runs[2:])


def test_many_pieces_are_ordered_too() -> None:
    generator = random.Random(5)
    sets = [set(generator.sample(range(1500), 1100)) for _ in range(12)]
    ordering = solve(sets)
    check(sets, None, ordering)
    natural = sum(count_runs(members, range(1500)) for members in sets)
    assert ordering.cost == 10
    assert sum(ordering.runs) < 0.5 * natural
