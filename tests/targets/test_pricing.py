"""Pricing, reckoned by hand: round prices, one tensor, one layer at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.lines import GRID, Line
from upscale.flow.relations import Reduce
from upscale.targets.prices import WORTH_A_GATHER, WORTH_IT, CopyPrices, Prices
from upscale.targets.target import Fetched, FetchWork, LayerWork, PassWork, Pricing, Target

# Each price is a power of ten of its own: a sum shows what it is made of.
PRICES = Prices(
    outer=CopyPrices(gather_byte=2.0, run_byte=1.0, run_row=10.0, slice_byte=0.5, join_byte=0.25),
    inner=CopyPrices(gather_byte=4.0, run_byte=3.0, run_row=20.0, slice_byte=1.5, join_byte=0.75),
    call=1e4,
    piece=1e3,
    mac=1.0,
    channelwise_mac=2.0,
    weight_byte=0.0,
    pass_byte=3.0,
    block=8,
    tail=0.5,
)
IMAGE, GRIDDED = Line("x", 1), Line("heads", GRID)
READ, MADE = Line("x", 1), Line("y", 1)
# x: 16 channels of 2 x 5 places, 4 bytes each, so that a channel weighs 40 bytes; so does y's.
CHANNEL = 40.0


def flow(**weights: tuple[int, ...]) -> ChannelFlow:
    """A flow of two tensors of 16 channels, a grid, and weights of the given shapes."""
    shapes = {"x": (1, 16, 2, 5), "y": (1, 16, 2, 5), "heads": (1, 4, 7, 4)}
    nbytes = {"x": 640, "y": 640, "heads": 448}
    return ChannelFlow(
        steps=(),
        classes={line: np.arange(16) for line in (IMAGE, MADE, GRIDDED)},
        grids={},
        blocks={},
        shapes={**shapes, **weights},
        nbytes={**nbytes, **{name: 4 * int(np.prod(shape)) for name, shape in weights.items()}},
    )


def pricing(memory_format: str = "contiguous", batch: int = 1, **prices: float) -> Pricing:
    target = Target(memory_format=memory_format, batch=batch)
    return Pricing(target, replace(PRICES, **prices), scale=float(batch))  # type: ignore[arg-type]


def layer(weight: str = "w", groups: int = 1) -> Reduce:
    columns = 16 // groups
    return Reduce(MADE, READ, weight, weight, 0, 1, columns, 16, groups, ())


def fetched(own: Pricing, *parts: Fetched, joined: bool = False) -> float:
    return own.price(flow(), [FetchWork(parts, joined)])


def part(channels: int, runs: int, *, whole: bool = False, line: Line = IMAGE) -> Fetched:
    return Fetched(line, channels, runs, whole)


def test_a_slice_is_free_where_its_numbers_lie_in_one_stretch() -> None:
    assert fetched(pricing(), part(6, 1)) == 0.0


def test_a_slice_costs_its_bytes_where_it_lies_in_several_stretches() -> None:
    assert fetched(pricing(batch=2), part(6, 1)) == 6 * 2 * CHANNEL * 0.5
    assert fetched(pricing("channels_last"), part(6, 1)) == 6 * CHANNEL * 1.5


def test_runs_cost_their_bytes_their_stretches_and_one_start() -> None:
    # Twelve channels in three runs: 480 bytes, three slices of one stretch each.
    assert fetched(pricing(), part(12, 3)) == 12 * CHANNEL * 1.0 + 3 * (10.0 + 1e3) + 1e4
    # Where channels lie side by side, a run writes a stretch at each of the ten places.
    dear = pricing("channels_last")
    assert fetched(dear, part(12, 3)) == 12 * CHANNEL * 3.0 + 3 * (10 * 20.0 + 1e3) + 1e4


def test_whole_tensors_are_joined_by_the_byte_and_without_pieces() -> None:
    whole = (part(16, 1, whole=True), part(16, 1, whole=True, line=MADE))
    assert fetched(pricing(), *whole) == 32 * CHANNEL * 0.25 + 1e4
    apart = (part(16, 1, whole=True), part(15, 1, line=MADE))
    assert fetched(pricing(), *apart) == 31 * CHANNEL * 1.0 + 2 * (10.0 + 1e3) + 1e4


def test_a_gather_pays_once_its_runs_cost_more_by_what_is_worth_it() -> None:
    own, total = pricing(piece=WORTH_IT), 12 * CHANNEL
    few, many = part(12, 1 + 1), part(12, 6)
    # By runs: bytes, and a piece each; by a gather: twice the bytes.
    assert own.pays_to_gather(flow(), many, joined=False)
    assert fetched(own, many) == 2 * total + 1e4
    assert fetched(pricing(piece=10.0), few) == total + 2 * (10.0 + 10.0) + 1e4
    assert not pricing(piece=10.0).pays_to_gather(flow(), many, joined=False)


def test_one_run_is_never_gathered() -> None:
    assert not pricing(piece=1e9).pays_to_gather(flow(), part(12, 1), joined=False)


def test_beside_other_parts_a_gather_is_copied_again_and_must_save_more() -> None:
    own = pricing(piece=WORTH_A_GATHER)
    six = part(12, 6)
    assert own.pays_to_gather(flow(), six, joined=True)
    gathered = 12 * CHANNEL * 2.0 + 1e4
    again = 12 * CHANNEL * 1.0 + 10.0 + WORTH_A_GATHER
    assert fetched(own, six, joined=True) == gathered + again + 1e4
    # Runs of one stretch each save starts alone: ten microseconds will not do.
    cheaper = pricing(piece=WORTH_A_GATHER / 10)
    assert not cheaper.pays_to_gather(flow(), six, joined=True)
    assert cheaper.pays_to_gather(flow(), six, joined=False)


@pytest.mark.parametrize(
    ("memory_format", "rows"), [("contiguous", False), ("channels_last", True)]
)
def test_channels_that_lie_side_by_side_are_gathered_as_rows(
    memory_format: str, rows: bool
) -> None:
    own = pricing(memory_format)
    assert own.gathers_rows(flow(), IMAGE) is rows
    assert own.has_tails is rows
    assert not own.gathers_rows(flow(), GRIDDED)


def computed(
    own: Pricing, relation: Reduce, shape: tuple[int, ...], columns: int, rows: int
) -> float:
    """What a layer takes beyond its start."""
    return own.price(flow(w=shape), [LayerWork(relation, columns, rows)]) - PRICES.call


def test_a_pointwise_convolution_costs_its_multiply_adds() -> None:
    assert computed(pricing(), layer(), (16, 16, 1, 1), 5, 7) == 5 * 7 * 10


def test_a_convolution_that_looks_further_reads_and_makes_whole_blocks() -> None:
    assert computed(pricing(), layer(), (16, 16, 3, 3), 5, 9) == 8 * 16 * 9 * 10


def test_in_channels_last_outputs_beyond_whole_blocks_cost_a_tail() -> None:
    own = pricing("channels_last")
    # Eight outputs as such; each of three more takes half of a block of eight.
    assert computed(own, layer(), (16, 16, 3, 3), 5, 11) == 5 * (8 + 3 * 4.0) * 9 * 10
    assert computed(own, layer(), (16, 16, 3, 3), 5, 16) == 5 * 16 * 9 * 10


def test_a_depthwise_convolution_costs_a_price_of_its_own_in_whole_blocks() -> None:
    assert computed(pricing(), layer(groups=16), (16, 1, 3, 3), 1, 9) == 16 * 9 * 10 * 2.0


def test_a_linear_has_no_blocks_and_pays_for_reading_its_weight() -> None:
    own = pricing(weight_byte=0.5)
    assert computed(own, layer(), (16, 16), 5, 7) == 5 * 7 * 10 + 5 * 7 * 4 * 0.5
    assert own.block(flow(w=(16, 16)), layer()) == 1
    assert own.block(flow(w=(16, 16, 1, 1)), layer()) == 8


def test_an_elementwise_operation_costs_what_it_writes() -> None:
    assert pricing().price(flow(), [PassWork(MADE, 6)]) == 6 * CHANNEL * 3.0 + 1e4


def test_work_costs_the_sum_of_its_parts_and_none_costs_nothing() -> None:
    own, shape = pricing(), (16, 16, 1, 1)
    work = [PassWork(MADE, 6), LayerWork(layer(), 5, 7), FetchWork((part(12, 3),), joined=False)]
    alone = [own.price(flow(w=shape), [each]) for each in work]
    assert own.price(flow(w=shape), work) == sum(alone)
    assert own.price(flow(), []) == 0.0


def test_a_batch_makes_channels_heavier() -> None:
    one, four = (pricing(batch=batch).price(flow(), [PassWork(MADE, 6)]) for batch in (1, 4))
    assert four - 1e4 == 4 * (one - 1e4)
