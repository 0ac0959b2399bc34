"""Two processes, each with half of the batches, make the model that one makes of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import upscale
from upscale import Recovery, Selection

PROCESSES = 2


class Block(nn.Module):
    """A residual block with norms, a norm of its own, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.conv1, self.norm1 = nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 12, 1), nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm0(self.stem(x)))
        y = self.conv2(torch.relu(self.norm1(self.conv1(x))))
        return self.head(torch.relu(self.norm2(y + x)).mean(dim=(2, 3)))


def made() -> tuple[nn.Module, list[Tensor]]:
    """A model, and batches of several sizes; the last two are too small to be split."""
    draws = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    model = Block().train()
    with torch.no_grad():
        for _ in range(10):
            model(torch.randn(32, 3, 8, 8, generator=draws))
    sizes = (40, 30, 20, 40, 3, 2)
    return model.eval().double(), [torch.randn(n, 3, 8, 8, generator=draws).double() for n in sizes]


KEPT = Selection(kept={"conv1": [0, 2, 3, 5, 7, 8, 11], "conv2": range(9), "head": range(8)})


def recovered(how: str, model: nn.Module, batches: list[Tensor]) -> nn.Module:
    if how == "given":
        return upscale.recover(model, KEPT, batches)
    if how == "chosen":
        return upscale.recover(model, KEPT, batches, choose=True)
    x = batches[0][:1]
    selection = upscale.select(
        model, x, amount=0.4, importance="reconstruction", scope="global", data=batches
    )
    return upscale.recover(model, selection, batches)


def work(rank: int, folder: str, how: str) -> None:
    torch.set_num_threads(1)
    place = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=PROCESSES)
    model, batches = made()
    found = recovered(how, model, batches[rank::PROCESSES])
    told: Any = Recovery.of(found)
    record = (found.state_dict(), [dict(own.kept) for own in told.selections])
    torch.save(record, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("how", ["given", "chosen", "by reconstruction"])
def test_two_processes_with_half_the_batches_each_give_the_weights_of_one(
    how: str, tmp_path: Path
) -> None:
    mp.spawn(work, (str(tmp_path), how), nprocs=PROCESSES)
    expected = recovered(how, *made())
    told: Any = Recovery.of(expected)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(PROCESSES))
    for state, kept in (first, second):
        assert kept == [dict(own.kept) for own in told.selections]
        for name, own in expected.state_dict().items():
            assert torch.allclose(own, state[name], rtol=1e-7, atol=1e-9), name
    assert all(torch.equal(own, second[0][name]) for name, own in first[0].items())
    alone = recovered(how, made()[0], made()[1][::PROCESSES]).state_dict()
    assert not all(torch.allclose(own, alone[name]) for name, own in first[0].items())
