"""The paper's worked examples on real models, each under the name it has there.

The paper numbers channels from 1 (only figure "ordering" iv starts at 0), so everything here
does too; `retain`, `emitted` and `held` translate. Every export is also held against the
masked model, in float64.

What these figures say of graphs, rewards and paths has no model in it. That part is in
`tests/ordering/test_paper.py`: figures "graphs", "mrap" and "ordering", the search of "How Graph
Algorithm Solves Reordering", and the appendix on node subsets.
"""

from textwrap import dedent

import pytest
import torch
from torch import Tensor, fx, nn

import upscale
from trials.comparing import relative_error
from upscale.capture import Example, capture
from upscale.flow.analyse import analyse
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.lines import Line
from upscale.flow.segments import Segment, find_segments
from upscale.planning import Edge, Plan

# The paper's own search, and ours, which never copies more.
REORDERED = ("mrap", "optimal")
ORDERS = ("none", *REORDERED)


def conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def image() -> Tensor:
    return torch.randn(2, 3, 6, 6)


class Fork(nn.Module):
    """One producer, several consumers, as many as have a name."""

    def __init__(self, names: str, *, producer: str = "A", channels: int = 4) -> None:
        super().__init__()
        self.producer, self.names = producer, names.split()
        self.add_module(producer, conv(3, channels))
        for name in self.names:
            self.add_module(name, conv(channels, 2))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.get_submodule(self.producer)(x)
        return [self.get_submodule(name)(x) for name in self.names]


