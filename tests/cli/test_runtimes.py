"""Runtimes on the command line: raced on several at once, and asked what they run."""

from __future__ import annotations

import json

import pytest

from tests.deploy.running import needs_onnx
from upscale.cli.main import main

DIGITS = ("upscale:digits", "--shape", "2,1,8,8", "--threads", "1", "--quiet")


@needs_onnx
def test_bench_races_on_several_runtimes_and_prints_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--runtime", "onnxruntime,torch", "--runs", "2")
    assert main(["bench", *DIGITS, *options]) in (0, 3)
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "runtime"
    assert [row.split()[0] for row in rows] == ["onnxruntime", "torch"]
    assert "2 runs each, on 1 threads" in last


@needs_onnx
def test_bench_gives_each_runtimes_race_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--runtime", "torch,onnxruntime", "--runs", "2", "--json")
    status = main(["bench", *DIGITS, *options])
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["torch", "onnxruntime"]
    assert found["onnxruntime"]["pruned"]["versions"].startswith("onnxruntime ")
    ratios = [own["ratio"] for own in found.values()]
    assert status == (0 if max(ratios) < 1 else 3)


def test_a_runtime_that_is_none_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *DIGITS, "--runtime", "torch,abacus"]) == 2
    assert "it is 'abacus'; it must be one of" in capsys.readouterr().err


@needs_onnx
def test_operations_are_counted_as_the_runtime_runs_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["operations", *DIGITS, "--runtime", "onnxruntime", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = found["operations"]
    assert kinds["Gemm"] == 1
    assert "BatchNormalization" not in kinds, "they are folded into convolutions"
    moving = ("nchwc.ReorderInput", "nchwc.ReorderOutput", "Concat", "Slice", "Transpose")
    assert found["moving"] == sum(kinds.get(kind, 0) for kind in moving)


def test_a_runtime_that_does_not_tell_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operations", *DIGITS]) == 1
    assert "the runtime torch does not tell what it runs" in capsys.readouterr().err
