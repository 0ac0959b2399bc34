"""Targets: what they may say, and what an example says of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import upscale
from upscale.capture import Example
from upscale.targets.runtime import example_for, target_like
from upscale.targets.target import Target


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runtime": "abacus"}, "abacus"),
        ({"memory_format": "NHWC"}, "channels_last"),
        ({"batch": 0}, "batch is 0"),
        ({"threads": True}, "threads is True"),
        ({"dtype": "int8"}, "int8"),
    ],
)
def test_a_target_that_is_none_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(upscale.TargetError, match=said):
        Target(**options)


def test_the_default_target_is_what_the_example_is_like() -> None:
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    found = target_like(Example.of(x))
    assert (found.memory_format, found.batch, found.dtype) == ("channels_last", 4, "float64")
    assert target_like(Example.of(torch.randn(2, 3))).memory_format == "contiguous"


def test_an_example_is_repeated_and_laid_out_for_a_target() -> None:
    x, mask = torch.randn(2, 3, 4, 4), torch.ones(2, 5)
    target = Target(memory_format="channels_last", batch=6)
    suited = example_for(target, Example.of((x, mask, "a word")))
    image, repeated, word = suited.args
    assert torch.equal(image, torch.cat([x, x, x]))
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert (repeated.shape, word) == ((6, 5), "a word")
    same = example_for(Target(batch=2), Example.of(x)).args[0]
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr(), "a model may write into what it is given"
