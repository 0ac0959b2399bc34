"""The property that every random network has: its export computes what its masked model does."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import torch

import upscale
from trials.comparing import relative_error
from trials.networks.network import ANOTHER_SIZE, SIZE, Network, build
from upscale.capture import Example
from upscale.rewrite.gather import Gather
from upscale.verify import TOLERANCE

# The one thing that may be refused: a write into memory that is later read through another view.
EXPECTED_REFUSAL = "wrote in place through another view"

# So many batches a network is refitted on.
BATCHES = 3


def assert_exports_exactly(network: Network) -> None:
    """Raise unless the network's export equals its masked model, at two sizes, and is honest."""
    model = build(network)
    before = copy.deepcopy(model.state_dict())
    example = network.example(network.batch, SIZE)
    plan = upscale.plan(model, example, network.selections, order=network.order)
    # What is folded is rounded to the weights' own precision; compare without that.
    own = copy.deepcopy(model).double() if plan.weights.rounds else model
    exported = upscale.export(own, plan)
    masked = upscale.mask(model, network.selections, example=example)
    size = SIZE if network.fixed else ANOTHER_SIZE
    for inputs in (example, network.example(network.batch % 3 + 1, size, seed=1)):
        error = relative_error(exported, masked, inputs)
        shapes = [tuple(x.shape) for x in Example.of(inputs).tensors]
        assert error <= TOLERANCE, f"relative error {error:.1e} on {shapes}"
    after = model.state_dict()
    assert before.keys() == after.keys(), "the model has other parameters than before"
    assert all(torch.equal(before[k], after[k]) for k in before), "the model was changed"
    gathers = [m for m in exported.modules() if isinstance(m, Gather)]
    assert plan.copies or not gathers, "the plan promises no copy, the export gathers"


def assert_recovers_exactly(network: Network) -> None:
    """Raise unless a network that was refitted exports exactly, with all that its plan reads."""
    model = build(network).double()
    before = copy.deepcopy(model.state_dict())
    given = replace(network, dtype="float64")
    example = given.example(network.batch, SIZE)
    batches = [given.example(6, SIZE, seed=seed) for seed in range(BATCHES)]
    plan = upscale.plan(model, example, network.selections, order=network.order)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", upscale.RecoveryWarning)  # some layers see few rows
        recovered = upscale.recover(model, network.selections, batches, plan=plan)
    told = upscale.Recovery.of(recovered)
    assert told is not None, "the recovered model knows nothing of its recovery"
    assert told.plan is not None, "the recovered model has no plan"
    exported = upscale.export(recovered, told.plan)
    masked = upscale.mask(recovered, told.selections, example=example)
    size = SIZE if network.fixed else ANOTHER_SIZE
    for inputs in (example, given.example(network.batch % 3 + 1, size, seed=1)):
        error = relative_error(exported, recovered, inputs)
        assert error <= TOLERANCE, f"relative error {error:.1e} of the export"
        error = relative_error(recovered, masked, inputs)
        assert error == 0, f"relative error {error:.1e}: masks do not hold"
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before), "the model was changed"
    assert recovered.state_dict().keys() == before.keys(), (
        "the recovered model has other parameters"
    )
