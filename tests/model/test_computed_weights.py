"""Weights that hooks or parametrisations compute are pruned as plain ones.

The oracle is a twin of the same seed whose weights torch itself made permanent, masked by hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import (
    parametrizations,
    parametrize,
    prune,
    remove_spectral_norm,
    remove_weight_norm,
    spectral_norm,
    weight_norm,
)

import upscale
from trials.lively import calm
from trials.masks import random_selection
from upscale import Selection
from upscale.model.accepting import settled
from upscale.model.layers import column_axis, columns, layers
from upscale.store.modules import json_to_module

TOLERANCE = 1e-10

# The old functions are what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


class Squashed(nn.Module):
    """A parametrisation of one's own, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.3))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.share * weight.tanh()


def own(layer: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", Squashed())


def twice(layer: nn.Module) -> nn.Module:
    return own(parametrizations.weight_norm(layer))


def with_bias(layer: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(weight_norm(layer), "bias", Squashed())


Kind = Callable[[Any], Any]
KINDS: dict[str, Kind] = {
    "weight norm, hook": weight_norm,
    "weight norm along columns, hook": lambda layer: weight_norm(layer, dim=1),
    "weight norm of all, hook": lambda layer: weight_norm(layer, dim=None),
    "spectral norm, hook": spectral_norm,
    "spectral norm along columns, hook": lambda layer: spectral_norm(layer, dim=1),
    "weight norm": parametrizations.weight_norm,
    "weight norm along columns": lambda layer: parametrizations.weight_norm(layer, dim=1),
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": own,
    "two parametrisations": twice,
    "hook, and a computed bias": with_bias,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
# Enough to try what does not depend on how the weights are computed.
some_kinds = pytest.mark.parametrize(
    "kind",
    [
        "weight norm, hook",
        "spectral norm, hook",
        "weight norm",
        "spectral norm",
        "two parametrisations",
        "hook, and a computed bias",
    ],
)
both_sides = pytest.mark.parametrize("side", ["input", "output"])


class Branching(nn.Module):
    """Every sort of convolution, a residual sum and a linear."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.first = kind(nn.Conv2d(3, 8, 3, padding=1))
        self.depthwise = kind(nn.Conv2d(8, 8, 3, padding=1, groups=8))
        self.grouped = kind(nn.Conv2d(8, 8, 3, padding=1, groups=2))
        self.norm = nn.BatchNorm2d(8)
        self.up = kind(nn.ConvTranspose2d(8, 6, 2, stride=2))
        self.head = kind(nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = x + F.relu(self.norm(self.grouped(self.depthwise(x))))
        made: Tensor = self.head(self.up(x).mean((2, 3)))
        return made


class Vocoder(nn.Module):
    """What WaveNet and HiFi-GAN are made of: gates, dilation, skips, transposed convolutions."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.before = kind(nn.Conv1d(3, 8, 7, padding=3))
        self.up = kind(nn.ConvTranspose1d(8, 8, 4, stride=2, padding=1))
        self.inner = nn.ModuleList(kind(nn.Conv1d(8, 16, 3, dilation=d, padding=d)) for d in (1, 3))
        self.outer = nn.ModuleList(kind(nn.Conv1d(8, 16, 1)) for _ in range(2))
        self.after = kind(nn.Conv1d(8, 2, 7, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(F.leaky_relu(self.before(x), 0.1))
        skips = []
        for inner, outer in zip(self.inner, self.outer, strict=True):
            a, b = inner(x).chunk(2, dim=1)
            kept, skip = outer(torch.tanh(a) * torch.sigmoid(b)).chunk(2, dim=1)
            x = x + kept
            skips.append(skip)
        return torch.tanh(self.after(F.leaky_relu(x + skips[0] + skips[1])))


class Discriminator(nn.Module):
    """Two residual blocks of an SN-GAN, the second of which torch.fx cannot trace."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.one, self.two = (
            kind(nn.Conv2d(3, 8, 3, padding=1)),
            kind(nn.Conv2d(8, 8, 3, padding=1)),
        )
        self.short = kind(nn.Conv2d(3, 8, 1))
        self.three = kind(nn.Conv2d(8, 8, 3, padding=1))
        self.four = kind(nn.Conv2d(8, 8, 3, padding=1))
        self.score = kind(nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        short = self.short(F.avg_pool2d(x, 2))
        x = F.avg_pool2d(self.two(F.relu(self.one(x))), 2) + short
        if x.shape[-1] < 2:
            raise ValueError("the image is too small")
        x = x + self.four(F.relu(self.three(F.relu(x))))
        made: Tensor = self.score(F.relu(x).sum((2, 3)))
        return made


Make = Callable[[Kind], nn.Module]


def built(make: Make, kind: Kind) -> nn.Module:
    """A net whose computed weights went through a step of training, so that parts have moved."""
    torch.manual_seed(0)
    model = make(kind).double()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
    return model.eval()


def permanent(model: nn.Module) -> nn.Module:
    """The model itself, its weights made permanent by torch."""
    for module in list(model.modules()):
        for hook in list(module._forward_pre_hooks.values()):
            kind = type(hook).__name__
            remove = {"WeightNorm": remove_weight_norm, "SpectralNorm": remove_spectral_norm}
            remove[kind](module)
        for name in dict(getattr(module, "parametrizations", {})):
            parametrize.remove_parametrizations(module, name)
    return model


def masked_by_hand(model: nn.Module, selection: Selection) -> nn.Module:
    """The model itself, the columns that an input selection drops multiplied by zero."""
    for name, kept in selection.kept.items():
        layer = model.get_submodule(name)
        keep = torch.zeros(columns(layer), dtype=torch.float64)
        keep[list(kept)] = 1
        shape = [1] * layer.weight.ndim
        shape[column_axis(layer)] = -1
        layer.weight.data *= keep.view(shape)
    return model


def image(batch: int, size: int) -> Tensor:
    torch.manual_seed(batch)
    return torch.randn(batch, 3, size, size, dtype=torch.float64)


def sound(batch: int, size: int) -> Tensor:
    torch.manual_seed(batch)
    return torch.randn(batch, 3, size, dtype=torch.float64)


def close(ours: Tensor, theirs: Tensor) -> bool:
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).abs().max()) <= TOLERANCE * float(theirs.abs().max())


def hold(make: Make, kind: Kind, example: Callable[[int, int], Tensor], side: str) -> None:
    """Prune a net and its permanent twin by random masks, and hold one against the other."""
    for seed in range(2):
        model, twin = built(make, kind), permanent(built(make, kind))
        selection = random_selection(twin, 0.4, seed, side=side)
        pruned = upscale.export(model, upscale.plan(model, example(2, 12), selection))
        oracle = (
            masked_by_hand(twin, selection)
            if side == "input"
            else upscale.mask(twin, selection, example=example(2, 12))
        )
        masked = upscale.mask(model, selection, example=example(2, 12))
        for batch, size in ((1, 12), (3, 16)):
            x = example(batch, size)
            assert close(pruned(x), oracle(x)), f"seed {seed}"
            assert close(masked(x), oracle(x)), f"seed {seed}"


@both_sides
@every_kind
def test_an_export_equals_the_masked_model_whatever_computes_the_weights(
    kind: str, side: str
) -> None:
    hold(Branching, KINDS[kind], image, side)


@both_sides
@pytest.mark.parametrize("kind", [weight_norm, parametrizations.weight_norm])
def test_a_vocoder_with_weight_norm_exports_exactly(kind: Kind, side: str) -> None:
    hold(Vocoder, kind, sound, side)


@both_sides
@pytest.mark.parametrize("kind", [spectral_norm, parametrizations.spectral_norm])
def test_what_only_torch_export_captures_exports_exactly(kind: Kind, side: str) -> None:
    model, twin = built(Discriminator, kind), permanent(built(Discriminator, kind))
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(twin)
    selection = random_selection(twin, 0.4, 1, side=side)
    pruned = upscale.export(model, upscale.plan(model, image(2, 12), selection))
    oracle = upscale.mask(twin, selection)
    assert close(pruned(image(3, 16)), oracle(image(3, 16)))


@every_kind
def test_as_much_leaves_as_of_a_plain_model_and_the_export_has_plain_weights(kind: str) -> None:
    model, plain = built(Branching, KINDS[kind]), permanent(built(Branching, KINDS[kind]))
    pruned, expected = (upscale.prune(m, image(2, 12), amount=0.5) for m in (model, plain))
    shapes = {name: tensor.shape for name, tensor in expected.state_dict().items()}
    assert {name: tensor.shape for name, tensor in pruned.state_dict().items()} == shapes
    assert all(isinstance(layer.weight, nn.Parameter) for layer in layers(pruned).values())
    for name, layer in layers(pruned).items():
        assert type(layer) is type(plain.get_submodule(name)), name
    counts = [sum(p.numel() for p in m.parameters()) for m in (pruned, plain)]
    assert counts[0] < 0.6 * counts[1]


@some_kinds
def test_a_survey_counts_what_the_plain_model_has(kind: str) -> None:
    model, plain = built(Branching, KINDS[kind]), built(Branching, lambda layer: layer)
    found, expected = (upscale.survey(m, image(2, 12)) for m in (model, plain))
    assert found == expected


@some_kinds
def test_the_callers_model_stays_as_it_is(kind: str) -> None:
    model = built(Branching, KINDS[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    classes = [type(module) for module in model.modules()]
    expected = model(image(2, 12))
    pruned = upscale.prune(model, image(2, 12), amount=0.5)
    upscale.undo(pruned, model)
    assert [type(module) for module in model.modules()] == classes
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())
    assert torch.equal(model(image(2, 12)), expected)
    model.train()(image(2, 12)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@both_sides
@some_kinds
def test_files_load_with_a_fresh_model_and_exports_can_be_undone(
    kind: str, side: str, tmp_path: Path
) -> None:
    model, x = built(Branching, KINDS[kind]), image(2, 12)
    selection = upscale.select(model, x, amount=0.5, side=side)
    pruned = upscale.export(model, upscale.plan(model, x, selection))
    upscale.save(pruned, tmp_path / "pruned.safetensors")
    fresh = Branching(KINDS[kind]).double()  # as constructed: in training mode, other weights
    for loaded in (
        upscale.load(tmp_path / "pruned.safetensors"),
        upscale.load(tmp_path / "pruned.safetensors", fresh),
    ):
        assert torch.equal(loaded(x), pruned(x))
    assert fresh.training
    wide = upscale.undo(pruned, model)
    assert close(wide(x), upscale.mask(model, selection, example=x)(x))
    plain = built(Branching, lambda layer: layer)
    assert {n: t.shape for n, t in wide.state_dict().items()} == {
        n: t.shape for n, t in plain.state_dict().items()
    }


@pytest.mark.parametrize("make", [weight_norm, parametrizations.weight_norm])
def test_zero_columns_of_the_computed_weight_leave_without_a_selection(make: Kind) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), make(nn.Conv2d(8, 4, 3))).double().eval()
    parts = dict(model[2].named_parameters())
    for name in ("weight_v", "parametrizations.weight.original1"):
        if name in parts:
            parts[name].data[:, [1, 6]] = 0
    pruned = upscale.export(model, upscale.plan(model, image(2, 12)))
    assert pruned.get_submodule("0").out_channels == 6
    assert close(pruned(image(3, 9)), model(image(3, 9)))


@some_kinds
def test_a_mask_is_of_the_computed_weight_and_holds_while_it_trains(kind: str) -> None:
    model = built(Branching, KINDS[kind])
    masked = upscale.mask(model, Selection(kept={"up": [0, 3, 4], "head": [1, 2]}))
    weight = permanent(built(Branching, KINDS[kind])).up.weight
    assert close(masked.up.weight[[0, 3, 4]], weight[[0, 3, 4]])
    masked.train()
    optimiser = torch.optim.SGD(masked.parameters(), lr=0.05, momentum=0.9)
    before = masked.up.weight.clone()
    for _ in range(3):
        optimiser.zero_grad()
        masked(image(4, 8)).square().sum().backward()
        optimiser.step()
    masked.eval()
    pruned = upscale.export(masked, upscale.plan(masked, image(1, 8)))
    assert pruned.get_submodule("head").in_features == 2
    assert close(pruned(image(3, 12)), masked(image(3, 12)))
    assert not masked.up.weight[[1, 2, 5, 6, 7]].any()
    assert not torch.equal(masked.up.weight[0], before[0])


VERBS: dict[str, Callable[[nn.Module], object]] = {
    "select": lambda model: upscale.select(model, image(1, 8), amount=0.5),
    "mask": lambda model: upscale.mask(model, Selection(kept={"head": [0]})),
    "plan": lambda model: upscale.plan(model, image(1, 8)),
    "prune": lambda model: upscale.prune(model, image(1, 8), amount=0.5),
    "survey": lambda model: upscale.survey(model, image(1, 8)),
}


@pytest.mark.parametrize("verb", VERBS)
@some_kinds
def test_a_model_that_trains_is_refused_and_told_what_to_do(kind: str, verb: str) -> None:
    model = built(Branching, KINDS[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(upscale.CaptureError, match=r"first is in training mode.*model\.eval\(\)"):
        VERBS[verb](model.train())
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())


def test_only_the_mode_of_the_layers_that_compute_their_weights_counts() -> None:
    model = built(Branching, spectral_norm).train()
    for layer in layers(model).values():
        layer.eval()
    assert upscale.prune(model, image(4, 8), amount=0.5).get_submodule("head").in_features == 3
    model.eval().head.train()
    with pytest.raises(upscale.CaptureError, match="head is in training mode"):
        upscale.prune(model, image(4, 8), amount=0.5)


class Noisy(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight + torch.randn_like(weight)


class Failing(nn.Module):
    broken = False

    def forward(self, weight: Tensor) -> Tensor:
        if self.broken:
            raise ZeroDivisionError("no more")
        return weight


def test_a_weight_that_is_another_one_every_time_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    parametrize.register_parametrization(model[1], "weight", Noisy())
    state = torch.get_rng_state()
    with pytest.raises(upscale.CaptureError, match="1: its weight is computed otherwise every"):
        upscale.prune(model, torch.zeros(1, 3), amount=0.5)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_weight_that_cannot_be_computed_is_refused_with_the_cause() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    failing = Failing()
    parametrize.register_parametrization(model[1], "weight", failing)
    failing.broken = True
    with pytest.raises(upscale.CaptureError, match="1: its weight cannot be computed: no more"):
        upscale.prune(model, torch.zeros(1, 3), amount=0.5)


def test_a_hook_of_ones_own_that_computes_a_weight_is_refused() -> None:
    def scaled(layer: nn.Module, inputs: object) -> None:
        layer.weight = layer.weight_orig * 0.5

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    model[1].register_parameter("weight_orig", nn.Parameter(model[1].weight.detach()))
    del model[1].weight
    model[1].register_forward_pre_hook(scaled)
    model(torch.zeros(1, 3))
    with pytest.raises(upscale.CaptureError, match="1 has a hook, and its weight is neither"):
        upscale.prune(model, torch.zeros(1, 3), amount=0.5)


def test_a_weight_that_is_a_mere_attribute_is_pruned() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)).double().eval()
    for name in ("weight", "bias"):
        value = getattr(model[1], name).detach()
        delattr(model[1], name)
        setattr(model[1], name, value)
    selection = Selection(kept={"1": [0, 5], "2": [1, 3, 4]})
    x = torch.randn(4, 3, dtype=torch.float64)
    pruned = upscale.export(model, upscale.plan(model, x, selection))
    assert pruned.get_submodule("0").out_features == 2
    assert close(pruned(x), upscale.mask(model, selection)(x))


class Tied(nn.Module):
    """Two layers that compute their weights from the same parts, and one that is called twice."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.a, self.b = kind(nn.Linear(6, 6)), kind(nn.Linear(6, 6))
        for name, _ in list(self.a.named_parameters()):
            if "bias" not in name:
                place, _, last = name.rpartition(".")
                part = getattr(self.a.get_submodule(place), last)
                setattr(self.b.get_submodule(place), last, part)
        self.head = kind(nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(F.relu(self.b(F.relu(self.a(F.relu(self.a(x)))))))
        return made


@pytest.mark.parametrize("kind", [weight_norm, parametrizations.weight_norm, own])
def test_weights_computed_from_the_same_parts_stay_one_weight(kind: Kind) -> None:
    torch.manual_seed(0)
    model = Tied(kind).double().eval()
    if kind is own:
        model.b.parametrizations.weight[0].share = model.a.parametrizations.weight[0].share
    plain = settled(model)
    assert plain.a.weight is plain.b.weight
    assert plain.a.weight is not plain.head.weight
    x = torch.randn(4, 6, dtype=torch.float64)
    assert torch.equal(plain(x), model(x))
    with pytest.raises(upscale.SelectionError):
        upscale.mask(model, Selection(kept={"a": [0, 1], "b": [0, 2]}))
    selection = Selection(kept={"a": [0, 1, 4], "b": [0, 1, 4], "head": [1, 4]})
    plan = upscale.plan(model, x, selection)
    pruned = upscale.export(model, plan)
    assert close(pruned(x), upscale.mask(model, selection)(x))
    maps = upscale.channel_maps(model, plan)
    assert maps["a"] == maps["b"]


def test_equal_weights_of_other_parts_stay_two() -> None:
    layer = weight_norm(nn.Linear(4, 4))
    other = weight_norm(nn.Linear(4, 4))
    other.load_state_dict(layer.state_dict())
    plain = settled(nn.Sequential(layer, other).eval())
    assert torch.equal(plain[0].weight, plain[1].weight)
    assert plain[0].weight is not plain[1].weight


class Recurrent(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.before, self.lstm = nn.Linear(3, 8), nn.LSTM(8, 6, batch_first=True)
        for name in ("weight_ih_l0", "weight_hh_l0"):
            self.lstm = kind(self.lstm, name)
        self.after = kind(nn.Linear(6, 5))
        self.last = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(F.relu(self.after(self.lstm(self.before(x))[0])))
        return made


@pytest.mark.parametrize("kind", [weight_norm, parametrizations.weight_norm])
def test_recurrent_layers_apply_their_computed_weights(kind: Kind, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind).double().eval()
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in model.lstm.named_parameters():
            if name.endswith(("_g", "original0")):
                parameter.mul_(1.5)
    expected = model(x)
    assert torch.equal(settled(model)(x), expected)
    selection = Selection(kept={"after": [0, 2, 5], "last": [1, 3]})
    pruned = upscale.export(model, upscale.plan(model, x, selection))
    assert close(pruned(x), upscale.mask(model, selection)(x))
    assert pruned.get_submodule("after").weight.shape == (2, 3)
    names = {name for name, _ in pruned.get_submodule("lstm").named_parameters()}
    assert names == {name for name, _ in nn.LSTM(8, 6).named_parameters()}
    upscale.save(pruned, tmp_path / "lstm.safetensors")
    fresh = Recurrent(kind).double()
    assert torch.equal(upscale.load(tmp_path / "lstm.safetensors", fresh)(x), pruned(x))


class Tokens(nn.Module):
    """Normalised embeddings, norms and attention: no layers a selection names, yet computed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = spectral_norm(nn.Embedding(9, 8))
        self.norm = own(nn.LayerNorm(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        parametrize.register_parametrization(self.attention, "in_proj_weight", Squashed())
        own(self.attention.out_proj)
        self.wide, self.narrow = weight_norm(nn.Linear(8, 12)), weight_norm(nn.Linear(12, 3))
        self.gain = nn.Parameter(torch.ones(8))
        parametrize.register_parametrization(self, "gain", Squashed())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens)) * self.gain
        x = x + self.attention(x, x, x, need_weights=False)[0]
        made: Tensor = self.narrow(F.gelu(self.wide(x)))
        return made


def test_whatever_module_computes_a_tensor_stores_it() -> None:
    torch.manual_seed(0)
    model, tokens = Tokens().double().eval(), torch.randint(0, 9, (2, 5))
    plain = settled(model)
    assert type(plain) is Tokens
    assert not any(parametrize.is_parametrized(module) for module in plain.modules())
    assert close(plain(tokens), model(tokens))
    selection = Selection(kept={"narrow": [0, 4, 7], "wide": [0, 3], "attention.out_proj": [1, 5]})
    pruned = upscale.export(model, upscale.plan(model, tokens, selection))
    assert close(pruned(tokens), upscale.mask(model, selection)(tokens))
    assert pruned.get_submodule("wide").out_features == 3


def test_a_model_that_is_one_layer_can_be_pruned() -> None:
    torch.manual_seed(0)
    model, x = spectral_norm(nn.Linear(6, 4)).double().eval(), torch.randn(3, 6).double()
    plain = settled(model)
    assert torch.equal(plain(x), model(x))
    pruned = upscale.export(model, upscale.plan(model, x, Selection(kept={"": [0, 2]})))
    assert close(pruned(x), upscale.mask(model, Selection(kept={"": [0, 2]}))(x))


def test_masks_of_torchs_own_and_normalised_weights_settle_together() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), weight_norm(nn.Linear(8, 8)), nn.Linear(8, 2)).double()
    prune.ln_structured(model[1], "weight_v", amount=0.5, n=2, dim=1)
    prune.ln_structured(model[2], "weight", amount=0.5, n=2, dim=1)
    x = torch.randn(4, 3, dtype=torch.float64)
    model.eval()(x)
    pruned = upscale.export(model, upscale.plan(model, x))
    assert [pruned.get_submodule(name).out_features for name in "01"] == [4, 4]
    assert close(pruned(x), model(x))
    assert {name for name, _ in pruned.named_parameters()} == {
        f"{layer}.{name}" for layer in "012" for name in ("weight", "bias")
    }


def test_results_of_the_last_call_do_not_stand_in_the_way() -> None:
    model = built(Branching, weight_norm).train()
    model(image(2, 12))
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    assert upscale.prune(model.eval(), image(2, 12), amount=0.5) is not None


def test_what_torch_made_permanent_can_be_saved(tmp_path: Path) -> None:
    model = permanent(built(Branching, parametrizations.weight_norm))
    pruned = upscale.prune(model, image(2, 12), amount=0.5)
    upscale.save(pruned, tmp_path / "pruned.safetensors")
    loaded = upscale.load(tmp_path / "pruned.safetensors")
    assert torch.equal(loaded(image(2, 12)), pruned(image(2, 12)))


def test_under_inference_mode_settled_weights_are_ordinary_parameters() -> None:
    model = built(Branching, spectral_norm)
    with torch.inference_mode():
        model(image(1, 8))  # leaves a result behind that is no ordinary tensor
        plain = settled(model)
    assert not any(tensor.is_inference() for tensor in plain.state_dict().values())
    plain(image(1, 8)).sum().backward()
    assert plain.first.weight.grad is not None


def test_frozen_parts_make_frozen_weights_and_trained_ones_make_weights_that_train() -> None:
    model = nn.Sequential(weight_norm(nn.Linear(4, 4)), own(nn.Linear(4, 2))).eval()
    model[0].weight_v.requires_grad = model[0].weight_g.requires_grad = False
    plain = settled(model)
    assert [layer.weight.requires_grad for layer in plain] == [False, True]


def test_standardised_layers_with_normalised_weights_export_exactly() -> None:
    class Standardised(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return F.conv2d(x, weight, self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), weight_norm(Standardised(8, 8, 3)), nn.Conv2d(8, 4, 1)
    )
    model = calm(model).double()
    selection = Selection(kept={"1": [0, 3, 4], "2": [1, 2]})
    pruned = upscale.export(model, upscale.plan(model, image(2, 8), selection))
    assert close(pruned(image(3, 9)), upscale.mask(model, selection)(image(3, 9)))


def test_a_file_that_names_a_parametrisation_is_refused_by_that_name() -> None:
    old = {"class": "nn.utils.parametrize.ParametrizationList", "arguments": {}}
    with pytest.raises(upscale.StoreError, match="ParametrizationList"):
        json_to_module(old)
