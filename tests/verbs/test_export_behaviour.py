"""An export is a module like any other: it trains, traces, compiles, exports, copies and saves."""

from __future__ import annotations

import copy
import functools
import io
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import upscale
from trials.comparing import relative_error
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import (
    NETS,
    CalledTwice,
    Plain,
    Residual,
    SharedWeight,
    TiedAutoencoder,
    WeightStandardised,
    image,
)
from upscale import Selection
from upscale.capture import Example
from upscale.verify import TOLERANCE, compare
from upscale.zoo import torchvision_model

# A stream with many readers, concatenation, a gate, shuffles, transposed, grouped and 1d
# convolutions, a flatten, attention, a tied weight, and a whole model.
NAMES = """
    Residual InPlaceResidual Dense SqueezeExcite Shuffle UNet Grouped InvertedResidual Flattened
    OneDimensional Attention ChannelsLastBlock SharedWeight PaddedShortcut resnet18
""".split()
SPATIAL = """
    Residual InPlaceResidual Dense SqueezeExcite Shuffle UNet Grouped InvertedResidual resnet18
""".split()

TRAINABLE = [name for name in NAMES if name != "InPlaceResidual"]  # nor does it train unpruned
GATHERING = ["Residual", "Dense", "Inception", "UNet", "Attention", "resnet18"]

every_net = pytest.mark.parametrize("name", NAMES)
every_trainable_net = pytest.mark.parametrize("name", TRAINABLE)
every_spatial_net = pytest.mark.parametrize("name", SPATIAL)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def example(name: str, batch: int) -> Tensor:
    if name == "resnet18":
        return image(batch, 64)
    return NETS[name][1](batch, 12)


@functools.cache
def _made(name: str, order: str) -> tuple[nn.Module, upscale.Selection, upscale.Plan]:
    torch.manual_seed(1)
    model = calm(torchvision_model(name) if name == "resnet18" else NETS[name][0]())
    selection = random_selection(model, 0.5, seed=2, empty=False)
    return model, selection, upscale.plan(model, example(name, 1), selection, order=order)


def made(name: str, order: str = "none") -> tuple[nn.Module, fx.GraphModule]:
    """The masked model and its export; in the order `none` most readers gather."""
    model, selection, plan = _made(name, order)
    return upscale.mask(model, selection), upscale.export(model, plan)


def assert_same(ours: Any, theirs: Any, *, within: float = 1e-5) -> None:
    scale = float(theirs.detach().abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within * scale)


# Training.


@every_trainable_net
def test_one_step_of_training_lowers_the_loss_and_moves_every_parameter(name: str) -> None:
    _, exported = made(name)  # in evaluation mode: in training BatchNorm ignores biases before it
    x = example(name, 4)
    target = torch.randn_like(exported(x))
    before = {path: p.detach().clone() for path, p in exported.named_parameters()}

    def loss() -> Tensor:
        return (exported(x) - target).square().mean()

    first = loss()
    first.backward()
    for path, parameter in exported.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.any(), path
    steepness = sum(p.grad.square().sum().item() for p in exported.parameters())
    optimiser = torch.optim.SGD(exported.parameters(), lr=0.01 * first.item() / steepness)
    optimiser.step()
    assert loss().item() < first.item()
    for path, parameter in exported.named_parameters():
        assert not torch.equal(parameter, before[path]), path


@pytest.mark.parametrize("name", ["Residual", "Dense", "SqueezeExcite", "Grouped", "resnet18"])
def test_gradients_equal_the_masked_models_where_weights_are_kept(name: str) -> None:
    masked, exported = (model.double() for model in made(name))
    x = example(name, 2).double()
    for model in (masked, exported):
        out = model(x)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    plan = _made(name, "none")[2]
    theirs = dict(masked.named_parameters())
    for path, parameter in exported.named_parameters():
        expected = theirs[path].grad
        for axis, indices in sorted(plan.weights.cuts.get(path, {}).items()):
            expected = expected.index_select(axis, torch.tensor(indices))
        assert_same(parameter.grad, expected, within=1e-10)


