"""Prune every torchvision classifier and hold each export against its masked model: `make zoo`.

Each model gets a process of its own, with random weights and channels that all differ. Every
convolution and linear drops 25% of its input channels at random, then 75%; then as much of its
output channels; then 25% of both (with `--empty` a tenth of the layers keep none of their inputs,
once more). Both models are compared in float64 on four images, two where outputs are pruned, and
where possible of another shape than the example of the plan.

A row fails if an export is not exact, if a plan takes more than 60 seconds, if less than 95% of
the weights of a model without attention can be pruned, or if the process fails or takes too long.
It fails too if the comparison shows nothing: if the masked model's output hardly depends on the
image, or if an export in which two channels of a layer were swapped passes for the masked model.

    python -m scripts.zoo                          # all, into docs/zoo.md and docs/zoo.json
    python -m scripts.zoo --models resnet18,swin_t # some, on the screen only
    python -m scripts.zoo --cases inputs           # or outputs, or both
    python -m scripts.zoo --resume                 # go on with what docs/zoo.json has

The page is written anew after every model, so that a run which was stopped can go on.
"""
