"""The command line takes ONNX files wherever it takes a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import upscale
from tests.onnx_files.making import answers, file_of, saved
from upscale.cli import main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    constants = {
        "a.weight": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "b_w": rng.standard_normal((6, 8, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["in:0", "a.weight"], ["r"]),
        helper.make_node("Relu", ["r"], ["s"]),
        helper.make_node("Conv", ["s", "b_w"], ["y"]),
    ]
    inputs = {"in:0": (("n", 3, "h", "w"), np.float32)}
    return saved(file_of(nodes, inputs, {"y": np.float32}, constants), tmp_path / "in.onnx")


def test_a_selection_may_name_initialisers(path: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(upscale.Selection(kept={"b_w": (1, 4)}).to_json())
    out = tmp_path / "out.onnx"
    given = ("--selection", str(tmp_path / "kept.json"), "--out", str(out), "--quiet")
    assert main(["prune", str(path), *given]) == 0
    sizes = {own.name: list(own.dims) for own in onnx.load(out).graph.initializer}
    assert sizes == {"a.weight": [2, 3, 3, 3], "b_w": [6, 2, 1, 1]}
    x = np.ones((2, 3, 5, 7), dtype=np.float32)
    assert answers(str(out), {"in:0": x})[0].shape == (2, 6, 3, 5)


def test_inputs_by_name_refit_what_is_left(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "data.npz", **{"in:0": rng.standard_normal((64, 3, 8, 8)).astype("f4")})
    given = ("--data", str(tmp_path / "data.npz"), "--recover", "--out", str(tmp_path / "o.onnx"))
    assert main(["prune", str(path), "--amount", "0.25", *given, "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verified"]
    assert told["data"]["samples"] == 64


def test_a_file_is_inspected_and_raced(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(path), "--quiet", "--json"]) == 0
    assert "b_w" in capsys.readouterr().out
    out = tmp_path / "out.onnx"
    assert main(["prune", str(path), "--amount", "0.5", "--out", str(out), "--quiet"]) == 0
    assert main(["bench", str(path), "--against", str(out), "--runs", "2", "--quiet"]) in (0, 3)
