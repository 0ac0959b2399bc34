"""Rows times a weight as a matrix is what the layer computes, whatever the layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trials.comparing import error_between
from upscale.recovery.geometry import Geometry
from upscale.recovery.sites import find_sites
from upscale.subject import Subject

LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (3, 6)),
    "linear of tokens": (lambda: nn.Linear(6, 5, bias=False), (3, 4, 6)),
    "1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1), (3, 4, 9)),
    "2d": (lambda: nn.Conv2d(4, 6, 3, padding=1), (3, 4, 7, 8)),
    "2d, strided, dilated": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (2, 0), (2, 1)), (3, 4, 9, 8)),
    "2d, same": (lambda: nn.Conv2d(4, 6, (4, 3), padding="same"), (3, 4, 7, 8)),
    "2d, mirrored": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (3, 4, 7, 8)),
    "2d, round": (
        lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="circular"),
        (3, 4, 7, 8),
    ),
    "3d": (lambda: nn.Conv3d(2, 3, (1, 3, 2), padding=(0, 1, 1)), (3, 2, 4, 5, 6)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (3, 4, 7, 8)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4), (3, 4, 7, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (3, 4, 5, 6)),
    "transposed, grouped, dilated": (
        lambda: nn.ConvTranspose2d(4, 6, (2, 3), (2, 1), (0, 1), groups=2, dilation=(1, 2)),
        (3, 4, 5, 6),
    ),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 4, 3, 1), (3, 4, 5)),
}


def geometry_of(layer: nn.Module, x: Tensor) -> Geometry:
    model = nn.Sequential(layer).double().eval()
    sites, _ = find_sites(Subject.of(model, x).captured, model)
    (site,) = sites.values()
    return site.geometry


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("some", [False, True])
def test_rows_times_the_weight_are_what_the_layer_makes(kind: str, some: bool) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer, x = make().double(), torch.randn(*shape, dtype=torch.float64)
    geometry = geometry_of(layer, x)
    matrix = geometry.as_matrix(layer.weight.detach())
    made = geometry.by_channel(layer(x).detach())
    places = torch.arange(0, made.shape[1], 2) if some else None
    rows = geometry.rows(x, torch.arange(matrix.shape[1]), places)
    product = torch.einsum("npgct,gcto->npgo", rows, matrix).flatten(2)
    bias = 0 if layer.bias is None else layer.bias.detach()
    wanted = made if places is None else made[:, places]
    assert error_between([product + bias], [wanted]) < 1e-12


@pytest.mark.parametrize("kind", LAYERS)
def test_a_matrix_becomes_the_weight_again(kind: str) -> None:
    make, shape = LAYERS[kind]
    layer, x = make().double(), torch.randn(*shape, dtype=torch.float64)
    geometry, weight = geometry_of(layer, x), layer.weight.detach()
    assert torch.equal(geometry.as_weight(geometry.as_matrix(weight), weight), weight)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_that_keeps_no_column_has_rows_without_entries(kind: str) -> None:
    make, shape = LAYERS[kind]
    layer, x = make().double(), torch.randn(*shape, dtype=torch.float64)
    geometry = geometry_of(layer, x)
    places = geometry.by_channel(layer(x)).shape[1]
    rows = geometry.rows(x, torch.arange(0), None)
    assert rows.shape == (shape[0], places, geometry.groups, 0, geometry.taps)
