"""What a plan says it copies is what its export copies: counted by running it."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS, TRACED
from upscale.capture import Captured, Example
from upscale.model.layers import columns, computes_weight, layers
from upscale.ordering import Ordering, check, solve
from upscale.planning import Plan, orders, search
from upscale.planning.plan import origin_of

ORDERS = ("none", "mrap", "optimal")
JOINING = (torch.cat, torch.concat, torch.concatenate, F.pad, "repeat", "tile")


class _Writes(fx.Interpreter):
    """Runs a graph and keeps, for every node, the operations that copy and the bytes written."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.written: dict[fx.Node, list[tuple[str, int]]] = defaultdict(list)

    def run_node(self, n: fx.Node) -> Any:
        with _Recorder(self.written[n]):
            return super().run_node(n)

    def bytes_of(self, node: fx.Node, *operations: str) -> int:
        return sum(count for name, count in self.written[node] if name in operations)


class _Recorder(TorchDispatchMode):
    def __init__(self, written: list[tuple[str, int]]) -> None:
        super().__init__()
        self._written = written

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "constant_pad_nd" and not any(args[1][2 * (args[0].ndim - 2) :]):
            name = "spatial padding"
        if isinstance(out, Tensor):
            self._written.append((name, out.numel() * out.element_size()))
        return out


@dataclass
class Counted:
    """Bytes written by the ways of copying, and how many reads copy."""

    gathered: int = 0
    by_runs: int = 0
    concatenated: int = 0
    unpruned_concatenated: int = 0
    cloned: int = 0
    copies: int = 0

    @property
    def copied_bytes(self) -> int:
        beyond = max(0, self.concatenated - self.unpruned_concatenated)
        return self.gathered + self.by_runs + beyond


def count(model: nn.Module, example: Any, plan: Plan) -> Counted:
    """Run a model and its export, and count what each copies."""
    captured = origin_of(plan).captured
    assert isinstance(captured, Captured)
    counted = Counted()
    original = _run(_with_extras(copy.deepcopy(model), captured), captured.graph, example)
    # What a module repeats within itself, such as a normalisation its weight, is not channels.
    counted.unpruned_concatenated = sum(
        original.bytes_of(node, "cat", "constant_pad_nd", "repeat")
        for node in captured.graph.nodes
        if node.op != "call_module"
    )
    exported = upscale.export(model, plan)
    run = _run(exported, exported.graph, example)
    before = {node.name: node for node in captured.graph.nodes}
    for node in exported.graph.nodes:
        gathered = run.bytes_of(node, "index_select") if _is_gather(node) else 0
        counted.gathered += gathered
        within = any(user.target in (torch.cat, F.pad) for user in node.users)
        if gathered and not within:
            counted.copies += 1
        if node.target is torch.cat:
            _count_cat(node, run, before, counted)
        elif node.target is F.pad and not within and not _is_weight(node):
            counted.concatenated += run.bytes_of(node, "constant_pad_nd")
            counted.copies += any(_is_gather(part) for part in node.all_input_nodes)
        elif node.target == "clone" and node.name not in before:
            counted.cloned += run.bytes_of(node, "clone")
    return counted


def _count_cat(node: fx.Node, run: _Writes, before: dict[str, fx.Node], counted: Counted) -> None:
    written = run.bytes_of(node, "cat")
    runs = not _is_joined(node, before)
    if runs:
        counted.by_runs += written
    else:
        counted.concatenated += written
    counted.copies += runs or any(_is_gather(part) for part in node.all_input_nodes)


def _run(module: nn.Module, graph: fx.Graph, example: Any) -> _Writes:
    called = Example.of(example)
    inputs = list(called.args)
    for node in [n for n in graph.nodes if n.op == "placeholder"][len(inputs) :]:
        default = node.args[0] if node.args else None
        inputs.append(called.kwargs.get(str(node.target), default))
    writes = _Writes(module, graph)
    with torch.no_grad():
        writes.run(*inputs, enable_io_processing=False)
    return writes


