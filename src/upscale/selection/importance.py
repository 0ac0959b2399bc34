"""Importance: how much each channel of a layer matters, from its weight or from data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from upscale.errors import SelectionError
from upscale.model.batches import Batch, batches_of, evaluating, read_maps
from upscale.model.layers import column_axis, layers, weight_of


@dataclass(frozen=True, slots=True)
class Context:
    """What a criterion may know of the layer it scores.

    The layer's weight comes with its rows along axis 0 and its columns along axis 1, whatever
    the layer; on the input side a score is due for each column, on the output side for each row.
    """

    layer: str
    module: nn.Module
    side: str

    def by_channel(self, weight: Tensor) -> Tensor:
        """A weight, a flat row for each channel to be scored."""
        return (weight.transpose(0, 1) if self.side == "input" else weight).flatten(1)


BLOCK = 128

Scorer = Callable[[Tensor, Context], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """A model whose layers are to be scored, and what there is to score them by.

    `norms()` gives by layer the scales that BatchNorms give its channels; `curves(batches)` what
    the loss of its channels costs if what is left is refitted.
    """

    model: nn.Module
    names: tuple[str, ...]
    side: str
    data: Iterable[Any] | None
    loss: Callable[[Any, Any], Tensor] | None
    inputs: int
    norms: Callable[[], Mapping[str, Tensor]]
    curves: Callable[[Sequence[Batch]], Mapping[str, Tensor]]

    def score_weights(self, scorer: Scorer) -> dict[str, Tensor]:
        """Score every layer by its weight."""
        found = layers(self.model)
        return {
            name: scorer(_rows_first(found[name]), Context(name, found[name], self.side))
            for name in self.names
        }

    def batches(self, who: str) -> list[Batch]:
        """The caller's batches, each with its target if it has one."""
        if self.data is None:
            raise SelectionError(f"importance {who!r} needs data; pass data=, batches of inputs")
        found = list(batches_of(self.data, self.inputs))
        if not found:
            raise SelectionError(f"importance {who!r} needs data, and data holds no batch")
        return found


class Importance(Protocol):
    """A criterion: a score for each channel of each layer; the lowest go first.

    `comparable` says whether scores of different layers can be held against each other as they
    are. Where they cannot, a global selection divides them by their mean. A criterion whose scores
    are costs that add up may say so, by a field `costs`: a global selection then divides them by
    what each channel saves of what is asked for.
    """

    @property
    def comparable(self) -> bool:
        """Whether a score means the same in every layer."""

    def score(self, study: Study) -> dict[str, Tensor]:
        """The scores of every layer of a study, by name."""


@dataclass(frozen=True, slots=True)
class ByWeight:
    """A criterion that looks at one weight at a time: any `(weight, context) -> scores`."""

    scorer: Scorer
    comparable: bool = False

    def score(self, study: Study) -> dict[str, Tensor]:
        return study.score_weights(self.scorer)


def l1(weight: Tensor, context: Context) -> Tensor:
    """The sum of absolute weights of each channel."""
    return context.by_channel(weight).abs().sum(dim=1)


def l2(weight: Tensor, context: Context) -> Tensor:
    """The Euclidean norm of each channel."""
    return context.by_channel(weight).square().sum(dim=1).sqrt()


def lamp(weight: Tensor, context: Context) -> Tensor:
    """Each channel's squared norm as a share of those no smaller (LAMP, Lee et al. 2021)."""
    squares = context.by_channel(weight).square().sum(dim=1)
    ascending, order = torch.sort(squares, stable=True)
    no_smaller = ascending.flip(0).cumsum(0).flip(0)
    shares = ascending / no_smaller.clamp_min(torch.finfo(squares.dtype).tiny)
    return torch.empty_like(shares).index_copy_(0, order, shares)


def fpgm(weight: Tensor, context: Context) -> Tensor:
    """The sum of each channel's distances to all others (FPGM, He et al. 2019)."""
    flat = context.by_channel(weight)
    squares = flat.square().sum(dim=1)
    sums = torch.zeros_like(squares)
    # Distances are symmetric: each block of channels meets only itself and those after it.
    for start in range(0, len(flat), BLOCK):
        own, rest = flat[start : start + BLOCK], flat[start:]
        apart = torch.addmm(squares[start:], own, rest.T, alpha=-2)
        apart = apart.add_(squares[start : start + BLOCK, None]).clamp_min_(0).sqrt_()
        apart.diagonal().zero_()
        sums[start : start + BLOCK] += apart.sum(dim=1)
        sums[start + BLOCK :] += apart[:, BLOCK:].sum(dim=0)
    return sums


@dataclass(frozen=True, slots=True)
class ByMaps:
    """A criterion that reads the feature maps of the caller's batches.

    A reading takes maps as images × channels × space, and sums its numbers over images.
    """

    name: str
    reading: Callable[[Tensor], Tensor]
    comparable: bool = False

    def score(self, study: Study) -> dict[str, Tensor]:
        batches = study.batches(self.name)
        return read_maps(study.model, study.names, study.side, batches, self.reading)


def magnitude(maps: Tensor) -> Tensor:
    """The mean absolute value of each channel."""
    return maps.abs().flatten(2).mean(dim=2).sum(dim=0)


