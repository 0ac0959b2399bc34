"""Trials: a cell made real, step by step and only as far as its metric asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from upscale import api
from upscale.errors import AmountWarning
from upscale.lab.sources import Pairs, find_data, find_model, imported
from upscale.lab.sweep.cells import SELECTING, Cell, GridError
from upscale.lab.zero_copy import wrong_numbers_zero_copy
from upscale.planning import Plan
from upscale.selected.amounts import Amount, Macs, Parameters
from upscale.selected.selection import Selection
from upscale.selection.importance import Importance, Random, Study, importance_of
from upscale.targets.target import Target
from upscale.tools.quiet import unwarned

T = TypeVar("T")
AMOUNTS = {"channels": Amount, "parameters": Parameters, "macs": Macs}


@dataclass
class Memory:
    """What the cell before made and this one may need again: of each kind the last one."""

    _held: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def get(self, kind: str, key: Any, make: Callable[[], T]) -> T:
        """What was made by the same key before, or what is made now."""
        if self._held.get(kind, (None, None))[0] != key:
            self._held.pop(kind, None)  # make room first: models are large
            self._held[kind] = (key, make())
        held: T = self._held[kind][1]
        return held


@dataclass
class Remembered:
    """A criterion that scores a model once: its scores do not depend on the amount."""

    criterion: Importance
    scores: dict[str, Tensor] | None = None

    @property
    def comparable(self) -> bool:
        return self.criterion.comparable

    def score(self, study: Study) -> dict[str, Tensor]:
        """The scores of a study, from memory if they were asked for before."""
        if self.scores is None:
            self.scores = self.criterion.score(study)
        return self.scores


class Trial:
    """What a metric may look at; what it asks for is made then.

    Model, plan and export are shared with other trials: leave them as they are.
    """

    def __init__(self, cell: Cell, memory: Memory | None = None) -> None:
        self.cell, self._memory = cell, memory or Memory()

    def by(self, method: str) -> Trial:
        """The same trial, exported by another method."""
        return Trial(replace(self.cell, method=method), self._memory)

    @cached_property
    def model(self) -> nn.Module:
        """The unpruned model, in evaluation mode; random weights come from the seed."""
        cell = self.cell

        def make() -> nn.Module:
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(cell.seed)
                return find_model(cell.model, None if cell.weights is None else Path(cell.weights))

        return self._memory.get("model", cell.settings_of("model"), make)

    @cached_property
    def example(self) -> Tensor:
        """An input of the cell's shape."""
        x = torch.randn(self.cell.sizes, generator=torch.Generator().manual_seed(self.cell.seed))
        last = self.cell.memory_format == "channels_last" and x.dim() == 4
        return x.contiguous(memory_format=torch.channels_last) if last else x

    @property
    def target(self) -> Target:
        """What plans are made for and races run on."""
        cell = self.cell
        return Target(cell.runtime, "cpu", cell.memory_format, cell.sizes[0], cell.threads)

    @cached_property
    def selection(self) -> Selection:
        """The channels that stay."""
        return self._memory.get("selection", self.cell.settings_of("selection"), self._select)

    def _select(self) -> Selection:
        cell = self.cell
        options: dict[str, Any] = {name: getattr(cell, name) for name in SELECTING}
        key = cell.settings_of("importance")
        options["importance"] = self._memory.get("importance", key, self._criterion)
        if cell.sample is not None:
            options |= {"data": self._data("sample", cell.sample, None), "loss": F.cross_entropy}
        amount = AMOUNTS[cell.of](cell.amount)
        with unwarned(AmountWarning):  # what was reached is recorded
            return api.select(self.model, self.example, amount=amount, **options)

    def _criterion(self) -> Remembered:
        cell = self.cell
        if cell.importance == "random":
            return Remembered(Random(torch.Generator().manual_seed(cell.seed)))
        given = imported(cell.importance) if ":" in cell.importance else cell.importance
        return Remembered(importance_of(given))

    @property
    def plan(self) -> Plan:
        """The plan that the cell's method makes."""
        return self._memory.get("plan", self.cell.settings_of("plan"), self._plan)

    @property
    def exported(self) -> fx.GraphModule:
        """The export; of zero-copy, which is there to be timed, the numbers are wrong."""
        return self._memory.get("exported", self.cell.settings_of("plan"), self._export)

    def _plan(self) -> Plan:
        free, target = self.cell.method == "zero-copy", self.target
        order = "optimal" if free else self.cell.method
        return api.plan(
            self.model, self.example, self.selection, order=order, target=target, widen=not free
        )

    def _export(self) -> fx.GraphModule:
        if self.cell.method == "zero-copy":
            return wrong_numbers_zero_copy(self.model, self.plan)
        return api.export(self.model, self.plan)

    @cached_property
    def masked(self) -> nn.Module:
        """What every export but zero-copy computes. It is the metric's own, to train if need be."""
        return api.mask(self.model, self.selection, example=self.example)

    @property
    def data(self) -> Pairs:
        """The batches that the cell's `data` names."""
        if self.cell.data is None:
            raise GridError(f"{self.cell.metric} needs data; the grid has none")
        return self._data("data", self.cell.data, self.cell.images)

    def _data(self, kind: str, source: str, images: int | None) -> Pairs:
        return self._memory.get(kind, (source, images), lambda: find_data(source, images))

    @property
    def reached(self) -> dict[str, Any]:
        """What the selection came to, whatever was asked: shares pruned, and what stopped it."""
        found = self.selection.reached
        if found is None:
            return {}
        shares = {name: getattr(found, name) for name in ("channels", "parameters", "macs")}
        return {**shares, "stopped": found.stopped or None}
