"""Sizes that an export was made for: it checks them, and says what to do on others."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx.node import has_side_effect
from torch.overrides import handle_torch_function, has_torch_function_unary

from upscale.errors import SizeError

FAILED = "Guard failed: "


@has_side_effect  # nobody reads what it returns, and it must not go for that
def require_size(condition: bool, message: str) -> None:
    """Raise a `SizeError` unless a condition holds; a node of its own in any graph.

    >>> require_size(2 > 3, "at least three")
    Traceback (most recent call last):
    ...
    upscale.errors.SizeError: at least three
    """
    if not torch.jit.is_scripting() and has_torch_function_unary(condition):  # type: ignore[attr-defined]
        handle_torch_function(require_size, (condition,), condition, message)
        return
    if not condition:
        raise SizeError(message)


class Guards(nn.Module):
    """What `torch.export` checks of a model's inputs, with an error of ours."""

    def __init__(self, guards: nn.Module) -> None:
        super().__init__()
        self.guards = guards

    def forward(self, *inputs: Any) -> None:
        try:
            self.guards(*inputs)
        except AssertionError as error:
            raise SizeError(said_of_guard(str(error))) from error


def said_of_guard(text: str) -> str:
    """What a user is told of a guard that fails, by the text that torch has for it.

    >>> said_of_guard("Guard failed: x.size()[0] == 2")[:43]
    'an input does not meet x.size()[0] == 2; th'
    """
    return (
        f"an input does not meet {text.removeprefix(FAILED)}; the example that this model was "
        "exported with does, and where this fails the model may do something else: export it "
        "again with an example of this size"
    )