def _with_extras(model: nn.Module, captured: Captured) -> nn.Module:
    """The model with what its graph refers to besides."""
    for path, extra in captured.extras.items():
        setattr(model, path, extra)
    return model


def _is_gather(node: fx.Node) -> bool:
    return node.op == "call_module" and str(node.target).startswith("gathers.")


def _makes_zeros(node: fx.Node) -> bool:
    """A padding of nothing; one that stands in for a weight makes no channels."""
    if node.target is not F.pad:
        return False
    nothing = node.args[0]
    assert isinstance(nothing, fx.Node)
    empty = nothing.target is torch.narrow and nothing.args[3] == 0
    return empty and not _is_weight(node)


def _is_weight(node: fx.Node) -> bool:
    return any(
        _is_weight(user) if _is_gather(user) or user.target is torch.narrow else place > 0
        for user in node.users
        for place in [list(_leaves(user)).index(node)]
        if user.target is not torch.cat
    )


def _is_joined(node: fx.Node, before: dict[str, fx.Node]) -> bool:
    """Whether the unpruned model puts together what a concatenation puts together."""
    sources = {_source(part) for part in node.all_input_nodes}
    if len(sources) > 1 or any(_makes_zeros(part) for part in node.all_input_nodes):
        return True
    if sources.pop().target in (
        torch.cat,
        F.pad,
    ):  # what runs in the export is not put together anew
        return False
    operand = _operand(node, before)
    while operand.target not in JOINING:
        if operand.name in {n.name for n in node.graph.nodes} or not operand.all_input_nodes:
            return False
        operand = operand.all_input_nodes[0]
    return True


def _source(part: fx.Node) -> fx.Node:
    fetched = part.target is torch.narrow or _is_gather(part) or _makes_zeros(part)
    return _source(part.all_input_nodes[0]) if fetched else part


def _operand(node: fx.Node, before: dict[str, fx.Node]) -> fx.Node:
    """What the reader of a fetched tensor reads in the unpruned model."""
    while True:
        reader = next(iter(node.users))
        if reader.name in before and reader.target == before[reader.name].target:
            place = list(_leaves(reader)).index(node)
            return list(_leaves(before[reader.name]))[place]
        node = reader


def _leaves(node: fx.Node) -> Iterator[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    yield from found


class Stream(nn.Module):
    """A stream of channels that several layers read, one after another."""

    def __init__(self, channels: int, readers: int, *, adds: bool, activates: bool = False) -> None:
        super().__init__()
        self.adds, self.activates = adds, activates
        self.stem, self.head = nn.Conv2d(3, channels, 1), nn.Conv2d(channels, 2, 1)
        self.readers = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(readers))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        if not self.adds:
            return [reader(x) for reader in (*self.readers, self.head)]
        for reader in self.readers:
            x = x + reader(x)
            if self.activates:
                x = F.relu(x)
        return [self.head(x)]


STRUCTURED = ("Plain", "Residual", "InPlaceResidual", "InvertedResidual", "SqueezeExcite", "Glu")
PIXEL = torch.zeros(1, 3, 1, 1)
# Masks for each order: ours is met the most often. Even seeds drop a quarter, odd ones most.
SEEDS = {"none": (0,), "mrap": (1,), "optimal": (0, 1, 2)}


def listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the solver's answers to the plans made from now on checked."""

    def checked(sets: Any, weights: Any, *, method: str, time_limit: float) -> Ordering:
        answer = solve(sets, weights, method=method, time_limit=time_limit)
        check(sets, weights, answer)
        return answer

    monkeypatch.setattr(orders, "solve", checked)


