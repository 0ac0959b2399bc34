"""What cannot be read is said, by name; a hostile file reads nothing else and ends soon."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import upscale
from scripts.fuzz_onnx import mutated, outcome
from tests.onnx_files.making import file_of, saved
from upscale import OnnxError

X = {"x": (("n", 4), np.float32)}


def refused(tmp: Path, node: Any, constants: dict[str, Any] | None = None) -> str:
    model = file_of([node], X, {"y": np.float32}, constants or {})
    with pytest.raises(OnnxError) as caught:
        upscale.from_onnx(saved(model, tmp / "made.onnx"))
    return str(caught.value)


def test_an_operator_that_is_not_supported_is_named_with_its_node(tmp_path: Path) -> None:
    said = refused(tmp_path, helper.make_node("Det", ["x"], ["y"], name="the_one"))
    assert "Det the_one" in said


def test_an_operator_of_somebody_else_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], domain="com.example", name="own")
    assert "com.example" in refused(tmp_path, node)


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    assert "quantised" in refused(tmp_path, helper.make_node("DynamicQuantizeLinear", ["x"], ["y"]))


def test_control_flow_is_refused(tmp_path: Path) -> None:
    assert "Loop" in refused(tmp_path, helper.make_node("Loop", ["", "", "x"], ["y"], name="l"))


def test_constants_do_not_unfold_beyond_what_the_file_explains(tmp_path: Path) -> None:
    constants = {"to": np.array([10**6, 10**6], dtype=np.int64)}
    assert "unfold" in refused(
        tmp_path, helper.make_node("ConstantOfShape", ["to"], ["y"]), constants
    )


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "link", ""])
def test_external_data_stays_in_the_folder_of_the_model(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    constants = {"w": np.zeros((4, 4), dtype=np.float32)}
    made = file_of([helper.make_node("MatMul", ["x", "w"], ["y"])], X, {"y": np.float32}, constants)
    (own,) = made.graph.initializer
    own.ClearField("raw_data")
    own.data_location = TensorProto.EXTERNAL
    entry = own.external_data.add()
    entry.key, entry.value = "location", location
    with pytest.raises(OnnxError, match="outside of the folder"):
        upscale.from_onnx(saved(made, folder / "made.onnx"))


def test_external_data_beside_the_model_are_read(tmp_path: Path) -> None:
    constants = {"w": np.eye(4, dtype=np.float32)}
    made = file_of([helper.make_node("MatMul", ["x", "w"], ["y"])], X, {"y": np.float32}, constants)
    onnx.save(
        made, tmp_path / "made.onnx", save_as_external_data=True, location="made.data",
        size_threshold=0,
    )  # fmt: skip
    module = upscale.from_onnx(tmp_path / "made.onnx")
    assert module.get_parameter("w.weight").diagonal().tolist() == [1.0] * 4


def test_a_mutated_file_is_read_or_refused(tmp_path: Path) -> None:
    constants = {"w": np.ones((5, 4, 1, 1), dtype=np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ReduceMean", ["b"], ["y"], axes=[2, 3], keepdims=0),
    ]
    inputs = {"x": (("n", 4, "h", "w"), np.float32)}
    content = file_of(nodes, inputs, {"y": np.float32}, constants).SerializeToString()
    rng = random.Random(0)
    found = [outcome(mutated(content, rng), tmp_path / "made.onnx") for _ in range(150)]
    assert set(found) <= {"read", "refused"}
    assert len(set(found)) == 2
