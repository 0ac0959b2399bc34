"""The picture of a plan: rows that tell the truth, and a drawing of exactly those rows."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS
from upscale.lab.report.drawing import MOST_READERS, WIDTH
from upscale.planning import Plan
from upscale.report import Read, Reader, Rows, draw, find_rows, picture
from upscale.zoo import digits

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[2]

WHOLE = Read("whole", 1, copies=False)
SLICE = Read("slice", 1, copies=False)
GATHER = Read("gather", 2, copies=True)


class Block(nn.Module):
    """The residual block of the paper's figure "unified": A feeds B and, with C, D."""

    def __init__(self) -> None:
        super().__init__()
        self.A, self.B, self.C, self.D = (nn.Conv2d(i, 4, 1) for i in (3, 4, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.A(x)
        out: Tensor = self.D(x + self.C(self.B(x)))
        return out


class Joined(nn.Module):
    """Two producers, concatenated, and two consumers of that."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.c, self.d = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.a(x), self.b(x)], 1)
        return self.c(x), self.d(x)


def plan_of(model: nn.Module, kept: dict[str, list[int]], order: str = "optimal") -> Plan:
    selection = upscale.Selection(kept=kept)
    return upscale.plan(model.eval(), torch.zeros(1, 3, 5, 5), selection, order=order)


def digits_plan(amount: float = 0.25) -> Plan:
    model, example = digits(), torch.zeros(1, 1, 8, 8)
    return upscale.plan(model, example, upscale.select(model, example, amount=amount))


def stretches(order: tuple[int, ...], reader: Reader) -> int:
    """In how many stretches a reader's channels lie among those its tensor holds, as drawn."""
    marks = "".join(".#"[channel in reader.kept] for channel in order if channel in reader.held)
    return len(marks.replace(".", " ").split())


def cells(svg: str, *styles: str) -> int:
    """How many cells of a style a picture has, the legend's not among them."""
    paths = [path for path in ElementTree.fromstring(svg) if path.get("class") in styles]
    return sum(path.get("d", "").count("M") for path in paths) - len(
        {path.get("class") for path in paths}
    )


# The paper's figure "unified", with channels from 0.


def test_unified_case_1_is_the_two_paths_one_after_the_other() -> None:
    block, *_ = (
        rows for rows in find_rows(plan_of(Block(), {"B": [0, 2], "D": [1, 3]})) if rows.shared
    )
    everything = frozenset(range(4))
    assert block == Rows(
        segment=0,
        producers=("A", "C"),
        channels=4,
        before=(0, 1, 2, 3),
        after=(0, 2, 1, 3),
        readers=(
            Reader("B", "b", "a", True, frozenset({0, 2}), everything, GATHER, SLICE),
            Reader("add", "add", "a", False, frozenset({1, 3}), everything, GATHER, SLICE),
            Reader("D", "d", "add", True, frozenset({1, 3}), frozenset({1, 3}), WHOLE, WHOLE),
        ),
    )
    assert (block.copies_before, block.copies_after) == (2, 0)


def test_unified_case_2_has_the_shared_channel_in_the_middle_and_the_unread_one_gone() -> None:
    (block,) = (
        rows for rows in find_rows(plan_of(Block(), {"B": [0, 2], "D": [1, 2]})) if rows.shared
    )
    assert (block.channels, block.before, block.after) == (4, (0, 1, 2), (0, 2, 1))
    assert [sorted(reader.kept) for reader in block.readers] == [[0, 2], [1, 2], [1, 2]]
    assert [reader.before.copies for reader in block.readers] == [True, False, False]
    assert block.copies_after == 0


# Rows and the plan they are of.


@pytest.mark.parametrize("order", ["none", "mrap", "optimal"])
def test_copying_rows_are_the_copying_reads_of_the_plan(order: str) -> None:
    model, example = digits(), torch.zeros(1, 1, 8, 8)
    plan = upscale.plan(model, example, upscale.select(model, example, amount=0.3), order=order)
    found = find_rows(plan)
    drawn = [(r.node, r.value) for rows in found for r in rows.readers if r.after.copies]
    assert sorted(drawn) == sorted((e.node, e.value) for e in plan.graph.edges if e.copied_bytes)
    assert sum(rows.copies_after for rows in found) == plan.copies


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["Residual", "Dense", "Inception", "SqueezeExcite", "UNet"])
def test_what_is_drawn_in_one_stretch_is_what_is_read_without_a_copy(name: str, seed: int) -> None:
    make, example = NETS[name]
    torch.manual_seed(seed)
    model = calm(make())
    plan = upscale.plan(model, example(1, 16), random_selection(model, 0.3, seed))
    for rows in find_rows(plan):
        assert rows.before == tuple(sorted(rows.after))
        for reader in rows.readers:
            assert reader.kept <= reader.held <= set(rows.before)
            for order, read in ((rows.before, reader.before), (rows.after, reader.after)):
                if read.kind != "whole" and read.runs is not None and reader.kept:
                    assert stretches(order, reader) == read.runs


def test_the_digits_network_copies_less_after_ordering() -> None:
    found = [rows for rows in find_rows(digits_plan()) if rows.shared]
    assert any(rows.copies_before > rows.copies_after for rows in found)
    assert all(rows.copies_before >= rows.copies_after for rows in found)


def test_a_concatenation_leaves_each_producer_its_own_rows() -> None:
    plan = plan_of(Joined(), {"c": [0, 2, 4, 7], "d": [1, 2, 4]})
    found = {rows.producers: rows for rows in find_rows(plan) if rows.shared}
    first, second = found[("a",)], found[("b",)]
    assert first.segment == second.segment
    assert [sorted(reader.kept) for reader in first.readers] == [[0, 2], [1, 2]]
    assert [sorted(reader.kept) for reader in second.readers] == [[0, 3], [0]]
    assert {reader.after.kind for reader in (*first.readers, *second.readers)} == {"concat"}
    # Before, the two are joined once for both readers, and c gathers from that: one copy.
    assert [reader.before for reader in first.readers] == [
        Read("gather", None, copies=True),
        Read("slice", None, copies=False),
    ]
    assert "1 read copies before ordering, 0 after" in picture(plan)


def test_a_tensor_whose_order_is_given_has_rows_too() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    (rows,) = find_rows(plan_of(Fork(), {"a": [0, 2], "b": [0, 1]}))
    assert (rows.segment, rows.producers, rows.after) == (None, ("x",), (0, 1, 2))
    assert [reader.after.copies for reader in rows.readers] == [True, False]


# The drawing.

TINY = Rows(
    segment=0,
    producers=("a",),
    channels=4,
    before=(0, 1, 3),
    after=(0, 3, 1),
    readers=(
        Reader("b", "b", "a", True, frozenset({0, 3}), frozenset({0, 1, 3}), GATHER, SLICE),
        Reader("c", "c", "d", True, frozenset({1}), frozenset({1, 3}), SLICE, SLICE),
    ),
)


def test_a_tiny_picture_as_svg() -> None:
    svg = draw((TINY,), name="net")
    assert svg[svg.index('<text class="strong"') :] == dedent(
        """\
        <text class="strong" x="24" y="100">segment 0: a</text>
        <text class="faint" x="24" y="120">3 of 4 channels left</text>
        <text class="reader" x="188" y="153">b</text>
        <text class="reader" x="188" y="170">c</text>
        <text class="strong" x="198" y="120">before: 1 copy</text>
        <text class="number" x="206.5" y="140">0</text>
        <text class="number" x="224.5" y="140">1</text>
        <text class="number" x="242.5" y="140">3</text>
        <path class="unread" d="M216 144h17v11h-17z"/>
        <path class="copy" d="M198 144h17v11h-17zM234 144h17v11h-17z"/>
        <text class="copied" x="258" y="153">copy: 2 runs</text>
        <path class="away" d="M198 166h17v1h-17z"/>
        <path class="unread" d="M234 161h17v11h-17z"/>
        <path class="slice" d="M216 161h17v11h-17z"/>
        <text class="strong" x="524" y="120">after: 0 copies</text>
        <text class="number" x="532.5" y="140">0</text>
        <text class="number" x="550.5" y="140">3</text>
        <text class="number" x="568.5" y="140">1</text>
        <path class="unread" d="M560 144h17v11h-17z"/>
        <path class="slice" d="M524 144h17v11h-17zM542 144h17v11h-17z"/>
        <path class="away" d="M524 166h17v1h-17z"/>
        <path class="unread" d="M542 161h17v11h-17z"/>
        <path class="slice" d="M560 161h17v11h-17z"/>
        </svg>
        """
    )


def test_there_is_a_cell_for_every_kept_channel_in_both_panels() -> None:
    svg = picture(digits_plan())
    shared = [rows for rows in find_rows(digits_plan()) if rows.shared]
    kept = sum(len(reader.kept) for rows in shared for reader in rows.readers)
    unread = sum(len(reader.held) for rows in shared for reader in rows.readers) - kept
    assert cells(svg, "slice", "copy", "join") == 2 * kept
    assert cells(svg, "unread") == 2 * unread


def test_every_copy_is_marked_in_words() -> None:
    svg = ElementTree.fromstring(picture(digits_plan()))
    shared = [rows for rows in find_rows(digits_plan()) if rows.shared]
    marks = [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "copied"]
    assert len(marks) == sum(rows.copies_before + rows.copies_after for rows in shared)
    assert all(mark and mark.startswith("copy: ") for mark in marks)


def test_nothing_is_drawn_beyond_the_width() -> None:
    svg = ElementTree.fromstring(picture(digits_plan()))
    assert svg.get("width") == str(WIDTH)
    assert WIDTH <= 900
    assert all(float(text.get("x", 0)) < WIDTH - 60 for text in svg.iter(f"{SVG}text"))


def test_a_picture_says_what_it_shows_to_those_who_cannot_see_it() -> None:
    svg = ElementTree.fromstring(draw((TINY,), name="net"))
    assert svg.get("role") == "img"
    assert svg.findtext(f"{SVG}title") == "net: 1 read copies before ordering, 0 after"
    described = svg.findtext(f"{SVG}desc")
    assert described is not None
    assert described.endswith("a: 3 channels, 2 readers, of which 1 copy before and 0 after.")


def test_names_are_escaped() -> None:
    nasty = "<b>&\"'"
    rows = replace(TINY, producers=(nasty,), readers=(replace(TINY.readers[0], name=nasty),))
    svg = ElementTree.fromstring(draw((rows,), name=nasty))
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert nasty in texts
    assert f"segment 0: {nasty}" in texts


def test_long_names_keep_their_end() -> None:
    rows = replace(TINY, readers=(replace(TINY.readers[0], name="stage." * 20 + "conv"),))
    svg = ElementTree.fromstring(draw((rows,), name="net"))
    (name,) = (t.text for t in svg.iter(f"{SVG}text") if t.get("class") == "reader")
    assert name is not None
    assert name.startswith("…")
    assert name.endswith(".conv")


def test_many_channels_are_drawn_as_stretches() -> None:
    many = tuple(range(1000))
    half = frozenset(range(500))
    rows = Rows(
        0, ("a",), 1000, many, many, (replace(TINY.readers[0], kept=half, held=frozenset(many)),)
    )
    assert cells(draw((rows,), name="net"), "slice", "copy") == 2


def test_many_readers_are_counted_and_those_that_copy_are_drawn() -> None:
    calm_ones = tuple(replace(TINY.readers[1], name=f"c{n}") for n in range(MOST_READERS))
    rows = replace(TINY, readers=(*calm_ones, TINY.readers[0]))
    svg = ElementTree.fromstring(draw((rows,), name="net"))
    names = [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "reader"]
    assert len(names) == MOST_READERS
    assert names[-1] == "b"
    assert "and 1 more" in [text.text for text in svg.iter(f"{SVG}text")]


# The whole.


def test_one_segment_is_drawn_alone_and_single_branch_ones_too() -> None:
    plan = plan_of(Block(), {"B": [0, 2], "C": [1], "D": [1, 3]})
    assert "segment 0: A, C" in picture(plan, segment=0)
    assert "segment 1: B" not in picture(plan, segment=0)
    assert "segment 1: B" in picture(plan, segment=1)


def test_an_unknown_segment_is_refused_with_those_there_are() -> None:
    plan = plan_of(Block(), {"B": [0, 2]})
    with pytest.raises(upscale.PlanError, match=r"segment is 9; .* are 0, 1"):
        picture(plan, segment=9)


def test_a_plan_without_its_capture_is_refused() -> None:
    plan = replace(plan_of(Block(), {}))
    with pytest.raises(upscale.PlanError, match="make it again"):
        picture(plan)


def test_tensors_left_out_are_counted() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(8))

        def forward(self, x: Tensor) -> list[Tensor]:
            return [block(x) for block in self.blocks]

    kept = {f"blocks.{n}.{name}": [0, 2] for n in range(8) for name in "B"}
    kept |= {f"blocks.{n}.D": [1, 3] for n in range(8)}
    svg = picture(plan_of(Many(), kept))
    assert "Many: 16 reads copy before ordering, 0 after" in svg
    assert svg.count("before: 2 copies") == 6
    assert "Not drawn: 2 more, where 4 reads copy before ordering, 0 after." in svg


def test_a_model_without_shared_tensors_says_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1))
    assert "No tensor has readers that keep different channels." in picture(plan_of(model, {}))


def test_the_picture_in_the_docs_tells_the_numbers_of_today(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "picture.py"))
    example["main"](tmp_path / "order.svg")
    fresh, shown = (
        ElementTree.parse(path / "order.svg").getroot().findtext(f"{SVG}desc")
        for path in (tmp_path, ROOT / "docs" / "images")
    )
    assert shown == fresh, "run examples/picture.py again, and look at what it drew"
    assert capsys.readouterr().out.startswith("wrote order.svg: ")
