"""The subject: what every verb starts from, made once."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

from torch import nn

from upscale import masking
from upscale.capture import Captured, Configuration, Example, capture, configuration
from upscale.channels import Parameter, Positions, positions
from upscale.errors import SelectionError
from upscale.flow.analyse import analyse
from upscale.flow.channel_flow import ChannelFlow
from upscale.masking.norms import norms_of
from upscale.model.accepting import checked, settled
from upscale.model.layers import computes_weight, layers, parameter_names, weight_names
from upscale.selected.selection import Selection


@dataclass(frozen=True)
class Subject:
    """A model without output masks, those it came with, and the capture of one run.

    What follows from the capture is found when it is first asked for, and then known: the flow of
    its channels, the BatchNorms that belong to layers, the name of each layer's weight, and the
    configuration by which the model is known again.
    """

    model: nn.Module
    masks: Mapping[str, tuple[int, ...]]
    example: Example
    captured: Captured

    @classmethod
    def of(cls, model: nn.Module, example: Any, *, numbers: bool = True) -> Subject:
        """The subject that a caller's model and example are; the model is not changed."""
        own, masks = bare(model)
        taken = Example.of(example)
        return cls(own, masks, taken, capture(own, taken, numbers=numbers))

    @cached_property
    def flow(self) -> ChannelFlow:
        """How channels run through the model."""
        return analyse(self.captured)

    @cached_property
    def norms(self) -> dict[str, tuple[str, ...]]:
        """For each layer with normalisation of its own, the names of its BatchNorms."""
        return norms_of(self.model, self.captured.graph, self.captured)

    @cached_property
    def weights(self) -> dict[str, str]:
        """The name of each layer's weight; layers that share one have one name."""
        return weight_names(self.model)

    @cached_property
    def configuration(self) -> Configuration:
        """All that decides what the model computes but for its numbers."""
        return configuration(self.model)

    def columns(
        self, selections: Sequence[Selection]
    ) -> tuple[dict[str, Positions], dict[str, Positions]]:
        """The columns that selections of inputs keep, by the value of the weight they are of, and
        the windows that may be read."""
        inputs = [each for each in selections if each.side == "input"]
        chosen = reduce(operator.and_, inputs) if inputs else Selection(kept={})
        self._check_computed(chosen)

        def by_weight(lists: Mapping[str, Iterable[int]]) -> dict[str, Positions]:
            named = {self.weights[layer]: tuple(own) for layer, own in lists.items()}
            return {Parameter(name): positions(own) for name, own in named.items()}

        return by_weight(chosen.kept), by_weight(chosen.windows)

    def _check_computed(self, chosen: Selection) -> None:
        """Raise if a selection names a layer that computes its weight, and nothing can be pruned
        with it."""
        own = layers(self.model)
        computing = {n: own[n] for n in chosen.kept if n in own and computes_weight(own[n])}
        if not computing:
            return
        pruned = {layer.name for _, layer in self.flow.layers}
        owned = parameter_names(self.model)
        for layer, module in computing.items():
            if self.weights[layer] not in pruned and any(
                Parameter(owned[id(parameter)]) in self.flow.uses
                for parameter in module.parameters()
            ):
                raise SelectionError(
                    f"{layer} computes its weight anew in every call and nothing here can be "
                    "pruned with it; make its weight permanent first, or leave it out of the "
                    "selection"
                )

    def tuned(self, model: nn.Module) -> Subject:
        """The subject after training: a masked copy of the model, without its output masks."""
        own, _ = masking.released(model)
        return replace(self, model=own, captured=capture(own, self.example))

    def holding(self, channels: Mapping[str, tuple[int, ...]]) -> Subject:
        """The subject captured with channels held at zero after modules."""
        held = masking.hold_outputs(self.model, channels)
        return replace(self, captured=capture(held, self.example))


def bare(model: nn.Module) -> tuple[nn.Module, Mapping[str, tuple[int, ...]]]:
    """The caller's model with plain weights and without output masks, and the masks it had."""
    own = settled(checked(model))
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in own.modules())
    return masking.released(own) if hooked else (own, {})
