"""Origins: what a plan that was made in this process came from, kept beside it, not in it.

A plan is a document. Whoever exports it at once, or draws it, need not capture the model again:
the capture is remembered here for as long as the plan is alive, and forgotten with it.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from upscale.planning.plan import Plan

P = TypeVar("P", bound="Plan")


class Origin(Protocol):
    """What is remembered of a plan's making."""

    @property
    def fingerprint(self) -> str:
        """What the model computes that the plan was made for, as a digest."""


_ORIGINS: dict[int, Any] = {}


def remember(plan: object, origin: Origin) -> None:
    """Remember where a plan came from while it is alive."""
    _ORIGINS[id(plan)] = origin
    weakref.finalize(plan, _ORIGINS.pop, id(plan), None)


def stamped(plan: P) -> P:
    """A copy of a plan that says what it was made for, whatever becomes of its origin."""
    origin = origin_of(plan)
    return replace(plan) if origin is None else replace(plan, made_for=origin.fingerprint)


def origin_of(plan: object) -> Any:
    """Where a plan came from; `None` if it was read from a document."""
    return _ORIGINS.get(id(plan))
