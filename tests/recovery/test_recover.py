"""A recovered model is a masked model that computes more nearly what the unpruned one does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.masks import random_selection
from upscale import Recovery, RecoveryError, Selection
from upscale.recovery.curves import curves


class Block(nn.Module):
    """A residual block behind a stem, with norms, a gate beside it and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.norm0 = nn.BatchNorm2d(12)
        self.conv1 = nn.Conv2d(12, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 12, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(12)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm0(self.stem(x)))
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm3(self.conv2(self.relu(self.norm2(self.depthwise(y)))))
        return self.head(self.relu(y + x).mean(dim=(2, 3)))


class Dense(nn.Module):
    """Concatenation, and norms that belong to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.up = nn.BatchNorm2d(16), nn.ConvTranspose2d(16, 6, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return self.up(torch.relu(self.norm(torch.cat([x, self.conv(x)], dim=1))))


class Twice(nn.Module):
    """One layer that is called twice, in place in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x += torch.relu(self.layer(x))
        x += torch.relu(self.layer(x))
        return self.last(x)


class Branching(nn.Module):
    """A model whose code asks for a size, which `torch.fx` cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.mirrored = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        if x.shape[1] > 4:
            x = torch.relu(self.mirrored(x))
        return self.head(x.mean(dim=(2, 3)))


MODELS = {
    "branching": (Branching, (3, 8, 8)),
    "block": (Block, (3, 8, 8)),
    "dense": (Dense, (3, 8, 8)),
    "twice": (Twice, (6,)),
    "tokens": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8)),
}


def made(name: str) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().train()
    batches = [torch.randn(40, *shape) for _ in range(4)]
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(40, *shape))
    return model.eval(), batches


def far(model: nn.Module, other: nn.Module, shape: tuple[int, ...]) -> float:
    x = torch.randn(64, *shape, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return float((model(x) - other(x)).square().mean())


@pytest.mark.parametrize("name", MODELS)
def test_a_recovered_model_is_closer_to_the_unpruned_one(name: str) -> None:
    model, batches = made(name)
    selection = random_selection(model, 0.3, 1, even=True, empty=False)
    masked = upscale.mask(model, selection)
    recovered = upscale.recover(model, selection, batches)
    shape = MODELS[name][1]
    assert far(recovered, model, shape) < 0.75 * far(masked, model, shape)


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("block", "input"),
        ("dense", "input"),
        ("twice", "input"),
        ("tokens", "input"),
        ("branching", "input"),
        ("tokens", "output"),
        ("branching", "output"),
        ("block", "output"),
        ("dense", "output"),
    ],
)
def test_its_export_equals_it(name: str, side: str) -> None:
    model, batches = made(name)
    wide, batches = model.double(), [batch.double() for batch in batches]
    selection = random_selection(wide, 0.3, 2, side=side)
    if (name, side) == ("branching", "output"):
        selection = selection.without("mirrored")
    recovered = upscale.recover(wide, selection, batches)
    plan = upscale.plan(recovered, batches[0][:1], selection if side == "input" else None)
    pruned = upscale.export(recovered, plan)
    with torch.no_grad():
        expected, got = recovered(batches[1]), pruned(batches[1])
    assert float((expected - got).abs().max()) <= 1e-10 * float(expected.abs().max())


def test_output_masks_on_what_is_several_operations_when_exported_are_refused() -> None:
    model, batches = made("branching")
    selection = Selection(kept={"mirrored": [0, 3, 5]}, side="output", after="layer")
    with pytest.raises(RecoveryError, match=r"mirrored cannot be refitted.*prune its input side"):
        upscale.recover(model, selection, batches)


def test_masks_hold_and_nothing_of_the_callers_changes() -> None:
    model, batches = made("block")
    before, given = copy.deepcopy(model.state_dict()), [batch.clone() for batch in batches]
    selection = random_selection(model, 0.3, 3, even=True, empty=False)
    recovered = upscale.recover(model, selection, batches)
    assert all(torch.equal(own, before[name]) for name, own in model.state_dict().items())
    assert all(map(torch.equal, batches, given))
    assert recovered.state_dict().keys() == before.keys()
    gone = sorted(set(range(12)) - set(selection.kept["conv1"]))
    recovered.train()(batches[0]).sum().backward()
    torch.optim.SGD(recovered.parameters(), 0.1).step()
    recovered(batches[0])
    assert not recovered.get_submodule("conv1").weight[:, gone].any()


def test_training_and_evaluation_agree_after_a_fit() -> None:
    model, batches = made("block")
    selection = random_selection(model, 0.3, 4, even=True, empty=False)
    recovered = upscale.recover(model, selection, batches)
    x = torch.cat(batches)
    with torch.no_grad():
        evaluated, trained = recovered(x), recovered.train()(x)
    assert float((evaluated - trained).square().mean()) < 1e-10 * float(evaluated.square().mean())


def test_at_a_sum_the_branch_mends_what_the_shortcut_has_lost() -> None:
    """The stem loses channels that nothing but the sum reads; the branch can make up for some."""
    model, batches = made("block")
    kept = {"stem": [0, 2], "conv2": list(range(16))}
    recovered = upscale.recover(model, Selection(kept=kept), batches)
    refits = {refit.weight: refit for refit in Recovery.of(recovered).refits}
    assert refits["conv2.weight"].after < refits["conv2.weight"].before


def test_a_layer_called_twice_gets_one_fit() -> None:
    model, batches = made("twice")
    selection = Selection(kept={"layer": [0, 1, 2, 4, 5, 7, 9]})
    recovered = upscale.recover(model, selection, batches)
    weights = [refit.weight for refit in Recovery.of(recovered).refits]
    assert weights.count("layer.weight") == 1


def test_a_weight_that_others_read_too_stays() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.mix = nn.Embedding(20, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 20, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.relu(self.mix(self.words(ids))))

    torch.manual_seed(0)
    model = Tied().eval()
    batches = [torch.randint(0, 20, (16, 6)) for _ in range(3)]
    recovered = upscale.recover(model, Selection(kept={"mix": [0, 2, 3, 5]}), batches)
    assert torch.equal(recovered.get_submodule("head").weight, model.head.weight)
    assert not torch.equal(recovered.get_submodule("mix").weight, model.mix.weight)


def test_values_that_lie_on_disk_give_the_same_weights() -> None:
    model, batches = made("dense")
    selection = random_selection(model, 0.3, 5, even=True, empty=False)
    one = upscale.recover(model, selection, batches).state_dict()
    other = upscale.recover(model, selection, batches, memory=10_000).state_dict()
    assert all(torch.equal(own, other[name]) for name, own in one.items())


def test_progress_and_report_tell_what_was_done() -> None:
    model, batches = made("block")
    lines: list[str] = []
    selection = random_selection(model, 0.3, 6, even=True, empty=False)
    recovered = upscale.recover(model, selection, batches, progress=lines.append)
    assert "left" in lines[-1]
    assert "conv2" in str(Recovery.of(recovered))
    assert Recovery.of(model) is None


def test_the_mode_of_every_module_is_what_it_was() -> None:
    model, batches = made("block")
    model.train()
    model.norm1.eval()
    recovered = upscale.recover(model, Selection(kept={"conv2": [0, 1, 2]}), batches)
    assert recovered.training
    assert not recovered.get_submodule("norm1").training


def test_curves_rank_columns_by_what_their_loss_costs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        model[0].weight[1], model[0].bias[1] = model[0].weight[4], model[0].bias[4]
    found = curves(model, [torch.randn(200, 4)])["2"]
    # Of two columns that read the same, one goes first, at no cost.
    assert found.order[0] in (1, 4)
    assert found.error(5) < 1e-3 < found.error(2)
    assert found.error(6) == 0


@pytest.mark.parametrize("steps", [1, 2])
def test_pruning_can_recover_as_it_goes(steps: int) -> None:
    model, batches = made("block")
    shape = MODELS["block"][1]
    given = {"amount": 0.3, "data": batches, "steps": steps}
    plain, norms, whole = (
        upscale.prune(model, batches[0][:1], recover=how, **given) for how in (False, "norms", True)
    )
    assert far(whole, model, shape) < far(plain, model, shape)
    assert far(whole, model, shape) < far(norms, model, shape)


def test_recovering_in_one_call_needs_data_and_knows_its_ways() -> None:
    model, batches = made("block")
    with pytest.raises(upscale.SelectionError, match="needs data"):
        upscale.prune(model, batches[0][:1], amount=0.3, recover=True)
    with pytest.raises(upscale.SelectionError, match="'norms'"):
        upscale.prune(model, batches[0][:1], amount=0.3, recover="all", data=batches)


def test_columns_chosen_where_a_layer_is_met_are_as_many_and_leave_less_error() -> None:
    model, batches = made("block")
    shape = MODELS["block"][1]
    drawn = [random_selection(model, 0.4, seed, even=True, empty=False) for seed in (5, 6, 7)]
    errors = [far(upscale.recover(model, own, batches), model, shape) for own in drawn]
    selection = drawn[0]
    chosen = upscale.recover(model, selection, batches, choose=True)
    (own,) = Recovery.of(chosen).selections
    assert {n: len(k) for n, k in own.kept.items()} == {
        n: len(k) for n, k in selection.kept.items()
    }
    assert own.kept != selection.kept
    # One draw may be lucky; a choice is better than draws are on average.
    assert far(chosen, model, shape) < 0.8 * sum(errors) / len(errors)
    gone = sorted(set(range(12)) - set(own.kept["conv1"]))
    assert not chosen.get_submodule("conv1").weight[:, gone].any()


def test_a_model_whose_columns_were_chosen_exports_exactly() -> None:
    model, batches = made("block")
    wide, batches = model.double(), [batch.double() for batch in batches]
    selection = random_selection(wide, 0.3, 2)
    chosen = upscale.recover(wide, selection, batches, choose=True)
    plan = upscale.plan(chosen, batches[0][:1], Recovery.of(chosen).selections)
    pruned = upscale.export(chosen, plan)
    with torch.no_grad():
        expected, got = chosen(batches[1]), pruned(batches[1])
    assert float((expected - got).abs().max()) <= 1e-10 * float(expected.abs().max())


def test_columns_may_be_chosen_outside_of_windows() -> None:
    model, batches = made("block")
    selection = Selection(kept={"conv1": [0, 1, 2]}, windows={"conv1": [0, 1, 2, 3]})
    chosen = upscale.recover(model, selection, batches, choose=True)
    (own,) = Recovery.of(chosen).selections
    assert len(own.kept["conv1"]) == 3
    assert own.windows.keys() == ({"conv1"} if set(own.kept["conv1"]) <= {0, 1, 2, 3} else set())


def test_what_was_pruned_before_is_not_chosen_again() -> None:
    model, batches = made("block")
    first = upscale.mask(model, Selection(kept={"conv1": range(6)}))
    second = upscale.recover(first, Selection(kept={"conv1": range(4)}), batches, choose=True)
    (own,) = Recovery.of(second).selections
    assert set(own.kept["conv1"]) <= set(range(6))
    assert len(own.kept["conv1"]) == 4


def test_in_front_of_a_relu_what_is_cut_off_need_not_be_fitted() -> None:
    """The second unit is always off; a fit that has to hit its values misses the first's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU()).eval()
    batches = [torch.randn(200, 6) for _ in range(4)]
    selection = Selection(kept={"2": range(6)})
    recovered = upscale.recover(model, selection, batches)
    no_relu = nn.Sequential(*list(model)[:3]).eval()
    plain = nn.Sequential(*list(upscale.recover(no_relu, selection, batches)), nn.ReLU())
    assert far(recovered, model, (6,)) < far(plain, model, (6,))