def drawn(name: str, seed: int) -> tuple[nn.Module, Any, upscale.Selection]:
    """A net, its example and a random selection."""
    make, example = NETS[name]
    torch.manual_seed(seed)
    model = calm(make())
    # A computed weight that keeps no column is made of zeros anew: no channel is copied for it.
    empty = not any(computes_weight(layer) for layer in layers(model).values())
    selection = random_selection(model, (0.25, 0.75)[seed % 2], seed, empty=empty)
    return model, example(1, 12), selection


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", TRACED)
def test_a_plan_copies_what_its_export_copies(name: str, order: str) -> None:
    for seed in SEEDS[order]:
        model, example, selection = drawn(name, seed)
        plan = upscale.plan(model, example, selection, order=order)
        counted = count(model, example, plan)
        assert plan.copies == counted.copies, f"seed {seed}: {counted}\n{plan}"
        assert plan.copied_bytes == counted.copied_bytes, f"seed {seed}: {counted}\n{plan}"


@pytest.mark.parametrize("name", ["Dense", "Inception", "PaddedShortcut", "Repeated", "UNet"])
def test_a_plan_knows_what_the_unpruned_model_concatenates(name: str) -> None:
    model, example, selection = drawn(name, 0)
    plan = upscale.plan(model, example, selection)
    assert (
        plan.report.unpruned_concatenated_bytes == count(model, example, plan).unpruned_concatenated
    )


@pytest.mark.parametrize("order", ORDERS)
def test_readers_of_the_same_channels_copy_them_once(order: str) -> None:
    model = Stream(6, 4, adds=False)
    kept = {"readers.0": [0, 3], "readers.1": [0, 3], "head": [0]}
    kept |= {"readers.2": [0, 1, 2], "readers.3": [0, 4, 5]}
    plan = upscale.plan(model, PIXEL, upscale.Selection(kept=kept), order=order)
    counted = count(model, PIXEL, plan)
    assert (plan.copies, plan.copied_bytes) == (counted.copies, counted.copied_bytes)


@pytest.mark.parametrize("name", TRACED)
def test_the_optimal_order_never_costs_more_than_the_papers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each order may cut elsewhere, and then solves another problem: without cuts it is the same.
    monkeypatch.setattr(search, "copied", lambda flow, edges: frozenset())
    monkeypatch.setattr(search, "written_anew", lambda flow: frozenset())
    listen(monkeypatch)
    for seed in range(2):
        model, example, selection = drawn(name, seed)
        plans = [
            upscale.plan(model, example, selection, order=order) for order in ("mrap", "optimal")
        ]
        mrap, optimal = plans
        assert all(plan.lower_bound <= plan.report.order_cost * (1 + 1e-9) for plan in plans)
        assert optimal.report.order_cost <= mrap.report.order_cost * (1 + 1e-9)


def test_a_padding_that_is_added_to_ties_no_order() -> None:
    """Before and after it, three readers each want another order of the same channels."""
    model = calm(Padded())
    kept = {
        "before.0": [0, 1], "before.1": [1, 2], "before.2": [2, 3],
        "after.0": [1, 3], "after.1": [3, 5], "after.2": [2, 5],
    }  # fmt: skip
    example = torch.randn(1, 3, 6, 6)
    plan = upscale.plan(model, example, upscale.Selection(kept=kept))
    counted = count(model, example, plan)
    assert (plan.copies, plan.copied_bytes) == (counted.copies, counted.copied_bytes) == (0, 0)
    pruned = upscale.export(model, plan)
    masked = upscale.mask(model, upscale.Selection(kept=kept))
    torch.testing.assert_close(pruned(example), masked(example))


