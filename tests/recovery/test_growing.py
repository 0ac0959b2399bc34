"""What a plan reads anyway works too: a superset, the same plan, and no more error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.comparing import relative_error
from trials.masks import random_selection
from trials.nets import Dense, InvertedResidual, Plain, Residual, SqueezeExcite, image
from upscale import Plan, PlanError, Recovery, RecoveryError, Selection
from upscale.recovery.growing import grown

NETS = [Residual, Dense, SqueezeExcite, InvertedResidual]


X, LARGER = image(1, 12).double(), image(2, 16).double()


def lively(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = kind().train()
    with torch.no_grad():
        for _ in range(20):
            model(image(24, 12))
    return model.eval().double()


def sizes(plan: Plan) -> dict[str, dict[int, int]]:
    return {n: {a: len(k) for a, k in own.items()} for n, own in plan.weights.cuts.items()}


def windows(model: nn.Module, share: float = 0.4) -> Selection:
    x = image(1, 12).to(next(model.parameters()))
    return upscale.select(model, x, amount=share, constraint="contiguous", slack=0.3)


def batches(count: int = 4) -> list[Tensor]:
    return [
        torch.randn(24, 3, 12, 12, generator=torch.Generator().manual_seed(s)).double()
        for s in range(count)
    ]


@pytest.mark.parametrize("kind", NETS)
def test_the_grown_selection_is_a_superset_with_the_same_plan(kind: type[nn.Module]) -> None:
    model = lively(kind)
    selection, x = windows(model), X
    plan = upscale.plan(model, x, selection)
    same, (own,) = grown(model, plan, (selection,))
    assert all(set(selection.kept[layer]) <= set(kept) for layer, kept in own.kept.items())
    assert own.kept != selection.kept
    assert same.graph == plan.graph
    assert same.weights.cuts == plan.weights.cuts
    anew = upscale.plan(model, x, own)
    assert sizes(anew) == sizes(plan)
    assert anew.copied_bytes <= plan.copied_bytes
    assert grown(model, same, (own,))[1] == (own,)
    exported = upscale.export(model, same)
    assert relative_error(exported, upscale.mask(model, own), LARGER) <= 1e-10
    # From JSON it is held against what it says.
    again = upscale.export(model, Plan.from_json(same.to_json()), x)
    assert relative_error(again, exported, LARGER) <= 1e-10


@pytest.mark.parametrize("kind", NETS)
def test_a_model_recovered_for_a_plan_errs_no_more_and_exports_exactly(
    kind: type[nn.Module],
) -> None:
    model, unseen = lively(kind), batches(6)[4:]
    selection = windows(model)
    plan = upscale.plan(model, X, selection)
    given, more = (upscale.recover(model, selection, batches(), plan=own) for own in (None, plan))
    with torch.no_grad():
        errors = [
            sum(float((own(x) - model(x)).square().mean()) for x in unseen) for own in (given, more)
        ]
    assert errors[1] <= errors[0]
    told = Recovery.of(more)
    assert told is not None
    assert told.plan is not None
    exported = upscale.export(more, told.plan)
    assert relative_error(exported, more, unseen[0]) <= 1e-10
    replanned = upscale.export(more, upscale.plan(more, X, told.selections))
    shapes = [{n: w.shape for n, w in own.state_dict().items()} for own in (exported, replanned)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("recover", [True, "norms"])
def test_pruning_with_recovery_uses_all_that_is_read_and_makes_layers_as_large(
    recover: bool | str,
) -> None:
    model, x = lively(Residual).float(), X.float()
    given = {"selection": windows(model), "data": [own.float() for own in batches()]}
    plain = upscale.prune(model, x, selection=given["selection"])
    mended = upscale.prune(model, x, recover=recover, **given)
    assert mended.meta["verified"].exact
    plans = [own.meta["plan"] for own in (plain, mended)]
    assert sizes(plans[0]) == sizes(plans[1])
    assert plans[1].copied_bytes == plans[0].copied_bytes
    zeros = [
        sum(int((own == 0).flatten(1).all(dim=1).sum()) for own in columns(module))
        for module in (plain, mended)
    ]
    assert zeros[0] > zeros[1] == 0


def columns(module: nn.Module) -> list[Tensor]:
    layers = [own for own in module.modules() if isinstance(own, nn.Conv2d) and own.groups == 1]
    return [own.weight.detach().movedim(1, 0) for own in layers]


def test_what_keeps_nothing_and_what_output_masks_leave_stays_as_it_is() -> None:
    model = lively(Residual)
    both = (
        random_selection(model, 0.4, 3),
        random_selection(model, 0.3, 4, side="output"),
    )
    plan = upscale.plan(model, X, both)
    same, own = grown(model, plan, both)
    assert own[1] == both[1]
    assert all(own[0].kept[layer] == () for layer, kept in both[0].kept.items() if not kept)
    masked = upscale.mask(model, own)
    assert relative_error(upscale.export(model, same), masked, LARGER) <= 1e-10


def test_a_plan_of_another_selection_is_refused() -> None:
    model = lively(Plain)
    selection = random_selection(model, 0.4, 1, empty=False)
    plan = upscale.plan(model, X, random_selection(model, 0.4, 2, empty=False))
    with pytest.raises(PlanError, match="another selection"):
        upscale.recover(model, selection, batches(), plan=plan)
    own = upscale.plan(model, X, selection)
    with pytest.raises(RecoveryError, match="choose= or plan="):
        upscale.recover(model, selection, batches(), plan=own, choose=True)