@pytest.mark.parametrize("side", ["input", "output"])
def test_importance_by_reconstruction_beats_norms_of_weights_after_refitting(side: str) -> None:
    model, batches = made("block")
    x, shape = batches[0][:1], MODELS["block"][1]
    given = {"amount": 0.4, "side": side, "data": batches, "recover": True}
    by_norm, by_error = (
        upscale.prune(model, x, importance=name, **given) for name in ("l2", "reconstruction")
    )
    assert far(by_error, model, shape) < far(by_norm, model, shape)


def test_channels_that_cost_little_for_what_they_save_go_first() -> None:
    """Two layers of equal weights, one run at sixteen times as many places as the other."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.large = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1)
            self.pool, self.small = nn.AvgPool2d(4), nn.Conv2d(16, 16, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.small(self.pool(torch.relu(self.large(torch.relu(self.wide(x))))))

    torch.manual_seed(0)
    model, batches = Two().eval(), [torch.randn(16, 3, 8, 8) for _ in range(2)]
    given = {"importance": "reconstruction", "scope": "global", "data": batches}
    macs, parameters = (
        upscale.select(model, batches[0][:1], amount=amount, **given)
        for amount in (upscale.Macs(0.3), upscale.Parameters(0.3))
    )
    assert len(macs.kept["large"]) < len(parameters.kept["large"])
    assert len(macs.kept["small"]) > len(parameters.kept["small"])


def test_what_is_pruned_and_cannot_be_refitted_is_zero_for_what_follows() -> None:
    """A transposed convolution's groups have columns of their own; the head makes up for them."""

    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.head = nn.ConvTranspose2d(8, 6, 2, 2, groups=2), nn.Conv2d(6, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.up(x))

    torch.manual_seed(0)
    model, batches = Up().eval(), [torch.randn(16, 8, 4, 4) + 2 for _ in range(3)]
    selection = Selection(kept={"up": [1, 2, 5, 6, 7]})
    recovered = upscale.recover(model, selection, batches)
    told = Recovery.of(recovered)
    assert told.left.keys() == {"up"}
    assert [refit.weight for refit in told.refits] == ["head.weight"]
    masked, x = upscale.mask(model, selection), torch.randn(32, 8, 4, 4) + 2
    with torch.no_grad():
        errors = [(own(x) - model(x)).square().mean() for own in (recovered, masked)]
    assert errors[0] < 0.5 * errors[1]
    assert not recovered.get_submodule("up").weight[[0, 3, 4]].any()