class Padded(nn.Module):
    """A stream of four channels that a padding widens to six, read by three layers each side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 6, 1)
        self.before = nn.ModuleList(nn.Conv2d(4, 2, 1) for _ in range(3))
        self.after = nn.ModuleList(nn.Conv2d(6, 2, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.stem(x)
        wide = nn.functional.pad(narrow, (0, 0, 0, 0, 1, 1)) + self.wide(x)
        read = [layer(narrow) for layer in self.before] + [layer(wide) for layer in self.after]
        return torch.stack(read).sum(dim=0)


@pytest.mark.parametrize("structure", ["nested", "windows"])
@pytest.mark.parametrize("name", STRUCTURED)
def test_masks_with_structure_need_no_copies(name: str, structure: str) -> None:
    make, example = NETS[name]
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        model = calm(make())
        # Layers of one width may read one stream, so they share a hidden order.
        hidden = {width: torch.randperm(width, generator=generator) for width in range(1, 40)}
        kept = {}
        _, *behind_the_image = layers(model).items()
        for layer, module in behind_the_image:
            width = columns(module)
            middle = width // 2
            before, after = torch.randint(0, middle + 1, (2,), generator=generator).tolist()
            start = 0 if structure == "nested" else middle - before
            kept[layer] = hidden[width][start : middle + max(1, after)].tolist()
        plan = upscale.plan(model, example(1, 12), upscale.Selection(kept=kept))
        assert (plan.copies, plan.copied_bytes) == (0, 0), f"seed {seed}\n{plan}"


Reads = tuple[int, list[list[int]]]


@st.composite
def reads(draw: DrawFn, max_channels: int = 12, max_readers: int = 6) -> Reads:
    """A number of channels, and those each reader keeps."""
    channels = draw(st.integers(2, max_channels))
    kept = st.lists(st.integers(0, channels - 1), min_size=1, unique=True)
    return channels, draw(st.lists(kept, min_size=2, max_size=max_readers))


def stream_of(given_reads: Reads, **options: bool) -> tuple[nn.Module, upscale.Selection]:
    """A stream whose layers read these channels; its head is the last reader."""
    channels, (*first, last) = given_reads
    kept = {f"readers.{at}": members for at, members in enumerate(first)} | {"head": last}
    return Stream(channels, len(first), **options), upscale.Selection(kept=kept)


@given(reads())
def test_as_many_readers_copy_as_the_order_leaves_sets_apart(drawn_reads: Reads) -> None:
    model, selection = stream_of(drawn_reads, adds=False)
    sets = [set(members) for members in drawn_reads[1]]
    plan = upscale.plan(model, PIXEL, selection)
    solved = solve(sets, [float(len(members)) for members in sets])
    assert plan.copies == solved.contiguous.count(False), f"{solved}\n{plan}"
    assert plan.copied_bytes == 4 * solved.cost


@given(reads())
@example((6, [[0, 1, 2, 4], [0, 1, 2, 5], [3], [0, 1]]))
@example((7, [[0, 1, 2], [0, 2, 4, 5], [0, 1, 3, 4, 5, 6], [1, 2, 3]]))
def test_a_residual_stream_copies_no_more_bytes_than_its_order(drawn_reads: Reads) -> None:
    model, selection = stream_of(drawn_reads, adds=True)
    sets = [set(members) for members in drawn_reads[1]]
    # Each addition reads of the longer operand what the readers behind it want.
    narrowed = [set().union(*sets[at:]) for at in range(1, len(sets))]
    family = [*sets, *narrowed]
    plan = upscale.plan(model, PIXEL, selection)
    solved = solve(family, [float(len(members)) for members in family])
    # A copy that an addition pays may leave the sets behind it side by side. Two copies of three
    # channels are no worse than one of six.
    assert plan.copied_bytes <= 4 * solved.cost, f"{solved}\n{plan}"


NARROWED = [[2, 3, 4], [0, 4], [1, 2, 4, 5, 6], [2, 3, 4, 5, 6], [1, 5, 6], [0, 1, 2, 5, 6], [0, 2]]


@given(reads(), st.booleans())
@example((7, NARROWED), False)
def test_no_plan_copies_less_than_its_lower_bound(drawn_reads: Reads, activates: bool) -> None:
    model, selection = stream_of(drawn_reads, adds=True, activates=activates)
    plan = upscale.plan(model, PIXEL, selection)
    assert plan.lower_bound <= plan.copied_bytes, str(plan)