@every_trainable_net
def test_training_an_export_leaves_the_original_unchanged(name: str) -> None:
    model = _made(name, "none")[0]
    before = {path: value.clone() for path, value in model.state_dict().items()}
    _, exported = made(name)
    ours = {t.untyped_storage().data_ptr() for t in exported.state_dict().values()}
    theirs = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
    assert not ours & theirs
    exported.train()
    optimiser = torch.optim.SGD(exported.parameters(), lr=0.1)
    exported(example(name, 4)).square().mean().backward()
    optimiser.step()
    assert all(torch.equal(value, before[path]) for path, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["Plain", "Residual", "Dense", "InvertedResidual", "CalledTwice"])
def test_an_export_captured_in_train_mode_equals_the_masked_model_in_train_mode(name: str) -> None:
    make, inputs = NETS[name]
    model = calm(make()).train()
    selection = random_selection(model, 0.5, seed=4)
    exported = upscale.export(model, upscale.plan(model, inputs(2, 12), selection))
    masked = upscale.mask(model, selection)
    assert exported.training
    assert compare(exported, masked, Example.of(inputs(3, 8))).exact
    x = inputs(4, 8).double()
    masked.double()(x)
    exported.double()(x)
    for path, ours in exported.named_buffers():
        if path.endswith("num_batches_tracked"):
            assert torch.equal(ours, masked.get_buffer(path)), path


def test_running_statistics_go_on_as_the_masked_models_do() -> None:
    model = calm(Plain()).train()
    selection = Selection(kept={"b": [0, 3, 7]})
    exported = upscale.export(model, upscale.plan(model, image(2, 8), selection, order="none"))
    masked = upscale.mask(model, selection)
    x = image(4, 8)
    exported(x), masked(x)
    assert_same(exported.n.running_mean, masked.n.running_mean[[0, 3, 7]])
    assert_same(exported.n.running_var, masked.n.running_var[[0, 3, 7]])


def test_an_export_switches_between_training_and_evaluation() -> None:
    model = calm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.Conv2d(8, 4, 3)))
    exported = upscale.prune(model, image(1, 8), amount=0.5)
    x = image(2, 8)
    assert torch.equal(exported(x), exported(x))
    exported.train()
    assert not torch.equal(exported(x), exported(x))
    exported.eval()
    assert torch.equal(exported(x), exported(x))


def test_flags_that_say_what_trains_survive() -> None:
    model = calm(Residual())
    model.stem.weight.requires_grad_(False)
    model.blocks[1].requires_grad_(False)
    selection = random_selection(model, 0.5, seed=2, empty=False)
    exported = upscale.export(model, upscale.plan(model, image(1, 8), selection))
    theirs = dict(model.named_parameters())
    for path, parameter in exported.named_parameters():
        assert parameter.requires_grad == theirs[path].requires_grad, path


# Other forms of the same module.


# `torch.jit` says of itself that it is deprecated; people deploy with it all the same.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
# Tracing notes that a size became a constant; the graph's own checks and views ask for sizes.
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@every_net
def test_a_jit_trace_and_its_frozen_form_compute_the_same(name: str) -> None:
    _, exported = made(name)
    x = example(name, 1)
    traced = torch.jit.trace(exported, x)
    frozen = torch.jit.freeze(traced)
    other = torch.randn_like(x)
    with torch.no_grad():
        assert_same(traced(other), exported(other))
        assert_same(frozen(other), exported(other))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
# It says so of every `fx.GraphModule`, whose own constructor annotates an attribute.
@pytest.mark.filterwarnings("ignore:The TorchScript type system doesn't support:UserWarning")
@pytest.mark.parametrize("name", ["Residual", "Dense", "Inception", "resnet18"])
def test_a_jit_script_computes_the_same(name: str) -> None:
    _, exported = made(name)
    scripted = torch.jit.script(exported)
    x = example(name, 2)
    with torch.no_grad():
        assert_same(scripted(x), exported(x))


# Of each backend what the other meets too is heavy: the whole model, and most of the nets.
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "aot_eager") for name in NAMES),
        *(pytest.param(name, "eager", marks=pytest.mark.heavy) for name in NAMES[1:]),
        (NAMES[0], "eager"),
    ],
)
def test_a_compiled_export_computes_the_same_in_one_graph(name: str, backend: str) -> None:
    _, exported = made(name)
    torch.compiler.reset()
    compiled = torch.compile(exported, backend=backend, fullgraph=True)
    with torch.no_grad():
        for batch in (2, 3):
            x = example(name, batch)
            assert_same(compiled(x), exported(x))