class ResidualBlock(nn.Module):
    """The ResNet building block of figures "unified" and "segments"."""

    def __init__(self) -> None:
        super().__init__()
        self.A, self.B, self.C, self.D = conv(3, 4), conv(4, 4), conv(4, 4), conv(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.A(x)
        out: Tensor = self.D(x + self.C(self.B(x)))
        return out


class TwoProducers(nn.Module):
    """Two producers combined in a way that subclasses choose, and two consumers of that."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.A, self.B, self.C, self.D = (
            conv(3, 4),
            conv(3, 4),
            conv(channels, 2),
            conv(channels, 2),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.combine(self.A(x), self.B(x))
        return self.C(x), self.D(x)

    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        raise NotImplementedError


class Added(TwoProducers):
    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class AddedBackwards(TwoProducers):
    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b.flip(1)


class Concatenated(TwoProducers):
    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], 1)


Retained = dict[str, list[int]]


def retain(kept: Retained) -> upscale.Selection:
    return upscale.Selection(
        kept={name: [channel - 1 for channel in channels] for name, channels in kept.items()}
    )


def exported_as(model: nn.Module, kept: Retained, order: str) -> tuple[Plan, fx.GraphModule]:
    """The plan for what consumers retain, and an export that was held against the masks."""
    model.eval()
    selection = retain(kept)
    plan = upscale.plan(model, image(), selection, order=order)
    exported = upscale.export(model, plan)
    assert relative_error(exported, upscale.mask(model, selection), image()) <= 1e-10
    return plan, exported


def emitted(plan: Plan, producer: str) -> tuple[int, ...]:
    """The output channels a producer still computes, in their new order."""
    return tuple(row + 1 for row in plan.weights.cuts[f"{producer}.weight"][0])


def held(plan: Plan, consumer: str) -> tuple[int, ...]:
    """The input channels a consumer still has weights for, in their new order."""
    return tuple(column + 1 for column in plan.weights.cuts[f"{consumer}.weight"][1])


def kinds(plan: Plan) -> dict[str, str]:
    """How each node that reads part of a tensor gets it; nodes are written in small letters."""
    return {edge.node: edge.kind for edge in (*plan.graph.edges, *plan.graph.joins)}


def sliced(plan: Plan, node: str) -> slice:
    """The slice of the tensor that a node reads."""
    (edge,) = (edge for edge in plan.graph.edges if edge.node == node)
    assert edge.kind == "slice"
    (piece,) = edge.pieces
    return slice(piece.start, piece.start + piece.length)


def channels_copied(plan: Plan) -> int:
    def copied(edge: Edge) -> int:
        return edge.copied_bytes // edge.channel_bytes

    return sum(copied(edge) for edge in (*plan.graph.edges, *plan.graph.joins))


def gathers(exported: fx.GraphModule) -> int:
    return sum(name.startswith("gathers.") for name, _ in exported.named_modules())


def flow_of(model: nn.Module) -> ChannelFlow:
    return analyse(capture(model.eval(), Example.of(image())))


def segments_of(model: nn.Module) -> list[Segment]:
    """The segments between layers; what a network's last layer emits has no consumer."""
    return [segment for segment in find_segments(flow_of(model)) if segment.consumers]


# Figure "teaser". The text does not tell its channels; these are in its spirit.


def test_figure_teaser_inefficient_both_consumers_copy_their_channels() -> None:
    model = Fork("II III", producer="I")
    plan, exported = exported_as(model, {"II": [1, 2, 4], "III": [1, 3, 4]}, "none")
    assert kinds(plan) == {"ii": "gather", "iii": "gather"}
    assert gathers(exported) == 2
    assert emitted(plan, "I") == (1, 2, 3, 4)


@pytest.mark.parametrize("order", ORDERS)
def test_figure_teaser_constrained_common_channels_leave_the_producer(order: str) -> None:
    model = Fork("II III", producer="I")
    plan, exported = exported_as(model, {"II": [1, 2, 4], "III": [1, 2, 4]}, order)
    assert kinds(plan) == {}
    assert emitted(plan, "I") == (1, 2, 4)
    assert exported.get_submodule("I").out_channels == 3


@pytest.mark.parametrize("order", REORDERED)
def test_figure_teaser_ours_both_consumers_read_slices(order: str) -> None:
    model = Fork("II III", producer="I")
    plan, exported = exported_as(model, {"II": [1, 2, 4], "III": [1, 3, 4]}, order)
    assert kinds(plan) == {"ii": "slice", "iii": "slice"}
    assert plan.copies == plan.copied_bytes == gathers(exported) == 0
    assert sorted(emitted(plan, "I")) == [1, 2, 3, 4]


# Figure "unified": A → B, A → D, C → D.

UNIFIED_1: Retained = {"B": [1, 3], "D": [2, 4]}
UNIFIED_2: Retained = {"B": [1, 3], "D": [2, 3]}


@pytest.mark.parametrize("order", REORDERED)
def test_figure_unified_case_1_places_one_path_after_the_other(order: str) -> None:
    plan, _ = exported_as(ResidualBlock(), UNIFIED_1, order)
    assert emitted(plan, "A") == (1, 3, 2, 4)
    assert kinds(plan) == {"b": "slice", "add": "slice"}
    assert plan.copies == 0


@pytest.mark.parametrize("order", REORDERED)
def test_figure_unified_case_2_places_the_shared_channel_in_the_middle(order: str) -> None:
    plan, _ = exported_as(ResidualBlock(), UNIFIED_2, order)
    assert emitted(plan, "A") == (1, 3, 2)
    assert kinds(plan) == {"b": "slice", "add": "slice"}
    assert plan.copies == 0


@pytest.mark.parametrize(("kept", "copies"), [(UNIFIED_1, 2), (UNIFIED_2, 1)])
def test_figure_unified_without_reordering_copies(kept: Retained, copies: int) -> None:
    plan, exported = exported_as(ResidualBlock(), kept, "none")
    assert plan.copies == gathers(exported) == copies


def test_figure_unified_case_1_as_generated_code() -> None:
    _, exported = exported_as(ResidualBlock(), UNIFIED_1, "optimal")
    assert exported.code.strip() == dedent(
        """\
        def forward(self, x : torch.Tensor) -> torch.Tensor:
            a = self.A(x);  x = None
            narrow = torch.narrow(a, 1, 0, 2)
            b = self.B(narrow);  narrow = None
            c = self.C(b);  b = None
            narrow_1 = torch.narrow(a, 1, 2, 2);  a = None
            add = narrow_1 + c;  narrow_1 = c = None
            d = self.D(add);  add = None
            return d"""
    )


# Figure "segments", and "simple-vs-complex-segments".


def test_figure_segments_the_block_has_two() -> None:
    multi_branch, single_branch = segments_of(ResidualBlock())
    assert multi_branch == Segment(("A.weight", "C.weight"), ("B.weight", "D.weight"))
    assert single_branch == Segment(("B.weight",), ("C.weight",))


def test_figure_segments_one_producer_and_one_consumer_are_single_branch() -> None:
    assert [segment.single_branch for segment in segments_of(ResidualBlock())] == [False, True]


def test_figure_segments_pruning_one_segment_leaves_the_other_as_it_was() -> None:
    alone, _ = exported_as(ResidualBlock(), UNIFIED_2, "optimal")
    both, _ = exported_as(ResidualBlock(), {**UNIFIED_2, "C": [1, 3]}, "optimal")
    assert emitted(alone, "A") == emitted(both, "A")
    assert emitted(alone, "C") == emitted(both, "C")
    assert emitted(alone, "B") == (1, 2, 3, 4)
    assert emitted(both, "B") == held(both, "C") == (1, 3)


# Figure "ordering": the order the paper prints is the order the producer emits.


@pytest.mark.parametrize(
    ("model", "kept", "producer", "printed"),
    [
        (ResidualBlock(), {"C": [1, 3]}, "B", (1, 3)),
        (ResidualBlock(), UNIFIED_1, "A", (1, 3, 2, 4)),
        (ResidualBlock(), UNIFIED_2, "A", (1, 3, 2)),
        # One more than in the figure, which starts at 0 here.
        (
            Fork("B D E", channels=5),
            {"B": [2, 4], "D": [1, 4, 5], "E": [1, 2, 3]},
            "A",
            (2, 3, 1, 4, 5),
        ),
    ],
    ids=["i", "ii", "iii", "iv"],
)
def test_figure_ordering_is_what_the_producer_emits(
    model: nn.Module, kept: Retained, producer: str, printed: tuple[int, ...]
) -> None:
    paper, _ = exported_as(model, kept, "mrap")
    ours, _ = exported_as(model, kept, "optimal")
    assert emitted(paper, producer) == printed
    assert ours.copied_bytes <= paper.copied_bytes


def test_figure_mrap_copies_for_b_alone() -> None:
    kept: Retained = {"B": [2, 4], "D": [1, 4, 5], "E": [1, 2, 3]}
    for order in REORDERED:
        plan, _ = exported_as(Fork("B D E", channels=5), kept, order)
        assert kinds(plan) == {"b": "runs", "d": "slice", "e": "slice"}
        assert channels_copied(plan) == 2


# Figure "step4".


def weight(module: nn.Module, layer: str) -> Tensor:
    found = module.get_submodule(layer).weight
    assert isinstance(found, Tensor)
    return found


def rows(module: nn.Module, layer: str, channels: tuple[int, ...]) -> Tensor:
    return weight(module, layer)[[channel - 1 for channel in channels]]


def columns(module: nn.Module, layer: str, channels: tuple[int, ...]) -> Tensor:
    return weight(module, layer)[:, [channel - 1 for channel in channels]]


@pytest.mark.parametrize("order", REORDERED)
def test_figure_step_4_ii_producer_c_omits_1_and_3_and_no_consumer_is_reordered(
    order: str,
) -> None:
    model = ResidualBlock()
    plan, exported = exported_as(model, UNIFIED_1, order)
    assert emitted(plan, "A") == (1, 3, 2, 4)
    assert emitted(plan, "C") == (2, 4)
    assert held(plan, "B") == (1, 3)
    assert held(plan, "D") == (2, 4)
    assert torch.equal(weight(exported, "A"), rows(model, "A", (1, 3, 2, 4)))
    assert torch.equal(weight(exported, "C"), rows(model, "C", (2, 4)))
    assert torch.equal(weight(exported, "B"), columns(model, "B", (1, 3)))
    assert torch.equal(weight(exported, "D"), columns(model, "D", (2, 4)))


@pytest.mark.parametrize("order", REORDERED)
def test_figure_step_4_iii_consumer_d_is_reordered_from_2_3_to_3_2(order: str) -> None:
    model = ResidualBlock()
    plan, exported = exported_as(model, UNIFIED_2, order)
    assert emitted(plan, "A") == (1, 3, 2)
    assert emitted(plan, "C") == (3, 2)
    assert held(plan, "B") == (1, 3)
    assert held(plan, "D") == (3, 2)
    assert torch.equal(weight(exported, "A"), rows(model, "A", (1, 3, 2)))
    assert torch.equal(weight(exported, "C"), rows(model, "C", (3, 2)))
    assert torch.equal(weight(exported, "B"), columns(model, "B", (1, 3)))
    assert torch.equal(weight(exported, "D"), columns(model, "D", (3, 2)))


def test_figure_step_4_the_bias_moves_with_its_row() -> None:
    model = ResidualBlock()
    _, exported = exported_as(model, UNIFIED_2, "optimal")
    bias = exported.get_submodule("A").bias
    assert isinstance(bias, Tensor)
    assert model.A.bias is not None
    assert torch.equal(bias, model.A.bias[[0, 2, 1]])


# Appendix "How Reordering Reduces Memory Copies".


@pytest.mark.parametrize("order", REORDERED)
def test_how_reordering_reduces_copies_case_1_disjoint_sets(order: str) -> None:
    plan, _ = exported_as(Fork("B C"), {"B": [1, 3], "C": [2, 4]}, order)
    assert emitted(plan, "A") == (1, 3, 2, 4)
    assert sliced(plan, "b") == slice(0, 2)
    assert sliced(plan, "c") == slice(2, 4)
    assert plan.copies == 0


@pytest.mark.parametrize("order", REORDERED)
def test_how_reordering_reduces_copies_case_2_overlapping_sets(order: str) -> None:
    plan, _ = exported_as(Fork("B C"), {"B": [1, 3], "C": [2, 3]}, order)
    assert emitted(plan, "A") == (1, 3, 2)
    assert held(plan, "B") == (1, 3)
    assert held(plan, "C") == (3, 2)
    assert sliced(plan, "b") == slice(0, 2)
    # The paper prints X[2:] here, which would leave out the shared channel.
    assert sliced(plan, "c") == slice(1, 3)
    assert plan.copies == 0


@pytest.mark.parametrize("order", REORDERED)
def test_how_reordering_reduces_copies_case_3_unsolvable_sets(order: str) -> None:
    kept: Retained = {"B": [1, 3, 4], "C": [2, 3, 4], "D": [1, 2]}
    plan, _ = exported_as(Fork("B C D"), kept, order)
    assert sliced(plan, "b") == slice(0, 3)
    assert sliced(plan, "c") == slice(1, 4)
    assert kinds(plan)["d"] == "runs"
    assert channels_copied(plan) == 2
    assert held(plan, "D") == (1, 2)


def test_how_reordering_reduces_copies_case_3_no_order_copies_less() -> None:
    kept: Retained = {"B": [1, 3, 4], "C": [2, 3, 4], "D": [1, 2]}
    plan, _ = exported_as(Fork("B C D"), kept, "optimal")
    assert plan.copied_bytes == plan.lower_bound > 0


# Appendix "How Graph Algorithm Solves Reordering".


@pytest.mark.parametrize("order", REORDERED)
def test_how_the_graph_solves_case_1_disjoint_sets_stand_one_after_another(order: str) -> None:
    kept: Retained = {"B": [1, 6], "C": [2, 5], "D": [3, 4]}
    plan, _ = exported_as(Fork("B C D", channels=6), kept, order)
    assert set(kinds(plan).values()) == {"slice"}
    pairs = [set(emitted(plan, "A")[at : at + 2]) for at in (0, 2, 4)]
    assert sorted(map(sorted, pairs)) == [[1, 6], [2, 5], [3, 4]]


@pytest.mark.parametrize("order", REORDERED)
def test_how_the_graph_solves_case_2_a_line_of_convolutions_never_copies(order: str) -> None:
    kept: Retained = {"B": [1, 8], "C": [8, 2, 7], "D": [7, 3, 6], "E": [6, 4]}
    plan, _ = exported_as(Fork("B C D E", channels=8), kept, order)
    assert set(kinds(plan).values()) == {"slice"}
    assert plan.copies == 0
    # Read from either end, the same sequence of convolutions.
    line = (1, 8, 2, 7, 3, 6, 4)
    assert emitted(plan, "A") in (line, line[::-1])


@pytest.mark.parametrize("order", REORDERED)
def test_how_the_graph_solves_case_3_a_cycle_copies_for_its_least_convolution(order: str) -> None:
    kept: Retained = {"B": [1, 2, 6, 7], "C": [2, 3, 4, 8], "D": [4, 5, 6]}
    plan, _ = exported_as(Fork("B C D", channels=8), kept, order)
    assert kinds(plan) == {"b": "slice", "c": "slice", "d": "runs"}
    assert channels_copied(plan) == 3


# Appendix "Reordering Pipeline Example".

PIPELINE: Retained = {"B": [1, 3, 4], "C": [2, 3, 4], "D": [1, 4]}


def test_reordering_pipeline_example_as_the_paper_orders_it() -> None:
    plan, _ = exported_as(Fork("B C D"), PIPELINE, "mrap")
    assert emitted(plan, "A") == (1, 3, 4, 2)
    assert held(plan, "B") == (1, 3, 4)
    assert held(plan, "C") == (3, 4, 2)
    assert kinds(plan) == {"b": "slice", "c": "slice", "d": "runs"}


def test_reordering_pipeline_example_needs_no_copy_at_all() -> None:
    # The paper gives D up, though exchanging 3 and 4 in its order would serve D as well.
    plan, _ = exported_as(Fork("B C D"), PIPELINE, "optimal")
    paper, _ = exported_as(Fork("B C D"), PIPELINE, "mrap")
    assert plan.copied_bytes <= paper.copied_bytes
    assert plan.copies == 0


# Appendix "Reduction to Single Producer".


def classes(model: nn.Module, value: str) -> list[int]:
    return [int(number) for number in flow_of(model).classes[Line(value, 1)]]


@pytest.mark.parametrize("order", REORDERED)
def test_reduction_to_single_producer_an_addition_ties_channels_one_to_one(order: str) -> None:
    model = Added(4)
    assert classes(model, "a") == classes(model, "b")
    plan, _ = exported_as(model, {"C": [1, 3], "D": [2, 3]}, order)
    assert emitted(plan, "A") == emitted(plan, "B") == (1, 3, 2)
    assert plan.copies == 0


@pytest.mark.parametrize("order", REORDERED)
def test_reduction_to_single_producer_channel_i_of_one_may_meet_channel_j_of_the_other(
    order: str,
) -> None:
    model = AddedBackwards(4)
    assert classes(model, "a") == classes(model, "b")[::-1]
    plan, _ = exported_as(model, {"C": [1, 3], "D": [2, 3]}, order)
    assert emitted(plan, "B") == tuple(5 - channel for channel in emitted(plan, "A"))
    assert plan.copies == 0


def test_reduction_to_single_producer_a_concatenation_leaves_producers_independent() -> None:
    model = Concatenated(8)
    assert not set(classes(model, "a")) & set(classes(model, "b"))


@pytest.mark.parametrize("order", REORDERED)
@pytest.mark.parametrize(
    ("of_b", "emits"), [([[5, 7], [6, 7]], (1, 3, 2)), ([[5, 8], [6, 7]], (1, 4, 2, 3))]
)
def test_reduction_to_single_producer_each_part_of_a_concatenation_has_its_own_order(
    order: str, of_b: list[list[int]], emits: tuple[int, ...]
) -> None:
    kept: Retained = {"C": [1, 3, *of_b[0]], "D": [2, 3, *of_b[1]]}
    plan, _ = exported_as(Concatenated(8), kept, order)
    assert emitted(plan, "A") == (1, 3, 2)
    assert emitted(plan, "B") == emits
    # Each consumer puts together one slice of either producer, and nothing else.
    assert kinds(plan) == {"c": "concat", "d": "concat"}
    assert all(len(edge.pieces) == 2 for edge in plan.graph.edges)
    assert plan.copies == 0
