"""Amounts: how much to prune, and what a selection amounts to. Plain data, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from upscale.errors import SelectionError


@dataclass(frozen=True, slots=True)
class Amount:
    """A share to prune, from 0 up to, not with, 1: of channels, if it is no subclass."""

    share: float

    measure: ClassVar[str] = "channels"

    def __post_init__(self) -> None:
        share = self.share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
            raise SelectionError(
                f"amount is {share!r}; it must be a share from 0 up to, not with, 1"
            )

    @classmethod
    def of(cls, amount: float | Amount | Latency) -> Amount:
        """The amount given; a plain number is a share of channels."""
        if isinstance(amount, Latency):
            raise SelectionError("a latency can only be measured: give it to upscale.prune")
        return amount if isinstance(amount, Amount) else Amount(amount)

    @property
    def counts_export(self) -> bool:
        """Whether the share is of what an export does without, not of what masks make zero."""
        return bool(getattr(self, "exported", False))

    def __str__(self) -> str:
        return f"{self.share:.2%} of {self.measure}"


@dataclass(frozen=True, slots=True)
class Parameters(Amount):
    """A share of the weights of all convolutions and linears: the paper's sparsity.

    Counted are the weights that a selection's masks make zero. An export has fewer still, for
    it also drops the rows of layers nobody reads any more; with `exported`, its weights are
    what is counted.

    >>> print(Parameters(0.3))
    30.00% of parameters
    """

    exported: bool = False

    measure: ClassVar[str] = "parameters"


@dataclass(frozen=True, slots=True)
class Macs(Amount):
    """A share of the multiply-accumulates of all convolutions and linears, on the example.

    Counted are those with weights that a selection's masks make zero; with `exported`, those
    the export does without.
    """

    exported: bool = False

    measure: ClassVar[str] = "macs"


@dataclass(frozen=True, slots=True)
class Latency:
    """A share of the unpruned model's latency, as measured, that `prune` is to come down to.

    >>> print(Latency(0.7))
    70.00% of the latency
    """

    share: float

    def __post_init__(self) -> None:
        share = self.share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
            raise SelectionError(f"latency is {share!r}; it must be a share between 0 and 1")

    def __str__(self) -> str:
        return f"{self.share:.2%} of the latency"


@dataclass(frozen=True)
class Reached:
    """What a selection amounts to: shares pruned, the layers' widths, and what stopped it.

    `exported_parameters` and `exported_macs` are what an export does without, where that was
    asked for. `stopped` is empty if the amount was met.
    """

    asked: Amount
    channels: float
    parameters: float
    macs: float
    widths: Mapping[str, int]
    stopped: str = ""
    exported_parameters: float | None = None
    exported_macs: float | None = None

    @property
    def share(self) -> float:
        """The share reached, in the measure that was asked for."""
        prefix = "exported_" if self.asked.counts_export else ""
        share = getattr(self, f"{prefix}{self.asked.measure}")
        return float(math.nan if share is None else share)

    def __str__(self) -> str:
        lines = [
            f"asked {self.asked}, reached {self.share:.2%}; pruned: {self.channels:.2%} of "
            f"channels, {self.parameters:.2%} of parameters, {self.macs:.2%} of macs"
        ]
        if self.exported_parameters is not None:
            lines.append(
                f"the export does without {self.exported_parameters:.2%} of parameters, "
                f"{self.exported_macs:.2%} of macs"
            )
        if self.stopped:
            lines.append(f"stopped: {self.stopped}")
        return "\n".join(lines)