# Inductor itself still scripts a method or two.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
def test_an_export_compiled_to_machine_code_computes_the_same() -> None:
    _, exported = made("Dense")
    torch.compiler.reset()
    compiled = torch.compile(exported)
    x = example("Dense", 2)
    with torch.no_grad():
        assert_same(compiled(x), exported(x))


@every_net
def test_an_exported_program_takes_any_batch_and_computes_the_same(name: str) -> None:
    _, exported = made(name)
    program = torch.export.export(
        exported,
        (example(name, 2),),
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        strict=False,
    )
    module = program.module()
    with torch.no_grad():
        for batch in (2, 5):
            x = example(name, batch)
            assert_same(module(x), exported(x))


@every_net
def test_a_symbolic_trace_of_an_export_computes_the_same(name: str) -> None:
    _, exported = made(name)
    x = example(name, 2)
    assert torch.equal(fx.symbolic_trace(exported)(x), exported(x))


@pytest.mark.parametrize("name", ["Residual", "Dense", "Shuffle", "Grouped"])
def test_an_export_can_be_pruned_again(name: str) -> None:
    _, exported = made(name)
    selection = random_selection(exported, 0.4, seed=7)
    again = upscale.export(exported, upscale.plan(exported, example(name, 1), selection))
    masked = upscale.mask(exported, selection)
    assert relative_error(again, masked, example(name, 3)) <= TOLERANCE


# Copies and files.


@every_net
def test_a_deepcopy_computes_the_same_and_shares_nothing(name: str) -> None:
    _, exported = made(name)
    twin = copy.deepcopy(exported)
    x = example(name, 2)
    before = exported(x)
    assert torch.equal(twin(x), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(exported(x), before)


@every_net
def test_a_state_dict_goes_into_a_fresh_export_of_the_same_plan(name: str) -> None:
    _, exported = made(name)
    with torch.no_grad():
        for parameter in exported.parameters():
            parameter.mul_(1.1)
    file = io.BytesIO()
    torch.save(exported.state_dict(), file)
    file.seek(0)
    _, fresh = made(name)
    x = example(name, 2)
    assert not torch.equal(fresh(x), exported(x))
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh(x), exported(x))


@pytest.mark.parametrize("order", ["none", "optimal"])
@every_net
def test_the_keys_of_a_state_dict_are_the_originals(name: str, order: str) -> None:
    model, _, _ = _made(name, order)
    _, exported = made(name, order)
    assert exported.state_dict().keys() <= model.state_dict().keys()


@pytest.mark.parametrize("name", GATHERING)
def test_the_indices_of_gathers_are_not_in_the_state_dict(name: str) -> None:
    model, _, plan = _made(name, "none")
    _, exported = made(name)
    edges = (*plan.graph.edges, *plan.graph.joins)
    assert any(piece.indices for edge in edges for piece in edge.pieces)
    assert any(path.startswith("gathers.") for path, _ in exported.named_buffers())
    assert exported.state_dict().keys() <= model.state_dict().keys()


def test_the_keys_of_a_state_dict_are_the_originals_where_layers_keep_nothing() -> None:
    model = calm(Residual())
    selection = Selection(kept={"blocks.1.0": [], "blocks.2.3": [], "head": [1, 5]})
    exported = upscale.export(model, upscale.plan(model, image(1, 8), selection))
    assert exported.state_dict().keys() <= model.state_dict().keys()


@every_net
def test_a_whole_export_pickles(name: str) -> None:
    _, exported = made(name)
    file = io.BytesIO()
    torch.save(exported, file)
    file.seek(0)
    x = example(name, 2)
    assert torch.equal(torch.load(file, weights_only=False)(x), exported(x))


# Kinds of numbers, formats of memory, sizes of batches.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_spatial_net
def test_a_model_in_half_precision_exports_and_runs_in_it(name: str, dtype: torch.dtype) -> None:
    model, selection, _ = _made(name, "none")
    half, x = copy.deepcopy(model).to(dtype), example(name, 2).to(dtype)
    exported = upscale.export(half, upscale.plan(half, x[:1], selection))
    masked = upscale.mask(half, selection)
    assert {p.dtype for p in exported.parameters()} == {dtype}
    with torch.no_grad():
        ours, theirs = exported(x), masked(x)
    assert ours.dtype == dtype
    wide = copy.deepcopy(masked).double()(x.double()).detach()
    # No further from the truth than twice as far as the masked model itself is.
    allowed = 2 * (theirs - wide).abs().max() + torch.finfo(dtype).eps * wide.abs().max()
    assert (ours - wide).abs().max() <= allowed
    assert compare(exported, masked, Example.of(x)).exact


