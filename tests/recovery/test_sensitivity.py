"""Errors count by how far they move what a model makes; held against derivatives taken by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import upscale
from upscale import Selection
from upscale.capture import Example
from upscale.recovery.sensitivity import LEAST, place_weights
from upscale.recovery.shelf import MEMORY
from upscale.recovery.sites import find_sites
from upscale.subject import Subject

# How much the model makes of each place: the last column it does not look at.
LOOKED_AT = torch.tensor([1.0, 3.0, 2.0, 0.0])


class Looking(nn.Module):
    """A layer that reads every place alike, and looks at some places more than at others."""

    def __init__(self, made: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Conv1d(6, 5, 1)
        self.head = nn.Linear(5, 3)
        self.register_buffer("looked_at", LOOKED_AT.double())
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self.head((self.layer(x) * self.looked_at).sum(dim=2)))


def weights_of(
    model: nn.Module, batches: list[Tensor], memory: int = MEMORY
) -> dict[str, list[Tensor]]:
    subject = Subject.of(model, batches[0])
    sites, _ = find_sites(subject.captured, subject.model)
    given = [Example((x,)) for x in batches]
    return place_weights(subject.captured, subject.model, given, sites, memory)


def drawn() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size, 6, 4).double() for size in (8, 5)]


def test_places_count_as_much_as_the_model_looks_at_them() -> None:
    batches = drawn()
    weights = weights_of(Looking(lambda made: made).double().eval(), batches)["layer"]
    assert [own.shape for own in weights] == [(8, 4), (5, 4)]
    for own in torch.cat(weights):
        assert torch.allclose(own[:3] / own[0], LOOKED_AT[:3] / LOOKED_AT[0])
        assert own[3] == torch.tensor(LEAST)
    mean = torch.cat(weights)[:, :3].sum() / (13 * 4)
    assert torch.allclose(mean, torch.ones(()))


def test_where_nothing_moves_smoothly_all_places_count_alike() -> None:
    batches = drawn()
    model = Looking(lambda made: made.argmax(dim=1)).double().eval()
    assert weights_of(model, batches) == {}


def test_where_a_batch_would_take_too_much_memory_all_places_count_alike() -> None:
    model = Looking(lambda made: made).double().eval()
    small, large = torch.randn(2, 6, 4).double(), torch.randn(200, 6, 4).double()
    enough = 1 << 15
    assert weights_of(model, [small], enough)
    assert weights_of(model, [small, large], enough) == {}


def test_what_matters_is_fitted_better() -> None:
    """Column 0 is gone; what it made has to be said by others, which cannot do so everywhere."""
    torch.manual_seed(0)
    model = Looking(lambda made: made).double().eval()
    batches = [torch.randn(64, 6, 4).double() for _ in range(8)]
    for x in batches:  # at each place something else goes with column 0
        x[:, 0] = torch.stack([x[:, 1 + place, place] for place in range(4)], dim=1)
    selection = Selection(kept={"layer": [1, 2, 3, 4, 5]})
    recovered = upscale.recover(model, selection, batches)
    x = torch.cat(batches)
    with torch.no_grad():
        error = (recovered.get_submodule("layer")(x) - model.layer(x)).square().mean(dim=(0, 1))
    assert error[1] < error[2] < error[0] < error[3]
