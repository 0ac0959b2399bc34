"""What a verification found, and on what evidence."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 1e-10
NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Verified:
    """How far two models are apart, and what was tested to find out.

    `relative_error` is the largest found, and `None` if nothing was tested: `because` says why.
    `tolerance` is what counts as rounding in the `precision` that both ran in, `inputs` what
    each was called with, in order, `outputs` and `buffers` how many of both were compared, and
    `untested` the layers that the export has otherwise and that no output responded to.

    >>> print(Verified(None, because="no output is finite"))
    Not tested: no output is finite.
    """

    relative_error: float | None
    tolerance: float = TOLERANCE
    precision: str = "float64"
    inputs: tuple[str, ...] = ()
    outputs: int = 0
    buffers: int = 0
    untested: tuple[str, ...] = ()
    because: str | None = None

    @property
    def exact(self) -> bool:
        """Whether something was tested, and the difference is rounding alone."""
        return self.relative_error is not None and self.relative_error <= self.tolerance

    @property
    def differs(self) -> bool:
        """Whether a difference was found that rounding does not explain."""
        return self.relative_error is not None and not self.exact

    def __str__(self) -> str:
        if self.relative_error is None:
            return f"Not tested: {self.because}."
        if not self.exact:
            return (
                f"Wrong: it differs from the masked one by {self.relative_error:.2e} (relative; "
                f"at most {self.tolerance:.0e} is rounding in {self.precision}): {self.because}."
            )
        one = self.outputs + self.buffers == 1
        compared = f"{self.outputs} output{'s' * (self.outputs != 1)}"
        if self.buffers:
            compared += f" and {self.buffers} buffer{'s' * (self.buffers != 1)} that it writes"
        told = (
            "Verified: it computes what the masked model computes.\n"
            f"  Called with {' and '.join(self.inputs)}, in {self.precision}: {compared} "
            f"differ{'s' * one} by {self.relative_error:.1e} at most "
            f"(up to {self.tolerance:.0e} is rounding)."
        )
        if self.untested:
            more = len(self.untested) - NAMES_SHOWN
            names = ", ".join(self.untested[:NAMES_SHOWN]) + (f" and {more} more" * (more > 0))
            told += f"\n  Not tested, since no output responds to them here: {names}."
        return told