def rank(maps: Tensor) -> Tensor:
    """The mean rank of each channel's feature maps (HRank, Lin et al. 2020)."""
    shaped = maps.flatten(2, -2) if maps.ndim > 3 else maps.reshape(*maps.shape[:2], 1, -1)
    ranks: Tensor = torch.linalg.matrix_rank(shaped.float())
    return ranks.double().sum(dim=0)


@dataclass(frozen=True, slots=True)
class Random:
    """Scores drawn from a generator; from torch's own if none is given."""

    generator: torch.Generator | None = None
    comparable: bool = True

    def score(self, study: Study) -> dict[str, Tensor]:
        def draw(weight: Tensor, context: Context) -> Tensor:
            return torch.rand(len(context.by_channel(weight)), generator=self.generator)

        return study.score_weights(draw)


@dataclass(frozen=True, slots=True)
class Norm:
    """The scale that BatchNorm gives a channel: after the layer, or before it is read.

    Where several BatchNorms are summed into a channel, their scales are. Layers without one
    keep everything.
    """

    comparable: bool = True

    def score(self, study: Study) -> dict[str, Tensor]:
        norms = study.norms()
        found = {name: norms[name] for name in study.names if name in norms}
        if not found:
            raise SelectionError(
                "importance 'bn' needs layers next to a BatchNorm with a scale; none is"
            )
        return found


@dataclass(frozen=True, slots=True)
class Taylor:
    """The squared change of the loss, to first order, if a channel's weights became zero.

    Averaged over the caller's batches (Molchanov et al. 2019).
    """

    comparable: bool = True

    def score(self, study: Study) -> dict[str, Tensor]:
        found = study.batches("taylor")
        if study.loss is None or any(batch.target is None for batch in found):
            raise SelectionError(
                "importance 'taylor' needs gradients; pass loss=, a function of the model's "
                "output and a target, and data=, pairs of inputs and target"
            )
        own = layers(study.model)
        # Where there is data, the model is a copy: what it keeps of this is nobody's.
        weights = [weight_of(own[name]).requires_grad_(True) for name in study.names]
        totals: dict[str, Tensor] = {}
        with evaluating(study.model), torch.enable_grad():
            for batch in found:
                loss = study.loss(batch.run(study.model), batch.target)
                slopes = torch.autograd.grad(loss, weights, allow_unused=True)
                for name, weight, slope in zip(study.names, weights, slopes, strict=True):
                    change = torch.zeros_like(weight) if slope is None else weight * slope
                    context = Context(name, own[name], study.side)
                    rows_first = change.detach().movedim(column_axis(own[name]), 1)
                    score = context.by_channel(rows_first).sum(dim=1).square() / len(found)
                    totals[name] = totals.get(name, torch.zeros_like(score)) + score
        return totals


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """What the loss of a channel does to the model's outputs, if what is left is refitted.

    Channels go one by one, the cheapest first, and what goes later costs no less: a layer's
    scores stand in the order in which its channels go.
    """

    comparable: bool = True
    costs: bool = True

    def score(self, study: Study) -> dict[str, Tensor]:
        found = study.curves(study.batches("reconstruction"))
        return {name: found[name] for name in study.names if name in found}


# Criteria that look at weights alone, and those that need data.
BY_WEIGHT: dict[str, Importance] = {
    "l1": ByWeight(l1),
    "l2": ByWeight(l2),
    "lamp": ByWeight(lamp, comparable=True),
    "fpgm": ByWeight(fpgm),
    "bn": Norm(),
    "random": Random(),
}
BY_DATA: dict[str, Importance] = {
    "hrank": ByMaps("hrank", rank),
    "taylor": Taylor(),
    "activation": ByMaps("activation", magnitude),
    "reconstruction": Reconstruction(),
}
CRITERIA = BY_WEIGHT | BY_DATA


def importance_of(given: str | Importance | Scorer) -> Importance:
    """The criterion of a name, the criterion given, or one made of a plain function."""
    if isinstance(given, str) and given in CRITERIA:
        return CRITERIA[given]
    if hasattr(given, "score"):
        return given  # type: ignore[return-value]  # a criterion by its looks
    if callable(given):
        return ByWeight(given, comparable=True)
    known = ", ".join(repr(known) for known in CRITERIA)
    raise SelectionError(
        f"importance is {given!r}; it must be one of {known}, or a function of a weight and "
        "its context that returns a score for each channel"
    )


def counts_costs(given: str | Importance | Scorer) -> bool:
    """Whether scores are costs that add up, and can be held against what channels save."""
    return bool(getattr(importance_of(given), "costs", False))


def score(importance: str | Importance | Scorer, study: Study) -> dict[str, Tensor]:
    """The scores of every layer, checked: one number for each channel."""
    found = importance_of(importance).score(study)
    own = layers(study.model)
    who = importance if isinstance(importance, str) else type(importance).__name__
    for name, scores in found.items():
        width = _rows_first(own[name]).shape[1 if study.side == "input" else 0]
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (width,):
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise SelectionError(
                f"importance {who!r} gave {shape} for {name}; it must be a tensor of {width} "
                f"scores, one for each {study.side} channel"
            )
        if not torch.isfinite(scores).all():
            raise SelectionError(f"importance {who!r} gave scores for {name} that are no numbers")
    return {name: scores.detach().double().cpu() for name, scores in found.items()}


def _rows_first(layer: nn.Module) -> Tensor:
    return weight_of(layer).detach().movedim(column_axis(layer), 1)
