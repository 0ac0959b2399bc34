"""What a model gives keeps its type in the export, with pruned tensors inside."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import register_pytree_node

import upscale
from trials.masks import random_selection
from upscale.capture import tensors_in
from upscale.errors import CaptureError, StoreError


@dataclasses.dataclass
class Given:
    logits: Tensor
    features: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Nested:
    given: Given
    more: dict[str, Any]


class Pair(NamedTuple):
    logits: Tensor
    features: Tensor


@dataclasses.dataclass
class Registered(OrderedDict):  # type: ignore[type-arg]
    """A dataclass that is a dict of what is there, and known to torch, as some libraries have."""

    logits: Any = None
    features: Any = None

    def __post_init__(self) -> None:
        for name in ("logits", "features"):
            if getattr(self, name) is not None:
                super().__setitem__(name, getattr(self, name))


register_pytree_node(
    Registered,
    lambda own: (list(own.values()), list(own.keys())),
    lambda values, keys: Registered(**dict(zip(keys, values, strict=True))),
    serialized_type_name=f"{__name__}.Registered",
)


class Slotted(OrderedDict):  # type: ignore[type-arg]
    """A dict that cannot be made of what is in it."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(first=first, second=second)


GIVES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "ordered": lambda y, x: OrderedDict([("z", y), ("a", x)]),
    "dataclass": lambda y, x: Given(y, x),
    "dataclass with a default": lambda y, x: Given(y),
    "frozen and nested": lambda y, x: Nested(Given(y, x.relu()), {"k": OrderedDict(q=[x])}),
    "within a tuple": lambda y, x: (OrderedDict(z=y), [Given(x)], 3),
    "namedtuple": lambda y, x: Pair(y, x),
    "registered": lambda y, x: Registered(logits=y, features=x),
    "registered with a default": lambda y, x: Registered(logits=y),
    "plain": lambda y, x: {"z": (y, [x])},
}


class Net(nn.Module):
    def __init__(self, gives: str, *, decides: bool) -> None:
        super().__init__()
        self.gives, self.decides = gives, decides
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.side = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Any:
        if self.decides and x.shape[-1] % 2:
            x = F.pad(x, (0, 1))
        x = self.first(x)
        return GIVES[self.gives](self.last(x), self.side(x))


def kinds(value: Any) -> Any:
    """The types of all that is in a value, and the names of its parts."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        items = list(value.items()) if isinstance(value, dict) else []
        parts = [*items, *((name, getattr(value, name)) for name in names)]
    elif isinstance(value, dict):
        parts = list(value.items())
    else:
        parts = list(enumerate(value)) if isinstance(value, (list, tuple)) else []
    return type(value), [(name, kinds(part)) for name, part in parts]


@pytest.mark.parametrize("decides", [False, True], ids=["fx", "export"])
@pytest.mark.parametrize("gives", GIVES)
def test_an_export_gives_what_the_model_gives(gives: str, decides: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net(gives, decides=decides).double()
    selection = random_selection(model, 0.5, 1)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    exported = upscale.export(model, upscale.plan(model, x, selection))
    shapes = {name: tuple(own.shape) for name, own in exported.named_parameters()}
    assert shapes["last.weight"][1] < 8
    expected = upscale.mask(model, selection)(x)
    path = tmp_path / "model.safetensors"
    ways = [exported]
    if gives in ("ordered", "plain"):
        upscale.save(exported, path)
        ways += [upscale.load(path), upscale.load(path, model)]
    else:
        with pytest.raises(StoreError, match=r"Given|Nested|Pair|namedtuple|Registered"):
            upscale.save(exported, path)
    for own in ways:
        found = own(x)
        assert kinds(found) == kinds(expected)
        ours, theirs = tensors_in(found), tensors_in(expected)
        assert len(ours) == len(theirs) > 0
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


class Strange(Net):
    def forward(self, x: Tensor) -> Any:
        return Slotted(self.last(self.first(x)), None)


def test_a_container_that_cannot_be_made_again_is_refused_by_name() -> None:
    model = Strange("plain", decides=False)
    with pytest.raises(CaptureError, match="forward makes a Slotted"):
        upscale.plan(model, torch.randn(1, 3, 8, 8))


class Takes(nn.Module):
    """Takes tensors in a dataclass beside a tensor, and an OrderedDict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, given: Any, named: Any) -> Any:
        return self.last(self.first(x + given.logits).relu() * named["scale"])


def test_inputs_in_containers_are_inputs_and_no_constants() -> None:
    torch.manual_seed(0)
    model = Takes().double()
    selection = random_selection(model, 0.5, 1)

    def example() -> tuple[Any, ...]:
        x, y, z = (torch.randn(3, size, dtype=torch.float64) for size in (4, 4, 1))
        return x, Given(y), OrderedDict(scale=z)

    exported = upscale.export(model, upscale.plan(model, example(), selection))
    masked = upscale.mask(model, selection)
    for _ in range(2):
        given = example()
        torch.testing.assert_close(exported(*given), masked(*given), rtol=1e-10, atol=1e-10)


def test_tensors_are_found_in_any_container() -> None:
    one = torch.zeros(1)
    held = [{"a": OrderedDict(b=one)}, Nested(Given(one, one), {"k": [one]}), Registered(one), 3]
    assert len(tensors_in(held)) == 5
