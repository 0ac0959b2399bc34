"""Which BatchNorm is a layer's own: the masks' search in graphs and the oracle's by watching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trials.nets import StandardisedConv2d, conv
from upscale import masking, oracle
from upscale.capture import Example

Expected = dict[str, tuple[str, ...]]


class Net(nn.Module):
    """Two convolutions and two BatchNorms, put together by a function."""

    def __init__(self, wire: Callable[[Any, Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.a, self.b = conv(3, 3), conv(3, 3)
        self.n, self.m = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.wire = wire
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.wire(self, x)


def sized(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    return net.n(y) * y.shape[-1]


def twice_the_same(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    return net.n(net.a(net.n(y)))


def added(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    return net.n(y) + y


def returned(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = net.a(x)
    return net.n(y), y


def read_by_two(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    return net.n(y) + net.m(y)


OWN: Expected = {"a": ("n",)}
CASES: dict[str, tuple[Callable[[], nn.Module], Expected]] = {
    "directly after": (lambda: Net(lambda s, x: s.n(s.a(x)).relu()), OWN),
    "one each": (lambda: Net(lambda s, x: s.m(s.b(s.n(s.a(x))))), {**OWN, "b": ("m",)}),
    "after an identity": (lambda: Net(lambda s, x: s.n(s.i(s.a(x))), i=nn.Identity()), OWN),
    "after a dropout that drops nothing": (
        lambda: Net(lambda s, x: s.n(s.d(s.a(x))), d=nn.Dropout2d()),
        OWN,
    ),
    "after a function that drops nothing": (
        lambda: Net(lambda s, x: s.n(F.dropout(s.a(x), 0.5, s.training))),
        OWN,
    ),
    "beside a question for the shape": (lambda: Net(sized), OWN),
    "after a padded layer": (
        lambda: Net(lambda s, x: s.n(s.r(x)), r=conv(3, 3, padding_mode="reflect")),
        {"r": ("n",)},
    ),
    "after both calls of a layer": (
        lambda: Net(lambda s, x: s.m(s.a(s.n(s.a(x))))),
        {"a": ("n", "m")},
    ),
    "after one of two calls": (lambda: Net(lambda s, x: s.a(s.n(s.a(x)))), {}),
    "the same after both calls": (lambda: Net(twice_the_same), {}),
    "after an activation": (lambda: Net(lambda s, x: s.n(s.a(x).relu())), {}),
    "after a sum": (lambda: Net(lambda s, x: s.n(s.a(x) + s.b(x))), {}),
    "beside a sum": (lambda: Net(added), {}),
    "beside what is returned": (lambda: Net(returned), {}),
    "two of them": (lambda: Net(read_by_two), {}),
    "of another kind": (
        lambda: Net(lambda s, x: s.o(s.a(x)), o=nn.InstanceNorm2d(3, affine=True)),
        {},
    ),
    "after a layer that computes its weight": (
        lambda: Net(lambda s, x: s.n(s.w(x)), w=StandardisedConv2d(3, 3, 3, padding=1)),
        {},
    ),
    "after vectors": (
        lambda: Net(lambda s, x: s.v(s.l(x.mean((2, 3)))), l=nn.Linear(3, 3), v=nn.BatchNorm1d(3)),
        {"l": ("v",)},
    ),
    "along the rows of a matrix": (
        lambda: Net(lambda s, x: s.v(s.l(x.mean(2))), l=nn.Linear(8, 3), v=nn.BatchNorm1d(3)),
        {},
    ),
}


def by_export(model: nn.Module, example: Tensor, monkeypatch: pytest.MonkeyPatch) -> Expected:
    def fail(*_: object) -> None:
        raise RuntimeError("not symbolically")

    monkeypatch.setattr("upscale.capture.capture_model.trace_symbolically", fail)
    return masking.find_norms(model, example)


def by_watching(model: nn.Module, example: Tensor, monkeypatch: pytest.MonkeyPatch) -> Expected:
    names = {module: name for name, module in model.named_modules()}
    found = oracle._norms(model, Example.of(example))
    return {names[layer]: tuple(norms) for layer, norms in found.items()}


FINDERS = {
    "symbolically": lambda model, example, _: masking.find_norms(model, example),
    "by export": by_export,
    "by watching": by_watching,
}


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("case", CASES)
def test_a_batch_norm_is_a_layers_own_if_nothing_else_reads_what_the_layer_makes(
    case: str, finder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, expected = CASES[case]
    assert FINDERS[finder](make().eval(), torch.randn(2, 3, 8, 8), monkeypatch) == expected


def test_batch_norms_are_found_under_every_name_of_a_layer() -> None:
    model = Net(lambda s, x: s.n(s.a(x))).eval()
    model.alias = model.a
    assert masking.find_norms(model) == {"a": ("n",), "alias": ("n",)}