@pytest.mark.parametrize("order", ["none", "optimal"])
@every_spatial_net
def test_an_export_of_a_channels_last_model_equals_it_and_its_weights_stay_channels_last(
    name: str, order: str
) -> None:
    model, selection, _ = _made(name, order)
    model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    x = example(name, 2).to(memory_format=torch.channels_last)
    exported = upscale.export(model, upscale.plan(model, x[:1], selection, order=order))
    masked = upscale.mask(model, selection)
    assert compare(exported, masked, Example.of(x)).exact
    with torch.no_grad():
        ours, theirs = exported(x), masked(x)
    assert_same(ours, theirs, within=1e-4)
    for path, parameter in exported.named_parameters():
        if parameter.dim() == 4:
            assert parameter.is_contiguous(memory_format=torch.channels_last), path


@every_spatial_net
def test_an_export_takes_channels_last_input_all_the_same(name: str) -> None:
    masked, exported = made(name)
    x = example(name, 3).to(memory_format=torch.channels_last)
    assert compare(exported, masked, Example.of(x)).exact


@every_net
def test_an_export_takes_batches_above_one(name: str) -> None:
    masked, exported = made(name, "optimal")
    assert relative_error(exported, masked, example(name, 7)) <= TOLERANCE


@pytest.mark.parametrize("name", [name for name in NAMES if name != "PaddedShortcut"])  # mixes
def test_images_of_a_batch_do_not_see_each_other(name: str) -> None:
    _, exported = made(name)
    x = example(name, 3)
    with torch.no_grad():
        assert_same(exported(x)[1:2], exported(x[1:2]))


# What the original's modules share, and what hangs on them.


def test_tied_weights_stay_tied() -> None:
    model = calm(SharedWeight())
    selection = Selection(kept={"a": [0, 2, 5], "b": [0, 2, 5], "head": [1, 3]})
    exported = upscale.export(model, upscale.plan(model, image(1, 8), selection))
    assert exported.a.weight is exported.b.weight
    assert tuple(exported.a.weight.shape[:2]) == (2, 3)
    twin = copy.deepcopy(exported)
    assert twin.a.weight is twin.b.weight


def test_a_weight_used_twice_is_one_parameter() -> None:
    model = calm(TiedAutoencoder())
    x = torch.randn(1, 12)
    exported = upscale.export(model, upscale.plan(model, x, Selection(kept={"code": [0, 3, 4, 9]})))
    assert len(list(exported.parameters())) == len(list(model.parameters()))


def test_a_module_called_twice_is_one_module() -> None:
    model = calm(CalledTwice())
    selection = random_selection(model, 0.5, seed=1, empty=False)
    exported = upscale.export(model, upscale.plan(model, image(1, 8), selection))
    called = [node.target for node in exported.graph.nodes if node.op == "call_module"]
    assert called.count("again") == 2
    assert exported.state_dict().keys() == model.state_dict().keys()


def test_a_hook_on_a_layer_is_part_of_what_the_export_computes() -> None:
    model = calm(Plain())
    model.a.register_forward_hook(lambda layer, inputs, output: output * 2)
    model.n.register_forward_pre_hook(lambda layer, inputs: (inputs[0] + 1,))
    selection = Selection(kept={"b": [0, 3, 7]})
    exported = upscale.export(model, upscale.plan(model, image(1, 8), selection))
    assert exported.a.out_channels == 3
    assert compare(exported, upscale.mask(model, selection), Example.of(image(2, 8))).exact


def test_hooks_put_on_the_original_later_do_not_run_in_the_export_nor_the_other_way() -> None:
    model, seen = calm(Plain()), []
    selection = Selection(kept={"b": [0, 3, 7]})
    exported = upscale.export(model, upscale.plan(model, image(1, 8), selection))
    for module in model.modules():
        module.register_forward_hook(lambda *_: seen.append("original"))
    exported(image(1, 8))
    assert seen == []
    exported.b.register_forward_hook(lambda *_: seen.append("export"))
    model(image(1, 8))
    assert set(seen) == {"original"}


