"""The strategy: networks of a few ingredients each."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

import trials.networks.ingredients  # noqa: F401  (registers them)
from trials.networks.draft import Draft
from trials.networks.network import SIZE, Masks, Network, build, outputs
from upscale.model.layers import column_axis, layers, weight_of

MOST_OPS = 12
SIDES = ("input", "output", "both")


@st.composite
def networks(draw: DrawFn, sides: tuple[str, ...] = ("input",)) -> Network:
    """Any network of a few ingredients, and masks for its layers on one of the sides given."""
    draft = Draft(draw)
    draft.begin()
    # A choice to go on before each ingredient lets any one of them shrink away by itself.
    while len(draft.ops) < MOST_OPS and draft.pick(False, *[True] * 19):
        draft.grow()
    returns = draft.finish()
    network = Network(
        inputs=tuple(draft.inputs),
        ops=tuple(draft.ops),
        returns=returns,
        dtype=draft.dtype,
        batch=draft.pick(1, 2, 3),
        by_keyword=draft.pick(False, False, False, True),
        fixed=draft.fixed,
        kept=draft.masks(),
        order=draft.pick("none", "optimal", "mrap"),
    )
    if ".view(" in network.source and not runs(network):
        network = reshaped(network)
    side = draft.pick(*sides)
    if side == "input":
        return network
    network = replace(network, made=output_masks(draft, network), after=draft.pick("norm", "layer"))
    return network if side == "both" else replace(network, kept=None)


def output_masks(draft: Draft, network: Network) -> Masks:
    """Which outputs each layer keeps; layers that share a weight keep the same."""
    by_weight: dict[int, tuple[int, ...] | None] = {}
    made = {}
    for name, layer in layers(build(network)).items():
        weight = weight_of(layer)
        if id(weight) not in by_weight:
            by_weight[id(weight)] = draft.mask(weight.shape[1 - column_axis(layer)])
        chosen = by_weight[id(weight)]
        if chosen is not None:
            made[name] = chosen
    return tuple(made.items())


def runs(network: Network) -> bool:
    """Whether the network runs at all; views fail where memory does not lie as they need it."""
    try:
        outputs(build(network), network.example(2, SIZE))
    except RuntimeError as error:
        if "view" in str(error):
            return False
        raise
    return True


def reshaped(network: Network) -> Network:
    """The same network with a reshape in place of every view."""
    ops = tuple(
        replace(op, lines=tuple(line.replace(".view(", ".reshape(") for line in op.lines))
        for op in network.ops
    )
    return replace(network, ops=ops)
