"""Where a node comes from: the line of the model's code, and the module it is part of."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import PurePath
from types import CodeType, FrameType

from torch import fx

# These files stand between a model and torch while it runs: no line of theirs is the model's.
OURS = PurePath(__file__).parent
BETWEEN = OURS.parent / "tools"


def home(node: fx.Node) -> str | None:
    """The innermost module that a node is part of: the one it calls, or that it was traced in."""
    if node.op == "call_module":
        return str(node.target)
    around = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return around[-1] if around else None


def line_of(trace: str) -> str:
    """`file.py:12` of the innermost model code in a stack trace, or nothing.

    >>> line_of('File "/models/net.py", line 12, in forward')
    'net.py:12'
    """
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    lines = [f"{PurePath(path).name}:{line}" for path, line in frames if _is_model_code(path)]
    return lines[-1] if lines else ""


def running_line(caller: CodeType | None = None) -> str:
    """The innermost line of model code that runs, within `caller`, as a stack trace has it.

    One line, because a whole trace for every node takes longer than tracing does.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not caller:
        if _is_model_code(frame.f_code.co_filename):
            return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}'
        frame = frame.f_back
    return ""


@cache
def _is_model_code(path: str) -> bool:
    file = PurePath(path)
    return "torch" not in file.parts and file.parent not in (OURS, BETWEEN)