@pytest.mark.parametrize("verb", ["plan", "select", "prune"])
def test_no_verb_calls_the_hooks_of_the_original_with_tensors_that_hold_no_numbers(
    verb: str,
) -> None:
    model, seen = calm(Plain()), []
    model.a.register_forward_hook(lambda layer, inputs, output: seen.append(output.mean().item()))
    options = {} if verb == "plan" else {"amount": 0.5}
    getattr(upscale, verb)(model, image(1, 8), **options)
    assert all(isinstance(value, float) for value in seen)


@pytest.mark.parametrize("make", [Residual, WeightStandardised])
def test_the_masks_hooks_do_not_come_along_into_the_export(make: type[nn.Module]) -> None:
    model = calm(make())
    masked = upscale.mask(model, random_selection(model, 0.5, seed=3, empty=False))
    exported = upscale.export(masked, upscale.plan(masked, image(1, 8)))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in exported.modules())
    assert compare(exported, masked, Example.of(image(2, 8))).exact


class TwoConcatenations(nn.Module):
    """Two layers whose results are concatenated both ways, and one of them read alone."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.ab, self.ba, self.alone = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        both: Tensor = self.ab(torch.cat([a, b], 1)) + self.ba(torch.cat([b, a], 1))
        return both + self.alone(a)


def test_a_slice_that_several_nodes_read_is_made_once() -> None:
    model, x = TwoConcatenations(), torch.randn(1, 3, 5, 5)
    selection = Selection(kept={"ab": [0, 1, 4, 5], "ba": [2, 3, 4, 5]})
    pruned = upscale.export(model, upscale.plan(model, x, selection))
    slices = [node for node in pruned.graph.nodes if node.target is torch.narrow]
    assert len({node.args for node in slices}) == len(slices)
    assert max(len(node.users) for node in slices) == 2
    assert compare(pruned, upscale.mask(model, selection), Example.of(x)).exact


class Counting(nn.Module):
    """Adds up along its channels, which needs them in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        x = x.cumsum(1)
        out: Tensor = self.after(x)
        return out


def test_what_freezes_is_reported_with_its_line_of_the_models_code() -> None:
    (frozen,) = upscale.plan(Counting(), torch.randn(1, 3), Selection(kept={})).frozen[:1]
    line = Counting.forward.__code__.co_firstlineno + 2
    assert frozen.source == f"test_export_behaviour.py:{line}"


def test_nothing_is_reported_of_the_code_that_calls_a_model_of_torchs_own_parts() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    assert {frozen.source for frozen in upscale.plan(model, torch.randn(1, 3)).frozen} == {""}


VIEWED = {
    "a concatenation": lambda y: torch.cat((y[..., :2], y[..., 6:]), -1).view(y.size(0), -1),
    "sizes by name": lambda y: torch.cat((y[..., :2], y[..., 6:]), -1).view(size=(y.size(0), -1)),
    "a copy of a part": lambda y: y[..., 4:].contiguous().view(y.size(0), -1),
    "as another tensor": lambda y: y[..., 4:].contiguous().view_as(y[..., :4]).flatten(1),
    "a rolled part": lambda y: y.roll(2, -1).chunk(2, -1)[0].contiguous().view(y.size(0), -1),
    "other bits": lambda y: y[..., 4:].view(torch.int64).view(dtype=y.dtype).flatten(1),
}


class Viewed(nn.Module):
    """Tokens that one layer reads whole, and another through a view of a part."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.tokens, self.whole, self.part = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(24, 2)
        self.view = view

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.tokens(x)
        return self.whole(y), self.part(self.view(y))


@pytest.mark.parametrize("order", ["optimal", "none"])
@pytest.mark.parametrize("what", VIEWED)
def test_a_view_of_what_has_become_a_slice_still_works(what: str, order: str) -> None:
    model, x = Viewed(VIEWED[what]).double(), torch.randn(4, 6, 3).double()
    selection = Selection(kept={"part": [column for column in range(24) if column % 4 > 1]})
    exported = upscale.export(model, upscale.plan(model, x, selection, order=order))
    assert compare(exported, upscale.mask(model, selection), Example.of(x)).exact
