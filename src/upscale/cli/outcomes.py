"""What the program says of errors, and the status it ends with."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence

from upscale.cli.arguments import ArgumentsError
from upscale.errors import UpscaleError
from upscale.tools.interrupts import STATUS

OK, FAILED, MISUSED, SLOWER, INTERRUPTED = 0, 1, 2, 3, STATUS


def wants_json(given: Sequence[str]) -> bool:
    """Whether arguments ask for JSON, as far as they can be read at all; they may be cut short."""
    return any(len(own) > 2 and "--json".startswith(own) for own in given)


def say_error(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong in one line, and as JSON where that is asked for; the status."""
    status, message = _outcome(error)
    print(f"upscale: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": message}, indent=2))
        sys.stdout.flush()
    return status


def _outcome(error: BaseException) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, UpscaleError):
        return (MISUSED if isinstance(error, ArgumentsError) else FAILED), str(error)
    if isinstance(error, ValueError):
        return MISUSED, str(error)
    if isinstance(error, OSError):
        return FAILED, f"{error.strerror or error}: {error.filename or ''}"
    # Nobody foresaw it: where it came from is worth more than brevity.
    traceback.print_exception(error)
    return FAILED, f"{type(error).__name__}: {error}"