class Crossing(nn.Module):
    """Attention to something else, with keys and values of other widths."""

    def __init__(self, *, traced: bool) -> None:
        super().__init__()
        self.words, self.wide = nn.Linear(8, 16), nn.Linear(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True)
        self.head, self.traced = nn.Linear(8, 8), traced

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        x = self.wide(torch.relu(self.words(x)))
        if not self.traced and x.shape[1] > 2:
            x = x * 1.0
        return self.head(self.attention(x, keys, values, need_weights=False)[0])


@pytest.mark.parametrize("traced", [True, False])
def test_projections_of_a_fused_attention_are_refitted_or_reported(traced: bool) -> None:
    torch.manual_seed(0)
    model = Crossing(traced=traced).eval()
    sizes = ((5, 8), (6, 6), (6, 4))
    batches = [tuple(torch.randn(24, *own) for own in sizes) for _ in range(3)]
    selection = Selection(kept={"wide": range(10), "attention.out_proj": range(6)})
    recovered = upscale.recover(model, selection, batches)
    told = Recovery.of(recovered)
    refitted = {refit.weight for refit in told.refits}
    projection = "attention.out_proj.weight"
    assert {"wide.weight", "head.weight"} <= refitted
    assert (projection in refitted) != traced
    assert ("attention.out_proj" in told.left) == traced
    assert "attention.q_proj_weight" in told.left
    assert not recovered.get_submodule("attention.out_proj").weight[:, 6:].any()
    example = tuple(own[:1] for own in batches[0])
    pruned = upscale.export(recovered, upscale.plan(recovered, example, told.selections))
    with torch.no_grad():
        assert torch.allclose(pruned(*batches[0]), recovered(*batches[0]), atol=1e-5)


def test_a_layer_that_keeps_nothing_gets_the_bias_of_what_it_made() -> None:
    model, batches = made("block")
    selection = Selection(kept={"conv2": [], "head": []})
    for choose in (False, True):
        recovered = upscale.recover(model, selection, batches, choose=choose)
        assert not recovered.get_submodule("head").weight.any()
        x = torch.cat(batches)
        with torch.no_grad():
            assert torch.allclose(recovered(x)[0], model(x).mean(dim=0), atol=1e-5)
