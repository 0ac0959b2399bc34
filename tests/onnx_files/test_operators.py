"""Every operator computes what ONNX Runtime computes, on graphs of a node or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import upscale
from tests.onnx_files.making import assert_as_runtime, file_of, saved

X = {"x": (("n", 4, "h", "w"), np.float32)}
SIZES = st.tuples(st.integers(1, 3), st.integers(6, 13), st.integers(6, 13))
few = settings(max_examples=12, deadline=None)


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(
    tmp: Path,
    nodes: list[Any],
    x: Any,
    constants: dict[str, Any] | None = None,
    *,
    opset: int = 17,
    shape: tuple[Any, ...] | None = None,
    output: Any = np.float32,
) -> None:
    """One input x, one output y."""
    free = shape or ("n", 4, "h", "w")
    model = file_of(nodes, {"x": (free, x.dtype)}, {"y": output}, constants or {}, opset=opset)
    module = upscale.from_onnx(saved(model, tmp / "made.onnx"))
    assert_as_runtime(module, model, {"x": x})


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


@few
@given(
    sizes=SIZES,
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    group=st.sampled_from([1, 2, 4]),
    pads=st.sampled_from(["NOTSET", "given", "VALID", "SAME_UPPER", "SAME_LOWER"]),
    bias=st.booleans(),
    opset=st.sampled_from([9, 11, 13, 22]),
)
def test_a_convolution_pads_as_it_is_told(
    tmp: Path, sizes: Any, kernel: Any, strides: Any, dilation: int, group: int, pads: str,
    bias: bool, opset: int,
) -> None:  # fmt: skip
    n, h, w = sizes
    attributes: dict[str, Any] = {"strides": strides, "dilations": [dilation] * 2, "group": group}
    if pads == "given":
        attributes["pads"] = [1, 0, 2, 1]
    elif pads.startswith("SAME"):
        attributes |= {"auto_pad": pads, "dilations": [1, 1]}
        if any(1 < k < s for k, s in zip(kernel, strides, strict=True)):
            return  # refused, by the next test but one
    else:
        attributes["auto_pad"] = pads
    constants = {"k": drawn(8, 4 // group, *kernel, seed=1)} | ({"b": drawn(8)} if bias else {})
    node = helper.make_node("Conv", ["x", *constants], ["y"], **attributes)
    check(tmp, [node], drawn(n, 4, h + 4, w + 4), constants, opset=opset)


@few
@given(
    sizes=SIZES,
    strides=st.integers(1, 3),
    pads=st.sampled_from([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]]),
    extra=st.integers(0, 1),
    group=st.sampled_from([1, 2]),
)
def test_a_transposed_convolution_crops_what_it_pads(
    tmp: Path, sizes: Any, strides: int, pads: list[int], extra: int, group: int
) -> None:
    n, h, w = sizes
    extra = min(extra, strides - 1)
    node = helper.make_node(
        "ConvTranspose", ["x", "k", "b"], ["y"], strides=[strides] * 2, pads=pads,
        output_padding=[extra] * 2, group=group,
    )  # fmt: skip
    constants = {"k": drawn(4, 3, 3, 2), "b": drawn(3 * group)}
    check(tmp, [node], drawn(n, 4, h, w), constants)


@few
@given(
    sizes=SIZES,
    name=st.sampled_from(["MaxPool", "AveragePool"]),
    kernel=st.integers(2, 4),
    stride=st.integers(1, 2),
    pads=st.sampled_from(["none", "even", "uneven", "SAME_UPPER", "SAME_LOWER"]),
    ceil=st.booleans(),
    counts=st.booleans(),
)
def test_pooling_pads_as_it_is_told(
    tmp: Path, sizes: Any, name: str, kernel: int, stride: int, pads: str, ceil: bool, counts: bool
) -> None:
    n, h, w = sizes
    attributes: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
    if pads in ("even", "uneven"):
        attributes["pads"] = [1, 1, 1, 1] if pads == "even" else [0, 1, 1, 0]
    elif pads != "none":
        attributes["auto_pad"] = pads
    if ceil and not pads.startswith("SAME") and not (pads == "uneven" and name == "AveragePool"):
        attributes["ceil_mode"] = 1
    if name == "AveragePool":
        attributes["count_include_pad"] = int(counts)
    check(tmp, [helper.make_node(name, ["x"], ["y"], **attributes)], drawn(n, 4, h, w))


@few
@given(
    opset=st.sampled_from([9, 11, 13, 18]),
    bias=st.sampled_from([None, (5,), (1, 5), (1,)]),
    across=st.booleans(),
    scales=st.sampled_from([(1.0, 1.0), (0.5, 2.0)]),
)
def test_gemm_is_a_dense_layer(tmp: Path, opset: int, bias: Any, across: bool, scales: Any) -> None:
    constants = {"w": drawn(5, 4) if across else drawn(4, 5)}
    constants |= {} if bias is None else {"b": drawn(*bias)}
    if bias is None and opset < 11:
        return  # it had to have one then
    node = helper.make_node(
        "Gemm", ["x", *constants], ["y"], transB=int(across), alpha=scales[0], beta=scales[1]
    )
    check(tmp, [node], drawn(3, 4), constants, opset=opset, shape=("n", 4))


UNARY = (
    "Relu Sigmoid Tanh Exp Erf Abs Neg Floor Ceil Sign Softplus Softsign Sin Cos Atan LeakyRelu "
    "Elu Selu HardSigmoid ThresholdedRelu HardSwish Mish Identity Softmax LogSoftmax Flatten "
    "GlobalAveragePool GlobalMaxPool ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceMax "
    "ReduceProd ReduceLogSumExp Transpose Round"
).split()


@pytest.mark.parametrize("name", UNARY)
def test_an_operator_without_attributes_is_the_runtime_s(tmp: Path, name: str) -> None:
    opset = 18 if name == "Mish" else 17
    check(tmp, [helper.make_node(name, ["x"], ["y"])], drawn(2, 4, 5, 6), opset=opset)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"])
@pytest.mark.parametrize("shape", [(4, 1, 1), (1,), (), (1, 4, 1, 1)])
def test_two_operands_meet_by_broadcasting(tmp: Path, name: str, shape: Any) -> None:
    constants = {"c": np.abs(drawn(*shape)) + np.float32(0.5)}
    check(tmp, [helper.make_node(name, ["x", "c"], ["y"])], drawn(2, 4, 5, 6), constants)
    if name != "PRelu":
        check(tmp, [helper.make_node(name, ["c", "x"], ["y"])], drawn(2, 4, 5, 6) + 9, constants)


@few
@given(axis=st.integers(-4, 3), opset=st.sampled_from([9, 11, 13]))
def test_softmax_before_opset_13_is_over_all_axes_behind_one(
    tmp: Path, axis: int, opset: int
) -> None:
    if opset < 11 and axis < 0:
        return
    node = helper.make_node("Softmax", ["x"], ["y"], axis=axis)
    check(tmp, [node], drawn(2, 4, 5, 6), opset=opset)


WHERE = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    where=st.sampled_from(WHERE),
    near=st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    scale=st.sampled_from([2.0, 3.0, 0.5, 1.5]),
    by_size=st.booleans(),
)
def test_resize_takes_numbers_from_where_its_mode_says(
    tmp: Path, mode: str, where: str, near: str, scale: float, by_size: bool
) -> None:
    constants: dict[str, Any] = {"none": np.array([], dtype=np.float32)}
    constants["s"] = np.array([1, 1, scale, 2.0], dtype=np.float32)
    names = ["x", "none", "s"]
    if by_size:
        constants["t"] = np.array([2, 4, int(6 * scale), 16], dtype=np.int64)
        names = ["x", "none", "none", "t"]
    node = helper.make_node(
        "Resize", names, ["y"], mode=mode, coordinate_transformation_mode=where, nearest_mode=near
    )
    check(tmp, [node], drawn(2, 4, 6, 8), constants, shape=(2, 4, 6, 8), opset=19)


@pytest.mark.parametrize("opset", [9, 11, 13, 18])
def test_split_pad_slice_and_squeeze_are_read_in_every_opset(tmp: Path, opset: int) -> None:
    whole = np.array
    constants: dict[str, Any] = {}

    def given_as(name: str, operator: str, read: str, made: list[str], **numbers: Any) -> Any:
        old = {"Slice": 10, "Pad": 11}.get(operator, 13)
        if opset < old:
            return helper.make_node(operator, [read], made, **numbers)
        kept = {k: numbers.pop(k) for k in ("axis",) if k in numbers}
        for key, own in numbers.items():
            constants[f"{name}_{key}"] = whole(own, dtype=np.int64)
        return helper.make_node(operator, [read, *(f"{name}_{k}" for k in numbers)], made, **kept)

    nodes = [
        given_as("a", "Split", "x", ["p", "q"], axis=1, split=[1, 3]),
        given_as("b", "Slice", "q", ["s"], starts=[1], ends=[2**31 - 1], axes=[1]),
        given_as("c", "Pad", "s", ["t"], pads=[0, 0, 1, 0, 0, 0, 0, 2]),
        given_as("d", "Unsqueeze", "t", ["u"], axes=[1]),
        given_as("e", "Squeeze", "u", ["y"], axes=[1]),
    ]
    check(tmp, nodes, drawn(2, 4, 5, 6), constants, opset=opset)


def test_shape_arithmetic_keeps_free_sizes_free(tmp: Path) -> None:
    constants = {
        "zero": np.array([0], dtype=np.int64),
        "two": np.array([2], dtype=np.int64),
        "rest": np.array([-1], dtype=np.int64),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Gather", ["s", "two"], ["h"]),
        helper.make_node("Mul", ["n", "h"], ["nh"]),
        helper.make_node("Concat", ["nh", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"]),
    ]
    for sizes in ((1, 4, 3, 5), (3, 4, 7, 2)):
        check(tmp, nodes, drawn(*sizes), constants)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
@pytest.mark.parametrize("both", [False, True])
def test_a_recurrent_layer_runs_as_it_is(tmp: Path, name: str, both: bool) -> None:
    gates, ways = (4, 2 if both else 1) if name == "LSTM" else (3, 2 if both else 1)
    constants = {
        "w": drawn(ways, gates * 6, 5, seed=1),
        "r": drawn(ways, gates * 6, 6, seed=2),
        "b": drawn(ways, gates * 12, seed=3),
    }
    extra: dict[str, Any] = {"linear_before_reset": 1} if name == "GRU" else {}
    node = helper.make_node(
        name, ["x", *constants], ["y"], hidden_size=6,
        direction="bidirectional" if both else "forward", **extra,
    )  # fmt: skip
    check(tmp, [node], drawn(7, 2, 5), constants, shape=("steps", "n", 5))


def test_normalisations_are_the_runtime_s(tmp: Path) -> None:
    line = {"a": drawn(4), "b": drawn(4), "m": drawn(4), "v": np.abs(drawn(4)) + 1}
    batch = helper.make_node("BatchNormalization", ["x", *line], ["y"], epsilon=1e-3)
    check(tmp, [batch], drawn(2, 4, 5, 6), line)
    pair = {"a": drawn(4), "b": drawn(4)}
    instance = helper.make_node("InstanceNormalization", ["x", "a", "b"], ["y"])
    check(tmp, [instance], drawn(2, 4, 5, 6), pair)
    layer = helper.make_node("LayerNormalization", ["x", "a", "b"], ["y"], axis=-1)
    check(tmp, [layer], drawn(2, 3, 4), pair, shape=("n", "t", 4))
    group = helper.make_node("GroupNormalization", ["x", "a", "b"], ["y"], num_groups=2)
    check(tmp, [group], drawn(2, 4, 5, 6), pair, opset=21)


def test_pixels_and_channels_change_places(tmp: Path) -> None:
    for mode in ("DCR", "CRD"):
        node = helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode)
        check(tmp, [node], drawn(2, 4, 5, 6))
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)
    check(tmp, [node], drawn(2, 4, 4, 6), shape=("n", 4, 4, 6))
