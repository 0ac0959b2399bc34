"""Grids: which cells they have, how cells are named, and what is said of those that are none."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upscale.lab.sweep.cells import CHOICES, DEFAULTS, METRICS, SELECTING, SETTINGS
from upscale.lab.sweep.grid import cells_of
from upscale.lab.sweep.metrics import KNOWN
from upscale.selection.options import OPTIONS
from upscale.sweep import Cell, Grid, GridError, read_grid

BASE = {"model": "upscale:digits", "metric": "macs", "amount": 0.5}


def test_a_grid_is_every_combination_once() -> None:
    grid = Grid({**BASE, "importance": ["l1", "l2", "l1"], "side": ["input", "output"]})
    found = {(cell.importance, cell.side) for cell in grid.cells()}
    assert found == {("l1", "input"), ("l1", "output"), ("l2", "input"), ("l2", "output")}
    assert len(grid.cells()) == 4


def test_settings_that_make_no_difference_make_no_cells() -> None:
    ways = {"method": ["optimal", "mrap", "none"], "data": "upscale:digits", "slack": [0.1, 0.2]}
    grid = Grid({**BASE, **ways, "metric": ["accuracy", "macs"]})
    assert [cell.metric for cell in grid.cells()].count("accuracy") == 1
    assert [cell.metric for cell in grid.cells()].count("macs") == 3
    windows = Grid({**BASE, "constraint": "contiguous", "slack": [0.1, 0.2]})
    assert len(windows.cells()) == 2


def test_windows_are_left_out_on_the_output_side() -> None:
    both = {"constraint": ["none", "contiguous"], "side": ["input", "output"]}
    assert len(Grid({**BASE, **both}).cells()) == 3


def test_a_range_has_both_ends_and_no_dust() -> None:
    grid = Grid({**BASE, "amount": {"from": 0, "to": 0.6, "step": 0.1}})
    assert [cell.amount for cell in grid.cells()] == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    fine = Grid({**BASE, "amount": {"from": 0, "to": 0.975, "step": 0.025}})
    assert len(fine.cells()) == 40


def test_cells_that_share_a_selection_lie_side_by_side() -> None:
    grid = Grid({**BASE, "metric": ["macs", "copies"], "amount": [0.1, 0.2]})
    assert [cell.amount for cell in grid.cells()] == [0.1, 0.1, 0.2, 0.2]


def test_several_grids_make_each_cell_once() -> None:
    grid = Grid(BASE)
    assert cells_of([grid, grid, *Grid({**BASE, "importance": "lamp"}).cells()]) == (
        *grid.cells(),
        *Grid({**BASE, "importance": "lamp"}).cells(),
    )
    assert pickle.loads(pickle.dumps(grid)) == grid


def test_keys_never_change() -> None:
    """These are in files of records: a change here would have every cell measured again."""
    assert Cell("upscale:digits", "macs", 0.5).key == "53776619a32f649b"
    cell = Cell("torchvision:resnet50", "accuracy", 0.25, of="parameters", importance="hrank")
    assert cell.key == "9ce0fd434dd3507d"
    assert Cell("upscale:digits", "macs", 0).key == Cell("upscale:digits", "macs", 0.0).key


def test_a_timeout_makes_no_other_cell() -> None:
    base = Cell("upscale:digits", "macs", 0.5)
    assert (replace(base, timeout=9), replace(base, timeout=9).key) == (base, base.key)
    (cell,) = Grid({**BASE, "timeout": 2.5}).cells()
    assert cell.timeout == 2.5


def test_every_other_setting_is_part_of_the_key() -> None:
    base = Cell("upscale:digits", "macs", 0.5)
    other: dict[str, Any] = {
        **{name: tuple(values)[1] for name, values in CHOICES.items()},
        **{name: OPTIONS[name].choices[-1] for name in SELECTING if OPTIONS[name].choices},
        "model": "a:b",
        "metric": "copies",
        "amount": 0.25,
        "importance": "l1",
        "slack": 0.2,
        "weights": "w",
        "shape": "1,2",
        "data": "d",
        "images": 5,
        "sample": "s",
        "threads": 2,
        "runs": 3,
        "seed": 4,
        "memory_format": "channels_last",
    }
    assert set(other) | {"timeout"} == set(SETTINGS)
    keys = {replace(base, **{name: value}).key for name, value in other.items()}
    assert len(keys | {base.key}) == len(other) + 1


def test_what_a_cell_may_say_is_what_the_stages_know() -> None:
    assert set(METRICS) == set(KNOWN)
    for name in SELECTING:
        assert DEFAULTS[name] == OPTIONS[name].default
    assert all(name in SETTINGS for name in DEFAULTS)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"models": ["a"]}, "no setting 'models'; did you mean 'model'?"),
    ({"colour": "red"}, "no setting 'colour'; there are model, metric"),
    ({"importance": "l9"}, "importance is 'l9'; it must be one of l1, l2"),
    ({"amount": 1}, "amount is 1; it must be a share"),
    ({"amount": "half"}, "amount is 'half'"),
    ({"amount": []}, "amount has no value"),
    ({"amount": {"from": 0, "to": 1}}, "a range has from, to and step"),
    ({"amount": {"from": 0, "to": 0.5, "step": 0}}, "is no range"),
    (
        {"amount": {"from": 0, "to": 10**400, "step": 1}},
        "a range has from, to and step, all numbers",
    ),
    ({"amount": float("nan")}, "amount is nan"),
    ({"shape": "1,3,x"}, "shape is '1,3,x'; it must be sizes such as"),
    ({"shape": [1, 0]}, "shape is '1,0'"),
    ({"threads": 0}, "threads is 0; it must be a whole number >= 1"),
    ({"threads": True}, "threads is True"),
    ({"images": -1}, "images is -1"),
    ({"timeout": 0}, "timeout is 0; it must be a number of seconds > 0"),
    ({"timeout": float("inf")}, "timeout is inf"),
    ({"timeout": [1, 2]}, "timeout has several values"),
    ({"seed": -1}, "seed is -1"),
    ({"metric": "speed"}, "metric is 'speed'; it must be one of accuracy, latency"),
    ({"metric": None}, "metric is None"),
    ({"constraint": "None"}, "constraint is 'None'; it must be one of 'none', 'segment'"),
    ({"model": [["a"]]}, "model is ['a']; it must be a value or a list of values"),
    ({"seed": list(range(2000)), "amount": [n / 2000 for n in range(1999)]}, "more than 1,000,000"),
]


@pytest.mark.parametrize(("settings", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(GridError) as caught:
        Grid({**BASE, **settings})
    assert said in str(caught.value)


def test_a_grid_without_a_model_says_so() -> None:
    with pytest.raises(GridError, match="the grid has no 'model'; it needs model, metric, amount"):
        Grid({"metric": "macs", "amount": 0.5})


def test_grids_are_read_from_yaml_and_from_python(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("model: upscale:digits\nmetric: macs\namount: 0.5\n")
    (tmp_path / "two.yaml").write_text(
        "- {model: upscale:digits, metric: macs, amount: 0.5}\n"
        "- {model: upscale:digits, metric: macs, amount: 0.5, importance: lamp, scope: global}\n"
    )
    (tmp_path / "three.py").write_text(
        f"from upscale.sweep import Grid\nGRID = [Grid({BASE!r}), Grid({BASE!r})]\n"
    )
    assert read_grid(tmp_path / "one.yaml") == read_grid(tmp_path / "three.py")
    assert [cell.scope for cell in read_grid(tmp_path / "two.yaml")] == ["local", "global"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "model: [", "this is no YAML"),
        ("a.yaml", "", "a grid is settings by name, not a NoneType"),
        ("a.yaml", "- 1\n", "a grid is settings by name, not a int"),
        ("a.yaml", "!!python/object/apply:os.system ['touch harmed']", "this is no YAML"),
        ("a.yaml", "model: a:b\nmetric: macs\namount: 2\n", "a.yaml: amount is 2"),
        ("a.py", "x = 1\n", "it must define GRID"),
        ("a.py", "GRID = []\n", "it must define GRID"),
        ("a.py", "1 / 0\n", "it does not run: ZeroDivisionError"),
        ("a.py", "import sys\nsys.exit(0)\n", "it does not run: SystemExit: 0"),
        ("a.py", "import upscale.sweep as s\nGRID = s.Grid({})", "the grid has no 'model'"),
    ],
)
def test_a_file_that_is_no_grid_says_what_is_wrong(
    name: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(GridError) as caught:
        read_grid(tmp_path / name)
    assert said in str(caught.value)
    assert not (tmp_path / "harmed").exists()


NUMBERS = st.floats(allow_subnormal=False)  # the tests flush those
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_subnormal=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(SETTINGS), VALUES, max_size=3))
def test_whatever_a_grid_holds_it_has_cells_or_says_why_not(own: dict[str, Any]) -> None:
    said = ""
    try:
        assert all(len(cell.key) == 16 for cell in Grid({**BASE, **own}).cells())
    except GridError as error:
        said = str(error)
    assert not said or any(name in said for name in own)


@settings(max_examples=50)
@given(st.binary(max_size=40), st.integers(0, 60))
def test_a_spoilt_file_is_a_grid_or_says_why_not(
    tmp_path_factory: pytest.TempPathFactory, put: bytes, at: int
) -> None:
    whole = b"model: [upscale:digits]\nmetric: macs\namount: {from: 0, to: 0.5, step: 0.1}\n"
    path = tmp_path_factory.getbasetemp() / "spoilt.yaml"
    path.write_bytes(whole[:at] + put + whole[at:])
    said = ""
    try:
        assert read_grid(path)
    except GridError as error:
        said = str(error)
    assert not said or said.startswith(str(path))
