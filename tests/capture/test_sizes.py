"""An export fixes the sizes that its model fixes, says which, and refuses others with an error."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor
from torch.overrides import _get_current_function_mode_stack

import upscale
from trials.exactly import exported_exactly
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import image
from upscale import CaptureError, Selection, SizeError
from upscale.capture import torch_export


class Pair(nn.Module):
    """Two convolutions, for models to put something between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.between(self.first(x)).relu())
        return made


class Deciding(Pair):
    def between(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[-1] % 2 == 0 else x


class Flattening(Pair):
    """What torch.export checks here has minima and maxima in it."""

    def between(self, x: Tensor) -> Tensor:
        if x.shape[-1] > 99:
            return x
        pooled = nn.functional.pad(x, (-1, -1, -1, -1)).flatten(2).mean(2)
        return x + pooled[:, :, None, None]


def wide(batch: int, size: int) -> Tensor:
    return image(batch, size).double()


def pruned(model: nn.Module, x: Tensor) -> fx.GraphModule:
    return upscale.prune(calm(model), x, amount=0.5)


def test_a_size_that_would_decide_otherwise_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model = pruned(Deciding(), image(1, 12))
    upscale.save(model, tmp_path / "model.safetensors")
    for export in (model, upscale.load(tmp_path / "model.safetensors"), fx.symbolic_trace(model)):
        export(image(3, 16))
        with pytest.raises(SizeError, match=r"% 2 == 0.*export it again with an example") as raised:
            export(image(1, 13))
        assert isinstance(raised.value, (upscale.UpscaleError, AssertionError))


def test_what_cannot_be_written_out_still_raises_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("upscale.rewrite.guards._written_out", lambda *_: None)
    model = pruned(Deciding(), image(1, 12))
    with pytest.raises(SizeError, match="export it again"):
        model(image(1, 13))


def test_checks_with_minima_and_maxima_can_be_saved(tmp_path: Path) -> None:
    model = pruned(Flattening(), image(1, 12))
    upscale.save(model, tmp_path / "model.safetensors")
    x = image(2, 14)
    torch.testing.assert_close(upscale.load(tmp_path / "model.safetensors")(x), model(x))


class Measuring(Pair):
    """Asks for the length of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 8, 1, 1))

    def between(self, x: Tensor) -> Tensor:
        return x + self.query.repeat(len(x), 1, 1, 1)


class Remembering(Pair):
    """Computes what it adds anew whenever its input has another shape than the last."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: Any = None
        self.width, self.calls = 0, 0

    def between(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.shape != x.shape:
            count = x.shape[2] * x.shape[3]
            self.grid = torch.arange(count, dtype=x.dtype, device=x.device).view(x.shape[2:])
            self.shape = x.shape
        if self.width != x.shape[3]:
            self.row = torch.arange(x.shape[3], dtype=x.dtype, device=x.device)
            self.width = x.shape[3]
        return x + 0.01 * self.grid + self.row


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", [Measuring, Remembering])
def test_sizes_stay_free_where_the_model_asks_for_them_in_python(
    kind: type[Pair], batch: int
) -> None:
    torch.manual_seed(0)
    model = calm(kind()).double()
    model(wide(batch, 12))
    before = dict(vars(model))
    _, plan = exported_exactly(model, random_selection(model, 0.4, 0))
    assert plan.fixed == ("x.shape[1] = 3: as torch.export tells, the model takes no other",)
    assert vars(model) == before
    assert not any(isinstance(value, FakeTensor) for value in vars(model).values())
    assert "len" not in globals()


class Needing(Pair):
    """Computes with the width of its last input."""

    width = 5

    def between(self, x: Tensor) -> Tensor:
        last, self.width = self.width, x.shape[3]
        return x * (2 if last == x.shape[3] else last)


def test_what_a_model_remembers_and_needs_is_not_forgotten() -> None:
    model = calm(Needing()).double()
    x = wide(2, 12)
    model(x)
    selection = Selection(kept={"second": [0, 2]})
    export = upscale.export(model, upscale.plan(model, x, selection))
    torch.testing.assert_close(export(x), upscale.mask(model, selection)(x))


class OneByOne(Pair):
    def between(self, x: Tensor) -> Tensor:
        return torch.stack([part * (index + 1) for index, part in enumerate(x)])


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_that_the_model_fixes_is_the_example_s_and_is_named(batch: int) -> None:
    model = calm(OneByOne()).double()
    selection = Selection(kept={"second": [0, 2]})
    plan = upscale.plan(model, wide(batch, 12), selection)
    export = upscale.export(model, plan)
    x = wide(batch, 12)
    torch.testing.assert_close(export(x), upscale.mask(model, selection)(x))
    assert f"x.shape[0] = {batch}" in str(plan)
    with pytest.raises(SizeError, match="export it again"):
        export(wide(2, 12))


class Holding(Pair):
    """Holds a function that knows the model itself, and no copy of it."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Conv2d(8, 8, 1)
        self.shape: Any = None
        self.call = lambda x: self.middle(x)

    def between(self, x: Tensor) -> Tensor:
        if self.shape != x.shape:
            self.shape = x.shape
            self.bias = x.new_zeros(x.shape[-1:])
        made: Tensor = self.call(x) + self.bias
        return made


def test_a_model_that_holds_on_to_itself_is_captured_as_it_is_and_left_so() -> None:
    torch.manual_seed(0)
    model = calm(Holding()).double()
    before = dict(vars(model))
    x, selection = wide(2, 12), random_selection(model, 0.4, 1)
    plan = upscale.plan(model, x, selection)
    assert not plan.report.unreached
    assert vars(model) == before
    for layer in ("middle", "second"):
        with torch.no_grad():  # the copy that is masked holds on to the model too
            model.get_submodule(layer).weight[:, list(set(range(8)) - {*selection.kept[layer]})] = 0
    torch.testing.assert_close(upscale.export(model, plan)(x), model(x))


class Slow(Pair):
    """Takes its time where the width of an image is no plain number."""

    def between(self, x: Tensor) -> Tensor:
        start = time.thread_time()
        while isinstance(x.shape[3], torch.SymInt) and time.thread_time() - start < 1.2:
            x = x + 0.0
        return x * 2 if x.shape[0] > 0 else x


def test_an_export_that_takes_too_long_leaves_the_batch_alone_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_export, "SECONDS", 1.0)
    model = calm(Slow()).double()
    selection = Selection(kept={"second": [0, 2]})
    plan = upscale.plan(model, wide(1, 12), selection)
    assert "x.shape[3] = 12: with every size free torch.export takes longer" in str(plan)
    export, masked = upscale.export(model, plan), upscale.mask(model, selection)
    for batch in (1, 3):
        x = wide(batch, 12)
        torch.testing.assert_close(export(x), masked(x))
    with pytest.raises(SizeError, match=r"== 12.*export it again"):
        export(wide(1, 16))
    assert _get_current_function_mode_stack() == []
    _, after = exported_exactly(calm(Deciding()).double(), selection)
    assert after.fixed == ("x.shape[1] = 3: as torch.export tells, the model takes no other",)


class Weighing(Pair):
    def between(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


def test_torch_export_keeps_its_graphs_to_itself(capfd: pytest.CaptureFixture[str]) -> None:
    handlers = [*logging.getLogger().handlers, logging.lastResort]
    before = [list(handler.filters) for handler in handlers if handler is not None]
    with pytest.raises(CaptureError, match="Could not guard on data-dependent expression"):
        upscale.plan(Weighing().eval(), image(1, 12))
    assert capfd.readouterr().err == ""
    assert [list(handler.filters) for handler in handlers if handler is not None] == before


class Optional(Pair):
    """Takes inputs by keyword that its signature does not name."""

    def forward(self, x: Tensor, **inputs: Any) -> Tensor:
        if x.shape[-1] > 99:
            return x
        made: Tensor = self.second(self.first(x) * inputs["scale"] + inputs["shift"])
        return made


def test_keyword_inputs_that_the_signature_does_not_name_are_inputs() -> None:
    def example(batch: int, size: int) -> dict[str, Tensor]:
        x = wide(batch, size)
        return {"shift": x.mean((2, 3))[:, :1, None, None], "x": x, "scale": x[:, :1].sigmoid()}

    model = calm(Optional()).double()
    exported_exactly(model, random_selection(model, 0.4, 0), example)


class Cache:
    """What a language model keeps between calls."""

    def __init__(self, seen: Tensor) -> None:
        self.seen = seen


class Caching(Pair):
    def forward(self, x: Tensor, use_cache: bool = True) -> Any:
        made = super().forward(x)
        return (made, Cache(x)) if use_cache else made


def test_a_model_that_returns_a_cache_is_told_to_switch_it_off() -> None:
    model = calm(Caching())
    with pytest.raises(CaptureError, match=r"Caching returns a Cache.*use_cache=False"):
        upscale.plan(model, image(1, 12))
    upscale.plan(model, {"x": image(1, 12), "use_cache": False})


class Doubled(nn.Conv2d):
    """A layer that computes otherwise than the class it derives from."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Unreached(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.beside = Doubled(8, 8, 1)


def test_a_selection_may_name_a_derived_layer_that_is_never_reached() -> None:
    model = calm(Unreached()).double()
    _, plan = exported_exactly(model, Selection(kept={"beside": [0, 1], "second": [1, 5]}))
    assert "beside.weight" in plan.report.unreached
