"""A network as data: its text is the program that builds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import upscale
from upscale.capture import Example

SIZE = 8  # pixels of an input; a level halves them, and there are two levels below and one above
ANOTHER_SIZE = 12


Masks = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One ingredient: what it adds to `__init__`, and to `forward`."""

    ingredient: str
    setup: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of `forward`: an image, or with no level a vector."""

    name: str
    channels: int
    level: int | None

    def shape(self, size: int) -> tuple[int, ...]:
        """Its shape without the batch."""
        if self.level is None:
            return (self.channels,)
        return (self.channels, size >> self.level, size >> self.level)


@dataclass(frozen=True, slots=True, repr=False)
class Network:
    """A network, its example and what each layer keeps. Its text is a program.

    `fixed` says that its layers fit one image size only; `kept` are columns of weights, `made`
    rows. A side without masks is `None`.
    """

    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    returns: str
    dtype: str
    batch: int
    by_keyword: bool
    fixed: bool
    kept: Masks | None
    order: str
    made: Masks | None = None
    after: str = "norm"

    @property
    def source(self) -> str:
        """The class, as code."""
        setup = [line for op in self.ops for line in op.setup]
        lines = [line for op in self.ops for line in op.lines]
        arguments = ", ".join(given.name for given in self.inputs)
        return "\n".join(
            (
                "class Net(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {line}" for line in setup),
                "",
                f"    def forward(self, {arguments}):",
                *(f"        {line}" for line in lines),
                f"        return {self.returns}",
            )
        )

    def __repr__(self) -> str:
        tensors = {
            given.name: ", ".join(map(str, (self.batch, *given.shape(SIZE))))
            for given in self.inputs
        }
        inputs = ", ".join(
            f"{name!r}: " * self.by_keyword + f"torch.randn({shape}, dtype=torch.{self.dtype})"
            for name, shape in tensors.items()
        )
        example = f"{{{inputs}}}" if self.by_keyword else f"({inputs},)"
        selections = ", ".join(map(_code, self.selections))
        return "\n".join(
            (
                "",
                self.source,
                "",
                f"model = told_apart(Net()).to(torch.{self.dtype})",
                f"example = {example}",
                f"selections = [{selections}]",
                f"plan = upscale.plan(model, example, selections, order={self.order!r})",
            )
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis prints it: as the program, not field by field."""
        printer.text(repr(self))

    @property
    def selections(self) -> list[upscale.Selection]:
        """What each layer keeps, on each side that has masks."""
        found = []
        if self.kept is not None:
            found.append(upscale.Selection(kept=dict(self.kept)))
        if self.made is not None:
            outputs = upscale.Selection(kept=dict(self.made), side="output", after=self.after)
            found.append(outputs)
        return found

    def example(self, batch: int, size: int, seed: int = 0) -> Any:
        """An input of the network, in the way it wants to be called."""
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, self.dtype)
        tensors = {
            given.name: torch.randn(batch, *given.shape(size), generator=generator).to(dtype)
            for given in self.inputs
        }
        return tensors if self.by_keyword else tuple(tensors.values())


def _code(selection: upscale.Selection) -> str:
    kept = {layer: list(own) for layer, own in selection.kept.items()}
    outputs = f", side='output', after={selection.after!r}" * (selection.side == "output")
    return f"upscale.Selection(kept={kept}{outputs})"


def build(network: Network) -> nn.Module:
    """The module that a network describes, with the same weights every time."""
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "Tensor": Tensor}
    exec(compile(network.source, "<network>", "exec"), namespace)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = told_apart(namespace["Net"]())
    return model.to(getattr(torch, network.dtype))


def told_apart(model: nn.Module) -> nn.Module:
    """Evaluation mode, with normalisations that treat no two channels alike."""
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    for module in model.modules():
        if isinstance(module, kinds):
            for tensor in module.state_dict().values():
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
    return model.eval()


def outputs(model: nn.Module, example: Any) -> list[Tensor]:
    """Every tensor a model returns."""
    given = Example.of(example)
    with torch.no_grad():
        result = model(*given.args, **given.kwargs)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
